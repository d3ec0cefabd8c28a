"""Guardrails about what a plan compiles to, judged cell by cell: refreshes, steps, sites and bytes."""

from __future__ import annotations

from collections.abc import Iterator
from functools import lru_cache

from refkv_policy.compiler import BRANCHES, HookTable, Row, bytes_bound, human_bytes, predict
from refkv_policy.compiler.table import COMPUTED, ONLINE
from refkv_policy.compiler.walk import Blame
from refkv_policy.guardrails import rules
from refkv_policy.guardrails.held import Case
from refkv_policy.guardrails.known import unresolved
from refkv_policy.guardrails.model import AlwaysComputed, ByteLimit, NeverCached, RefreshBound
from refkv_policy.plan.model import CacheRule, Path
from refkv_policy.plan.selectors import SelectorError, Site, parse_sites, parse_window
from refkv_policy.plan.source import text_span
from refkv_policy.plan.wording import quoted
from refkv_policy.profiles import Profile
from refkv_policy.profiles.cost import Workload

Steps = tuple[int, ...]

_DONE = {"R": "reused", "F": "forecast", "?": "decided online", "-": "left out"}


def check_table(case: Case, table: HookTable) -> None:
    """Tell the case every guardrail that the table breaks."""
    model = case.names(table.profile)
    for bound in case.guardrails.refresh:
        if bound.holds_on(*model):
            _check_refresh(case, table, bound)
    for steps in case.guardrails.always_computed:
        if steps.holds_on(*model):
            _check_steps(case, table, steps)
    for sites in case.guardrails.never_cached:
        if sites.holds_on(*model):
            _check_sites(case, table, sites)
    for limit in case.guardrails.bytes:
        if limit.holds_on(*model):
            _check_bytes(case, table, limit)


def _governed(case: Case, table: HookTable, tiers: tuple[str, ...]) -> Iterator[tuple[CacheRule, Row, str, Steps]]:
    """Each row at which a rule of these tiers acts, with branch and the steps to judge: those that are evaluated.

    Of a schedule, which is what leaves steps out, every step is judged.
    """
    every, evaluated = tuple(range(table.steps)), table.evaluated
    for row in table.rows:
        if row.rule is None or (rule := case.rules.get(table.rules[row.rule].name)) is None:
            continue
        if rule.tier in tiers and not table.is_state(row):
            for branch in BRANCHES:
                yield rule, row, branch, evaluated if row.counted else every


def _check_refresh(case: Case, table: HookTable, bound: RefreshBound) -> None:
    where = {"model": table.profile, "steps": table.steps}
    for rule, row, branch, steps in _governed(case, table, bound.tiers):
        count, longest = _computed(row.actions(branch), steps)
        fields = {"name": rule.name, "site": row.site, **where}
        if bound.largest_interval is not None and longest + 1 > bound.largest_interval:
            counts = {"served": longest, "interval": longest + 1, "largest": bound.largest_interval}
            rail = (*bound.path, "largest_interval")
            case.tell(rules.INTERVAL, case.refresh_path(rule), rail, **fields, **counts)
        if bound.smallest_count is not None and count < bound.smallest_count:
            counts = {"count": count, "smallest": bound.smallest_count}
            case.tell(rules.TOO_FEW, case.refresh_path(rule), (*bound.path, "smallest_count"), **fields, **counts)


@lru_cache(maxsize=1024)
def _computed(actions: str, steps: Steps) -> tuple[int, int]:
    """At how many of the steps a site is computed, and how many of them at most follow each other without."""
    count = longest = run = 0
    for step in steps:
        fresh = actions[step] in COMPUTED
        count += fresh
        run = 0 if fresh else run + 1
        longest = max(longest, run)
    return count, longest


def _check_steps(case: Case, table: HookTable, entry: AlwaysComputed) -> None:
    rails = case.guardrails.document
    try:
        wanted = parse_window(entry.steps).resolve(table.steps)
    except SelectorError as error:
        span = text_span(rails, (*entry.path, "steps"), error.start, error.end)
        fields: dict[str, object] = {"message": error.message, "help": error.help, "steps": table.steps}
        case.tell_of_rails(rules.STEPS_UNRESOLVED.at(rails.file, span, **fields), (*entry.path, "steps"))
        return
    for rule, row, branch, steps in _governed(case, table, entry.tiers):
        for step in sorted(wanted.intersection(steps)):
            if row.actions(branch)[step] not in COMPUTED:
                window = (*rule.path, "window")
                path = window if window in case.plan.document.values else case.refresh_path(rule)
                fields = {"name": rule.name, "site": row.site, "step": step, "window": entry.steps}
                where = {"model": table.profile, "steps": table.steps}
                case.tell(rules.NOT_COMPUTED, path, (*entry.path, "steps"), **fields, **where)
                break


