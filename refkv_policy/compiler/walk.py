"""A table line by line: every site of the model, with what is done there at each step, its FLOPs, and what it keeps.

Predictions, explanations and guardrails are sums over it. Cells that are decided online are
settled first: `worst` computes each of them, `best` serves as many as the rule's bound allows.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Literal

from refkv_policy import methods
from refkv_policy.compiler.lower import MAY_RUN, Actions, demand, keep_only_read, outer, unasked
from refkv_policy.compiler.placement import placement_of
from refkv_policy.compiler.table import (
    BRANCHES,
    COMPUTE,
    COMPUTE_KEEP,
    COMPUTED,
    ONLINE,
    REUSE,
    SERVED,
    UNREACHED,
    HookTable,
    Row,
    retained,
)
from refkv_policy.methods.method import Probe
from refkv_policy.plan.selectors import Site
from refkv_policy.profiles import Profile
from refkv_policy.profiles.cost import ITEMSIZE, Workload
from refkv_policy.profiles.sites import STEP

Case = Literal["best", "worst"]
"""How `?` cells are settled: all that may be are served, or none is."""


@dataclass(frozen=True, slots=True)
class Line:
    """One site in one branch: its actions at every nominal step, and the FLOPs of its own work in a call."""

    site: Site
    actions: str
    flops: int


def settled(table: HookTable, branch: str, online: Case = "worst") -> Actions:
    """The actions of a branch by site, with every `?` settled and what lies inside a served one not reached."""
    actions = {row.at: row.actions(branch) for row in table.rows}
    if not table.online:
        return actions
    tree, apart = table.tree, table.hints_apart
    demanded = [row.at for row in table.rows if tree[row.at].on_demand]
    stale = [row.at for row in table.rows if row.rule is not None and tree[row.at].on_demand]
    sites = [site for site in tree.order if site in actions and site != STEP and not tree[site].on_demand]
    late = [site for site in sites if not unasked(tree, site)]
    for asked, group in ((False, [site for site in sites if site not in late]), (True, late)):
        if asked:
            actions.update(demand(tree, actions, demanded, stale, table.evaluated))
        for site in group:
            row = table.by_at[site]
            if ONLINE in actions[site]:
                assert row.rule is not None
                actions[site] = _settle(actions[site], table.evaluated, table.rules[row.rule].longest, online)
            actions[site] = _masked(actions[site], actions[outer(tree, actions, site, apart)])
            if row.rule is not None:
                actions[site] = keep_only_read(actions[site], table.history(row))
    return actions


@lru_cache(maxsize=1024)
def _settle(actions: str, evaluated: tuple[int, ...], longest: int | None, online: Case) -> str:
    found, run, kept = list(actions), 0, False
    for step in evaluated:
        if found[step] == ONLINE:
            serves = online == "best" and kept and (longest is None or run < longest)
            found[step] = REUSE if serves else COMPUTE_KEEP
        run = run + 1 if found[step] in SERVED else 0
        kept = kept or found[step] == COMPUTE_KEEP
    return "".join(found)


@lru_cache(maxsize=4096)
def _masked(actions: str, around: str) -> str:
    if not set(around) - COMPUTED:
        return actions
    return "".join(a if o in COMPUTED else UNREACHED for a, o in zip(actions, around, strict=True))


def lines(table: HookTable, profile: Profile, work: Workload, branch: str, online: Case = "worst") -> Iterator[Line]:
    """Every site of the model in one branch, outer before inner. One without a row is computed where it is reached."""
    actions, costs, tree, apart = settled(table, branch, online), profile.costs(work), table.tree, table.hints_apart
    for site in tree.order:
        if site not in actions:
            actions[site] = _reached(actions[outer(tree, actions, site, apart)])
        yield Line(site, actions[site], costs[site].flops if site in costs else 0)


@lru_cache(maxsize=4096)
def _reached(around: str) -> str:
    return "".join(COMPUTE if a in COMPUTED else UNREACHED for a in around)


@dataclass(frozen=True, slots=True)
class Keep:
    """What a row, or the probe of an online rule, holds in one branch.

    size: bytes of one observation. growth: observations more after a step than before. site: in a call, bytes change when it
    is reached, where it is served, and when it is computed, where it may be.
    """

    site: Site
    rule: int
    size: int
    actions: str
    growth: tuple[int, ...]

    def change(self, step: int, computed: bool) -> int:
        """Bytes more at one moment of a step: when the site is reached, or when it is computed."""
        moved = self.growth[step]
        return moved * self.size if moved and (self.actions[step] in MAY_RUN) == computed else 0


def keeps(
    table: HookTable, profile: Profile, work: Workload, dtype: str, branch: str, online: Case = "worst"
) -> Iterator[Keep]:
    """What is held in a branch, in the order in which one call reaches it. Raises KeyError for another dtype.

    A `?` cell that is computed is kept for the next one: in the worst case it is counted so, though none is served.
    """
    actions, itemsize = settled(table, branch, online), ITEMSIZE[dtype]
    for site in table.tree.order:
        row = table.by_at.get(site)
        if row is None or row.rule is None:
            continue
        own = row.actions(branch) if online == "worst" and ONLINE in row.actions(branch) else actions[site]
        if COMPUTE_KEEP in own or ONLINE in own:
            growth = _growth(own, table.evaluated, table.history(row))
            yield Keep(site, row.rule, value_bytes(table, row, profile, work, itemsize), own, growth)
    for rule in online_rules(table):
        yield from probe_keep(table, rule, profile, work, branch)


def online_rules(table: HookTable, branches: Sequence[str] = BRANCHES) -> tuple[int, ...]:
    """The rules that decide some cells in the run, in one of the branches."""
    if not table.online:
        return ()
    rows = [table.governed(n) for n in range(len(table.rules))]
    return tuple(n for n, own in enumerate(rows) if any(ONLINE in r.actions(b) for r in own for b in branches))


def probe_keep(table: HookTable, rule: int, profile: Profile, work: Workload, branch: str) -> Iterator[Keep]:
    """The probe that an online rule compares with: from its first look to the last cell that it decides."""
    row = table.governed(rule)[0]
    first = next(b for b in BRANCHES if ONLINE in row.actions(b))
    actions, probe = row.actions(branch), probe_of(table, rule)
    if ONLINE not in actions or probe is None or (branch != first and not table.rules[rule].apart):
        return
    looks = [step for step in table.evaluated if actions[step] != UNREACHED]
    last = max(step for step in looks if actions[step] == ONLINE)
    if last == looks[0]:
        return
    growth = [0] * table.steps
    growth[looks[0]], growth[last] = 1, -1
    block = Site(row.at.stack, probe.last)
    size = profile.costs(work)[block].elements * ITEMSIZE.get(table.rules[rule].store_dtype, ITEMSIZE["float32"])
    yield Keep(block, rule, size, COMPUTE * table.steps, tuple(growth))


def probe_of(table: HookTable, rule: int) -> Probe | None:
    """What a rule of a table looks at before it decides; None where it does not."""
    return methods.get(table.rules[rule].method).probe(placement_of(table, rule, BRANCHES[0]))


def value_bytes(table: HookTable, row: Row, profile: Profile, work: Workload, itemsize: int) -> int:
    """Bytes of one kept observation of a row, with the probe that is kept beside it. itemsize: of the model's dtype."""
    assert row.rule is not None
    rule, costs = table.rules[row.rule], profile.costs(work)
    # A residual is a difference of two large values, and is kept in float32 unless the store says otherwise.
    wide = ITEMSIZE["float32"]
    native = wide if table.keeps_residual(row) else itemsize
    kept = costs[row.at if row.at.last is None else Site(row.at.stack)].elements
    size = kept * ITEMSIZE.get(rule.store_dtype, native)
    probe = probe_of(table, row.rule) if ONLINE in row.cond + row.uncond and table.tree[row.at].region else None
    if probe is not None and probe.keep:
        size += costs[Site(row.at.stack, probe.last)].elements * ITEMSIZE.get(rule.store_dtype, wide)
    return size


