"""Quantized attention: what computes it, what a plan must say and acknowledge for it, and what of it is in a table."""

from __future__ import annotations

import dataclasses
import itertools
import json
from pathlib import Path

import pytest

from refkv_policy.compiler import HookTable, check_plan, compile_plan
from refkv_policy.compiler.attention import BACKENDS, DTYPES, PLATFORMS, RISKS
from refkv_policy.compiler.lock import lock_text
from refkv_policy.guardrails.known import known_risks
from refkv_policy.plan import Plan
from refkv_policy.plan.schema import plan_schema
from tests.plans import hints, plan_of

ROOT = Path(__file__).resolve().parents[2]
MINI = "wan2.1-vace-mini"

# The two tables of the quantized-KV document, as it prints them: path of a backend, and dtypes of a path on Ascend NPU.
DOCUMENT = {("npu", "flash_attn"): {"fp8", "mxfp8", "mxfp4"}, ("npu", "rainfusion_attn"): {"fp8", "mxfp4"}}


def quantized(attention: str, caches: str = "", *, lossless: str = "refuse", risks: tuple[str, ...] = ()) -> Plan:
    """A plan of 12 steps on the mini with that attention."""
    entries = "".join(f"  - {{risk: {risk}, by: tests, date: 2026-01-01, reason: needed}}\n" for risk in risks)
    rest = f"quantization:\n  attention: {{{attention}}}\n  lossless: {lossless}\n"
    rest += f"acknowledgements:\n{entries}" if entries else ""
    return plan_of(caches or "  []\n", rest=rest)


def codes(plan: Plan) -> list[str]:
    """What the compiler says of a plan."""
    return [d.code for d in check_plan(plan)]


@pytest.mark.parametrize(
    ("platform", "backend", "dtype"),
    [*itertools.product(("npu", "cuda", "rocm", "xpu"), ("flash_attn", "rainfusion_attn"), ("fp8", "mxfp8", "mxfp4"))],
)
def test_exactly_what_the_document_lists_is_accepted(platform: str, backend: str, dtype: str) -> None:
    """Platform × backend × dtype: the cells that the document marks as supported are sound, every other is refused."""
    found = codes(quantized(f"dtype: {dtype}, platform: {platform}, backend: {backend}"))
    if dtype in DOCUMENT.get((platform, backend), set()):
        assert found == []
    else:
        assert found == (["RKV404"] if platform == "npu" else ["RKV401"])


@pytest.mark.parametrize("dtype", ["fp8", "mxfp8", "mxfp4"])
def test_refkvs_own_runtime_has_no_quantized_attention(dtype: str) -> None:
    """Without a platform the plan is for this runtime, and a narrower dtype is refused rather than left native."""
    assert codes(quantized(f"dtype: {dtype}")) == ["RKV401"]


def test_the_schema_knows_the_platforms_and_dtypes_of_the_tables() -> None:
    """An editor offers what the compiler's tables have, no more and no less."""
    known = plan_schema()["properties"]["quantization"]["properties"]["attention"]["properties"]
    assert known["platform"]["enum"] == list(PLATFORMS)
    assert known["dtype"]["enum"] == ["native", *DTYPES]
    assert all(name in known["backend"]["description"] for name in BACKENDS)


TEXT = "  - {name: text, tier: P0, method: text_kv, at: 'main[all].text_kv'}\n"
NPU = "dtype: fp8, platform: npu"


def test_reuse_and_quantization_need_no_more_than_the_reuse() -> None:
    """P1 has no conflict with FP8 [RFC 5.4]: its own acknowledgement is all it needs."""
    assert codes(quantized(NPU, hints("'hint[all]'", "interval: 2"), risks=("lossy-hint-cache",))) == []


def test_forecasting_quantized_features_needs_its_own_acknowledgement() -> None:
    """The hint cache's acknowledgement does not cover extrapolated quantization noise; native attention has none."""
    rule = hints("'hint[all]'", "interval: 2", method="hint_forecast")
    assert codes(quantized(NPU, rule, risks=("lossy-hint-cache",))) == ["RKV501"]
    sound = quantized(NPU, rule, risks=("lossy-hint-cache", "forecast-of-quantized"))
    assert codes(sound) == []
    assert compile_plan(sound, MINI, 12).rules[0].risks == ("lossy-hint-cache", "forecast-of-quantized")
    native = quantized("dtype: native", rule, risks=("lossy-hint-cache", "forecast-of-quantized"))
    assert codes(native) == ["RKV502"]


def test_a_lossless_rule_is_refused_or_downgraded_on_somebodys_word() -> None:
    """P0's claim ends where attention is quantized: refused, or given up by an acknowledgement."""
    assert codes(quantized(NPU, TEXT)) == ["RKV402"]
    assert codes(quantized(NPU, TEXT, lossless="downgrade")) == ["RKV501"]
    assert codes(quantized(NPU, TEXT, lossless="downgrade", risks=("downgraded-lossless-cache",))) == []


def test_guardrails_can_name_who_accepts_these_risks() -> None:
    """The risks of rules under quantization are known to guardrails like those of methods."""
    assert set(RISKS) <= set(known_risks())


FULL = f"{NPU}, backend: flash_attn, skip_steps: '0,1,10-11', skip_layers: ['main[0,11]', 'vace[0].self']"


def test_what_stays_native_is_resolved_into_the_table() -> None:
    """Steps and blocks are listed, stacks apart; the lock says them in a line."""
    plan = quantized(FULL)
    table = compile_plan(plan, MINI, 12)
    assert table.quantized is not None
    assert table.quantized.native_steps == (0, 1, 10, 11)
    assert table.quantized.native_sites == ("main[0]", "main[11]", "vace[0]")
    line = "attention fp8 on npu, flash_attn (dense); native at steps 0-1,10-11, main[0,11], vace[0]"
    assert f"\n{line}\n" in lock_text(plan)


@pytest.mark.parametrize(
    "other",
    [
        FULL.replace("fp8", "mxfp4"),
        FULL.replace("flash_attn", "rainfusion_attn"),
        FULL.replace("0,1,10-11", "0,1"),
        FULL.replace("main[0,11]", "main[0]"),
        FULL.replace("vace[0].self", "vace[1]"),
    ],
)
def test_every_part_of_it_is_behaviour(other: str) -> None:
    """Another dtype, backend, step or block is another table, and its dictionary gives it back."""
    table, changed = compile_plan(quantized(FULL), MINI, 12), compile_plan(quantized(other), MINI, 12)
    assert table.digest != changed.digest
    again = HookTable.from_dict(json.loads(json.dumps(table.to_dict())))
    assert (again.digest, again.quantized) == (table.digest, table.quantized)


def test_a_backend_left_out_is_the_dense_one() -> None:
    """Naming the default backend changes nothing."""
    left_out = compile_plan(quantized(NPU), MINI, 12)
    assert left_out.digest == compile_plan(quantized(f"{NPU}, backend: flash_attn"), MINI, 12).digest


def test_tables_of_native_attention_say_nothing_of_it() -> None:
    """Plans without quantization keep the digests that their locks have."""
    table = compile_plan(quantized("dtype: native", TEXT), MINI, 12)
    assert table.quantized is None
    assert "quantized" not in table.to_dict()
    assert dataclasses.replace(table, attention_dtype="native").digest == table.digest
