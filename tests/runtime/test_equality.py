"""A table that computes everything changes nothing: the executor is diffusers' forward, bit for bit."""

from __future__ import annotations

from typing import Any

import numpy as np
import PIL.Image
import pytest
import torch
from accelerate import cpu_offload
from accelerate.hooks import AlignDevicesHook, SequentialHook, add_hook_to_module, remove_hook_from_module
from diffusers.hooks import HookRegistry, ModelHook

from refkv_policy.runtime import attach
from tests import tiny

SCALES = {
    "no scale": None,
    "scalar": torch.tensor([0.7]),
    "per layer": torch.tensor([1.0, 0.25]),
}


def both(model: Any, **inputs: Any) -> tuple[torch.Tensor, torch.Tensor]:
    """Output of diffusers' forward, and of the executor under a table that computes everything."""
    with torch.no_grad():
        native = model(**inputs)[0]
        with attach(model, tiny.written(model, 6)) as session:
            assert type(model).forward is not model.forward.__func__
            with session.step(0, branch="cond"):
                ours = model(**inputs)[0]
    return native, ours


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=["fp32", "bf16"])
@pytest.mark.parametrize("layers", [tiny.MAP_SMALL, tiny.MAP_1_3B, tiny.MAP_14B], ids=["small", "1.3B", "14B"])
@pytest.mark.parametrize("branch", ["cond", "uncond"])
def test_forward_is_bit_equal(dtype: torch.dtype, layers: Any, branch: str) -> None:
    """On the real layer maps, in fp32 and bf16, in both branches, the output equals diffusers' own."""
    model = tiny.transformer(layers, dtype=dtype)
    inputs = tiny.inputs(dtype=dtype)
    with torch.no_grad():
        native = model(**inputs)[0]
        with attach(model, tiny.written(model, 6)) as session, session.step(0, branch=branch):
            ours = model(**inputs)[0]
    assert ours.dtype == dtype
    assert torch.equal(native, ours)


@pytest.mark.parametrize("scale", **tiny.settings(SCALES))
@pytest.mark.parametrize("batch", [1, 2])
def test_conditioning_scales(scale: torch.Tensor | None, batch: int) -> None:
    """The conditioning scale is applied at use, whether it is one number, one a hint, or left out."""
    model = tiny.transformer()
    given = scale if scale is None or len(scale) > 1 else scale.expand(2)
    native, ours = both(model, **tiny.inputs(batch=batch), control_hidden_states_scale=given)
    assert torch.equal(native, ours)


def test_wrong_scale_length_is_refused_as_diffusers_does() -> None:
    """A scale of another length raises diffusers' own error."""
    model = tiny.transformer()
    refused = pytest.raises(ValueError, match="control_hidden_states_scale")
    with attach(model, tiny.written(model, 6)) as session, refused, torch.no_grad(), session.step(0, branch="cond"):
        model(**tiny.inputs(), control_hidden_states_scale=torch.ones(3))


def test_output_forms_and_signature() -> None:
    """Both forms of output work, and the signature is the model's."""
    import inspect

    model = tiny.transformer()
    signature = inspect.signature(model.forward)
    with attach(model, tiny.written(model, 6)), torch.no_grad():
        assert list(inspect.signature(model.forward).parameters) == list(signature.parameters)
        inputs = tiny.inputs()
        pair = model(**inputs), model(**{**inputs, "return_dict": True})
    assert torch.equal(pair[0][0], pair[1].sample)


def test_shorter_control_is_padded_as_diffusers_does() -> None:
    """A control of fewer frames than the latents is zero-padded after its embedding."""
    model = tiny.transformer()
    inputs = tiny.inputs(frames=3)
    inputs["control_hidden_states"] = inputs["control_hidden_states"][:, :, :2]
    native, ours = both(model, **inputs)
    assert torch.equal(native, ours)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=["fp32", "bf16"])
