"""Plain Wan: the second family is diffusers' own forward under a table that computes everything, and all that a table can do."""

from __future__ import annotations

import inspect
import textwrap
from pathlib import Path
from typing import Any

import pytest
import torch
from diffusers import WanTransformer3DModel, WanVACETransformer3DModel
from diffusers.models.transformers import transformer_wan

from refkv_policy.audit import read_log, verify
from refkv_policy.compiler import compile_plan
from refkv_policy.plan import PlanError
from refkv_policy.profiles import Profile, identify, load_profile
from refkv_policy.runtime import AttachError, RequestError, Session, attach
from refkv_policy.runtime.wan import makes_contiguous
from tests import tiny
from tests.plans import plan_of

P0 = '  - {name: text, tier: P0, method: text_kv, at: "main[all].text_kv"}\n'
MAPS = [tiny.MAP_PLAIN, tiny.MAP_T2V_1_3B, tiny.MAP_T2V_14B]
DTYPES = pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=["fp32", "bf16"])


def plain(**more: Any) -> Any:
    """A plain transformer of four blocks."""
    return tiny.transformer(tiny.MAP_PLAIN, **more)


def one(model: Any, session: Session | None = None, **inputs: Any) -> torch.Tensor:
    """One forward, under a session if there is one."""
    with torch.no_grad():
        if session is None:
            return model(**inputs)[0]
        with session.step(0, branch="cond"):
            return model(**inputs)[0]


@DTYPES
@pytest.mark.parametrize("layers", MAPS, ids=["small", "1.3B", "14B"])
@pytest.mark.parametrize("branch", ["cond", "uncond"])
def test_forward_is_bit_equal(dtype: torch.dtype, layers: Any, branch: str) -> None:
    """On the real layer maps, in fp32 and bf16, in both branches, the output equals diffusers' own."""
    model = tiny.transformer(layers, dtype=dtype)
    inputs = tiny.inputs(dtype=dtype, plain=True, batch=2)
    with torch.no_grad():
        native = model(**inputs)[0]
        with attach(model, tiny.written(model, 6)) as session, session.step(0, branch=branch):
            ours = model(**inputs)[0]
    assert ours.dtype == dtype
    assert torch.equal(native, ours)


@pytest.mark.parametrize("contiguous", [True, False], ids=["0.42", "0.37"])
@DTYPES
def test_strides_are_those_of_the_installed_class(
    monkeypatch: pytest.MonkeyPatch, contiguous: bool, dtype: torch.dtype
) -> None:
    """Blocks get the stream in the memory that the class's own forward gives them, contiguous (diffusers 0.42) or not (0.37)."""
    source = textwrap.dedent(inspect.getsource(WanTransformer3DModel.forward))
    line = "hidden_states = hidden_states.contiguous()\n"
    source = source.replace(line, "pass\n")
    source = source.replace(".transpose(1, 2)\n", ".transpose(1, 2).contiguous()\n", 1) if contiguous else source
    scope = dict(vars(transformer_wan))
    exec(compile(source, "forward", "exec"), scope)
    monkeypatch.setattr(WanTransformer3DModel, "forward", scope["forward"])
    assert makes_contiguous(WanTransformer3DModel.forward) is contiguous

    model, strides = plain(dtype=dtype), []
    model.blocks[0].register_forward_pre_hook(lambda _, given: strides.append((given[0].stride(), given[0].shape)))
    inputs = tiny.inputs(dtype=dtype, plain=True)
    native = one(model, **inputs)
    with attach(model, tiny.written(model, 6)) as session:
        assert torch.equal(one(model, session, **inputs), native)
    assert strides[0] == strides[1]
    assert (strides[0][0][-1] == 1) is contiguous


def test_the_vace_class_is_asked_for_itself() -> None:
    """Whether the stream is made contiguous is each class's own: diffusers' VACE forward does not."""
    told = {
        kind: ".contiguous()" in inspect.getsource(kind.forward)
        for kind in (WanTransformer3DModel, WanVACETransformer3DModel)
    }
    assert {kind: makes_contiguous(kind.forward) for kind in told} == told


def test_output_forms_and_signature() -> None:
    """Both forms of output work, and the signature is the model's."""
    model = plain()
    names = list(inspect.signature(model.forward).parameters)
    inputs = tiny.inputs(plain=True)
    with attach(model, tiny.written(model, 6)) as session:
        assert list(inspect.signature(model.forward).parameters) == names
        assert torch.equal(one(model, session, **inputs), one(model, **{**inputs, "return_dict": True}))


