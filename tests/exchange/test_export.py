"""What vLLM-Omni is told of a plan means there what the plan says here; the rest is listed or refused."""

from __future__ import annotations

import shlex

import pytest
import yaml
from hypothesis import given, settings
from hypothesis import strategies as st

from refkv_policy.exchange import (
    AttentionSettings,
    ExchangeError,
    OperatingPoint,
    Settings,
    export_plan,
    parse_deploy,
    plan_text,
    read_flags,
)
from refkv_policy.exchange.indices import indices_text, parse_indices
from refkv_policy.exchange.settings import BACKENDS
from refkv_policy.plan import Plan, load_plan, parse_plan
from refkv_policy.profiles import load_profile
from refkv_policy.resources import resource
from tests.plans import plan_of

PROFILES = {name: load_profile(name) for name in ("wan2.1-vace-1.3b", "wan2.1-vace-14b", "wan2.1-vace-mini")}
MINI = PROFILES["wan2.1-vace-mini"]


def quantized(
    attention: str, *, lossless: str = "refuse", models: str = "wan2.1-vace-mini", steps: str = "[12, 20]"
) -> Plan:
    """A plan without caches whose attention is as given, in YAML's flow style."""
    rest = f"quantization: {{attention: {{{attention}}}, lossless: {lossless}}}\n"
    return plan_of("[]", models=f"[{models}]", steps=steps, rest=rest)


def indices(count: int) -> st.SearchStrategy[frozenset[int]]:
    """Some of the first `count` numbers."""
    return st.frozensets(st.integers(0, count - 1), max_size=8)


@given(data=st.data())
@settings(max_examples=30, deadline=None)
def test_an_index_of_theirs_is_a_block_of_both_stacks(data: st.DataObject) -> None:
    """Whatever is exported keeps exactly the plan's blocks native, where `n` is blocks.n and vace_blocks.n; else refused."""
    name = data.draw(st.sampled_from(sorted(PROFILES)))
    profile = PROFILES[name]
    mains, vaces = profile.main_blocks, len(profile.vace_at)
    main = data.draw(indices(mains))
    vace = data.draw(st.just(frozenset(i for i in main if i < vaces)) | indices(vaces))
    at = [f"'main[{indices_text(main)}]'"] * bool(main) + [f"'vace[{indices_text(vace)}].self'"] * bool(vace)
    skip = f", skip_layers: [{', '.join(at)}]" if at else ""
    plan = quantized(f"dtype: fp8{skip}", models=name)
    if vace != {i for i in main if i < vaces}:
        with pytest.raises(ExchangeError, match="is both"):
            export_plan(plan, profile)
        return
    text = export_plan(plan, profile).fields.get("diffusion_kv_cache_skip_layers", "")
    theirs = set(parse_indices(str(text)))
    assert {i for i in range(mains) if i in theirs} == main
    assert {i for i in range(vaces) if i in theirs} == vace


@given(data=st.data())
@settings(max_examples=30, deadline=None)
def test_a_round_trip_is_stable(data: st.DataObject) -> None:
    """Settings → plan → deploy YAML or flags → settings → plan gives the same settings and the same text."""
    name = data.draw(st.sampled_from(sorted(PROFILES)))
    profile = PROFILES[name]
    backend = data.draw(st.sampled_from([None, *BACKENDS]))
    dtype = data.draw(st.sampled_from(BACKENDS[backend or "FLASH_ATTN"]))
    steps, layers = data.draw(indices(30)), data.draw(indices(profile.main_blocks))
    attention = AttentionSettings(dtype, tuple(sorted(steps)), tuple(sorted(layers)), backend)
    point = OperatingPoint(profile)
    text = plan_text(Settings(attention=attention), point)
    plan, faults = parse_plan(text)
    assert plan is not None, faults
    exported = export_plan(plan, profile)
    back = (read_flags(exported.flags), parse_deploy(exported.yaml(), "deploy.yaml"))
    assert [found.attention for found in back] == [attention, attention]
    assert {plan_text(found, point) for found in back} == {text}


@given(st.frozensets(st.integers(0, 99)))
def test_indices_are_written_as_they_are_read(found: frozenset[int]) -> None:
    """The text is the shortest one that gives the numbers back."""
    text = indices_text(found)
    assert parse_indices(text) == tuple(sorted(found))
    assert text.count(",") + bool(found) == sum(i - 1 not in found for i in found)


@pytest.mark.parametrize(
    ("text", "found"),
    [("0-9,20,25-27", [*range(10), 20, 25, 26, 27]), (" 1 , 0 - 2,,", [0, 1, 2]), ("", []), (",", []), ("007", [7])],
)
def test_selectors_are_read_as_theirs(text: str, found: list[int]) -> None:
    """Spaces, empty chunks and leading zeros are as in `parse_kv_cache_skip_selector`."""
    assert parse_indices(text) == tuple(found)


