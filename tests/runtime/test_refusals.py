"""What is refused, when, and in which words. Nothing is changed by a refusal."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from diffusers import (
    FirstBlockCacheConfig,
    FlowMatchEulerDiscreteScheduler,
    HeunDiscreteScheduler,
    UniPCMultistepScheduler,
)
from diffusers.models.transformers.transformer_wan import WanAttnProcessor

from refkv_policy.plan import RefkvError
from refkv_policy.runtime import AttachError, RequestError, attach
from tests import tiny


def table_of(model: Any, **changes: Any) -> Any:
    """A table that keeps text and hints, changed."""
    rows = {"main[0].text_kv@0": "CRRRRR", "hint[1]@1": "CRRRRR", "vace[1]": "......"}
    rules = (tiny.rule("text_kv", tier="P0"), tiny.rule())
    table = tiny.written(model, 6, rows, rules=rules)
    return dataclasses.replace(table, **changes)


def layout(model: Any, **changes: Any) -> Any:
    """The table's layout, changed."""
    return dataclasses.replace(table_of(model).layout, **changes)


MODELS: dict[str, tuple[Callable[[Any], Any], str]] = {
    "enabled cache": (lambda m: m.enable_cache(FirstBlockCacheConfig(threshold=0.1)), "disable_cache"),
    "context parallelism": (lambda m: setattr(m, "_parallel_config", object()), "context parallelism"),
    "training": (lambda m: (m.train(), m.enable_gradient_checkpointing()), "eval"),
    "forward replaced": (lambda m: setattr(m, "forward", lambda *_, **__: None), "replaced"),
    "image attention": (lambda m: setattr(m.blocks[0].attn2, "add_k_proj", torch.nn.Linear(1, 1)), "image"),
    "own processor": (lambda m: m.blocks[0].attn2.set_processor(type("Mine", (WanAttnProcessor,), {})()), "uses Mine"),
    "compiled whole": (lambda m: m.compile(backend="eager"), "compile its blocks"),
    "streamed offload": (
        lambda m: setattr(
            m.blocks[0],
            "_diffusers_hook",
            SimpleNamespace(get_hook=lambda name: SimpleNamespace(group=SimpleNamespace(stream=object()))),
        ),
        "use_stream=False",
    ),
}


@pytest.mark.parametrize(("spoil", "words"), **tiny.settings(MODELS))
def test_models_that_cannot_be_attached_to(spoil: Callable[[Any], Any], words: str, tmp_path: Path) -> None:
    """A model in a state that the executor cannot keep is refused with a sentence that names the way out."""
    model = tiny.transformer()
    spoil(model)
    keys = set(vars(model))
    with pytest.raises(AttachError, match=words):
        attach(model, table_of(tiny.transformer()), audit=tmp_path / "run.jsonl")
    assert set(vars(model)) == keys
    assert not list(tmp_path.iterdir()), "no log of a session that never began"


TABLES: dict[str, tuple[Callable[[Any], dict[str, Any]], str]] = {
    "other map": (lambda m: {"layout": layout(m, vace_at=(0, 3))}, "vace_at"),
    "other depth": (lambda m: {"layout": layout(m, main_blocks=5)}, "main_blocks"),
    "other width": (lambda m: {"layout": layout(m, dim=32)}, "dim"),
    "other ffn": (lambda m: {"layout": layout(m, ffn_dim=33)}, "ffn_dim"),
    "other heads": (lambda m: {"layout": layout(m, heads=4)}, "heads"),
    "other patch": (lambda m: {"layout": layout(m, patch=(1, 1, 1))}, "patch"),
    "other family": (lambda m: {"layout": layout(m, family="other")}, "family"),
    "quantized attention": (lambda m: {"attention_dtype": "fp8"}, "native"),
    "online cell": (lambda m: {"rows": with_row(m, "hint[0]", "?.....")}, r"'\?' at hint\[0\], step 0, cond"),
    "reused block": (lambda m: {"rows": with_row(m, "main[1]", "..R...")}, r"'R' at main\[1\]"),
    "dropped hint": (lambda m: {"rows": with_row(m, "hint[0]", "....-.")}, r"'-' at hint\[0\]"),
}