@DTYPES
@pytest.mark.parametrize("guidance", [5.0, 1.0])
@pytest.mark.parametrize("fused", [False, True], ids=["plain", "fused"])
def test_whole_pipeline_is_bit_equal(dtype: torch.dtype, guidance: float, fused: bool) -> None:
    """Whole generations are equal without a cache and with the text's K and V kept, and after the session."""
    pipe = tiny.pipeline(plain(dtype=dtype))
    if fused:
        pipe.transformer.fuse_qkv_projections()
    before = tiny.run(pipe, guidance=guidance)
    branches = 2 if guidance > 1 else 1
    for table in (tiny.written(pipe.transformer, 6), tiny.compiled(pipe.transformer, P0)):
        with attach(pipe, table) as session:
            assert torch.equal(tiny.run(pipe, guidance=guidance), before)
        assert session.requests[0].outcome == "finished"
        assert session.requests[0].calls == 6 * branches
    assert (session.summary.hits, session.summary.misses) == (5 * 4 * branches, 4 * branches)
    assert torch.equal(tiny.run(pipe, guidance=guidance), before)


@pytest.mark.parametrize("layers", MAPS[1:], ids=["1.3B", "14B"])
def test_kept_text_on_the_real_maps(layers: Any) -> None:
    """One miss a block and branch, no difference."""
    pipe = tiny.pipeline(tiny.transformer(layers))
    before = tiny.run(pipe, steps=3)
    with attach(pipe, tiny.compiled(pipe.transformer, P0, steps=3)) as session:
        assert torch.equal(tiny.run(pipe, steps=3), before)
    assert (session.summary.misses, session.summary.hits) == (2 * layers[0], 4 * layers[0])


def test_lora_and_its_scale() -> None:
    """LoRA layers act, and `attention_kwargs["scale"]` scales them as in diffusers, with the text's K and V kept too."""
    pipe = tiny.pipeline(plain())
    full, half = tiny.with_lora(pipe)
    for table in (tiny.written(pipe.transformer, 6), tiny.compiled(pipe.transformer, P0)):
        with attach(pipe, table):
            assert torch.equal(tiny.run(pipe), full)
            assert torch.equal(tiny.run(pipe, attention_kwargs={"scale": 0.5}), half)


@pytest.mark.parametrize("kind", ["block_level", "leaf_level", "whole"])
def test_offload(kind: str) -> None:
    """Under group offload and the pipeline's model offload every request is served, and equal."""
    pipe = tiny.pipeline(plain())
    before = tiny.run(pipe)
    if kind == "whole":
        pipe.enable_model_cpu_offload(device="cpu")
    else:
        tiny.offload_groups(pipe.transformer, kind)
    # Where the accelerator is the CPU, the model's offload moves its weights at every call, so that kept text would be stale.
    table = tiny.written(pipe.transformer, 6) if kind == "whole" else tiny.compiled(pipe.transformer, P0)
    with attach(pipe, table) as session:
        for _ in range(2):
            assert torch.equal(tiny.run(pipe), before)
    assert [(r.calls, r.outcome) for r in session.requests] == [(12, "finished")] * 2


def test_detach_restores_the_model_exactly() -> None:
    """After detach every attribute that was set is gone."""
    pipe = tiny.pipeline(plain())
    parts = (pipe, pipe.transformer, pipe.scheduler, pipe.transformer.blocks[1].ffn)
    keys, processors = [set(vars(part)) for part in parts], pipe.transformer.attn_processors
    rules = P0 + "  - {name: ffn, tier: S, method: taylor, at: 'main[1].ffn', refresh: {interval: 2}}\n"
    session = attach(pipe, tiny.compiled(pipe.transformer, rules))
    assert "forward" in vars(pipe.transformer.blocks[1].ffn)
    assert pipe.transformer.attn_processors["blocks.0.attn2.processor"] is not processors["blocks.0.attn2.processor"]
    session.detach()
    assert [set(vars(part)) for part in parts] == keys
    assert all(pipe.transformer.attn_processors[name] is each for name, each in processors.items())
    assert pipe.transformer.forward == WanTransformer3DModel.forward.__get__(pipe.transformer)