@pytest.mark.parametrize("guidance", [5.0, 1.0])
def test_whole_pipeline_is_bit_equal(dtype: torch.dtype, guidance: float) -> None:
    """Whole generations are equal, with guidance and without, and the model is as before when the session ends."""
    pipe = tiny.pipeline(tiny.transformer(dtype=dtype))
    before = tiny.run(pipe, guidance=guidance)
    with attach(pipe, tiny.written(pipe.transformer, 6)) as session:
        assert torch.equal(tiny.run(pipe, guidance=guidance), before)
    assert session.requests[0].outcome == "finished"
    assert session.requests[0].calls == 6 * (2 if guidance > 1 else 1)
    assert torch.equal(tiny.run(pipe, guidance=guidance), before)


def test_scale_per_layer_and_reference_images_in_the_pipeline() -> None:
    """A scale for each hint and a reference image (one more latent frame) give the same latents."""
    pipe = tiny.pipeline()
    picture = PIL.Image.fromarray(np.arange(32 * 32 * 3, dtype=np.uint8).reshape(32, 32, 3))
    arguments = {"conditioning_scale": [0.3, 1.2], "reference_images": [picture]}
    before = tiny.run(pipe, **arguments)
    assert before.shape[2] == tiny.run(pipe).shape[2] + 1
    with attach(pipe, tiny.written(pipe.transformer, 6)):
        assert torch.equal(tiny.run(pipe, **arguments), before)


def test_real_prompts_through_the_text_encoder() -> None:
    """A generation from words, with a negative prompt, is equal."""
    pipe = tiny.pipeline()
    words = {
        "prompt": "a red circle",
        "negative_prompt": "blue",
        "prompt_embeds": None,
        "negative_prompt_embeds": None,
        "max_sequence_length": 16,
    }
    before = tiny.run(pipe, **words)
    with attach(pipe, tiny.written(pipe.transformer, 6)):
        assert torch.equal(tiny.run(pipe, **words), before)


def test_lora_and_its_scale() -> None:
    """LoRA layers loaded through peft act, and `attention_kwargs["scale"]` scales them as in diffusers."""
    pipe = tiny.pipeline()
    full, half = tiny.with_lora(pipe)
    with attach(pipe, tiny.written(pipe.transformer, 6)):
        assert torch.equal(tiny.run(pipe), full)
        assert torch.equal(tiny.run(pipe, attention_kwargs={"scale": 0.5}), half)


def test_fused_projections() -> None:
    """Fused QKV projections give what diffusers' own forward gives with them."""
    model = tiny.transformer()
    model.fuse_qkv_projections()
    native, ours = both(model, **tiny.inputs())
    assert torch.equal(native, ours)


def test_model_offload_survives_two_requests_and_detach() -> None:
    """Under a pipeline's model offload, whose end-of-call cleanup re-installs the hooks, every request is served.

    The offload's device is the CPU here, so that the real hooks are installed and removed without an accelerator.
    """
    pipe = tiny.pipeline()
    before = tiny.run(pipe)
    pipe.enable_model_cpu_offload(device="cpu")
    assert hasattr(pipe.transformer, "_hf_hook")
    with attach(pipe, tiny.written(pipe.transformer, 6)) as session:
        for _ in range(2):
            assert torch.equal(tiny.run(pipe), before)
        assert hasattr(pipe.transformer, "_hf_hook")
    assert [r.calls for r in session.requests] == [12, 12]
    assert pipe.transformer._old_forward == own_forward(pipe.transformer)
    assert torch.equal(tiny.run(pipe), before)


def test_offload_enabled_after_attach() -> None:
    """Hooks that come after the session wrap the executor, and stay when it goes."""
    pipe = tiny.pipeline()
    before = tiny.run(pipe)
    with attach(pipe, tiny.written(pipe.transformer, 6)) as session:
        pipe.enable_model_cpu_offload(device="cpu")
        assert torch.equal(tiny.run(pipe), before)
    assert session.requests[0].calls == 12
    assert pipe.transformer._old_forward == own_forward(pipe.transformer)
    pipe.remove_all_hooks()
    assert torch.equal(tiny.run(pipe), before)


def own_forward(model: Any) -> Any:
    """The class's forward, bound."""
    return type(model).forward.__get__(model)


class Recording(ModelHook):
    """A diffusers hook that wraps the forward, of the kind that replaces it."""

    def __init__(self, calls: list[str], name: str) -> None:
        super().__init__()
        self.calls, self.name = calls, name

    def new_forward(self, module: Any, *args: Any, **kwargs: Any) -> Any:
        """Notes the call and goes on."""
        self.calls.append(self.name)
        return self.fn_ref.original_forward(*args, **kwargs)