def _check_sites(case: Case, table: HookTable, entry: NeverCached) -> None:
    profile, sets = case.profile(table.profile), case.sets(table.profile)
    single = isinstance(case.guardrails.document.value["never_cached"][entry.path[1]]["sites"], str)
    for index, text in enumerate(entry.sites):
        rail: Path = (*entry.path, "sites") if single else (*entry.path, "sites", index)
        try:
            guarded = parse_sites(text).resolve(profile.counts, sets)
        except SelectorError as error:
            if error.reason == "no-such-stack":
                continue  # a model without these sites never caches there
            case.tell_of_rails(unresolved(case.guardrails.document, rail, error, profile.name), rail)
            continue
        for site in guarded:
            _check_site(case, table, profile, entry, site, rail)


def _check_site(case: Case, table: HookTable, profile: Profile, entry: NeverCached, site: Site, rail: Path) -> None:
    tree = table.tree
    blames = {branch: Blame(table, {row.at: row.actions(branch) for row in table.rows}) for branch in BRANCHES}
    for row in table.rows:
        # The guarded site, what encloses it, and what of its own stack lies inside it: any of them reused leaves some of it
        # uncomputed.
        inside = row.at.stack == site.stack and site in tree.around[row.at]
        if row.at != site and not inside and row.at not in _around(table, site):
            continue
        cells = [(step, branch, row.actions(branch)[step]) for step in table.evaluated for branch in BRANCHES]
        step, branch, action = next((cell for cell in cells if cell[2] not in COMPUTED), (-1, "", ""))
        index = row.rule if action == ONLINE else blames[branch].rule(row.at, step) if step >= 0 else None
        rule = None if index is None else case.rules.get(table.rules[index].name)
        if rule is None or rule.tier not in entry.tiers:
            continue
        reason = f": {quoted(entry.reason)}" if entry.reason else ""
        fields = {"name": rule.name, "site": row.site, "done": _DONE[action], "step": step, "guarded": site}
        where = {"model": table.profile, "steps": table.steps}
        case.tell(rules.SITE, _selector_of(case, rule, profile, table, row), rail, **fields, **where, reason=reason)


def _around(table: HookTable, site: Site) -> tuple[Site, ...]:
    """What a guarded site lies inside; of a span, too."""
    spans = () if site.last is None else (site,)
    return table.tree.with_spans(spans).around[site]


def _selector_of(case: Case, rule: CacheRule, profile: Profile, table: HookTable, row: Row) -> Path:
    """The path of the selector, of the rule's own, that names a row's site, or what is computed from it."""
    if not isinstance(case.plan.document.value["caches"][rule.path[1]]["at"], list):
        return (*rule.path, "at")
    wanted = {row.at, *table.tree.needed_by.get(row.at, ()), *table.tree.around[row.at]}
    for index, text in enumerate(rule.at):
        if not wanted.isdisjoint(parse_sites(text).resolve(profile.counts, profile.sets)):
            return (*rule.path, "at", index)
    return (*rule.path, "at")


def _check_bytes(case: Case, table: HookTable, limit: ByteLimit) -> None:
    profile = case.profile(table.profile)
    for index, shape in enumerate(limit.shapes or case.plan.run.shapes):
        rail: Path = (*limit.path, "shapes", index) if limit.shapes else (*limit.path, "largest")
        try:
            tokens = profile.tokens(shape.width, shape.height, shape.frames)
        except ValueError as error:
            if limit.shapes:
                rails, fields = case.guardrails.document, {"message": str(error), "model": profile.name}
                case.tell_of_rails(rules.SHAPE_UNFIT.at(rails.file, rails.span(rail), **fields), rail)
            continue
        work = Workload(tokens, profile.text_tokens)
        if sum(bytes_bound(table, profile, work, limit.dtype).values()) <= limit.largest:
            continue
        prediction = predict(table, profile, work, limit.dtype)
        within = [
            need if (budget := case.rules[name].store.budget) is None else min(need, budget)
            for name, need in prediction.bytes_rule.items()
        ]
        need = min(prediction.bytes_peak, sum(within))
        if need > limit.largest:
            shapes = case.plan.run.shapes
            path: Path = ("run", "shapes", shapes.index(shape)) if shape in shapes else ("caches",)
            amounts = {"need": _amount(need, limit.largest), "largest": _amount(limit.largest, need)}
            where = {"shape": shape, "dtype": limit.dtype, "model": table.profile, "steps": table.steps}
            case.tell(rules.BYTES, path, rail, **amounts, **where)


def _amount(count: int, beside: int) -> str:
    """The bytes for a person; to the byte where rounding would make them equal to the other amount."""
    return human_bytes(count) if human_bytes(count) != human_bytes(beside) else f"{count} bytes"
