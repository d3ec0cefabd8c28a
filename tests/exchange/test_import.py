"""Settings of a server become a plan that says the same, or are refused with every reason."""

from __future__ import annotations

import datetime
from dataclasses import replace
from typing import Any

import pytest
import yaml

from refkv_policy.compiler import compile_all
from refkv_policy.exchange import (
    AttentionSettings,
    ExchangeError,
    OperatingPoint,
    RefTargetKVCacheConfig,
    Settings,
    check_text,
    parse_config,
    parse_deploy,
    plan_text,
    read_flags,
)
from refkv_policy.exchange.settings import CACHE_FIELDS
from refkv_policy.plan import Plan, PlanError, errors, parse_plan
from refkv_policy.profiles import load_profile

TODAY = datetime.date(2026, 12, 1)
POINT = OperatingPoint(load_profile("wan2.1-vace-1.3b"), by="video team", date=TODAY)
P0 = "--enable-text-cross-attn-cache"
P1 = "--enable-vace-hint-cache-lossy --vace-hint-cache-warning-acknowledged"
TWO = "stages: [{stage_id: 0, diffusion_kv_cache_dtype: fp8}, {stage_id: 1, diffusion_kv_cache_dtype: fp8}]"
LINES = """vllm serve Wan2.1 --omni \\
    --enable-vace-hint-cache-lossy \\
    --vace-hint-cache-warning-acknowledged \\
    --vace-hint-refresh-interval 4
"""


def plan_of(settings: Settings, point: OperatingPoint = POINT) -> Plan:
    """The plan of settings, which is sound but for an attention dtype that no backend has here."""
    text = plan_text(settings, point)
    check_text(text, "imported.yaml", TODAY)
    plan, faults = parse_plan(text, "imported.yaml")
    assert plan is not None, faults
    return plan


def refused(text: str, point: OperatingPoint = POINT) -> tuple[str, ...]:
    """Why a text of flags cannot become a plan."""
    with pytest.raises(ExchangeError) as found:
        plan_text(read_flags(text), point)
    return found.value.reasons


@pytest.mark.parametrize(
    ("command", "tiers"),
    [
        ("vllm serve Wan2.1 --omni --enable-text-cross-attn-cache", ["P0"]),
        (LINES, ["P1"]),
        (f"{P0} {P1}", ["P0", "P1"]),
        ("--enable_text_cross_attn_cache", ["P0"]),
        ("--omni", []),
    ],
)
def test_the_commands_of_the_rfc_are_understood(command: str, tiers: list[str]) -> None:
    """Section 3.2's lines, over several lines too, give a rule for each tier, on the sites and with the defaults it says."""
    plan = plan_of(read_flags(command))
    assert [rule.tier for rule in plan.caches] == tiers
    for rule in plan.caches:
        if rule.tier == "P0":
            assert (rule.method, rule.at) == ("text_kv", ("main[all].text_kv", "vace[all].text_kv"))
        else:
            assert rule.refresh is not None
            assert (rule.method, rule.at, rule.refresh.interval) == ("hint_reuse", ("hint[deep]",), 4)
    assert [(a.risk, a.by, a.date) for a in plan.acknowledgements] == [("lossy-hint-cache", "video team", TODAY)] * (
        "P1" in tiers
    )


def test_the_interval_is_the_rfcs() -> None:
    """`step_counter % refresh_interval == 0` refreshes (RFC 2.5), and so does the compiled table."""
    for interval in (2, 3, 5, 29):
        plan = plan_of(read_flags(f"{P1} --vace-hint-refresh-interval={interval}"))
        row = compile_all(plan, TODAY)["wan2.1-vace-1.3b", 30].by_site["hint[14]"]
        computed = [step for step, action in enumerate(row.cond) if action in "C."]
        assert computed == [step for step in range(30) if step % interval == 0]


