"""P0: the text's K and V are projected once a branch and prompt, and nothing else changes."""

from __future__ import annotations

from collections import Counter
from typing import Any

import pytest
import torch
from peft import LoraConfig

from refkv_policy.runtime import attach
from tests import tiny

P0 = '  - {name: text, tier: P0, method: text_kv, at: ["main[all].text_kv", "vace[all].text_kv"]}\n'


def is_text_projection(name: str) -> bool:
    """Whether a module projects the text to K or V."""
    return name.endswith(("attn2.to_k", "attn2.to_v", "attn2.to_kv"))


def projections(model: Any, run: Any) -> Counter[str]:
    """How often each text projection was called in a run."""
    with tiny.counting(model, is_text_projection) as counts:
        run()
    return Counter(counts.calls)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=["fp32", "bf16"])
@pytest.mark.parametrize("guidance", [5.0, 1.0])
@pytest.mark.parametrize("fused", [False, True], ids=["plain", "fused"])
def test_whole_runs_differ_by_exactly_nothing(dtype: torch.dtype, guidance: float, fused: bool) -> None:
    """The largest absolute difference over a whole run is 0, and each K/V is projected once a branch in both stacks."""
    pipe = tiny.pipeline(tiny.transformer(dtype=dtype))
    if fused:
        pipe.transformer.fuse_qkv_projections()
    before = tiny.run(pipe, guidance=guidance)
    branches = 2 if guidance > 1 else 1
    results = []
    with attach(pipe, tiny.compiled(pipe.transformer, P0)) as session:
        seen = projections(pipe.transformer, lambda: results.append(tiny.run(pipe, guidance=guidance)))
    assert float((results[0] - before).abs().max()) == 0.0
    assert len(seen) == (4 + 2) * (1 if fused else 2)
    assert set(seen.values()) == {branches}
    sites = (4 + 2) * branches
    assert (session.summary.hits, session.summary.misses) == (5 * sites, sites)
    assert session.requests[0].outcome == "finished"


@pytest.mark.parametrize("layers", [tiny.MAP_1_3B, tiny.MAP_14B], ids=["1.3B", "14B"])
def test_real_layer_maps(layers: Any) -> None:
    """On the real layer maps: 45 and 48 sites, one miss each and branch, no difference."""
    pipe = tiny.pipeline(tiny.transformer(layers))
    before = tiny.run(pipe, steps=3)
    with attach(pipe, tiny.compiled(pipe.transformer, P0, steps=3)) as session:
        assert torch.equal(tiny.run(pipe, steps=3), before)
    sites = layers[0] + len(layers[1])
    assert (session.summary.misses, session.summary.hits) == (2 * sites, 4 * sites)


def test_bytes_are_those_of_the_tensors() -> None:
    """Kept: K and V of every site and branch, batch × length × width × 2 × the size of an element; nothing at the end."""
    pipe = tiny.pipeline(tiny.transformer(dtype=torch.bfloat16))
    held = []
    with attach(pipe, tiny.compiled(pipe.transformer, P0)) as session:
        tiny.run(pipe, callback_on_step_end=lambda *_: held.append(session.bytes_held) or {})
    one = 2 * tiny.TEXT_LENGTH * 24 * 2
    assert session.summary.bytes_peak == 2 * 6 * one
    assert session.summary.branches["cond"].bytes_peak == 6 * one
    assert session.summary.sites["vace[1].text_kv"]["uncond"].bytes_peak == one
    assert held == [2 * 6 * one] * 5 + [0]


def test_each_prompt_has_its_own_state() -> None:
    """Requests with other prompts follow one another, each equal to its uncached run."""
    pipe = tiny.pipeline()
    before = [tiny.run(pipe, text=seed) for seed in (1, 2, 1)]
    assert not torch.equal(before[0], before[1])
    with attach(pipe, tiny.compiled(pipe.transformer, P0)):
        for expected, seed in zip(before, (1, 2, 1), strict=True):
            assert torch.equal(tiny.run(pipe, text=seed), expected)


