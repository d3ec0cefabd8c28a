"""Why each site of a table is what it is: the rule and line that claim it, or what else decides it."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from itertools import groupby

from refkv_policy import methods
from refkv_policy.compiler.picture import STACKS, sites_text
from refkv_policy.compiler.predict import branches_of
from refkv_policy.compiler.table import (
    BRANCHES,
    COMPUTE,
    COMPUTE_KEEP,
    COMPUTED,
    FORECAST,
    REUSE,
    UNREACHED,
    HookTable,
    Row,
)
from refkv_policy.compiler.words import branches_of_rule, oldest, refresh_words, rule_of, steps_words
from refkv_policy.plan.model import CacheRule, Plan
from refkv_policy.plan.selectors import WITH_PARTS, SelectorError, Site, parse_sites, parse_window
from refkv_policy.profiles import Profile


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
    found = [Reason("cfg", None, None, None, (_guidance(table),))]
    ordered = sorted(table.rows, key=lambda r: (STACKS.index(r.stack), r.part or "", r.index or 0))
    told = [(row, *_told(plan, table, profile, row)) for row in ordered]
    for (*_, rule, place, because), members in groupby(told, key=lambda t: (t[0].stack, t[0].part, *t[1:])):
        sites = sites_text(Site(row.stack, row.index, row.part) for row, *_ in members)
        line, column = place or (None, None)
        found.append(Reason(sites, rule, line, column, because))
    found += _unnamed_text(table)
    return tuple(found)


def _told(
    plan: Plan, table: HookTable, profile: Profile, row: Row
) -> tuple[str | None, tuple[int, int] | None, tuple[str, ...]]:
    """The name of the rule that claims a row, where it does, and why the row's cells are what they are."""
    derived = row.stack == "vace" and row.part is None
    if derived or row.rule is None:
        return None, None, tuple(_of_chain(table, row)) if derived else (_unclaimed(table, row),)
    rule = rule_of(plan, table, row.rule)
    if row.stack == "step":
        because = [f"the sampler runs {len(table.evaluated)} of {table.steps} steps, {refresh_words(rule.refresh)}"]
        because += [f"{steps_words(table.left_out)} are left out: nothing is computed there"] if table.left_out else []
    else:
        because = list(_of_rule(table, rule, row))
    return rule.name, _place(plan, rule, row, profile), tuple(because)


def _guidance(table: HookTable) -> str:
    scales = ", ".join(f"{g:g}" for g in table.guidance)
    if len(branches_of(table)) == 1:
        return f"guidance {scales} has no unconditional call: only the cond branch runs"
    absent = [f"{g:g}" for g in table.guidance if g <= 1]
    but = f"; at {', '.join(absent)} only cond" if absent else ""
    return f"guidance {scales} runs the cond and the uncond branch at every step{but}, each with values of its own"


def _unclaimed(table: HookTable, row: Row) -> str:
    if row.stack == "step":
        return f"no rule leaves out steps: the sampler runs all {table.steps}"
    return "no rule names it: computed at every step that is run"


def _unnamed_text(table: HookTable) -> Iterator[Reason]:
    """K/V projections that have no row, since no rule names them."""
    missing = [
        Site(row.stack, row.index, "text_kv")
        for row in table.rows
        if row.stack in WITH_PARTS and row.part is None and f"{row.site}.text_kv" not in table.by_site
    ]
    if missing:
        yield Reason(
            sites_text(missing), None, None, None, ("no rule names it: projected anew whenever its block runs",)
        )


