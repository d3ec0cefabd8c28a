"""Whether every rule of a table does what it is there for: acts, saves a block, forecasts, and not among too few steps."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from itertools import groupby, pairwise

from refkv_policy.compiler import rules
from refkv_policy.compiler.chain import Chain, spent
from refkv_policy.compiler.picture import compact, sites_text
from refkv_policy.compiler.place import Placed, Placing
from refkv_policy.compiler.table import COMPUTED, FORECAST, SERVED
from refkv_policy.methods.method import Grid
from refkv_policy.plan.selectors import Site

FEW_STEPS = 8
"""Largest step count that is taken for a few-step model's: distilled video models are run at 4 to 8."""

_REUSES, _LEAVES_OUT = "reuses anything", "leaves out a step"

Rows = Mapping[Site, Mapping[str, str]]
"""Actions by site and branch, of the sites that rules name."""


def check_effects(
    placing: Placing, placed: Sequence[Placed], rows: Rows, chains: Mapping[str, Chain], grid: Grid
) -> None:
    """Reports what is wrong with the effect of each placed rule. rows: of hints and parts. chains: by branch."""
    for entry in placed:
        if entry.method.schedules and len(grid.evaluated) == grid.steps:
            placing.report(rules.NEVER_REUSES, (*entry.rule.path, "refresh"), name=entry.rule.name, never=_LEAVES_OUT)
            continue
        _few_steps(placing, entry, grid)
        if entry.method.schedules:
            continue
        rows_of = [(site, branch, rows[site][branch]) for site in entry.sites for branch in entry.branches]
        served = [row for row in rows_of if not SERVED.isdisjoint(row[2])]
        hidden = _hidden(placing, entry, rows, chains, grid, whole=not served)
        if served:
            _interval(placing, entry, served, grid)
            _forecasts(placing, entry, served, grid)
            _saves(placing, entry, served, rows, chains)
        elif not hidden:
            refresh = (*entry.rule.path, "refresh") if entry.rule.refresh else (*entry.rule.path, "method")
            every = entry.rule.refresh is not None and entry.rule.refresh.interval == 1
            kind = rules.INTERVAL_ONE if every else rules.NEVER_REUSES
            placing.report(kind, refresh, name=entry.rule.name, never=_REUSES)


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
    placing: Placing, entry: Placed, rows: Rows, chains: Mapping[str, Chain], grid: Grid, *, whole: bool
) -> bool:
    """Whether outer reuse leaves some of the rule's sites, or all of them, without a step at which to act."""
    found: list[Site] = []
    for site in entry.sites:
        unserved = all(SERVED.isdisjoint(rows[site][branch]) for branch in entry.branches)
        if unserved and site.stack == "vace" and site.part is not None:
            outer = [chains[branch].vace[site.index or 0] for branch in entry.branches]
            if all(any(actions[step] not in COMPUTED for step in grid.evaluated) for actions in outer):
                found.append(site)
    if not found or (whole and len(found) < len(entry.sites)):
        return False
    first = found[0]
    branch = entry.branches[0]
    runs = tuple(s for s in grid.evaluated if chains[branch].vace[first.index or 0][s] in COMPUTED)
    hint = Site("hint", first.index)
    owner = placing.claimed[hint].name if hint in placing.claimed else "another rule"
    at = (
        f"at step {compact(runs)} only"
        if len(runs) == 1
        else f"at steps {compact(runs)} only"
        if runs
        else "at no step"
    )
    because = f"{first.stack}[{first.index}] runs {at}, since rule {owner!r} reuses {hint} at the others"
    kind = rules.HIDDEN_RULE if whole else rules.HIDDEN_SITES
    path = placing.selector_of(entry.rule, first)
    placing.report(kind, path, name=entry.rule.name, sites=sites_text(found), because=because, outer=hint)
    return True


def _interval(placing: Placing, entry: Placed, served: Sequence[tuple[Site, str, str]], grid: Grid) -> None:
    """An interval that ends after the run, or the window, says less than it seems to: it never makes a refresh."""
    interval = None if entry.rule.refresh is None else entry.rule.refresh.interval
    if interval is None:
        return
    rows = {actions for *_, actions in served}
    oldest = max(_longest(actions[step] in SERVED for step in grid.evaluated) for actions in rows)
    if interval > oldest + 1:
        path = (*entry.rule.path, "refresh", "interval")
        placing.report(rules.INTERVAL_BEYOND, path, name=entry.rule.name, interval=interval, oldest=oldest)


def _longest(flags: Iterable[bool]) -> int:
    return max((len(list(run)) for flag, run in groupby(flags) if flag), default=0)


def _forecasts(placing: Placing, entry: Placed, served: Sequence[tuple[Site, str, str]], grid: Grid) -> None:
    if not entry.method.forecasts or any(FORECAST in actions for *_, actions in served):
        return
    few = len([s for s in grid.evaluated if s in entry.fresh]) < 2
    because = (
        "fewer than two steps are fresh"
        if few
        else "no step between refreshes has two fresh values and a ratio within the cap"
    )
    refresh = (*entry.rule.path, "refresh") if entry.rule.refresh else (*entry.rule.path, "method")
    placing.report(rules.NO_FORECAST, refresh, name=entry.rule.name, because=because)


def _saves(
    placing: Placing,
    entry: Placed,
    served: Sequence[tuple[Site, str, str]],
    rows: Rows,
    chains: Mapping[str, Chain],
) -> None:
    """Hints are reused for the blocks that this spares; a stale chain is kept for what goes on from it."""
    rule = entry.rule
    on_hints = [(site.index or 0, branch, actions) for site, branch, actions in served if site.stack == "hint"]
    if not on_hints:
        return
    idle = [(hint, branch, spent(actions, chains[branch].vace[hint])) for hint, branch, actions in on_hints]
    if any(steps for _, _, steps in idle):
        hint, branch, (step, *_) = next(cells for cells in idle if cells[2])
        site, deeper = f"hint[{hint}]", _deeper(rows, hint, branch, step)
        cells = sum(action in SERVED for _, _, actions in on_hints for action in actions)
        if sum(len(steps) for _, _, steps in idle) == cells:
            because = f"vace[{hint}] runs anyway at step {step} for hint[{deeper}], which is computed there"
            placing.report(rules.SAVES_NOTHING, (*rule.path, "at"), name=rule.name, site=site, because=because)
        else:
            placing.report(rules.WASTED_REUSE, (*rule.path, "refresh"), site=site, step=step, deeper=deeper)
    if rule.params.get("chain") == "stale" and not any(
        "R" in chains[b].vace[s.index or 0] for b in entry.branches for s in entry.sites
    ):
        placing.report(rules.STALE_UNUSED, (*rule.path, "params", "chain"), name=rule.name)


def _deeper(rows: Rows, hint: int, branch: str, step: int) -> int:
    """The shallowest hint below `hint` in the chain that is computed at a step."""
    deeper = (s.index or 0 for s in rows if s.stack == "hint" and (s.index or 0) > hint)
    return next(j for j in sorted(deeper) if rows[Site("hint", j)][branch][step] in COMPUTED)
