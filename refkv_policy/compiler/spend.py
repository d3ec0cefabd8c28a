"""Where a step's FLOPs go, what a table spares of them and by which rule, and the most that a tier could spare.

FLOPs stand in for time: on a machine that is bound by arithmetic the shares agree.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from refkv_policy.compiler.table import COMPUTED, HookTable
from refkv_policy.compiler.walk import Blame, Case, lines
from refkv_policy.profiles import Profile, cost
from refkv_policy.profiles.cost import Workload


@dataclass(frozen=True, slots=True)
class Component:
    """FLOPs of one component. uncached: of one uncached forward. planned, total: of all forwards, with and without the plan."""

    name: str
    uncached: int
    planned: int
    total: int


@dataclass(frozen=True, slots=True)
class Spend:
    """Exact FLOPs of one request; of the best or the worst case where cells are decided online.

    forward: one uncached forward. steps: of all branches, by nominal step, 0 where the sampler leaves it out. spared: by
    rule name. branches: those that run.
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
        """A component's share of an uncached forward, 0 to 1; 0 for one that the model does not have."""
        return {c.name: c.uncached for c in self.components}.get(name, 0) / self.forward

    def step_shares(self) -> tuple[float, ...]:
        """Each nominal step's FLOPs as a share of an uncached step's, all branches together."""
        return tuple(flops / (self.forward * len(self.branches)) for flops in self.steps)


@dataclass(frozen=True, slots=True)
class Ceiling:
    """The most that caching of a tier could spare, as a share of the uncached FLOPs, and what the plan's rules of it spare.

    most: None where the tier's only bound is quality: with whole steps left out nothing is computed at all.
    """

    tier: str
    most: float | None
    spared: float

    @property
    def speedup(self) -> float | None:
        """Uncached over what is left at the ceiling."""
        return None if self.most is None else 1 / (1 - self.most)


def spend(
    table: HookTable, profile: Profile, work: Workload, branches: tuple[str, ...], online: Case = "worst"
) -> Spend:
    """The FLOPs of a table at a workload on the branches that run. online: the case of cells that are decided in the run."""
    uncached = cost.by_component(profile, work)
    planned = dict.fromkeys(uncached, 0)
    steps = [0] * table.steps
    spared = {rule.name: 0 for rule in table.rules}
    for branch in branches:
        found = tuple(lines(table, profile, work, branch, online))
        blame = Blame(table, {line.site: line.actions for line in found})
        for line in found:
            if not line.flops:
                continue
            for step, action in enumerate(line.actions):
                if action in COMPUTED:
                    planned[table.tree[line.site].component] += line.flops
                    steps[step] += line.flops
                elif (rule := blame.rule(line.site, step)) is not None:
                    spared[table.rules[rule].name] += line.flops
    calls = table.steps * len(branches)
    return Spend(
        components=tuple(Component(n, flops, planned[n], calls * flops) for n, flops in uncached.items()),
        forward=cost.forward(profile, work),
        steps=tuple(steps),
        spared=spared,
        branches=branches,
    )


def ceilings(table: HookTable, found: Spend, profile: Profile, work: Workload) -> tuple[Ceiling, ...]:
    """The bounds of P0 (the text's K/V for nothing), P1 (the whole VACE chain for nothing) and S, beside what the plan spares.

    A model without hints has no P1.
    """
    most = {"P0": found.share("text_kv"), "P1": cost.hint_share(profile, work), "S": None}
    if not most["P1"]:
        del most["P1"]
    spared = {tier: sum(found.spared[rule.name] for rule in table.rules if rule.tier == tier) for tier in most}
    return tuple(Ceiling(tier, bound, spared[tier] / found.total) for tier, bound in most.items())
