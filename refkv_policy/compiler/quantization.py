"""Semantics of a plan's `quantization:`: what computes it, what it leaves native, and what it does to the rules' claims."""

from __future__ import annotations

from collections.abc import Iterator

from refkv_policy.compiler import rules
from refkv_policy.compiler.attention import (
    BACKENDS,
    DEFAULT_BACKEND,
    FORECAST_QUANTIZED,
    LOSSLESS_DOWNGRADED,
    PLATFORMS,
    QUANTIZED_PART,
    computed_on,
)
from refkv_policy.compiler.place import Placing
from refkv_policy.compiler.table import Quantized
from refkv_policy.methods.method import Grid, Method
from refkv_policy.plan.catalogue import Rule
from refkv_policy.plan.diagnostic import Diagnostic
from refkv_policy.plan.model import CacheRule, Path, Plan
from refkv_policy.plan.selectors import SelectorError, Site, parse_sites, parse_steps
from refkv_policy.plan.wording import did_you_mean, listed

_SECTION: Path = ("quantization", "attention")


def quantized(plan: Plan) -> bool:
    """Whether a plan asks for attention in a dtype narrower than the model's."""
    return plan.quantization.attention.dtype != "native"


def risks_of(plan: Plan, rule: CacheRule, method: Method) -> tuple[str, ...]:
    """Every risk that a rule of a plan carries: its method's own, then those it has together with quantized attention."""
    risks = list(method.risks(rule.params))
    if quantized(plan):
        if rule.tier == "P0" and plan.quantization.lossless == "downgrade":
            risks.append(LOSSLESS_DOWNGRADED)
        if method.forecasts:
            risks.append(FORECAST_QUANTIZED)
    return tuple(risks)


def check_quantization(plan: Plan) -> Iterator[Diagnostic]:
    """Faults of the section that no model is needed for: dtype, backend and platform fit, and every key has an effect."""
    yield from _without_effect(plan)
    if not quantized(plan):
        return
    yield from _computed(plan)
    for rule in plan.caches:
        if rule.tier == "P0" and plan.quantization.lossless == "refuse":
            span = plan.document.span((*rule.path, "tier"))
            yield rules.LOSSLESS_QUANTIZED.at(plan.document.file, span, name=rule.name, risk=LOSSLESS_DOWNGRADED)


def place_quantization(placing: Placing, grid: Grid) -> Quantized | None:
    """The section resolved on a model and a step count; None where attention is native. Faults go to `diagnostics`."""
    plan = placing.plan
    attention = plan.quantization.attention
    if not quantized(plan):
        return None
    steps, sites = _native_steps(placing, grid), _native_sites(placing)
    if steps is None or sites is None:
        return None
    blocks = sum(site.part == QUANTIZED_PART for site in placing.profile.tree.order)
    for key, all_of in (("skip_steps", len(steps) == len(grid.evaluated)), ("skip_layers", len(sites) == blocks)):
        if all_of:
            placing.report(rules.NEVER_QUANTIZED, (*_SECTION, key), key=key, dtype=attention.dtype)
    backend = BACKENDS.get(attention.backend or DEFAULT_BACKEND)
    return Quantized(
        attention.platform or "", backend.name if backend else "", backend.path if backend else "", steps, sites
    )


def _without_effect(plan: Plan) -> Iterator[Diagnostic]:
    document, section = plan.document, plan.quantization
    given = document.value.get("quantization", {})
    if not quantized(plan):
        for key in ("platform", "backend", "skip_steps", "skip_layers"):
            if key in given.get("attention", {}):
                yield _idle(plan, (*_SECTION, key), key, "attention is native")
    if section.lossless == "downgrade":
        if not quantized(plan):
            yield _idle(plan, ("quantization", "lossless"), "lossless: downgrade", "attention is native")
        elif all(rule.tier != "P0" for rule in plan.caches):
            yield _idle(plan, ("quantization", "lossless"), "lossless: downgrade", "no rule of the plan is of tier P0")


def _idle(plan: Plan, path: Path, key: str, because: str) -> Diagnostic:
    return rules.QUANTIZATION_IDLE.at(plan.document.file, plan.document.span(path, key=True), key=key, because=because)


def _computed(plan: Plan) -> Iterator[Diagnostic]:
    """Platform × backend × dtype: something computes what is asked for."""
    document, attention = plan.document, plan.quantization.attention

    def at(rule: Rule, key: str, **fields: object) -> Diagnostic:
        return rule.at(document.file, document.span((*_SECTION, key)), dtype=attention.dtype, **fields)

    backend = BACKENDS.get(attention.backend or DEFAULT_BACKEND)
    if backend is None:
        name = attention.backend or ""
        yield at(
            rules.UNKNOWN_BACKEND, "backend", backend=name, guess=did_you_mean(name, BACKENDS), known=listed(BACKENDS)
        )
    able = computed_on(attention.dtype)
    if attention.platform not in able:
        where = "here" if attention.platform is None else f"on {PLATFORMS[attention.platform]}"
        served = listed(f"platform: {name}" for name in able)
        yield at(rules.NO_BACKEND, "dtype" if attention.platform is None else "platform", where=where, served=served)
    elif backend is not None and (attention.dtype not in backend.dtypes or attention.platform not in backend.platforms):
        others = [
            b.name for b in BACKENDS.values() if attention.dtype in b.dtypes and attention.platform in b.platforms
        ]
        yield at(
            rules.BACKEND_DTYPE,
            "backend",
            backend=backend.name,
            has=listed(backend.dtypes, "and"),
            path=backend.path,
            others=listed(others),
        )


def _native_steps(placing: Placing, grid: Grid) -> tuple[int, ...] | None:
    text = placing.plan.quantization.attention.skip_steps
    if text is None:
        return ()
    path = (*_SECTION, "skip_steps")
    try:
        found = parse_steps(text).resolve(placing.steps)
    except SelectorError as error:
        placing.report(rules.STEPS_UNRESOLVED, path, inside=error, message=error.message, help=error.help)
        return None
    left_out = [step for step in found if step not in set(grid.evaluated)]
    if left_out:
        message = f"step {left_out[0]} is left out by the plan's step_schedule"
        placing.report(rules.STEPS_UNRESOLVED, path, message=message, help="list steps that are run")
        return None
    return found


def _native_sites(placing: Placing) -> tuple[str, ...] | None:
    """Names of the blocks whose self-attention stays native, in the order of the stacks."""
    document, found = placing.plan.document, set[Site]()
    single = isinstance(document.value["quantization"]["attention"].get("skip_layers"), str)
    sound = True
    for index, text in enumerate(placing.plan.quantization.attention.skip_layers):
        path = (*_SECTION, "skip_layers") if single else (*_SECTION, "skip_layers", index)
        try:
            resolved = parse_sites(text).resolve(placing.profile.counts, placing.profile.sets)
        except SelectorError as error:
            placing.report(rules.UNRESOLVED, path, inside=error, message=error.message, help=error.help)
            sound = False
            continue
        tree, part = placing.profile.tree, QUANTIZED_PART
        wrong = next(
            (s for s in resolved if Site(s.stack, s.index, part) not in tree or s.part not in (None, part)), None
        )
        if wrong is not None:
            placing.report(rules.NOT_QUANTIZED_ANYWAY, path, site=wrong)
            sound = False
        found |= {Site(s.stack, s.index) for s in resolved}
    if not sound:
        return None
    return tuple(map(str, sorted(found, key=lambda s: s.order)))
