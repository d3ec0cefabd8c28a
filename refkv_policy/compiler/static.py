"""Checks of a plan that need no model: methods, tiers, parameters, refresh forms, risks and acknowledgements."""

from __future__ import annotations

import datetime
from collections.abc import Iterable, Iterator

from refkv_policy import methods
from refkv_policy.compiler import rules
from refkv_policy.compiler.quantization import check_quantization, risks_of
from refkv_policy.compiler.samplers import SAMPLERS
from refkv_policy.methods.method import Method
from refkv_policy.plan.diagnostic import Diagnostic
from refkv_policy.plan.model import CacheRule, Plan
from refkv_policy.plan.schema import check_schema
from refkv_policy.plan.wording import did_you_mean, listed


def sound_rules(plan: Plan) -> tuple[tuple[tuple[CacheRule, Method], ...], tuple[Diagnostic, ...]]:
    """The rules without a fault of their own, each with its method, and the faults of the others."""
    sound: list[tuple[CacheRule, Method]] = []
    found: list[Diagnostic] = []
    for rule in plan.caches:
        faults = tuple(_check_rule(plan, rule))
        found.extend(faults)
        if not faults:
            sound.append((rule, methods.get(rule.method)))
    return tuple(sound), tuple(found)


def _check_rule(plan: Plan, rule: CacheRule) -> Iterator[Diagnostic]:
    document, file = plan.document, plan.document.file
    try:
        method = methods.get(rule.method)
    except KeyError:
        known, plain = methods.names(), "".join(filter(str.isalpha, rule.method.lower()))
        yield rules.UNKNOWN_METHOD.at(
            file,
            document.span((*rule.path, "method")),
            method=rule.method,
            guess=rules.METHODS_ELSEWHERE.get(plain) or did_you_mean(rule.method, known),
            known=listed(known),
        )
        return
    if rule.tier != method.tier:
        span = document.span((*rule.path, "tier"))
        yield rules.WRONG_TIER.at(file, span, method=method.name, actual=method.tier, stated=rule.tier)
    for name in rule.models or ():
        if name not in plan.models:
            place = document.span((*rule.path, "models", list(rule.models or ()).index(name)))
            yield rules.RULE_MODEL.at(file, place, name=rule.name, model=name)
    yield from _check_refresh(plan, rule, method)
    yield from _check_params(plan, rule, method)


def _check_refresh(plan: Plan, rule: CacheRule, method: Method) -> Iterator[Diagnostic]:
    document, file = plan.document, plan.document.file
    forms = ", ".join(sorted(method.refreshes))
    if rule.refresh is None and method.refreshes:
        yield rules.REFRESH_FORM.at(
            file,
            document.span(rule.path),
            method=method.name,
            problem="needs a `refresh:`",
            help=f"state one of: {forms}",
        )
    elif rule.refresh is not None:
        refresh = rule.refresh
        form = "interval" if refresh.interval is not None else "steps" if refresh.steps is not None else "spacing"
        if form not in method.refreshes:
            yield rules.REFRESH_FORM.at(
                file,
                document.span((*rule.path, "refresh")),
                method=method.name,
                problem=f"takes no `refresh: {{{form}: …}}`" if method.refreshes else "takes no `refresh:`",
                help=f"state one of: {forms}" if forms else "remove it",
            )
    for key, given, taken in (
        ("window", rule.window is not None, method.takes_window),
        ("store", (*rule.path, "store") in document.values, method.takes_store),
        ("branches", rule.branches != "together", not method.schedules),
        ("branches", rule.branches == "apart" and not method.schedules, method.decides_online),
    ):
        if given and not taken:
            yield rules.KEY_UNUSED.at(file, document.span((*rule.path, key), key=True), method=method.name, key=key)
    if rule.branches == "uncond" and all(g <= 1 for g in plan.run.guidance):
        guidance = ", ".join(f"{g:g}" for g in plan.run.guidance)
        yield rules.BRANCH_ABSENT.at(file, document.span((*rule.path, "branches")), name=rule.name, guidance=guidance)


def _check_params(plan: Plan, rule: CacheRule, method: Method) -> Iterator[Diagnostic]:
    """The method's own schema, at the parameter that is at fault. A rule that has and needs none does not load jsonschema."""
    document, path, schema, required = plan.document, (*rule.path, "params"), method.params_schema, "required"
    if path in document.values:
        if rule.params or required in schema:
            yield from check_schema(document, schema, path, f"`params` of {method.name}")
    elif required in schema:
        example = {"examples": [dict.fromkeys(schema[required], "…")]}
        whole = {required: ["params"], "properties": {"params": example}}
        yield from check_schema(document, whole, rule.path, f"the rule of {method.name}")


def check_run(plan: Plan) -> Iterator[Diagnostic]:
    """The sampler is one whose grid is known, and attention runs in a dtype that some backend computes in."""
    document = plan.document
    sampler = plan.run.sampler.name
    if sampler not in SAMPLERS:
        yield rules.UNKNOWN_SAMPLER.at(
            document.file,
            document.span(("run", "sampler", "name")),
            name=sampler,
            guess=did_you_mean(sampler, SAMPLERS),
            known=listed(SAMPLERS),
        )
    yield from check_quantization(plan)
    if not plan.caches and plan.quantization.attention.dtype == "native":
        yield rules.NO_RULES.at(document.file, document.span(("caches",)))


def check_acknowledgements(
    plan: Plan, sound: Iterable[tuple[CacheRule, Method]], whole: bool, today: datetime.date
) -> Iterator[Diagnostic]:
    """Every risk is acknowledged, by an acknowledgement in force. whole: no rule was left out of `sound` for its faults."""
    document, file = plan.document, plan.document.file
    carried: dict[str, CacheRule] = {}
    for rule, method in sound:
        for risk in risks_of(plan, rule, method):
            carried.setdefault(risk, rule)
    named = {a.risk for a in plan.acknowledgements}
    for risk, rule in carried.items():
        if risk not in named:
            yield rules.UNACKNOWLEDGED.at(file, document.span((*rule.path, "method")), name=rule.name, risk=risk)
    for entry in plan.acknowledgements:
        if whole and entry.risk not in carried:
            known = listed(carried) if carried else "it carries none"
            span = document.span((*entry.path, "risk"))
            yield rules.UNKNOWN_RISK.at(
                file, span, risk=entry.risk, guess=did_you_mean(entry.risk, carried), known=known
            )
        if entry.date > today:
            span = document.span((*entry.path, "date"))
            yield rules.ACK_FUTURE.at(file, span, risk=entry.risk, date=entry.date, today=today)
        if entry.expires is not None and entry.expires < entry.date:
            span = document.span((*entry.path, "expires"))
            yield rules.ACK_BACKWARDS.at(file, span, risk=entry.risk, expires=entry.expires, date=entry.date)
        elif entry.expires is not None and entry.expires < today:
            span = document.span((*entry.path, "expires"))
            yield rules.ACK_EXPIRED.at(file, span, risk=entry.risk, by=entry.by, expires=entry.expires)