@pytest.mark.parametrize("text", ["-1", "1-", "1--2", "a", "1;2", "2-1", "1.5", "0:2", "1 2", "0-99999", "1234567"])
def test_what_they_refuse_is_refused(text: str) -> None:
    """Each with a sentence; so are numbers beyond any model."""
    with pytest.raises(ValueError, match=r"range|index"):
        parse_indices(text)


def test_the_documents_example_is_exported() -> None:
    """dtype, steps and layers as in the quantized-KV document, quoted so that YAML keeps them texts."""
    plan = quantized("dtype: mxfp8, backend: flash_attn, skip_steps: '0,1', skip_layers: ['main[0,7]', 'vace[0]']")
    found = export_plan(plan, MINI)
    stage = {
        "stage_id": 3,
        "diffusion_kv_cache_dtype": "mxfp8",
        "diffusion_kv_cache_skip_steps": "0-1",
        "diffusion_kv_cache_skip_layers": "0,7",
        "diffusion_attention_config": {"per_role": {"self": {"backend": "FLASH_ATTN"}}},
    }
    assert yaml.safe_load(found.yaml(3)) == {"stages": [stage]}
    assert '"0,7"' in found.yaml()
    words = shlex.split(found.flags)
    assert words[:6] == [
        "--diffusion-kv-cache-dtype", "mxfp8", "--diffusion-kv-cache-skip-steps", "0-1",
        "--diffusion-kv-cache-skip-layers", "0,7",
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("attention", "words"),
    [
        ("dtype: fp8, backend: sage", "computes in no narrower dtype there"),
        ("dtype: fp8, platform: cuda", "exist on npu only"),
        ("dtype: mxfp8, backend: rainfusion_attn", "does not compute in mxfp8 there"),
        ("dtype: fp8, skip_steps: '12'", "out of range"),
        ("dtype: fp8, skip_layers: 'main[12]'", "out of range"),
        ("dtype: fp8, skip_layers: 'main[0]'", r"main\[0\] native and not vace\[0\]"),
        ("dtype: fp8, skip_layers: 'vace[5]'", r"vace\[5\] native and not main\[5\]"),
        ("dtype: fp8, skip_layers: ['main[7].ffn']", "no attention layer"),
        ("dtype: fp8, skip_layers: ['hint[0]']", "no attention layer"),
        ("dtype: native, skip_steps: '0'", "no effect"),
        ("skip_layers: 'main[7]'", "no effect"),
    ],
)
def test_what_cannot_be_said_is_refused(attention: str, words: str) -> None:
    """A narrower dtype at other places than the plan's would be another plan."""
    with pytest.raises(ExchangeError, match=words):
        export_plan(quantized(attention), MINI)


def test_layers_need_a_model() -> None:
    """Named sets and `all` differ by model; without layers none is needed."""
    assert export_plan(quantized("dtype: fp8")).model is None
    with pytest.raises(ValueError, match="a profile is needed"):
        export_plan(quantized("dtype: fp8, skip_layers: 'main[7]'"))


def test_cross_attention_is_native_there_anyway() -> None:
    """Keeping it native needs no setting, and is listed."""
    found = export_plan(quantized("dtype: fp8, skip_layers: ['main[8].cross', 'main[7].self']"), MINI)
    assert found.fields["diffusion_kv_cache_skip_layers"] == "7"
    assert "skip_layers main[8].cross" in [entry.what for entry in found.left_out]


@pytest.mark.parametrize("path", sorted(resource("plans").glob("wan21_*.yaml")), ids=lambda path: path.stem)
def test_nothing_of_a_shipped_plan_is_dropped(path: object) -> None:
    """Each rule, the audit, the run and the acknowledgements are listed; there is nothing to deploy."""
    plan = load_plan(str(path))
    found = export_plan(plan)
    assert found.fields == {}
    assert found.flags == ""
    assert yaml.safe_load(found.yaml()) == {"stages": []}
    listed = " ".join(entry.what for entry in found.left_out)
    for word in (*(rule.name for rule in plan.caches), "audit", "run"):
        assert word in listed
    assert ("acknowledgements" in listed) is bool(plan.acknowledgements)
    assert all(f"# not told: {entry}" in found.yaml() for entry in found.left_out)


def test_a_downgrade_is_listed() -> None:
    """It has no meaning where no lossless claim is made."""
    found = export_plan(quantized("dtype: fp8", lossless="downgrade"))
    assert "quantization.lossless" in [entry.what for entry in found.left_out]
