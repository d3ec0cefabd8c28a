"""Why each site of a table is what it is: the rule and line that claim it, or what else decides it."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from itertools import groupby

from refkv_policy import methods
from refkv_policy.compiler.picture import kind_of, sites_text
from refkv_policy.compiler.place import branches_of_rule
from refkv_policy.compiler.predict import branches_of
from refkv_policy.compiler.table import (
    BRANCHES,
    COMPUTE,
    COMPUTE_KEEP,
    COMPUTED,
    FORECAST,
    ONLINE,
    REUSE,
    UNREACHED,
    HookTable,
    Row,
)
from refkv_policy.compiler.walk import Blame
from refkv_policy.compiler.words import oldest, refresh_words, rule_of, steps_words
from refkv_policy.plan.model import CacheRule, Plan
from refkv_policy.plan.selectors import SelectorError, Site, parse_sites, parse_window
from refkv_policy.plan.wording import counted
from refkv_policy.profiles import Profile
from refkv_policy.profiles.sites import CFG, STEP


@dataclass(frozen=True, slots=True)
class Reason:
    """Neighbouring sites that are what they are for the same reasons. because: phrases without a final stop.

    rule, line and column: the rule that claims them and the selector that names them; None where no rule does.
    """

    sites: str
    rule: str | None
    line: int | None
    column: int | None
    because: tuple[str, ...]


def reasons(plan: Plan, table: HookTable, profile: Profile) -> tuple[Reason, ...]:
    """The reasons of every site of a table of this plan, in the map's order, `cfg` first."""
    found = [] if CFG in table.by_at else [Reason("cfg", None, None, None, (_guidance(table),))]
    blames = {b: Blame(table, {row.at: row.actions(b) for row in table.rows}) for b in BRANCHES}
    ordered = sorted(table.rows, key=lambda r: r.at.order)
    told = [(row.at, *_told(plan, table, profile, row, blames)) for row in ordered]
    for (*_, rule, place, because), members in groupby(told, key=lambda t: (kind_of(t[0]), *t[1:])):
        line, column = place or (None, None)
        found.append(Reason(sites_text(site for site, *_ in members), rule, line, column, because))
    found += _unnamed_text(table)
    return tuple(found)


def _told(
    plan: Plan, table: HookTable, profile: Profile, row: Row, blames: Mapping[str, Blame]
) -> tuple[str | None, tuple[int, int] | None, tuple[str, ...]]:
    """The name of the rule that claims a row, where it does, and why the row's cells are what they are."""
    if table.is_state(row):
        return None, None, tuple(_on_demand(table, row, blames))
    if row.rule is None:
        return None, None, tuple(_unclaimed(table, row, blames))
    rule = rule_of(plan, table, row.rule)
    if row.at == STEP:
        due = refresh_words(rule.refresh, rule.method)
        because = [f"the sampler runs {len(table.evaluated)} of {table.steps} steps, {due}"]
        because += [f"{steps_words(table.left_out)} are left out: nothing is computed there"] if table.left_out else []
    else:
        because = list(_of_rule(table, rule, row, blames))
    return rule.name, _place(plan, rule, row, profile), tuple(because)


def _guidance(table: HookTable) -> str:
    scales = ", ".join(f"{g:g}" for g in table.guidance)
    if len(branches_of(table)) == 1:
        return f"guidance {scales} has no unconditional call: only the cond branch runs"
    absent = [f"{g:g}" for g in table.guidance if g <= 1]
    but = f"; at {', '.join(absent)} only cond" if absent else ""
    return f"guidance {scales} runs the cond and the uncond branch at every step{but}, each with values of its own"


def _unclaimed(table: HookTable, row: Row, blames: Mapping[str, Blame]) -> Iterator[str]:
    if row.at == STEP:
        yield f"no rule leaves out steps: the sampler runs all {table.steps}"
        return
    for of, branch in _branches(row):
        hidden = [s for s in table.evaluated if row.actions(branch)[s] == UNREACHED]
        runs = "where it is reached" if hidden else "at every step that is run"
        yield f"{of}no rule names it: computed {runs}"
        if hidden:
            yield f"{of}{_unreached(table, row, branch, hidden, blames)}"


def _branches(*rows: Row) -> list[tuple[str, str]]:
    """(prefix, branch): one for both where the rows' branches are equal."""
    shared = all(row.cond == row.uncond for row in rows)
    return [("", BRANCHES[0])] if shared else [(f"{branch}: ", branch) for branch in BRANCHES]


def _unnamed_text(table: HookTable) -> Iterator[Reason]:
    """K/V projections that have no row, since no rule names them."""
    missing = [
        text
        for row in table.rows
        if (text := Site(row.at.stack, row.at.index, "text_kv")) in table.tree and row.at.part is None
        if row.at.last is None and text not in table.by_at
    ]
    if missing:
        yield Reason(
            sites_text(missing), None, None, None, ("no rule names it: projected anew whenever its block runs",)
        )


