"""Each rule of a table in plain words: where it stands, when its sites are fresh, what happens between, what that spares."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from refkv_policy import methods
from refkv_policy.compiler.picture import compact, sites_text
from refkv_policy.compiler.place import branches_of_rule
from refkv_policy.compiler.table import ACTIONS, COMPUTED, FORECAST, ONLINE, SERVED, HookTable, Row
from refkv_policy.plan.model import CacheRule, Plan, Refresh
from refkv_policy.plan.selectors import Site
from refkv_policy.plan.wording import counted


@dataclass(frozen=True, slots=True)
class RuleWords:
    """One rule. line: of the plan's file. sites: as resolved on the model. The phrases are without a final stop.

    computed: when its sites are fresh, None for a rule that caches nothing. between: what happens at the other steps.
    spares: what that leaves uncomputed, None where it is nothing. risks: (risk, who accepted it and why).
    """

    name: str
    tier: str
    method: str
    line: int
    sites: str
    written: tuple[str, ...]
    computed: str | None
    between: str
    spares: str | None
    risks: tuple[tuple[str, str], ...]


def rules_in_words(plan: Plan, table: HookTable) -> tuple[RuleWords, ...]:
    """The rules that govern something in a table of this plan, in the plan's order."""
    return tuple(_in_words(plan, table, index) for index in range(len(table.rules)))


def rule_of(plan: Plan, table: HookTable, index: int) -> CacheRule:
    """The plan's rule behind a table's. Raises StopIteration when the table is of another plan."""
    return next(rule for rule in plan.caches if rule.name == table.rules[index].name)


def refresh_words(refresh: Refresh | None, method: str) -> str:
    """When a refresh is due: `every 4 steps that are run`."""
    if refresh is None:
        return methods.get(method).due
    if refresh.interval is not None:
        return f"every {refresh.interval} steps that are run" if refresh.interval > 1 else "every step that is run"
    if refresh.steps is not None:
        return f"the listed steps {refresh.steps}"
    spaced = "the square root of sigma" if refresh.spacing == "sqrt_sigma" else "sigma"
    return f"{refresh.count} steps equally spaced in {spaced}"


def steps_words(steps: Iterable[int]) -> str:
    """`step 3`, `steps 0-2,8`, `no step`."""
    listed = tuple(steps)
    if not listed:
        return "no step"
    return f"step{'s' if len(listed) > 1 else ''} {compact(listed)}"


def oldest(table: HookTable, actions: str) -> int:
    """The largest age, in steps that are run, at which a kept value is served; 0 where none is. A `?` may be served."""
    age = most = 0
    for step in table.evaluated:
        if actions[step] in COMPUTED:
            age = 0
        else:
            age += 1
            most = max(most, age if actions[step] in SERVED or actions[step] == ONLINE else 0)
    return most


def _in_words(plan: Plan, table: HookTable, index: int) -> RuleWords:
    rule, entry = rule_of(plan, table, index), table.rules[index]
    method = methods.get(rule.method)
    rows = table.governed(index)
    computed = None
    between = method.describe(rule.params)
    if method.schedules:
        left_out = f"; {steps_words(table.left_out)} are left out" if table.left_out else ""
        due = refresh_words(rule.refresh, rule.method)
        between += f": {steps_words(table.evaluated)} of {table.steps}, {due}{left_out}"
    else:
        branches = branches_of_rule(rule)
        fresh = _steps(table, rows, branches, COMPUTED)
        due = refresh_words(rule.refresh, rule.method)
        computed = f"at {steps_words(fresh)} ({len(fresh)} of {len(table.evaluated)}): {due}"
        if rule.window is not None:
            computed += f", and always outside the window {rule.window}"
        age = max(oldest(table, r.actions(b)) for r in rows for b in branches)
        age = age if entry.longest is None else min(age, entry.longest)
        between += f", at most {counted(age, 'step')} old"
        if forecast := _steps(table, rows, branches, FORECAST):
            between += f"; forecast at {steps_words(forecast)}"
        if online := _steps(table, rows, branches, ONLINE):
            between += f"; decided in the run at {steps_words(online)}"
        if rule.branches == "apart":
            between += "; each branch decides for itself"
        elif rule.branches != "together":
            between += f"; on the {rule.branches} branch only"
    return RuleWords(
        name=rule.name,
        tier=rule.tier,
        method=rule.method,
        line=plan.document.span(rule.path).line,
        sites=sites_text(r.at for r in rows),
        written=rule.at,
        computed=computed,
        between=between,
        spares=_spares(table, rule, rows),
        risks=tuple((risk, _accepted(table.acknowledgements, risk)) for risk in entry.risks),
    )


def _steps(table: HookTable, rows: Sequence[Row], branches: Sequence[str], wanted: Iterable[str]) -> list[int]:
    return [s for s in table.evaluated if any(r.actions(b)[s] in wanted for r in rows for b in branches)]


def _spares(table: HookTable, rule: CacheRule, rows: Sequence[Row]) -> str | None:
    """The work that is not done: whole steps; of a site that costs nothing itself, what it is computed from; or the site."""
    if any(not row.counted for row in rows):
        return f"{len(table.left_out)} of {table.steps} steps whole" if table.left_out else None
    branches = branches_of_rule(rule)
    spared: dict[Site, set[int]] = {}
    for row in rows:
        for site in table.tree[row.at].needs or (row.at,):
            # Of a site that costs nothing itself: the steps at which what it is computed from does not run.
            wanted = SERVED | {ONLINE} if site == row.at else frozenset(ACTIONS) - COMPUTED
            steps = spared.setdefault(site, set())
            steps.update(_steps(table, [table.by_at[site]], branches, wanted))
    sites = sites_text(sorted((site for site, steps in spared.items() if steps), key=lambda s: s.order))
    counts = {len(steps) for steps in spared.values() if steps}
    if not counts:
        return None
    certain = not any(ONLINE in row.actions(branch) for row in rows for branch in branches)
    upto = "" if certain and (len(counts) == 1 or table.tree[rows[0].at].needs) else "up to "
    return f"{sites} at {upto}{len(set().union(*spared.values()))} of {len(table.evaluated)} steps"


def _accepted(acknowledgements: Iterable[Mapping[str, Any]], risk: str) -> str:
    found = next((a for a in acknowledgements if a["risk"] == risk), None)
    if found is None:
        return "accepted by nobody"
    until = f" until {found['expires']}" if found["expires"] else ""
    return f"accepted by {found['by']} on {found['date']}{until}: {' '.join(found['reason'].split())}"