@lru_cache(maxsize=1024)
def _growth(actions: str, evaluated: tuple[int, ...], history: int) -> tuple[int, ...]:
    changes, held = [0] * len(actions), 0
    for step in evaluated:
        action = actions[step]
        if action == UNREACHED:
            continue
        keep = retained(actions, step, history)
        after = min(keep, held + 1) if action in (COMPUTE_KEEP, ONLINE) else min(keep, held)
        changes[step], held = after - held, after
    return tuple(changes)


class Blame:
    """By whose reuse a site is not computed at a step. The one place where that is worked out."""

    def __init__(self, table: HookTable, actions: Mapping[Site, str]) -> None:
        self._table, self._actions = table, actions
        self._apart = table.hints_apart
        self._evaluated = frozenset(table.evaluated)

    def site(self, site: Site, step: int) -> Site:
        """The site whose own reuse it is; `step` where the sampler leaves the step out."""
        tree = self._table.tree
        if step not in self._evaluated:
            return STEP
        while self._actions[site][step] not in SERVED:
            users = tree.users(site)
            site = users[0] if users else outer(tree, self._actions, site, self._apart)
            if site == STEP:
                break
        return site

    def rule(self, site: Site, step: int) -> int | None:
        """The index of the rule whose reuse it is; None where no rule is behind it."""
        row = self._table.by_at.get(self.site(site, step))
        return None if row is None else row.rule