@pytest.mark.parametrize(
    ("flags", "words"),
    [
        ("--enable-ref-target-kv --model-type wan2_1", "no decoupled reference"),
        ("--enable-vace-hint-cache-lossy", "demands --vace-hint-cache-warning-acknowledged"),
        ("--vace-hint-cache-warning-acknowledged", "has no effect without --enable-vace-hint-cache-lossy"),
        ("--vace-hint-refresh-interval 8", "has no effect without --enable-vace-hint-cache-lossy"),
        (f"{P0} --model-type hunyuan", "defined for 'wan2_1' only"),
        (f"{P1} --vace-hint-refresh-interval 0", "not a whole number from 1"),
        (f"{P1} --vace-hint-refresh-interval 4.0", "not a whole number from 1"),
        (f"{P1} --vace-hint-refresh-interval", "value is missing"),
        (f"{P1} --vace-hint-refresh-interval {P0}", "value is missing"),
        (f"{P0} {P0}", "given twice"),
        (f"{P0}=true", "takes no value"),
        ("--enable-text-cross-attn-cach", "did you mean `--enable-text-cross-attn-cache`"),
        (f"{P0} --tensor-parallel-size 2", "--tensor-parallel-size is not a flag of caches"),
        (f"{P0} Wan2.1", "not a flag"),
        (f"{P0} '--model-type", "cannot be split"),
        ("--diffusion-kv-cache-skip-steps 0", "no effect without --diffusion-kv-cache-dtype"),
        ("--diffusion-kv-cache-dtype fp4", "one of `fp8`, `mxfp8` or `mxfp4`"),
        ("--diffusion-kv-cache-dtype fp8 --diffusion-kv-cache-skip-steps 0:2", "neither an index nor a range"),
        ("--diffusion-kv-cache-dtype fp8 --diffusion-kv-cache-skip-steps 3-1", "runs backwards"),
        ("--diffusion-kv-cache-dtype fp8 --diffusion-kv-cache-skip-steps 30", "a run of 30 steps has 0 to 29"),
        ("--diffusion-kv-cache-dtype fp8 --diffusion-kv-cache-skip-layers 30", "wan2.1-vace-1.3b has 0 to 29"),
        ("--diffusion-kv-cache-dtype fp8 --diffusion-attention-config {", "not JSON"),
        (
            """--diffusion-kv-cache-dtype fp8 --diffusion-attention-config '{"default": "FLASH_ATTN"}'""",
            "of self-attention",
        ),
        (
            "--diffusion-kv-cache-dtype fp8 --diffusion-attention-config.per_role.self.backend SAGE_ATTN",
            "no narrower dtype",
        ),
        (
            "--diffusion-kv-cache-dtype mxfp8 --diffusion-attention-config.per_role.self.backend RAINFUSION_ATTN",
            "mxfp8",
        ),
        ("--diffusion-attention-config.per_role.self.backend FLASH_ATTN", "no part of a plan"),
    ],
)
def test_what_has_no_equivalent_is_refused(flags: str, words: str) -> None:
    """Each is told in one sentence; nothing is dropped."""
    (reason,) = refused(flags)
    assert words in reason


def test_every_reason_is_told_at_once() -> None:
    """Unknown flags first, since nothing can be said of the rest; then all that cannot be said."""
    assert len(refused("--first 1 --second --third=3")) == 3
    assert len(refused("--enable-ref-target-kv --enable-vace-hint-cache-lossy --model-type x")) == 3


def test_somebody_is_named() -> None:
    """The flag says that the risk was accepted; a plan says by whom."""
    (reason,) = refused(P1, replace(POINT, by=None))
    assert "--by" in reason
    plan_of(read_flags(P0), replace(POINT, by=None))


def test_a_model_without_hints_has_its_text_kept_and_no_hints() -> None:
    """Settings of a plain Wan model become a plan at its main blocks; those of hints are refused, layers or none."""
    point = replace(POINT, profile=load_profile("wan2.1-t2v-1.3b"))
    assert plan_of(read_flags(P0), point).caches[0].at == ("main[all].text_kv",)
    for flags in (P1, f"{P0} {P1}", f"{P1} --vace-hint-refresh-interval 2"):
        (reason,) = refused(flags, point)
        assert reason.endswith("caches VACE hints, and wan2.1-t2v-1.3b has none")


def test_what_the_settings_do_not_say_is_asked() -> None:
    """Step counts, shapes, expiry and names are the caller's; hostile ones are quoted, not believed."""
    by = 'team: "x" # \' {y}'
    point = replace(POINT, name="mine", steps=(30, 50), guidance=4.5, by=by, expires=datetime.date(2027, 1, 1))
    plan = plan_of(read_flags(P1), point)
    assert (plan.name, plan.run.steps, plan.run.guidance) == ("mine", (30, 50), (4.5,))
    assert (plan.acknowledgements[0].by, plan.acknowledgements[0].expires) == (by, datetime.date(2027, 1, 1))


def test_every_field_of_the_rfc_is_read() -> None:
    """A dump of the defaults is a plan that caches nothing; each switch, the layers and the device have their place."""
    default = {name: getattr(RefTargetKVCacheConfig(), name) for name in CACHE_FIELDS}
    assert plan_of(parse_config(yaml.safe_dump(default), "config.yaml")).caches == ()
    on = {
        **default,
        "enable_text_cross_attn_cache": True,
        "enable_vace_hint_cache_lossy": True,
        "vace_hint_cache_warning_acknowledged": True,
        "vace_hint_refresh_interval": 3,
        "vace_hint_cached_layers": [14, 12, 13],
        "ref_cache_on_device": False,
    }
    text, hints = plan_of(parse_config(yaml.safe_dump(on), "config.yaml")).caches
    assert (hints.at, hints.store.device, text.store.device) == (("hint[12-14]",), "cpu", "cpu")
    assert hints.refresh is not None
    assert hints.refresh.interval == 3


