"""Whether every rule of a table does what it is there for: acts, saves work, forecasts, and not among too few steps."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from functools import lru_cache
from itertools import groupby, pairwise

from refkv_policy.compiler import rules
from refkv_policy.compiler.lower import Lowering, outer
from refkv_policy.compiler.picture import compact, sites_text
from refkv_policy.compiler.place import Placed, Placing
from refkv_policy.compiler.table import COMPUTED, FORECAST, ONLINE, SERVED, UNREACHED
from refkv_policy.methods.method import Grid
from refkv_policy.plan.selectors import Site

FEW_STEPS = 8
"""Largest step count that is taken for a few-step model's: distilled video models are run at 4 to 8."""

ACTS = SERVED | {ONLINE}
"""Actions at which a rule spares work, or may."""

_REUSES, _LEAVES_OUT = "reuses anything", "leaves out a step"

Cells = Sequence[tuple[Site, str, str]]
"""Site, branch and actions."""


def check_effects(placing: Placing, placed: Sequence[Placed], lowering: Lowering, grid: Grid) -> None:
    """Reports what is wrong with the effect of each placed rule."""
    _hints_apart(placing, placed)
    for entry in placed:
        if entry.method.schedules and len(grid.evaluated) == grid.steps:
            placing.report(rules.NEVER_REUSES, (*entry.rule.path, "refresh"), name=entry.rule.name, never=_LEAVES_OUT)
            continue
        _few_steps(placing, entry, grid)
        if entry.method.schedules:
            continue
        branches = [b for b in entry.branches if any(b in placing.tree[s].branches for s in entry.sites)]
        cells = [(site, branch, lowering.actions[branch][site]) for site in entry.sites for branch in branches]
        acting = [cell for cell in cells if not ACTS.isdisjoint(cell[2])]
        hidden = _hidden(placing, entry, branches, lowering, grid, everything=not acting)
        if acting:
            _interval(placing, entry, acting, grid)
            _forecasts(placing, entry, acting, grid)
            _saves(placing, entry, acting, lowering)
        elif not hidden:
            refresh = (*entry.rule.path, "refresh") if entry.rule.refresh else (*entry.rule.path, "method")
            every = entry.rule.refresh is not None and entry.rule.refresh.interval == 1
            kind = rules.INTERVAL_ONE if every else rules.NEVER_REUSES
            placing.report(kind, refresh, name=entry.rule.name, never=_REUSES)


def _hints_apart(placing: Placing, placed: Sequence[Placed]) -> None:
    """A hint inside a residual that is kept without hints must not be inside another that is kept with them."""
    for entry in placed:
        if not entry.method.hints_apart(entry.rule.params):
            continue
        inside = [
            (site, inner)
            for inner, rule in placing.claimed.items()
            for site in entry.sites
            if rule != entry.rule and placing.tree[inner].region and placing.tree.encloses(site, inner)
        ]
        if inside:
            site, inner = inside[0]
            path = (*entry.rule.path, "params", "hints")
            other = placing.claimed[inner].name
            placing.report(rules.HINTS_APART_AROUND, path, name=entry.rule.name, site=site, inner=inner, other=other)


def _few_steps(placing: Placing, entry: Placed, grid: Grid) -> None:
    """Nothing is like the step before when there are only a few: told of every rule that carries a risk.

    A step count alone does not prove a model distilled (fewer steps are run to measure, too), so that skipping is refused
    where the profile says so, and warned of otherwise.
    """
    few_step = placing.profile.few_step
    if not entry.method.risks(entry.rule.params) or not (few_step or grid.steps <= FEW_STEPS):
        return
    skips = entry.method.tier == "S"
    drop = max((a - b for a, b in pairwise(grid.sigmas)), default=grid.sigmas[0])
    kind, does = rules.FEW_STEPS, "skips steps" if skips else "reuses values across steps"
    if skips and few_step:
        kind = rules.FEW_STEP_MODEL
    placing.report(kind, (*entry.rule.path, "method"), name=entry.rule.name, drop=drop, does=does)


def _hidden(
    placing: Placing, entry: Placed, branches: Sequence[str], lowering: Lowering, grid: Grid, *, everything: bool
) -> bool:
    """Whether outer reuse leaves some of the rule's sites, or all of them, without a step at which to act."""
    found: list[Site] = []
    for site in entry.sites:
        if not all(ACTS.isdisjoint(lowering.actions[branch][site]) for branch in branches):
            continue
        if all(any(lowering.actions[b][site][step] == UNREACHED for step in grid.evaluated) for b in branches):
            found.append(site)
    if not found or (everything and len(found) < len(entry.sites)):
        return False
    first, actions = found[0], lowering.actions[branches[0]]
    runs = tuple(s for s in grid.evaluated if actions[first][s] != UNREACHED)
    around, owner = _hider(placing, actions, first)
    steps = "steps" if len(runs) > 1 else "step"
    at = f"at {steps} {compact(runs)} only" if runs else "at no step"
    rule = placing.claimed[owner].name if owner in placing.claimed else "another rule"
    because = f"{around} runs {at}, since rule {rule!r} reuses {owner} at the others"
    kind = rules.HIDDEN_RULE if everything else rules.HIDDEN_SITES
    path = placing.selector_of(entry.rule, first)
    placing.report(kind, path, name=entry.rule.name, sites=sites_text(found), because=because, outer=owner)
    return True