def with_row(model: Any, site: str, actions: str) -> Any:
    """The table's rows with one written over."""
    rows = table_of(model).rows
    return tuple(dataclasses.replace(r, cond=actions, uncond=actions) if r.site == site else r for r in rows)


@pytest.mark.parametrize(("change", "words"), **tiny.settings(TABLES))
def test_tables_that_are_for_something_else(change: Callable[[Any], dict[str, Any]], words: str) -> None:
    """A table for another layout, or with cells that the runtime cannot do, is refused."""
    model = tiny.transformer()
    with pytest.raises(AttachError, match=words):
        attach(model, table_of(model, **change(model)))
    assert "forward" not in vars(model)


def unipc(**changes: Any) -> Any:
    """A UniPC scheduler, changed."""
    return UniPCMultistepScheduler.from_config(tiny.scheduler().config, **changes)


SCHEDULERS: dict[str, tuple[Any, str]] = {
    "euler": (lambda: FlowMatchEulerDiscreteScheduler(shift=3.0), "UniPCMultistepScheduler"),
    "heun": (lambda: HeunDiscreteScheduler(), "UniPCMultistepScheduler"),
    "other shift": (lambda: unipc(flow_shift=5.0), "flow_shift 3"),
    "no flow": (lambda: unipc(use_flow_sigmas=False), "use_flow_sigmas"),
    "epsilon": (lambda: unipc(prediction_type="epsilon"), "flow_prediction"),
    "karras": (lambda: unipc(use_karras_sigmas=True), "use_karras_sigmas"),
    "dynamic": (lambda: unipc(use_dynamic_shifting=True), "use_dynamic_shifting"),
}


@pytest.mark.parametrize(("make", "words"), **tiny.settings(SCHEDULERS))
def test_schedulers_with_another_grid(make: Any, words: str) -> None:
    """Another sampler, or one whose grid is not the table's, is refused at attach."""
    pipe = tiny.pipeline()
    pipe.scheduler = make()
    with pytest.raises(AttachError, match=words):
        attach(pipe, table_of(pipe.transformer))


def test_targets_of_no_known_family() -> None:
    """Another model, a pipeline without a transformer, or anything else is refused by name."""
    other = torch.nn.Linear(2, 2)
    table = table_of(tiny.transformer())
    for target, name in ((other, "Linear"), (object(), "object"), (None, "NoneType")):
        with pytest.raises(AttachError, match=f"{name} is no transformer that refkv knows"):
            attach(target, table)
    pipe = tiny.pipeline()
    pipe.transformer = None
    with pytest.raises(AttachError, match="no transformer that refkv knows"):
        attach(pipe, table)


def test_pipelines_of_two_transformers() -> None:
    """A second transformer, or a boundary between two, is refused; `transformer_2=None` is fine."""
    pipe = tiny.pipeline()
    assert pipe.transformer_2 is None
    attach(pipe, table_of(pipe.transformer)).detach()
    pipe.register_to_config(boundary_ratio=0.9)
    with pytest.raises(AttachError, match="transformer_2"):
        attach(pipe, table_of(pipe.transformer))
    pipe.register_to_config(boundary_ratio=None)
    pipe.transformer_2 = tiny.transformer(seed=3)
    with pytest.raises(AttachError, match="transformer_2"):
        attach(pipe, table_of(pipe.transformer))


def test_second_attach_and_attach_again() -> None:
    """One session a model, by whichever way it is reached; after detach it may be attached again."""
    pipe = tiny.pipeline()
    table = table_of(pipe.transformer)
    with attach(pipe, table):
        for target in (pipe, pipe.transformer, tiny.pipeline(pipe.transformer)):
            with pytest.raises(AttachError, match="attached to this model already"):
                attach(target, table)
    with attach(pipe.transformer, table):
        pass
    assert "forward" not in vars(pipe.transformer)


