"""The one walk over a table: every site of the model, in every call, with what is done there, its FLOPs and its bytes.

Predictions, explanations, guardrails and the tests' reference interpreter are sums over it. Cells that are decided online are
settled first: `worst` computes each of them, `best` serves as many as the rule's bound allows.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import lru_cache
from typing import Literal

from refkv_policy.compiler.lower import Actions, demand, keep_only_read, outer
from refkv_policy.compiler.table import (
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
from refkv_policy.plan.selectors import Site
from refkv_policy.profiles import Profile
from refkv_policy.profiles.cost import ITEMSIZE, Workload
from refkv_policy.profiles.sites import STEP

Case = Literal["best", "worst"]
"""How `?` cells are settled: all that may be are served, or none is."""


@dataclass(frozen=True, slots=True)
class Event:
    """One site in one call. flops: of its own work, if it is computed there. spared_by: the rule's index, where it is not.

    held: bytes that are kept in all, after this event.
    """

    site: Site
    step: int
    branch: str
    action: str
    flops: int
    spared_by: int | None
    held: int


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
    tree, apart = table.tree, hints_apart(table)
    demanded = [row.at for row in table.rows if tree[row.at].on_demand]
    stale = [row.at for row in table.rows if row.rule is not None and tree[row.at].on_demand]
    for site in tree.order:
        if site not in actions or site == STEP or tree[site].on_demand:
            continue
        around = actions[outer(tree, actions, site, apart)]
        row = table.by_at[site]
        if ONLINE in actions[site]:
            assert row.rule is not None
            actions[site] = _settle(actions[site], table.evaluated, table.rules[row.rule].longest, online)
        actions[site] = _masked(actions[site], around)
        if row.rule is not None:
            actions[site] = keep_only_read(actions[site], table.history(row))
    actions.update(demand(tree, actions, demanded, stale, table.evaluated))
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


def hints_apart(table: HookTable) -> frozenset[Site]:
    """The sites whose kept residual leaves out the hints added inside it."""
    return frozenset(r.at for r in table.rows if r.rule is not None and table.rules[r.rule].hints_apart)


def lines(table: HookTable, profile: Profile, work: Workload, branch: str, online: Case = "worst") -> Iterator[Line]:
    """Every site of the model in one branch, outer before inner. One without a row is computed where it is reached."""
    actions, costs, tree, apart = settled(table, branch, online), profile.costs(work), table.tree, hints_apart(table)
    for site in tree.order:
        if site not in actions:
            actions[site] = _reached(actions[outer(tree, actions, site, apart)])
        yield Line(site, actions[site], costs[site].flops if site in costs else 0)


@lru_cache(maxsize=4096)
def _reached(around: str) -> str:
    return "".join(COMPUTE if a in COMPUTED else UNREACHED for a in around)


def walk(
    table: HookTable,
    profile: Profile,
    work: Workload,
    dtype: str,
    branches: tuple[str, ...],
    online: Case = "worst",
) -> Iterator[Event]:
    """Every site in every call of every nominal step, in the order of the run: each twice where something is kept there.

    The FLOPs of a site stand in its first event of a call. dtype: the model's.
    """
    found = {branch: {line.site: line for line in lines(table, profile, work, branch, online)} for branch in branches}
    kept = {branch: {k.site: k for k in keeps(table, profile, work, dtype, branch, online)} for branch in branches}
    blames = {branch: Blame(table, {s: line.actions for s, line in found[branch].items()}) for branch in branches}
    held = 0
    for step in range(table.steps):
        for branch in branches:
            for site, computed in table.tree.moments:
                line, keep = found[branch][site], kept[branch].get(site)
                action = line.actions[step]
                change = 0
                if keep is not None and (action in COMPUTED) == computed:
                    change = keep.growth[step] * keep.size
                held += change
                if not computed:
                    spared = None if action in COMPUTED else blames[branch].rule(site, step)
                    yield Event(site, step, branch, action, line.flops, spared, held)
                elif change:
                    yield Event(site, step, branch, action, 0, None, held)


@dataclass(frozen=True, slots=True)
class Keep:
    """What one row holds in one branch. size: bytes of one observation. growth: observations more after a step than before."""

    site: Site
    rule: int
    size: int
    actions: str
    growth: tuple[int, ...]


def keeps(
    table: HookTable, profile: Profile, work: Workload, dtype: str, branch: str, online: Case = "worst"
) -> Iterator[Keep]:
    """What the rows of a branch hold, in the order in which one call reaches them. Raises KeyError for another dtype."""
    actions, itemsize = settled(table, branch, online), ITEMSIZE[dtype]
    for site in table.tree.order:
        row = table.by_at.get(site)
        if row is None or row.rule is None or COMPUTE_KEEP not in actions[site]:
            continue
        growth = _growth(actions[site], table.evaluated, table.history(row))
        yield Keep(site, row.rule, value_bytes(table, row, profile, work, itemsize), actions[site], growth)


def value_bytes(table: HookTable, row: Row, profile: Profile, work: Workload, itemsize: int) -> int:
    """Bytes of one kept observation of a row, with the probe that is kept beside it. itemsize: of the model's dtype."""
    assert row.rule is not None
    rule = table.rules[row.rule]
    # A residual is a difference of two large values, and is kept in float32 unless the store says otherwise.
    native = ITEMSIZE["float32"] if table.keeps_residual(row) else itemsize
    elements = profile.costs(work)[row.at if row.at.last is None else Site(row.at.stack)].elements
    return elements * ITEMSIZE.get(rule.store_dtype, native)


@lru_cache(maxsize=1024)
def _growth(actions: str, evaluated: tuple[int, ...], history: int) -> tuple[int, ...]:
    changes, held = [0] * len(actions), 0
    for step in evaluated:
        action = actions[step]
        if action == UNREACHED:
            continue
        keep = retained(actions, step, history)
        after = min(keep, held + 1) if action == COMPUTE_KEEP else min(keep, held)
        changes[step], held = after - held, after
    return tuple(changes)


class Blame:
    """By whose reuse a site is not computed at a step. The one place where that is worked out."""

    def __init__(self, table: HookTable, actions: Mapping[Site, str]) -> None:
        self._table, self._actions = table, actions
        self._apart = hints_apart(table)
        self._evaluated = frozenset(table.evaluated)

    def site(self, site: Site, step: int) -> Site:
        """The site whose own reuse it is; `step` where the sampler leaves the step out."""
        tree = self._table.tree
        if step not in self._evaluated:
            return STEP
        while self._actions[site][step] not in SERVED:
            users = [u for u in tree.needed_by.get(site, ()) if not tree[u].on_demand]
            site = users[0] if users else outer(tree, self._actions, site, self._apart)
            if site == STEP:
                break
        return site

    def rule(self, site: Site, step: int) -> int | None:
        """The index of the rule whose reuse it is; None where no rule is behind it."""
        row = self._table.by_at.get(self.site(site, step))
        return None if row is None else row.rule
