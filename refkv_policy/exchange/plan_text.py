"""Settings as the text of a plan. What the settings do not say is asked of the caller, and marked in the text."""

from __future__ import annotations

import datetime
from collections.abc import Iterator
from dataclasses import dataclass

from refkv_policy.compiler import check_plan
from refkv_policy.exchange.indices import indices_text
from refkv_policy.exchange.settings import PLATFORM, ExchangeError, Settings, refusals
from refkv_policy.plan import Diagnostic, PlanError, Shape, errors, parse_plan
from refkv_policy.plan.schema import flow
from refkv_policy.profiles import Profile

RISK = "lossy-hint-cache"
SHAPE = Shape(832, 480, 81)
REASON = "Acknowledged where it was imported from; look at the evidence before it is renewed."


@dataclass(frozen=True, slots=True)
class OperatingPoint:
    """What settings do not say and a plan must: for what it is reviewed, and who accepts its risk.

    by, expires and reason: of the acknowledgement, where P1 is on; date: the day it is given.
    """

    profile: Profile
    name: str = "imported"
    steps: tuple[int, ...] = (30,)
    flow_shift: float = 3.0
    guidance: float = 5.0
    shape: Shape = SHAPE
    by: str | None = None
    date: datetime.date | None = None
    expires: datetime.date | None = None
    reason: str = REASON


def plan_text(settings: Settings, point: OperatingPoint) -> str:
    """The text of a plan that says what the settings say. Raises ExchangeError with every reason why none can."""
    reasons = [*refusals(settings), *_unanswered(settings, point), *_out_of_range(settings, point)]
    if reasons:
        raise ExchangeError(reasons)
    return "".join(_parts(settings, point))


def check_text(text: str, file: str, today: datetime.date | None = None) -> tuple[Diagnostic, ...]:
    """What is to be said of an imported plan without being an error. Raises PlanError when it is not sound."""
    plan, faults = parse_plan(text, file)
    if plan is None:
        raise PlanError(faults)
    found = (*faults, *check_plan(plan, today))
    if errors(found):
        raise PlanError(found)
    return found


def _unanswered(settings: Settings, point: OperatingPoint) -> Iterator[str]:
    if settings.cache.enable_vace_hint_cache_lossy and point.by is None:
        yield (
            f"{settings.word('vace_hint_cache_warning_acknowledged')} says that somebody accepted the risk, and a plan says "
            "who: name the party with --by"
        )


def _out_of_range(settings: Settings, point: OperatingPoint) -> Iterator[str]:
    """Indices that the model or a run does not have: theirs is a setting without effect."""
    profile, word = point.profile, settings.word
    hints = len(profile.vace_at)
    if settings.cache.enable_vace_hint_cache_lossy and not hints:
        yield f"{word('enable_vace_hint_cache_lossy')} caches VACE hints, and {profile.name} has none"
        return
    for layers, count, field in (
        (settings.cache.vace_hint_cached_layers or (), hints, "vace_hint_cached_layers"),
        (settings.attention.skip_layers, profile.main_blocks, "diffusion_kv_cache_skip_layers"),
    ):
        if layers and layers[-1] >= count:
            yield f"{word(field)} names layer {layers[-1]}, and {profile.name} has 0 to {count - 1}"
    skipped = settings.attention.skip_steps
    if skipped and skipped[-1] >= min(point.steps):
        field = word("diffusion_kv_cache_skip_steps")
        yield f"{field} names step {skipped[-1]}, and a run of {min(point.steps)} steps has 0 to {min(point.steps) - 1}"


def _parts(settings: Settings, point: OperatingPoint) -> Iterator[str]:
    shape = point.shape
    yield (
        "version: 1\nkind: plan\n"
        f"name: {flow(point.name)}\npurpose: reference\ndescription: Imported from the settings of vLLM-Omni.\n"
        f"models: [{flow(point.profile.name)}]\n"
        "run:                         # the settings say nothing of this: what the plan is to be reviewed for\n"
        f"  steps: {flow(list(point.steps))}\n"
        f"  sampler: {{name: unipc, flow_shift: {point.flow_shift}}}\n"
        f"  guidance: {point.guidance}\n"
        f"  shapes: [{{size: {shape.width}x{shape.height}, frames: {shape.frames}}}]\n"
    )
    rules = "".join(_rules(settings, point.profile))
    yield f"caches:\n{rules}" if rules else "caches: []\n"
    yield from _quantization(settings, point.profile)
    if settings.cache.enable_vace_hint_cache_lossy:
        yield f"acknowledgements:\n  - risk: {RISK}\n    by: {flow(point.by)}\n"
        yield f"    date: {point.date or datetime.date.today()}\n"
        if point.expires is not None:
            yield f"    expires: {point.expires}\n"
        yield f"    reason: {flow(point.reason)}\n"


def _rules(settings: Settings, profile: Profile) -> Iterator[str]:
    cache = settings.cache
    store = "" if cache.ref_cache_on_device else "    store: {device: cpu}\n"
    if cache.enable_text_cross_attn_cache:
        at = '["main[all].text_kv", "vace[all].text_kv"]' if profile.vace_at else '"main[all].text_kv"'
        yield f"  - name: text\n    tier: P0\n    method: text_kv\n    at: {at}\n{store}"
    if cache.enable_vace_hint_cache_lossy:
        layers = cache.vace_hint_cached_layers
        at = "deep" if layers is None else indices_text(layers)
        refresh = f"    refresh: {{interval: {cache.vace_hint_refresh_interval}}}\n"
        yield f'  - name: hints\n    tier: P1\n    method: hint_reuse\n    at: "hint[{at}]"\n{refresh}{store}'


def _quantization(settings: Settings, profile: Profile) -> Iterator[str]:
    """An index of theirs names the block of that number in the main stack and in the VACE chain alike."""
    attention = settings.attention
    if attention.dtype is None:
        return
    yield f"quantization:\n  attention:\n    dtype: {attention.dtype}\n    platform: {PLATFORM}\n"
    if attention.backend is not None:
        yield f"    backend: {attention.backend.lower()}\n"
    if attention.skip_steps:
        yield f'    skip_steps: "{indices_text(attention.skip_steps)}"\n'
    if attention.skip_layers:
        vace = [index for index in attention.skip_layers if index < len(profile.vace_at)]
        sites = [f'"main[{indices_text(attention.skip_layers)}]"', *([f'"vace[{indices_text(vace)}]"'] if vace else [])]
        yield f"    skip_layers: [{', '.join(sites)}]\n"