def test_two_thinned_sessions_on_one_scheduler() -> None:
    """A scheduler whose grid one session thins cannot be thinned by another."""
    one, two = tiny.pipeline(), tiny.pipeline(tiny.transformer())
    two.scheduler = one.scheduler
    caches = '  - {name: steps, tier: S, method: step_schedule, at: step, refresh: {steps: "0,2,5"}}\n'
    with attach(one, tiny.compiled(one.transformer, caches)), pytest.raises(AttachError, match="scheduler of its own"):
        attach(two, tiny.compiled(two.transformer, caches))
    assert "set_timesteps" not in vars(one.scheduler)


def test_wrong_arguments() -> None:
    """A mistyped `on_error`, a branch that does not exist, `step` on a pipeline's session."""
    pipe = tiny.pipeline()
    table = table_of(pipe.transformer)
    with pytest.raises(AttachError, match="on_error is 'ignore'"):
        attach(pipe, table, on_error="ignore")  # type: ignore[arg-type]
    for target, branch, words in (
        (pipe, "cond", "attach to the transformer"),
        (pipe.transformer, "both", "there is no branch 'both'"),
    ):
        with attach(target, table) as session, pytest.raises(RequestError, match=words), session.step(0, branch=branch):
            pass


def other_sigmas(pipe: Any) -> None:
    """The scheduler is given a custom grid of the right length."""
    original = pipe.scheduler.set_timesteps
    pipe.scheduler.set_timesteps = lambda n, device=None: original(
        sigmas=torch.linspace(1, 0.2, n).numpy(), device=device
    )


REQUESTS: dict[str, tuple[Callable[[Any], Any], dict[str, Any], str]] = {
    "step count": (lambda p: None, {"steps": 5}, "runs 5 steps, and the table is for 6"),
    "guidance": (lambda p: None, {"guidance": 4.0}, "guidance 4"),
    "sigmas": (other_sigmas, {}, "sigma at step 1"),
    "scheduler": (lambda p: setattr(p, "scheduler", tiny.scheduler(1.0)), {}, "scheduler was replaced"),
    "processor": (
        lambda p: p.transformer.blocks[0].attn2.set_processor(WanAttnProcessor()),
        {},
        "processor was replaced",
    ),
}


@pytest.mark.parametrize(("spoil", "arguments", "words"), **tiny.settings(REQUESTS))
def test_requests_that_differ_from_the_table(
    spoil: Callable[[Any], Any], arguments: dict[str, Any], words: str
) -> None:
    """Refused by the first forward, before anything is cached; finished uncached, bit for bit, where that is allowed."""
    for on_error in ("raise", "uncached"):
        pipe, twin = tiny.pipeline(), tiny.pipeline()
        with attach(pipe, table_of(pipe.transformer), on_error=on_error) as session:
            spoil(pipe)
            spoil(twin)
            if on_error == "raise":
                with pytest.raises(RequestError, match=words):
                    tiny.run(pipe, **arguments)
                assert session.requests[0].outcome == "failed"
                assert session.requests[0].calls == 0
            else:
                assert torch.equal(tiny.run(pipe, **arguments), tiny.run(twin, **arguments))
                assert session.requests[0].outcome == "incomplete"
            assert session.requests[0].total.bytes_peak == 0
            assert words.split()[0] in str(session.requests[0].error)


def test_odd_latents_are_refused() -> None:
    """Latents that the patch size does not divide would be cropped without a word: refused."""
    model = tiny.transformer()
    refused = pytest.raises(RequestError, match="height 5")
    with attach(model, table_of(model)) as session, torch.no_grad(), refused, session.step(0, branch="cond"):
        model(**tiny.inputs(side=5))


def test_gradients_with_checkpointing_are_refused() -> None:
    """A forward with gradients and checkpointing would not be the model's own: refused by name of the help."""
    model = tiny.transformer()
    model.enable_gradient_checkpointing()
    refused = pytest.raises(RequestError, match="no_grad")
    with attach(model, table_of(model)) as session, refused, session.step(0, branch="cond"):
        model(**tiny.inputs())


def test_every_refusal_is_a_refkv_error() -> None:
    """Both kinds can be caught as `RefkvError`."""
    assert issubclass(AttachError, RefkvError)
    assert issubclass(RequestError, RefkvError)
