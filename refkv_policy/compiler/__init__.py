"""The compiler: Plan × Profile × steps → HookTable, with every semantic check, a prediction and a lock."""

from __future__ import annotations

import datetime
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from refkv_policy.compiler import rules
from refkv_policy.compiler.build import build, layout_of
from refkv_policy.compiler.predict import Prediction, Tally, branches_of, bytes_bound, bytes_needed, predict
from refkv_policy.compiler.static import check_acknowledgements, check_run, sound_rules
from refkv_policy.compiler.table import BRANCHES, HookTable, Layout, Row, TableRule, retained
from refkv_policy.plan.diagnostic import Diagnostic, PlanError, errors
from refkv_policy.plan.model import CacheRule, Plan
from refkv_policy.profiles import ANY, Profile, ProfileError, load_profile
from refkv_policy.profiles.cost import Workload

__all__ = [
    "BRANCHES",
    "HookTable",
    "Layout",
    "Prediction",
    "Row",
    "TableRule",
    "Tally",
    "Workload",
    "branches_of",
    "bytes_bound",
    "bytes_needed",
    "check_plan",
    "compile_all",
    "compile_plan",
    "examine_plan",
    "layout_of",
    "plan_profiles",
    "predict",
    "profile_for",
    "retained",
]


def check_plan(plan: Plan, today: datetime.date | None = None) -> tuple[Diagnostic, ...]:
    """Every semantic fault of a plan, on each model and step count it lists, in the order of the text.

    today: the day acknowledgements are judged on; the present one unless given. Never raises.
    """
    return examine_plan(plan, today)[1]


def compile_all(plan: Plan, today: datetime.date | None = None) -> dict[tuple[str, int], HookTable]:
    """The tables of every (profile name, step count) the plan lists; `any` has none. Raises PlanError on any error."""
    tables, diagnostics = examine_plan(plan, today)
    if errors(diagnostics):
        raise PlanError(diagnostics)
    return tables


def compile_plan(plan: Plan, profile: str | Profile | Any, steps: int, today: datetime.date | None = None) -> HookTable:
    """The table of one model and step count.

    profile: a name from the plan's `models`, a `Profile`, or a transformer, whose architecture picks one of them.
    Raises PlanError when the plan is unsound, or not reviewed for that model or step count.
    """
    chosen = profile_for(plan, profile)
    document = plan.document
    if steps not in plan.run.steps:
        listed = ", ".join(map(str, plan.run.steps))
        raise PlanError(
            [rules.NOT_FOR_STEPS.at(document.file, document.span(("run", "steps")), steps=steps, listed=listed)]
        )
    found = list(_check_static(plan, today))
    if errors(found):
        raise PlanError(found)
    table, built = build(plan, chosen, steps, _applying(plan, chosen))
    if table is None:
        raise PlanError([*found, *built])
    return table


def plan_profiles(plan: Plan) -> tuple[Profile, ...]:
    """The profiles a plan names, `any` left out. Raises ProfileError for one that does not exist."""
    base = Path(plan.document.file).parent
    return tuple(load_profile(name, base) for name in plan.models if name != ANY)


def profile_for(plan: Plan, profile: str | Profile | Any) -> Profile:
    """The profile that the plan is compiled against for a name, a profile or a transformer.

    Raises PlanError when the plan does not list it, ValueError when the object is no transformer of a
    known family.
    """
    try:
        listed = plan_profiles(plan)
        if isinstance(profile, str):
            found = next((p for p in listed if p.name == profile), None)
            if found is None and ANY in plan.models:
                found = load_profile(profile, Path(plan.document.file).parent)
            name = profile
        else:
            mine = profile if isinstance(profile, Profile) else Profile.from_transformer(profile)
            found = next((p for p in listed if p.same_model(mine)), None)
            name = mine.name
            if found is None:
                shipped = next((p for p in map(load_profile, _names()) if p.same_model(mine)), mine)
                name = shipped.name
                found = shipped if ANY in plan.models else None
    except ProfileError as error:
        span = plan.document.span(("models",))
        raise PlanError([rules.UNKNOWN_PROFILE.at(plan.document.file, span, message=str(error))]) from error
    if found is None:
        span = plan.document.span(("models",))
        fields = {"model": name, "listed": ", ".join(plan.models)}
        raise PlanError([rules.NOT_FOR_PROFILE.at(plan.document.file, span, **fields)])
    return found


def _names() -> tuple[str, ...]:
    from refkv_policy.profiles import names

    return names()