def _of_rule(table: HookTable, rule: CacheRule, row: Row, blames: Mapping[str, Blame]) -> Iterator[str]:
    """A site that a rule claims."""
    for of, branch in _branches(row):
        if branch not in branches_of_rule(rule):
            yield f"{of}the rule is for the {rule.branches} branch: computed at every step that is run"
            continue
        actions = row.actions(branch)
        at = {kind: [s for s in table.evaluated if actions[s] in kind] for kind in (_FRESH, _SERVED, ONLINE, UNREACHED)}
        yield f"{of}computed at {steps_words(at[_FRESH])}: {refresh_words(rule.refresh, rule.method)}"
        outside = _outside(table, rule)
        if forced := [s for s in at[_FRESH] if s in outside]:
            yield f"{of}the window {rule.window} excludes {steps_words(forced)}"
        if at[_SERVED]:
            yield f"{of}{_served(table, rule, actions)}"
        if at[ONLINE]:
            yield f"{of}decided in the run at {steps_words(at[ONLINE])}: {methods.get(rule.method).describe(rule.params)}"
        if idle := [s for s in at[_FRESH] if actions[s] == COMPUTE]:
            yield f"{of}not kept at {steps_words(idle)}: no later step reads it"
        if at[UNREACHED]:
            yield f"{of}{_unreached(table, row, branch, at[UNREACHED], blames)}"


_FRESH, _SERVED = COMPUTE_KEEP + COMPUTE, REUSE + FORECAST


def _unreached(table: HookTable, row: Row, branch: str, steps: list[int], blames: Mapping[str, Blame]) -> str:
    """By whose reuse a site is not reached."""
    rule = blames[branch].rule(row.at, steps[0])
    by = "" if rule is None else f": rule {table.rules[rule].name} spares what it lies in"
    return f"hidden by outer reuse at {steps_words(steps)}{by}"


def _served(table: HookTable, rule: CacheRule, actions: str) -> str:
    """What serves the steps between, and how old it gets."""
    reused = [s for s in table.evaluated if actions[s] == REUSE]
    forecast = [s for s in table.evaluated if actions[s] == FORECAST]
    age = oldest(table, actions)
    old = f"at most {counted(age, 'step')} old"
    if not methods.get(rule.method).forecasts:
        return f"reused at the {len(reused)} others, {old}" if len(reused) > 1 else f"reused at {steps_words(reused)}"
    text = f"forecast at {steps_words(forecast)}, {old}"
    if reused:
        text += f"; only reused at {steps_words(reused)}, without two fresh values or with a ratio beyond the cap"
    return text


def _outside(table: HookTable, rule: CacheRule) -> frozenset[int]:
    return (
        frozenset()
        if rule.window is None
        else frozenset(range(table.steps)) - parse_window(rule.window).resolve(table.steps)
    )


def _on_demand(table: HookTable, row: Row, blames: Mapping[str, Blame]) -> Iterator[str]:
    """A site that is computed for others: derived from those that need it."""
    tree = table.tree
    user = table.by_at[tree.users(row.at)[0]]
    for of, branch in _branches(row, user):
        actions, run = row.actions(branch), table.evaluated
        own = [s for s in run if actions[s] in COMPUTED]
        if len(own) == len(run):
            unnamed = "no rule names its hint" if user.rule is None else "its hint is never reused"
            yield f"{of}{unnamed}, so the chain runs it at every step that is run"
        elif own:
            yield f"{of}runs at {steps_words(own)}, where its hint is computed"
        if kept := [s for s in run if actions[s] == COMPUTE_KEEP]:
            yield f"{of}its state is kept at {steps_words(kept)} (chain: stale)"
        if stale := [s for s in run if actions[s] == REUSE]:
            yield f"{of}its kept state stands in at {steps_words(stale)}, and deeper blocks go on from it"
        spared = [s for s in run if actions[s] == UNREACHED]
        going_on = [s for s in spared if _deeper_runs(table, row, branch, s)]
        by = ""
        if spared and (rule := blames[branch].rule(row.at, spared[0])) is not None:
            by = f" (rule {table.rules[rule].name})"
        if len(spared) > len(going_on):
            many = len(spared) - len(going_on)
            yield f"{of}not reached at {many} steps: its hint{by} and every deeper one are served there"
        if going_on:
            yield f"{of}not reached at {len(going_on)} steps: its hint{by} is served, and deeper blocks go on from a kept state"


def _deeper_runs(table: HookTable, row: Row, branch: str, step: int) -> bool:
    """Whether something further down the chain of a site runs at a step."""
    below = [row.at]
    for site in below:
        below += table.tree.goes_on(site)
    return any(table.by_at[site].actions(branch)[step] in COMPUTED for site in below[1:])


def _place(plan: Plan, rule: CacheRule, row: Row, profile: Profile) -> tuple[int, int]:
    """Line and column of the selector of a rule that names a row's site first."""
    single = not isinstance(plan.document.value["caches"][rule.path[1]]["at"], list)
    for index, text in enumerate(rule.at):
        if row.at in _resolved(text, profile):
            path = (*rule.path, "at") if single else (*rule.path, "at", index)
            break
    else:
        path = rule.path
    span = plan.document.span(path)
    return span.line, span.column


def _resolved(text: str, profile: Profile) -> Iterable[Site]:
    try:
        return parse_sites(text).resolve(profile.counts, profile.sets)
    except SelectorError:
        return ()