@pytest.mark.parametrize(
    ("fields", "words"),
    [
        ({"vace_hint_cached_layers": []}, "no hint would be cached"),
        ({"vace_hint_cached_layers": [14, 15]}, "wan2.1-vace-1.3b has 0 to 14"),
        ({"enable_transfer": True}, "between workers"),
        ({"enable_vace_hint_cache_lossy": False}, "has no effect"),
    ],
)
def test_fields_without_equivalent_are_refused(fields: dict[str, Any], words: str) -> None:
    """The sentence uses the field's own spelling, not the flag's."""
    on = {"enable_vace_hint_cache_lossy": True, "vace_hint_cache_warning_acknowledged": True, **fields}
    with pytest.raises(ExchangeError, match=words) as found:
        plan_text(parse_config(yaml.safe_dump(on), "config.yaml"), POINT)
    assert "--" not in str(found.value)


def test_a_store_for_nothing_is_refused() -> None:
    """A setting that does nothing would be believed in."""
    with pytest.raises(ExchangeError, match="nothing is cached"):
        plan_text(parse_config("ref_cache_on_device: false", "config.yaml"), POINT)


def test_layers_that_save_nothing_are_refused_by_the_compiler() -> None:
    """Caching shallow hints alone spares no block of the chain: the plan's own diagnostic says so."""
    text = "{enable_vace_hint_cache_lossy: true, vace_hint_cache_warning_acknowledged: true, vace_hint_cached_layers: [0, 1]}"
    with pytest.raises(PlanError, match="saves no block"):
        plan_of(parse_config(text, "config.yaml"))


def test_lossless_under_quantization_is_refused_by_the_compiler() -> None:
    """RFC 5.4: with a narrower dtype P0 is no longer lossless."""
    with pytest.raises(PlanError, match="claims P0"):
        plan_of(read_flags(f"{P0} --diffusion-kv-cache-dtype fp8"))


@pytest.mark.parametrize(
    ("text", "code", "place"),
    [
        ("enable_text_cross_attn_cach: true", "RKV101", (1, 1)),
        ("enable_transfer: yes", "RKV103", (1, 18)),
        ("vace_hint_refresh_interval: 0", "RKV106", (1, 29)),
        ("vace_hint_cached_layers: [8, -1]", "RKV106", (1, 30)),
        ("model_type: ]", "RKV010", (1, 13)),
        ("- 1", "RKV103", (1, 1)),
    ],
)
def test_a_faulty_configuration_is_told_with_its_place(text: str, code: str, place: tuple[int, int]) -> None:
    """As in a plan: code, line and column."""
    with pytest.raises(PlanError) as found:
        parse_config(text, "config.yaml")
    (told,) = errors(found.value.diagnostics)
    assert told.span is not None
    assert (told.code, (told.span.line, told.span.column)) == (code, place)


def test_a_deploy_fragment_is_read() -> None:
    """The document's own example, lists for selectors, and `auto` for native."""
    text = 'stages:\n  - stage_id: 0\n    diffusion_kv_cache_dtype: "fp8"\n    diffusion_kv_cache_skip_steps: "0,1"\n'
    attention = parse_deploy(text + '    diffusion_kv_cache_skip_layers: "0-2"\n', "d.yaml").attention
    assert attention == AttentionSettings("fp8", (0, 1), (0, 1, 2), None)
    attention = parse_deploy(text + "    diffusion_kv_cache_skip_layers: [2, 0]\n", "d.yaml").attention
    assert attention.skip_layers == (0, 2)
    assert parse_deploy("stages: [{stage_id: 0, diffusion_kv_cache_dtype: auto}]", "d.yaml").attention.dtype is None
    assert parse_deploy("stages: []", "d.yaml") == Settings(source="fields")


@pytest.mark.parametrize(
    ("text", "error", "words"),
    [
        ("stages: [{stage_id: 0, diffusion_kv_cache_skip_steps: 0}]", PlanError, "must be a text or a list"),
        ("stages: [{stage_id: 0, devices: '0'}]", PlanError, "`devices` is not a key"),
        ("{stages: [], async_chunk: false}", PlanError, "`async_chunk` is not a key"),
        (TWO, ExchangeError, "2 stages"),
        ("stages: [{stage_id: 0, diffusion_kv_cache_skip_layers: '1..2'}]", ExchangeError, "neither an index"),
        ("stages: [{stage_id: 0, diffusion_attention_config: {default: FLASH_ATTN}}]", ExchangeError, "self-attention"),
    ],
)  # fmt: skip
def test_a_deploy_yaml_with_more_is_refused(text: str, error: type[Exception], words: str) -> None:
    """What is not about runtime attention precision cannot be in a plan, and is not dropped."""
    with pytest.raises(error, match=words):
        parse_deploy(text, "d.yaml")