def _applying(plan: Plan, profile: Profile) -> Iterator[tuple[CacheRule, Any]]:
    """The sound rules that apply to a profile; `rule.models` holds the plan's own words for its models."""
    base = Path(plan.document.file).parent
    for rule, method in sound_rules(plan)[0]:
        if rule.models is None or any(m == ANY or load_profile(m, base).name == profile.name for m in rule.models):
            yield rule, method


def _check_static(plan: Plan, today: datetime.date | None) -> Iterator[Diagnostic]:
    """Faults that no model is needed for."""
    sound, faults = sound_rules(plan)
    yield from faults
    yield from check_run(plan)
    yield from check_acknowledgements(plan, sound, not faults, today or datetime.date.today())
    yield from _check_profiles(plan)


def _check_profiles(plan: Plan) -> Iterator[Diagnostic]:
    """Every profile is there, and has a name that no other has, be it in the plan or among the shipped ones."""
    base, file = Path(plan.document.file).parent, plan.document.file
    listed: dict[str, str] = {}
    for index, model in enumerate(plan.models):
        if model == ANY:
            continue
        span = plan.document.span(("models", index))
        try:
            profile = load_profile(model, base)
        except ProfileError as error:
            yield rules.UNKNOWN_PROFILE.at(file, span, message=str(error))
            continue
        fields = {"model": model, "name": profile.name}
        if profile.name in listed:
            yield rules.PROFILE_NAME.at(file, span, **fields, other=f"{listed[profile.name]}, listed before")
        elif profile.name in _names() and profile.digest != load_profile(profile.name).digest:
            yield rules.PROFILE_NAME.at(file, span, **fields, other="another, shipped one")
        listed.setdefault(profile.name, model)


def examine_plan(
    plan: Plan, today: datetime.date | None = None
) -> tuple[dict[tuple[str, int], HookTable], tuple[Diagnostic, ...]]:
    """`compile_all` and `check_plan` in one: the tables of what compiles, and every fault. Never raises."""
    found = list(_check_static(plan, today))
    tables: dict[tuple[str, int], HookTable] = {}
    unknown = (rules.UNKNOWN_PROFILE, rules.PROFILE_NAME, rules.UNKNOWN_SAMPLER)
    if not {d.code for d in found} & {rule.code for rule in unknown}:
        for profile in plan_profiles(plan):
            applying = tuple(_applying(plan, profile))
            for steps in plan.run.steps:
                table, built = build(plan, profile, steps, applying)
                found.extend(built)
                if table is not None:
                    tables[profile.name, steps] = table
                    found.extend(_over_budget(plan, profile, table))
    # One mistake shows at every model and step count; a person needs it once a place.
    seen: dict[tuple[object, ...], Diagnostic] = {}
    for diagnostic in found:
        seen.setdefault((diagnostic.code, diagnostic.span), diagnostic)
    return tables, tuple(sorted(seen.values(), key=lambda d: (d.span is not None, d.span, d.code)))


def _over_budget(plan: Plan, profile: Profile, table: HookTable) -> Iterator[Diagnostic]:
    by_name = {rule.name: rule for rule in plan.caches}
    budgets = {rule.name: rule.budget for rule in table.rules if rule.budget is not None}
    if not budgets:
        return
    for shape in plan.run.shapes:
        work = Workload(profile.tokens(shape.width, shape.height, shape.frames), profile.text_tokens)
        bound = bytes_bound(table, profile, work, "bfloat16")
        if all(bound[name] <= budget for name, budget in budgets.items()):
            continue
        need = bytes_needed(table, profile, work, "bfloat16")
        for name, budget in budgets.items():
            if need[name] <= budget:
                continue
            rule = by_name[name]
            yield rules.OVER_BUDGET.at(
                plan.document.file,
                plan.document.span((*rule.path, "store", "budget")),
                name=name,
                shape=shape,
                need=human_bytes(need[name]),
                budget=human_bytes(budget),
                model=profile.name,
                steps=table.steps,
            )


def human_bytes(count: int) -> str:
    """`1.41 GiB`, `18.0 KiB`, `512 B`."""
    value, units = float(count), ["B", "KiB", "MiB", "GiB", "TiB"]
    while value >= 1024 and len(units) > 1:
        value /= 1024
        units.pop(0)
    if units[0] == "B":
        return f"{count} B"
    return f"{value:.0f} {units[0]}" if value >= 999.5 else f"{value:.3g} {units[0]}"