@pytest.mark.parametrize("accelerate_first", [True, False])
def test_stacked_hooks_stay_outside_the_executor(accelerate_first: bool) -> None:
    """Below accelerate's hooks and two of diffusers', in either order; removing a hook in mid-session keeps the executor."""
    model, calls = tiny.transformer(), []
    with torch.no_grad():
        native = model(**tiny.inputs())[0]

    def accelerate_hook() -> None:
        add_hook_to_module(model, SequentialHook(AlignDevicesHook(execution_device="cpu", io_same_device=True)))

    if accelerate_first:
        accelerate_hook()
    registry = HookRegistry.check_if_exists_or_initialize(model)
    registry.register_hook(Recording(calls, "inner"), "inner")
    registry.register_hook(Recording(calls, "outer"), "outer")
    if not accelerate_first:
        accelerate_hook()
    chain = model.forward
    with attach(model, tiny.written(model, 6)) as session, torch.no_grad():
        for step, gone in enumerate([None, "outer", "inner"]):
            if gone:
                registry.remove_hook(gone)
                if accelerate_first is False:
                    remove_hook_from_module(model)
            calls.clear()
            with session.step(step, branch="cond"):
                assert torch.equal(model(**tiny.inputs())[0], native)
            assert session.summary.requests[0].calls == step + 1
            if accelerate_first:
                assert calls == ["outer", "inner"][step:]
        assert session.summary.unplanned == 0
    if accelerate_first:
        assert model._old_forward == own_forward(model)
    assert chain is not None
    with torch.no_grad():
        assert torch.equal(model(**tiny.inputs())[0], native)


@pytest.mark.parametrize("kind", ["sequential", "block groups", "leaf groups", "layerwise casting"])
def test_hooks_on_sub_modules(kind: str) -> None:
    """Offload and casting hooks on blocks and layers keep working: sub-modules are called, not their forward."""
    model, twin = tiny.transformer(), tiny.transformer()
    device = torch.device("cpu")
    for one in (model, twin):
        if kind == "sequential":
            cpu_offload(one, device)
        elif kind == "layerwise casting":
            one.enable_layerwise_casting(storage_dtype=torch.bfloat16, compute_dtype=torch.float32)
        else:
            tiny.offload_groups(one, "block_level" if kind == "block groups" else "leaf_level")
    with torch.no_grad():
        native = twin(**tiny.inputs())[0]
        with attach(model, tiny.written(model, 6)) as session, session.step(0, branch="cond"):
            assert torch.equal(model(**tiny.inputs())[0], native)


def test_detach_restores_the_model_exactly() -> None:
    """After detach every attribute that was set is gone: forward, cache_context, progress bar, processors, scheduler."""
    pipe = tiny.pipeline()
    model = pipe.transformer
    parts = (pipe, model, pipe.scheduler)
    keys = [set(vars(part)) for part in parts]
    processors = model.attn_processors
    text = tuple(f"{stack}[{i}].text_kv" for stack, n in (("main", 4), ("vace", 2)) for i in range(n))
    table = tiny.written(model, 6, dict.fromkeys(text, "CRRRRR"), rules=(tiny.rule("text_kv", tier="P0"),))
    session = attach(pipe, table)
    assert "forward" in vars(model)
    assert model.attn_processors["blocks.0.attn2.processor"] is not processors["blocks.0.attn2.processor"]
    session.detach()
    session.detach()
    assert [set(vars(part)) for part in parts] == keys
    assert all(model.attn_processors[name] is processor for name, processor in processors.items())
    assert model.forward == own_forward(model)


def test_attention_backend_set_during_a_session_is_kept() -> None:
    """A backend set on the session's processors is the original processors' too."""
    model = tiny.transformer()
    table = tiny.written(model, 6, {"main[0].text_kv": "CRRRRR"}, rules=(tiny.rule("text_kv", tier="P0"),))
    with attach(model, table):
        model.set_attention_backend("native")
        backend = model.blocks[0].attn2.processor._attention_backend
    assert backend is not None
    assert model.blocks[0].attn2.processor._attention_backend == backend