def _of_rule(table: HookTable, rule: CacheRule, row: Row) -> Iterator[str]:
    """A hint or a part that a rule claims."""
    shared = row.cond == row.uncond
    for branch in BRANCHES[:1] if shared else BRANCHES:
        of = "" if shared else f"{branch}: "
        if branch not in branches_of_rule(rule):
            yield f"{of}the rule is for the {rule.branches} branch: computed at every step that is run"
            continue
        actions = row.actions(branch)
        at = {kind: [s for s in table.evaluated if actions[s] in kind] for kind in (_FRESH, _ALL_SERVED, UNREACHED)}
        yield f"{of}computed at {steps_words(at[_FRESH])}: {refresh_words(rule.refresh)}"
        outside = _outside(table, rule)
        if forced := [s for s in at[_FRESH] if s in outside]:
            yield f"{of}the window {rule.window} excludes {steps_words(forced)}"
        if at[_ALL_SERVED]:
            yield f"{of}{_served(table, rule, actions)}"
        if idle := [s for s in at[_FRESH] if actions[s] == COMPUTE]:
            yield f"{of}not kept at {steps_words(idle)}: no later step reads it"
        if at[UNREACHED]:
            owner = _owner(table, row)
            by = f": rule {owner} reuses its hint" if owner else ""
            yield f"{of}hidden by outer reuse at {steps_words(at[UNREACHED])}, where its block does not run{by}"


_FRESH, _ALL_SERVED = COMPUTE_KEEP + COMPUTE, REUSE + FORECAST


def _served(table: HookTable, rule: CacheRule, actions: str) -> str:
    """What serves the steps between, and how old it gets."""
    reused = [s for s in table.evaluated if actions[s] == REUSE]
    forecast = [s for s in table.evaluated if actions[s] == FORECAST]
    age = oldest(table, actions)
    old = f"at most {age} step{'s' if age != 1 else ''} old"
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


def _of_chain(table: HookTable, row: Row) -> Iterator[str]:
    """A VACE block: derived from the hints that need it."""
    hint = table.by_site[f"hint[{row.index}]"]
    shared = row.cond == row.uncond and hint.cond == hint.uncond
    for branch in BRANCHES[:1] if shared else BRANCHES:
        of = "" if shared else f"{branch}: "
        actions, run = row.actions(branch), table.evaluated
        own = [s for s in run if actions[s] in COMPUTED]
        if len(own) == len(run):
            unnamed = "no rule names its hint" if hint.rule is None else "its hint is never reused"
            yield f"{of}{unnamed}, so the chain runs it at every step that is run"
        elif own:
            yield f"{of}runs at {steps_words(own)}, where its hint is computed"
        if kept := [s for s in run if actions[s] == COMPUTE_KEEP]:
            yield f"{of}its state is kept at {steps_words(kept)} (chain: stale)"
        if stale := [s for s in run if actions[s] == REUSE]:
            yield f"{of}its kept state stands in at {steps_words(stale)}, and deeper blocks go on from it"
        owner = _owner(table, row)
        by = f" (rule {owner})" if owner else ""
        spared = [s for s in run if actions[s] == UNREACHED]
        going_on = [s for s in spared if _deeper_runs(table, row, branch, s)]
        if len(spared) > len(going_on):
            many = len(spared) - len(going_on)
            yield f"{of}not reached at {many} steps: its hint{by} and every deeper one are served there"
        if going_on:
            yield f"{of}not reached at {len(going_on)} steps: its hint{by} is served, and deeper blocks go on from a kept state"


def _deeper_runs(table: HookTable, row: Row, branch: str, step: int) -> bool:
    blocks = range((row.index or 0) + 1, len(table.layout.vace_at))
    return any(table.by_site[f"vace[{j}]"].actions(branch)[step] in COMPUTED for j in blocks)


def _owner(table: HookTable, row: Row) -> str | None:
    """The name of the rule that claims the hint of a VACE block or of its part."""
    hint = table.by_site.get(f"hint[{row.index}]") if row.stack == "vace" else None
    return None if hint is None or hint.rule is None else table.rules[hint.rule].name


def _place(plan: Plan, rule: CacheRule, row: Row, profile: Profile) -> tuple[int, int]:
    """Line and column of the selector of a rule that names a row's site first."""
    single = not isinstance(plan.document.value["caches"][rule.path[1]]["at"], list)
    site = Site(row.stack, row.index, row.part)
    for index, text in enumerate(rule.at):
        if site in _resolved(text, profile):
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