def _hider(placing: Placing, actions: dict[Site, str], site: Site) -> tuple[Site, Site]:
    """What a site lies inside, and the site whose reuse keeps that from being reached."""
    around = outer(placing.tree, actions, site)
    owner = around
    while owner not in placing.claimed and owner in actions:
        users = placing.tree.users(owner)
        if not users and placing.tree[owner].inside is None:
            break
        owner = users[0] if users else outer(placing.tree, actions, owner)
    return around, owner


def _interval(placing: Placing, entry: Placed, served: Cells, grid: Grid) -> None:
    """An interval that ends after the run, or the window, says less than it seems to: it never makes a refresh."""
    interval = None if entry.rule.refresh is None else entry.rule.refresh.interval
    if interval is None:
        return
    rows = {actions for *_, actions in served}
    oldest = max(_longest(actions[step] in ACTS for step in grid.evaluated) for actions in rows)
    if interval > oldest + 1:
        path = (*entry.rule.path, "refresh", "interval")
        placing.report(rules.INTERVAL_BEYOND, path, name=entry.rule.name, interval=interval, oldest=oldest)


def _longest(flags: Iterable[bool]) -> int:
    return max((len(list(run)) for flag, run in groupby(flags) if flag), default=0)


def _forecasts(placing: Placing, entry: Placed, acting: Cells, grid: Grid) -> None:
    wanted = {FORECAST, ONLINE}
    if not entry.method.forecasts or any(wanted & set(actions) for *_, actions in acting):
        return
    few = len([s for s in grid.evaluated if s in entry.fresh]) < 2
    because = (
        "fewer than two steps are fresh"
        if few
        else "no step between refreshes has two fresh values and a ratio within the cap"
    )
    refresh = (*entry.rule.path, "refresh") if entry.rule.refresh else (*entry.rule.path, "method")
    placing.report(rules.NO_FORECAST, refresh, name=entry.rule.name, because=because)


def _saves(placing: Placing, entry: Placed, acting: Cells, lowering: Lowering) -> None:
    """What costs nothing itself (a hint) is served for what it is computed from; a kept state, for what goes on from it."""
    rule, tree = entry.rule, placing.tree
    free = [(site, branch, actions) for site, branch, actions in acting if tree[site].needs]
    if not free:
        return
    idle = [(s, b, spent(actions, lowering.actions[b][tree[s].needs[0]])) for s, b, actions in free]
    if any(steps for *_, steps in idle):
        site, branch, (step, *_) = next(cells for cells in idle if cells[2])
        deeper = _deeper(placing, lowering, site, branch, step)
        cells = sum(action in ACTS for *_, actions in free for action in actions)
        if sum(len(steps) for *_, steps in idle) == cells:
            because = f"{tree[site].needs[0]} runs anyway at step {step} for {deeper}, which is computed there"
            placing.report(rules.SAVES_NOTHING, (*rule.path, "at"), name=rule.name, site=site, because=because)
        else:
            placing.report(rules.WASTED_REUSE, (*rule.path, "refresh"), site=site, step=step, deeper=deeper)
    if entry.method.keeps_sources(rule.params) and not any(
        "R" in lowering.actions[branch][source]
        for branch in entry.branches
        for s in entry.sites
        for source in tree[s].needs
    ):
        placing.report(rules.STALE_UNUSED, (*rule.path, "params", "chain"), name=rule.name)


@lru_cache(maxsize=1024)
def spent(hint: str, source: str) -> tuple[int, ...]:
    """The steps at which a site is served though what it is computed from runs, from the actions of both."""
    return tuple(step for step, (a, b) in enumerate(zip(hint, source, strict=True)) if a in SERVED and b in COMPUTED)


def _deeper(placing: Placing, lowering: Lowering, site: Site, branch: str, step: int) -> Site:
    """The nearest site that is computed at a step from what a site is computed from."""
    tree, actions = placing.tree, lowering.actions[branch]
    below = list(tree[site].needs)
    for source in below:
        for user in tree.needed_by[source]:
            if tree[user].on_demand:
                below.append(user)
            elif user != site and actions[user][step] in COMPUTED:
                return user
    raise AssertionError(f"nothing needs {below[0]} at step {step}")
