"""One pass, outer to inner: at which steps each site is reached, what its rule does there, and what of it is kept.

A site is reached at the steps at which what it lies inside may be computed. A site that is computed on demand (a block of a
chain) runs where something that is computed needs it: a fresh hint k needs every block up to k, unless a rule kept the state
of a shallower one to go on from.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache

from refkv_policy.compiler.place import Placed
from refkv_policy.compiler.table import (
    BRANCHES,
    COMPUTE,
    COMPUTE_KEEP,
    COMPUTED,
    ONLINE,
    REUSE,
    UNREACHED,
    Row,
    retained,
)
from refkv_policy.methods.method import Grid, Lowered, Placement
from refkv_policy.plan.selectors import Site
from refkv_policy.profiles.sites import CFG, STEP, Tree

Actions = dict[Site, str]
"""The actions of the sites of one branch."""

MAY_RUN = COMPUTED | {ONLINE}
"""Actions at which what lies inside may be reached."""


@dataclass(frozen=True, slots=True)
class Lowering:
    """What rules come to on a model: actions by branch and site, and by rule the observations and runs it needs.

    rows: all of them, in the table's order, `step` first.
    """

    rows: tuple[Row, ...]
    history: Mapping[int, int]
    longest: Mapping[int, int | None]
    actions: Mapping[str, Actions]


def lower(tree: Tree, placed: Sequence[Placed], grid: Grid, step_row: str) -> Lowering:
    """The rows of a table. placed: its rules, in their order, the step schedule's among them.

    Raises MethodError (with the rule's index as `rule`) where a method cannot honour its rule at a site.
    """
    passes = {branch: _Pass(tree, placed, grid, step_row, branch) for branch in BRANCHES}
    history, longest = dict[int, int](), dict[int, int | None]()
    for each in passes.values():
        for site, lowered in each.lowered.items():
            rule = each.owner[site]
            history[rule] = max(history.get(rule, 0), lowered.history)
            longest[rule] = lowered.longest
    for each in passes.values():
        # What no later cell reads is not kept: known once a rule's longest history is.
        for site in each.lowered:
            each.actions[site] = keep_only_read(each.actions[site], history[each.owner[site]])
    actions = {branch: each.actions for branch, each in passes.items()}
    return Lowering(tuple(_rows(tree, actions, passes[BRANCHES[0]].owner)), history, longest, actions)


class _Pass:
    """One branch, outer to inner. actions: of every site so far. lowered: what rules came to, by site."""

    def __init__(self, tree: Tree, placed: Sequence[Placed], grid: Grid, step_row: str, branch: str) -> None:
        self.tree, self.placed, self.grid, self.branch = tree, placed, grid, branch
        self.owner = {site: n for n, entry in enumerate(placed) for site in entry.sites}
        self.actions: Actions = {STEP: step_row}
        self.lowered: dict[Site, Lowered] = {}
        self._done: dict[tuple[int, Site | None, tuple[int, ...]], Lowered] = {}
        self._apart = frozenset(s for e in placed for s in e.sites if e.method.hints_apart(e.rule.params))
        sites = [s for s in tree.order if s != STEP and (s == CFG or s.part is None or s in self.owner)]
        demanded = [s for s in sites if tree[s].on_demand]
        late = [s for s in sites if s not in demanded and not unasked(tree, s)]
        for site in sites:
            if unasked(tree, site):
                self._reach(site)
        stale = [
            source
            for entry in placed
            if branch in entry.branches and entry.method.keeps_sources(entry.rule.params)
            for site in entry.sites
            for source in tree[site].needs
        ]
        self.actions.update(demand(tree, self.actions, demanded, stale, grid.evaluated))
        for site in late:
            self._reach(site)

    def _reach(self, site: Site) -> None:
        """The actions of a site, from those of what it lies inside."""
        reached = _reached(self.actions[outer(self.tree, self.actions, site, self._apart)], self.grid.evaluated)
        rule = self.owner.get(site)
        acts = (
            rule is not None and self.branch in self.placed[rule].branches and self.branch in self.tree[site].branches
        )
        if rule is None or not acts or not reached:
            self.actions[site] = _dots(self.grid.steps, reached)
            return
        self.lowered[site] = self._lower(rule, site, reached)
        self.actions[site] = self.lowered[site].actions

    def _lower(self, rule: int, site: Site, reached: tuple[int, ...]) -> Lowered:
        """A rule at a site: once for all that are reached at the same steps, unless its method tells them apart."""
        entry = self.placed[rule]
        key = rule, site if entry.method.by_site else None, reached
        if key not in self._done:
            # Before its first step there is nothing to serve from, whatever the refresh says.
            fresh = (entry.fresh & frozenset(reached)) | {reached[0]}
            grid = Grid(self.grid.steps, reached, self.grid.sigmas)
            self._done[key] = entry.method.lower(Placement(entry.rule.params, site, self.branch, grid, fresh))
        return self._done[key]


def unasked(tree: Tree, site: Site) -> bool:
    """Whether a site is reached by itself: neither computed on demand nor inside what is."""
    return not any(tree[each].on_demand for each in (site, *tree.around[site]))


def outer(tree: Tree, actions: Mapping[Site, object], site: Site, apart: frozenset[Site] = frozenset()) -> Site:
    """The innermost site with actions of its own that a site lies inside, for its being reached.

    What is added inside a residual that is kept apart from it is reached wherever that residual's site is.
    """
    around = tree.around[site]
    if tree[site].added:
        n = next((n for n in range(len(around) - 1, -1, -1) if around[n] in apart), -1)
        around = around[n + 1 :]
    return next(each for each in around if each in actions)


def demand(
    tree: Tree,
    actions: Mapping[Site, str],
    demanded: Sequence[Site],
    stale: Iterable[Site],
    evaluated: Sequence[int],
) -> Actions:
    """Actions of the sites that are computed on demand. stale: those whose state is kept, to go on from."""
    asking = tuple(tuple(actions[u] for u in tree.users(s)) for s in demanded)
    rows = _demand(tree, tuple(demanded), asking, frozenset(stale), tuple(evaluated))
    return dict(zip(demanded, rows, strict=True))


@lru_cache(maxsize=256)
def _demand(
    tree: Tree,
    demanded: tuple[Site, ...],
    asking: tuple[tuple[str, ...], ...],
    kept: frozenset[Site],
    evaluated: tuple[int, ...],
) -> tuple[str, ...]:
    """asking: the actions of the sites that each is computed for, without those that are on demand themselves."""
    rows: dict[Site, list[str]] = {}
    for site, direct in zip(reversed(demanded), reversed(asking), strict=True):
        row = rows[site] = [UNREACHED] * len(direct[0])
        chained = [rows[u] for u in tree.goes_on(site)]
        for step in evaluated:
            if any(a[step] in MAY_RUN for a in direct):
                row[step] = COMPUTE_KEEP if site in kept else COMPUTE
            elif any(r[step] in MAY_RUN for r in chained):
                row[step] = REUSE if site in kept else COMPUTE
    return tuple(keep_only_read("".join(rows[site]), 1) for site in demanded)


@lru_cache(maxsize=4096)
def keep_only_read(actions: str, history: int) -> str:
    """`actions` with every `C` that no later cell reads turned into `.`."""
    if COMPUTE_KEEP not in actions:
        return actions
    return "".join(
        COMPUTE if a == COMPUTE_KEEP and not retained(actions, step, history) else a for step, a in enumerate(actions)
    )


@lru_cache(maxsize=4096)
def _reached(outer: str, evaluated: tuple[int, ...]) -> tuple[int, ...]:
    return tuple(s for s in evaluated if outer[s] in MAY_RUN)


@lru_cache(maxsize=4096)
def _dots(steps: int, reached: tuple[int, ...]) -> str:
    visited = set(reached)
    return "".join(COMPUTE if s in visited else UNREACHED for s in range(steps))


_row = lru_cache(maxsize=8192)(Row)
"""Plans have most of their rows in common, and a row is never changed."""


def _rows(tree: Tree, actions: Mapping[str, Actions], owner: Mapping[Site, int]) -> Iterable[Row]:
    """Rows in the table's order; `cfg` and whole stacks have one only where a rule names them."""
    cond, uncond = (actions[b] for b in BRANCHES)
    for site in _ordered(tuple(cond)):
        if (site == CFG or site.is_span) and site not in owner:
            continue
        rule = owner.get(site)
        if tree[site].on_demand and {COMPUTE_KEEP, REUSE} & set(cond[site] + uncond[site]):
            rule = owner.get(tree.users(site)[0])
        yield _row(site, cond[site], uncond[site], rule)


@lru_cache(maxsize=256)
def _ordered(sites: tuple[Site, ...]) -> tuple[Site, ...]:
    """By stack, spans first; each block is followed by its parts."""

    def key(site: Site) -> tuple[tuple[int, bool], int, int, str]:
        return site.order[:2], -1 if site.index is None else site.index, site.last or 0, site.part or ""

    return tuple(sorted(sites, key=key))