def test_prompt_changed_in_mid_run_is_noticed() -> None:
    """A callback that replaces the prompt drops its branch's state: exact still, departures named `new_control`."""
    pipe = tiny.pipeline()

    def swap(pipe: Any, step: int, t: Any, kwargs: dict[str, Any]) -> dict[str, Any]:
        return {"prompt_embeds": tiny.embeds(9)} if step == 2 else {}

    before = tiny.run(pipe, callback_on_step_end=swap)
    with attach(pipe, tiny.compiled(pipe.transformer, P0)) as session:
        assert torch.equal(tiny.run(pipe, callback_on_step_end=swap), before)
    assert session.summary.reasons == {"new_control": 6}
    assert session.summary.branches["uncond"].departures == 0
    assert session.summary.misses == 2 * 6 + 6, "projected once more, then served again"
    assert session.requests[0].outcome == "incomplete"


def test_prompt_written_to_in_place_is_noticed() -> None:
    """The same tensor with new content is new content."""
    model = tiny.transformer()
    inputs = tiny.inputs()
    other = tiny.noise(1, tiny.TEXT_LENGTH, tiny.TEXT_DIM, seed=77)
    with torch.no_grad(), attach(model, tiny.compiled(model, P0)) as session:
        with session.step(0, branch="cond"):
            model(**inputs)
        inputs["encoder_hidden_states"].copy_(other)
        with session.step(1, branch="cond"):
            ours = model(**inputs)[0]
    with torch.no_grad():
        assert torch.equal(ours, model(**inputs)[0])
    assert session.summary.reasons == {"new_control": 6}


def test_equal_copy_of_the_prompt_is_no_change() -> None:
    """Another tensor of the same content keeps the state: compared by value when the identity changes."""
    model = tiny.transformer()
    inputs = tiny.inputs()
    with torch.no_grad(), attach(model, tiny.compiled(model, P0)) as session:
        for step in range(3):
            inputs["encoder_hidden_states"] = inputs["encoder_hidden_states"].clone()
            with session.step(step, branch="cond"):
                model(**inputs)
        assert (session.summary.hits, session.summary.departures) == (2 * 6, 0)


def test_new_control_leaves_text_alone() -> None:
    """K and V depend on the prompt only: another control drops nothing of them."""
    model = tiny.transformer()
    inputs = tiny.inputs()
    with torch.no_grad(), attach(model, tiny.compiled(model, P0)) as session:
        for step in range(3):
            inputs["control_hidden_states"] = tiny.noise(1, 96, 2, 4, 4, seed=40 + step)
            with session.step(step, branch="cond"):
                model(**inputs)
        assert session.summary.departures == 0


def test_lora_switched_in_mid_run_is_noticed() -> None:
    """K and V of another adapter, or of another LoRA scale, are not those that were kept."""
    pipe = tiny.pipeline()
    for name in ("one", "two"):
        pipe.transformer.add_adapter(
            LoraConfig(r=2, lora_alpha=2, init_lora_weights=False, target_modules=["to_k", "to_v"]), name
        )

    def switch(pipe: Any, step: int, t: Any, kwargs: dict[str, Any]) -> dict[str, Any]:
        pipe.transformer.set_adapters(["two"] if step >= 2 else ["one"], [1.0])
        return {}

    pipe.transformer.set_adapters(["one"], [1.0])
    before = tiny.run(pipe, callback_on_step_end=switch)
    pipe.transformer.set_adapters(["one"], [1.0])
    with attach(pipe, tiny.compiled(pipe.transformer, P0)) as session:
        assert torch.equal(tiny.run(pipe, callback_on_step_end=switch), before)
    assert session.summary.reasons == {"new_control": 12}


def test_group_offload_projects_inside_the_block() -> None:
    """With whole blocks offloaded the projection runs where the block's weights are, and stays exact."""
    pipe = tiny.pipeline()
    before = tiny.run(pipe)
    tiny.offload_groups(pipe.transformer, "block_level")
    with attach(pipe, tiny.compiled(pipe.transformer, P0)) as session:
        assert torch.equal(tiny.run(pipe), before)
    assert session.summary.hits == 5 * 12


def test_narrower_store_is_cast_back() -> None:
    """A store of narrower dtype holds half the bytes and is served in the model's own dtype: close, not equal."""
    pipe = tiny.pipeline()
    before = tiny.run(pipe)
    store = P0.replace("at:", "store: {dtype: bfloat16, device: cpu}, at:")
    with attach(pipe, tiny.compiled(pipe.transformer, store)) as session:
        after = tiny.run(pipe)
    assert session.summary.bytes_peak == 2 * 6 * 2 * tiny.TEXT_LENGTH * 24 * 2
    assert after.dtype == before.dtype
    assert 0 < float((after - before).abs().max()) < 0.1 * float(before.abs().max())
