"""Where a step's FLOPs go, what a table spares of them and by which rule, and the most that a tier could spare.

Everything is counted from the table's cells with the cost formulas of `profiles.cost`. FLOPs stand in for time: on a machine that
is bound by arithmetic the shares agree.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import NamedTuple

from refkv_policy.compiler.table import COMPUTED, REUSE, HookTable, Row
from refkv_policy.profiles import Profile, cost
from refkv_policy.profiles.cost import Workload

COMPONENTS = ("main", "hints", "text_kv", "frame")
"""The main blocks, the VACE chain that makes the hints, the text's K/V projections of both, and what lies outside the blocks."""


class Cell(NamedTuple):
    """FLOPs of one component that a call computes (`spared` False) or spares, by `rule` (an index of the table's)."""

    component: str
    step: int
    branch: str
    flops: int
    spared: bool
    rule: int | None


@dataclass(frozen=True, slots=True)
class Component:
    """FLOPs of one component. uncached: of one uncached forward. planned, total: of all forwards, with and without the plan."""

    name: str
    uncached: int
    planned: int
    total: int


@dataclass(frozen=True, slots=True)
class Spend:
    """Exact FLOPs of one request.

    components: in the order of COMPONENTS. forward: one uncached forward. steps: of all branches, by nominal step, 0 where
    the sampler leaves it out. spared: by rule name. branches: those that run.
    """

    components: tuple[Component, ...]
    forward: int
    steps: tuple[int, ...]
    spared: Mapping[str, int]
    branches: tuple[str, ...]

    @property
    def total(self) -> int:
        """Of all forwards without the plan."""
        return self.forward * len(self.branches) * len(self.steps)

    @property
    def planned(self) -> int:
        """Of all forwards with the plan."""
        return sum(self.steps)

    def share(self, name: str) -> float:
        """A component's share of an uncached forward, 0 to 1. Raises KeyError for a component that does not exist."""
        return {c.name: c.uncached for c in self.components}[name] / self.forward

    def step_shares(self) -> tuple[float, ...]:
        """Each nominal step's FLOPs as a share of an uncached step's, all branches together."""
        return tuple(flops / (self.forward * len(self.branches)) for flops in self.steps)


@dataclass(frozen=True, slots=True)
class Ceiling:
    """The most that caching of a tier could spare, as a share of the uncached FLOPs, and what the plan's rules of it spare.

    most: None where the tier's only bound is quality: with total steps left out nothing is computed at all.
    """

    tier: str
    most: float | None
    spared: float

    @property
    def speedup(self) -> float | None:
        """Uncached over what is left at the ceiling."""
        return None if self.most is None else 1 / (1 - self.most)


def spend(table: HookTable, profile: Profile, work: Workload, branches: tuple[str, ...]) -> Spend:
    """The FLOPs of a table at a workload on the branches that run."""
    per_forward = _per_forward(profile, work)
    planned = dict.fromkeys(COMPONENTS, 0)
    steps = [0] * table.steps
    spared = {rule.name: 0 for rule in table.rules}
    for cell in cells(table, profile, work, branches):
        if not cell.spared:
            planned[cell.component] += cell.flops
            steps[cell.step] += cell.flops
        elif cell.rule is not None:
            spared[table.rules[cell.rule].name] += cell.flops
    calls = table.steps * len(branches)
    return Spend(
        components=tuple(Component(n, per_forward[n], planned[n], calls * per_forward[n]) for n in COMPONENTS),
        forward=cost.forward(profile, work),
        steps=tuple(steps),
        spared=spared,
        branches=branches,
    )


def ceilings(table: HookTable, found: Spend, profile: Profile, work: Workload) -> tuple[Ceiling, ...]:
    """The bounds of P0 (the text's K/V for nothing), P1 (the total VACE chain for nothing) and S, beside what the plan spares."""
    by_tier = {
        tier: sum(found.spared[rule.name] for rule in table.rules if rule.tier == tier) / found.total
        for tier in ("P0", "P1", "S")
    }
    most = {"P0": found.share("text_kv"), "P1": cost.hint_share(profile, work), "S": None}
    return tuple(Ceiling(tier, most[tier], share) for tier, share in by_tier.items())


def cells(table: HookTable, profile: Profile, work: Workload, branches: tuple[str, ...]) -> Iterator[Cell]:
    """Every FLOP of every call of every nominal step, once: computed, or spared by a rule."""
    kv, outside = cost.text_kv(profile, work), cost.frame(profile, work)
    rows, visited = table.by_site, set(table.evaluated)
    schedule = rows["step"].rule
    for branch in branches:
        for step in range(table.steps):
            left_out = step not in visited
            yield Cell("frame", step, branch, outside, left_out, schedule if left_out else None)
            for row in table.rows:
                if row.part is not None or row.stack not in ("main", "vace"):
                    continue
                spared = left_out or row.actions(branch)[step] not in COMPUTED
                rule = schedule if left_out else _sparer(table, row)
                component = "main" if row.stack == "main" else "hints"
                yield Cell(component, step, branch, _block(profile, work, row) - kv, spared, rule)
                text = rows.get(f"{row.site}.text_kv")
                if not spared and text is not None and text.actions(branch)[step] == REUSE:
                    spared, rule = True, text.rule
                yield Cell("text_kv", step, branch, kv, spared, rule)


def _block(profile: Profile, work: Workload, row: Row) -> int:
    if row.stack == "main":
        return cost.main_block(profile, work)
    return cost.vace_block(profile, work, row.index or 0)


def _sparer(table: HookTable, row: Row) -> int | None:
    """The rule by which a block is spared: its own, or of a VACE block the one that serves its hint."""
    return row.rule if row.stack == "main" else table.by_site[f"hint[{row.index}]"].rule


def _per_forward(profile: Profile, work: Workload) -> dict[str, int]:
    """FLOPs of one uncached forward by component; they add up to `cost.forward`."""
    kv, chain = cost.text_kv(profile, work), range(len(profile.vace_at))
    return {
        "main": profile.main_blocks * (cost.main_block(profile, work) - kv),
        "hints": sum(cost.vace_block(profile, work, j) - kv for j in chain),
        "text_kv": (profile.main_blocks + len(chain)) * kv,
        "frame": cost.frame(profile, work),
    }
