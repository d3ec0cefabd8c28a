"""Variants of a plan, and the step-reduction baselines: what is run, worked out independently."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from refkv_policy.compiler import compile_plan
from refkv_policy.plan import PlanError, parse_plan
from refkv_policy.profiles import load_profile
from refkv_policy.quality.baselines import respaced_table, step_counts
from refkv_policy.quality.variants import (
    VaryError,
    choose_rule,
    default_varies,
    edited,
    make_variants,
    parse_vary,
)
from tests import sweeps

MINI = load_profile("wan2.1-vace-mini")


@pytest.mark.parametrize(
    ("text", "path", "values"),
    [
        ("refresh.interval=1,2,4", ("refresh", "interval"), (1, 2, 4)),
        ("at=hint[0-2,4],hint[all]", ("at",), ("hint[0-2,4]", "hint[all]")),
        ("refresh.steps='0,1,8',\"0,4\"", ("refresh", "steps"), ("0,1,8", "0,4")),
        ("params.gain=0.5, 1.0,0.5", ("params", "gain"), (0.5, 1.0)),
        ("store.dtype=bfloat16", ("store", "dtype"), ("bfloat16",)),
    ],
)
def test_a_vary_is_read(text: str, path: tuple[str, ...], values: tuple[object, ...]) -> None:
    """Numbers are numbers; commas in brackets and quotes belong to the value; a value that comes twice runs once."""
    vary = parse_vary(text)
    assert (vary.path, vary.values) == (path, values)
    assert [type(v) for v in vary.values] == [type(v) for v in values]


@pytest.mark.parametrize("text", ["refresh.interval", "=1", "refresh.=1", "refresh.interval=", "at=1,,2", "a=null"])
def test_a_vary_that_cannot_be_read_is_a_sentence(text: str) -> None:
    """What is no PATH=VALUE is refused, and named."""
    with pytest.raises(VaryError, match="--vary"):
        parse_vary(text)


def test_a_variant_is_the_plan_a_person_would_have_written() -> None:
    """Its table is that of the same text with the value typed in, and sets and names of other rules stay."""
    plan = sweeps.plan("wan2.1-vace-mini", 12)
    variants = make_variants(plan, MINI, 12, 0, [parse_vary("refresh.interval=3"), parse_vary("at=hint[all]")])
    text = plan.document.text.replace("interval: 2", "interval: 3").replace("hint[deep]", "hint[all]")
    typed, _ = parse_plan(text, "tiny.yaml")
    assert typed is not None
    assert [v.name for v in variants] == ["refresh.interval=3, at=hint[all]"]
    assert variants[0].table is not None
    assert variants[0].table.digest == compile_plan(typed, MINI, 12).digest


def test_every_combination_runs_and_what_does_not_compile_says_why() -> None:
    """A prefix of the chain saves nothing and an interval of 0 is none: both are among the variants with their faults."""
    plan = sweeps.plan("wan2.1-vace-mini", 12)
    variants = make_variants(
        plan, MINI, 12, 0, [parse_vary("refresh.interval=2,0"), parse_vary("at=hint[deep],hint[0]")]
    )
    assert len(variants) == 4
    assert [v.table is not None for v in variants] == [True, False, False, False]
    assert "saves no block" in (variants[1].fault or "")
    assert "RKV" in (variants[2].fault or "")


def test_an_interval_of_one_is_the_plan_without_the_rule() -> None:
    """No plan may say K = 1, and the RFC enumerates it: the rule is left out, and its acknowledgement unless another needs it."""
    profile = load_profile("wan2.1-vace-mini")
    (alone,) = make_variants(sweeps.plan("wan2.1-vace-mini", 12), profile, 12, 0, [parse_vary("refresh.interval=1")])
    assert alone.table is not None, alone.fault
    assert {action for *_, action in alone.table.cells()} == {"."}
    assert alone.table.acknowledgements == ()
    text = sweeps.plan("wan2.1-vace-mini", 12).document.text
    more = '  - {name: first, tier: P1, method: hint_reuse, at: "hint[0-2]", refresh: {interval: 2}}\nacknowledgements:'
    two, faults = parse_plan(text.replace("acknowledgements:", more).replace("hint[deep]", "hint[3-5]"))
    assert two is not None, faults
    found = make_variants(two, profile, 12, 1, [parse_vary("refresh.interval=1,2")])
    assert found[0].table is not None, found[0].fault
    assert [rule.name for rule in found[0].table.rules] == ["deep-hints"]
    assert len(found[0].table.acknowledgements) == 1


def test_another_form_of_refresh_replaces_the_one_there_was() -> None:
    """`spacing` and `count` belong together; `interval` gives way to them, and they to `steps`."""
    plan = sweeps.plan("wan2.1-vace-mini", 12)
    spaced = make_variants(plan, MINI, 12, 0, [parse_vary("refresh.spacing=sigma"), parse_vary("refresh.count=4")])
    listed = make_variants(plan, MINI, 12, 0, [parse_vary("refresh.steps='0,3'")])
    assert spaced[0].fault is None
    assert listed[0].fault is None


def test_the_rule_that_is_varied() -> None:
    """The only lossy one unless one is named; a name that does not exist is refused."""
    plan = sweeps.plan("wan2.1-vace-mini", 12)
    extra = {"name": "text", "tier": "P0", "method": "text_kv", "at": ["main[all].text_kv", "vace[all].text_kv"]}
    two = edited(plan, lambda value: value["caches"].insert(0, extra))
    assert choose_rule(plan, None) == 0
    assert choose_rule(two, None) == 1
    assert choose_rule(two, "text") == 0
    with pytest.raises(VaryError, match="no rule 'nope'"):
        choose_rule(two, "nope")
    lossy = edited(plan, lambda value: value["caches"].append({**value["caches"][0], "name": "b"}))
    with pytest.raises(VaryError, match="--rule"):
        choose_rule(lossy, None)


def test_what_is_varied_unasked() -> None:
    """The RFC's K for an interval; counts around the plan's own for a spacing; nothing for listed steps."""
    plan = sweeps.plan("wan2.1-vace-mini", 12)
    (vary,) = default_varies(plan, 0)
    assert vary.values == (1, 2, 3, 4, 6, 8)
    spaced = edited(plan, lambda v: v["caches"][0].update(refresh={"spacing": "sigma", "count": 6}))
    (vary,) = default_varies(spaced, 0)
    assert (vary.name, 6 in vary.values) == ("refresh.count", True)
    listed = edited(plan, lambda v: v["caches"][0].update(refresh={"steps": "0,6"}))
    assert default_varies(listed, 0) == ()


def test_an_edit_that_is_no_plan_raises() -> None:
    """The edited document goes through the whole reader."""
    with pytest.raises(PlanError):
        edited(sweeps.plan(), lambda value: value.update(kind="pln"))


@given(steps=st.integers(3, 60), speed=st.floats(1.0, 3.0), more=st.floats(1.0, 1.5), most=st.integers(2, 12))
def test_step_counts_cover_the_plan(steps: int, speed: float, more: float, most: int) -> None:
    """The plan's speed lies between two of the counts (the uncached run is the slower end), as far as counts go."""
    counts = step_counts(steps, [speed], speed * more, most)
    assert list(counts) == sorted(set(counts), reverse=True)
    assert all(2 <= n < steps for n in counts)
    speeds = [1.0, *(steps / n for n in counts)]
    assert min(speeds) <= speed
    assert max(speeds) >= min(speed, steps / 2) - 1e-9
    # Nothing that could have run stands between the plan and its neighbours.
    slower = max((s for s in speeds if s <= speed), default=1.0)
    between = [n for n in range(2, steps) if slower < steps / n <= speed]
    assert between == []


@pytest.mark.parametrize("spacing", ["sigma", "sqrt_sigma"])
def test_a_respaced_baseline_is_nearest_to_equal_distances(spacing: str) -> None:
    """Its steps are those of the plan's own grid nearest to equal distances, first and last among them."""
    table = respaced_table(sweeps.plan("wan2.1-vace-mini", 12), MINI, 12, 5, spacing)
    u = np.linspace(1, 1 / 1000, 13)[:-1]
    sigmas = 3 * u / (1 + 2 * u)
    heights = np.sqrt(sigmas) if spacing == "sqrt_sigma" else sigmas
    targets = np.linspace(heights[0], heights[-1], 5)
    assert table.evaluated == tuple(int(np.abs(heights - t).argmin()) for t in targets)
    assert [rule.method for rule in table.rules] == ["step_schedule"]
    assert np.allclose(table.sigmas, sigmas, atol=2e-6)