def test_requests_branches_and_steps_are_told_and_replay(tmp_path: Path) -> None:
    """Requests follow one another, each call in its own step and branch; the log replays against the table."""
    pipe = tiny.pipeline(plain())
    rules = P0 + "  - {name: main, tier: S, method: residual_reuse, at: main, refresh: {interval: 3}}\n"
    table = tiny.compiled(pipe.transformer, rules)
    with attach(pipe, table, audit=tmp_path / "log.jsonl") as session:
        first = tiny.run(pipe)
        other = tiny.run(pipe, text=7)
        tiny.run(pipe, guidance=1.0)
        assert torch.equal(tiny.run(pipe), first)
    assert not torch.equal(first, other)
    assert [(r.outcome, r.calls) for r in session.requests] == [("finished", n) for n in (12, 12, 6, 12)]
    assert verify(tmp_path / "log.jsonl", table=table).outcome == "ok"
    steps = [(line.step, line.branch) for line in read_log(tmp_path / "log.jsonl").requests[0].steps]
    assert steps == [(step, branch) for step in range(6) for branch in ("cond", "uncond")]


def test_a_plan_for_the_shipped_models_is_attached_to_a_model_of_their_dimensions() -> None:
    """A transformer built without memory is known by its dimensions, and takes a plan that names the model."""
    for name in ("wan2.1-t2v-1.3b", "wan2.1-t2v-14b"):
        known = load_profile(name)
        with torch.device("meta"):
            model = WanTransformer3DModel(
                num_attention_heads=known.heads, attention_head_dim=known.head_dim, ffn_dim=known.ffn_dim,
                num_layers=known.main_blocks, text_dim=known.text_dim,
            )  # fmt: skip
        assert identify(model) == known
        plan = plan_of(P0, models=f"[{name}]", shape="{size: 832x480, frames: 81}", rest="")
        table = compile_plan(plan, model, 12)
        assert table.profile == name
        with attach(model, table):
            assert "forward" in vars(model)


# What is refused ------------------------------------------------------------------------------------------------------


def test_tables_of_another_family_are_refused() -> None:
    """A table of the VACE model is not for a plain one of the same dimensions, nor the other way round."""
    models = plain(), tiny.transformer()
    for one_, other in (models, models[::-1]):
        with pytest.raises(AttachError, match="with family = "):
            attach(one_, tiny.written(other, 6))


def test_hints_are_not_there() -> None:
    """A rule at hints cannot be compiled for a plain model."""
    rule = "  - {name: hints, tier: P1, method: hint_reuse, at: 'hint[all]', refresh: {interval: 3}}\n"
    with pytest.raises(PlanError, match="no `hint` sites"):
        tiny.compiled(plain(), rule)


IMAGE = {"image_dim": 24, "added_kv_proj_dim": 24, "in_channels": 20}


def test_image_to_video_is_refused() -> None:
    """A model that attends to an image is refused when a plan is compiled for it, and when a table is attached."""
    model = plain(**IMAGE)
    with pytest.raises(ValueError, match="attends to an image besides the text"):
        Profile.from_transformer(model)
    with pytest.raises(AttachError, match="attends to an image besides the text"):
        attach(model, tiny.written(plain(), 6))
    assert "forward" not in vars(model)


def test_one_timestep_a_token_is_refused() -> None:
    """Wan2.2's TI2V gives a timestep a token: its pipeline is refused at attach, such a call of a transformer as it comes."""
    pipe = tiny.pipeline(plain())
    pipe.register_to_config(expand_timesteps=True)
    with pytest.raises(AttachError, match="one timestep a token"):
        attach(pipe, tiny.written(pipe.transformer, 6))
    inputs = tiny.inputs(plain=True)
    inputs["timestep"] = torch.full((1, 8), 700)
    for on_error in ("raise", "uncached"):
        with (
            attach(pipe.transformer, tiny.written(pipe.transformer, 6), on_error=on_error) as session,
            pytest.raises(RequestError, match="one timestep a token"),
        ):
            one(pipe.transformer, session, **inputs)
    assert one(pipe.transformer, **inputs).shape == inputs["hidden_states"].shape


class Quiet(WanTransformer3DModel):
    """A subclass that runs its class's forward."""


class Louder(WanTransformer3DModel):
    """A subclass with a forward of its own."""

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        """Twice the velocity."""
        return (2 * super().forward(*args, **kwargs)[0],)


def test_a_subclass_with_a_forward_of_its_own_is_refused() -> None:
    """The executor stands in for diffusers' forward, not for another one; a subclass without one is served."""
    config = dict(plain().config)
    for kind, known in ((Quiet, True), (Louder, False)):
        model = kind.from_config(config).eval()
        inputs = tiny.inputs(plain=True)
        native = one(model, **inputs)
        if not known:
            with pytest.raises(AttachError, match="Louder is no transformer that refkv knows"):
                attach(model, tiny.written(plain(), 6))
            continue
        with attach(model, tiny.written(plain(), 6)) as session:
            assert torch.equal(one(model, session, **inputs), native)
