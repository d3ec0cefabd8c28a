"""What was checked when a request began holds until it ends: otherwise it is refused, or finished without the cache."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from diffusers import FasterCacheConfig, FirstBlockCacheConfig, PyramidAttentionBroadcastConfig, UniPCMultistepScheduler
from diffusers.models.transformers.transformer_wan import WanAttnProcessor

from refkv_policy.audit import read_log, verify
from refkv_policy.runtime import AttachError, RequestError, attach
from tests import tiny

P0 = '  - {name: text, tier: P0, method: text_kv, at: ["main[all].text_kv", "vace[all].text_kv"]}\n'


def configure(**settings: Any) -> Callable[[Any], None]:
    """Change settings of the scheduler where it keeps its config."""
    return lambda pipe: pipe.scheduler.register_to_config(**settings)


def broadcast(pipe: Any) -> None:
    """The cache of attention outputs that diffusers has."""
    config = PyramidAttentionBroadcastConfig(
        spatial_attention_block_skip_range=2, current_timestep_callback=lambda: pipe._current_timestep
    )
    pipe.transformer.enable_cache(config)


def faster_cache(pipe: Any) -> None:
    """The cache of attention outputs and branches that diffusers has."""
    config = FasterCacheConfig(
        spatial_attention_block_skip_range=2,
        tensor_format="BFCHW",
        current_timestep_callback=lambda: pipe._current_timestep,
    )
    pipe.transformer.enable_cache(config)


def compiled(pipe: Any) -> None:
    """A wrapper that compiles the whole transformer."""
    pipe.transformer = torch.compile(pipe.transformer, backend="eager")


def compiled_in_place(pipe: Any) -> None:
    """The same transformer, compiled as a whole."""
    pipe.transformer.compile(backend="eager")


REFUSED: dict[str, tuple[Callable[[Any], Any], str]] = {
    "guidance": (lambda p: setattr(p, "_guidance_scale", 3.0), "guidance 3"),
    "guidance off the list": (lambda p: setattr(p, "_guidance_scale", 0.5), "guidance 0.5"),
    "guidance as a tensor": (lambda p: setattr(p, "_guidance_scale", torch.tensor(4.0)), "guidance 4"),
    "first block cache": (
        lambda p: p.transformer.enable_cache(FirstBlockCacheConfig(threshold=0.0)),
        "disable_cache",
    ),
    "attention broadcast": (broadcast, "disable_cache"),
    "faster cache": (faster_cache, "disable_cache"),
    "compiled": (compiled, "compile its blocks"),
    "compiled in place": (compiled_in_place, "compile its blocks"),
    "context parallelism": (
        lambda p: setattr(p.transformer, "_parallel_config", SimpleNamespace(context_parallel_config=None)),
        "context parallelism",
    ),
    "solver order": (configure(solver_order=1), "solver_order 2, and the scheduler has 1"),
    "solver type": (configure(solver_type="bh1"), "solver_type bh2, and the scheduler has bh1"),
    "lower order": (configure(lower_order_final=False), "lower_order_final True, and the scheduler has False"),
    "prediction of noise": (lambda p: setattr(p.scheduler, "predict_x0", False), "predict_x0 True"),
    "corrector": (lambda p: p.scheduler.disable_corrector.append(3), r"disable_corrector \[\]"),
    "sigmas": (lambda p: p.scheduler.sigmas[4].mul_(0.9), "sigma at step 4"),
    "last sigma": (lambda p: p.scheduler.sigmas[-1].fill_(0.01), "end in 0.01"),
    "other sigmas": (lambda p: setattr(p.scheduler, "sigmas", p.scheduler.sigmas * 0.9), "sigma at step 0"),
    "timesteps": (lambda p: p.scheduler.timesteps[4].sub_(20), "timesteps were changed"),
    "processor": (
        lambda p: p.transformer.vace_blocks[1].attn2.set_processor(WanAttnProcessor()),
        "processor was replaced",
    ),
    "all processors": (lambda p: p.transformer.set_attn_processor(WanAttnProcessor()), "processor was replaced"),
}


@pytest.fixture(autouse=True)
def fresh_compiler() -> Any:
    """What one test compiled is forgotten before the next."""
    yield
    torch._dynamo.reset()


def pipeline() -> Any:
    """A pipeline whose scheduler has a list of its own, where diffusers gives all schedulers one."""
    pipe = tiny.pipeline()
    pipe.scheduler.disable_corrector = []
    return pipe


def at_step(number: int, spoil: Callable[[Any], Any]) -> Callable[..., dict[str, Any]]:
    """A callback that spoils the pipeline after a step."""

    def callback(pipe: Any, step: int, t: Any, kwargs: Any) -> dict[str, Any]:
        if step == number:
            spoil(pipe)
        return {}

    return callback


@pytest.mark.parametrize(("spoil", "words"), **tiny.settings(REFUSED))
def test_changes_in_mid_run_are_refused(spoil: Callable[[Any], Any], words: str, tmp_path: Path) -> None:
    """The next call raises a sentence; the request is failed, nothing is held, and the log of it is sound."""
    pipe = pipeline()
    table = tiny.compiled(pipe.transformer, P0)
    with attach(pipe, table, audit=tmp_path / "run.jsonl") as session:
        with pytest.raises(RequestError, match=words):
            tiny.run(pipe, callback_on_step_end=at_step(2, spoil))
        assert session.bytes_held == 0
    assert (session.requests[0].outcome, session.requests[0].calls) == ("failed", 6)
    assert verify(tmp_path / "run.jsonl", table=table).outcome == "ok"


FAILS_ANYWAY = ("faster cache", "prediction of noise")
"""What diffusers 0.42 itself cannot go on with in mid-run."""


@pytest.mark.parametrize(
    ("spoil", "words"), **tiny.settings({k: v for k, v in REFUSED.items() if k not in FAILS_ANYWAY})
)
def test_changes_in_mid_run_finish_uncached(spoil: Callable[[Any], Any], words: str, tmp_path: Path) -> None:
    """Where that is allowed, the rest of the request is computed, bit for bit as without refkv, and the log says why."""
    pipe, twin = pipeline(), pipeline()
    spoilt = at_step(2, spoil)
    before = tiny.run(twin, callback_on_step_end=spoilt)
    table = tiny.compiled(pipe.transformer, P0)
    with attach(pipe, table, audit=tmp_path / "run.jsonl", on_error="uncached") as session:
        after = tiny.run(pipe, callback_on_step_end=spoilt)
    assert torch.equal(after.nan_to_num(), before.nan_to_num()), "the other solver gives NaN, with refkv and without"
    request = session.requests[0]
    branches = 1 if "0.5" in words else 2
    assert request.outcome == "incomplete"
    assert request.reasons == {"error": branches * 3 * 6}
    assert verify(tmp_path / "run.jsonl", table=table).outcome == "ok"
    (event,) = read_log(tmp_path / "run.jsonl").requests[0].events
    assert event["event"] == "uncached"


def test_guidance_within_the_plan_is_told(tmp_path: Path) -> None:
    """Guidance that moves between values the plan is reviewed for goes on, and the log tells when."""

    def move(pipe: Any, step: int, t: Any, kwargs: Any) -> dict[str, Any]:
        pipe._guidance_scale = {1: 4.0, 3: 5.0}.get(step, pipe._guidance_scale)
        return {}

    pipe, twin = tiny.pipeline(), tiny.pipeline()
    table = tiny.compiled(pipe.transformer, P0, guidance="[5.0, 4.0]")
    with attach(pipe, table, audit=tmp_path / "run.jsonl") as session:
        assert torch.equal(tiny.run(pipe, callback_on_step_end=move), tiny.run(twin, callback_on_step_end=move))
    assert session.requests[0].outcome == "finished"
    events = read_log(tmp_path / "run.jsonl").requests[0].events
    assert [(e["event"], e["fields"]) for e in events] == [
        ("guidance", {"before": 5.0, "now": 4.0}),
        ("guidance", {"before": 4.0, "now": 5.0}),
    ]
    assert verify(tmp_path / "run.jsonl", table=table).outcome == "ok"


def test_guidance_written_in_place_is_noticed() -> None:
    """A guidance scale that is a tensor may change without another object in its place."""
    pipe = tiny.pipeline()
    scale = torch.tensor(5.0)
    with attach(pipe, tiny.compiled(pipe.transformer, P0)), pytest.raises(RequestError, match="guidance 2"):
        tiny.run(pipe, guidance=scale, callback_on_step_end=at_step(2, lambda p: scale.fill_(2.0)))


@pytest.mark.parametrize("mode", [torch.no_grad, torch.inference_mode])
def test_the_sampler_is_watched_in_inference_mode_too(mode: Any) -> None:
    """Sigmas made in inference mode have no count of writes: they are compared."""
    pipe = tiny.pipeline()
    spoilt = at_step(2, lambda p: p.scheduler.sigmas[4].mul_(0.9))
    with (
        mode(),
        attach(pipe, tiny.compiled(pipe.transformer, P0)),
        pytest.raises(RequestError, match="sigma at step 4"),
    ):
        tiny.run(pipe, callback_on_step_end=spoilt)


def test_settings_that_stay_what_they_are_may_be_set_again() -> None:
    """Registering a setting with the value that it has changes nothing, and is not refused."""
    pipe = tiny.pipeline()
    with attach(pipe, tiny.compiled(pipe.transformer, P0)) as session:
        tiny.run(pipe, callback_on_step_end=at_step(2, configure(solver_order=2)))
    assert session.requests[0].outcome == "finished"


def test_gradients_with_checkpointing_in_mid_run_are_refused() -> None:
    """A later call with gradients and checkpointing would not be the model's own forward."""
    model = tiny.transformer()
    with attach(model, tiny.compiled(model, P0)) as session:
        with torch.no_grad(), session.step(0, branch="cond"):
            model(**tiny.inputs())
        model.enable_gradient_checkpointing()
        with torch.no_grad(), session.step(1, branch="cond"):
            model(**tiny.inputs())
        with pytest.raises(RequestError, match="no_grad"), session.step(2, branch="cond"):
            model(**tiny.inputs())


def test_a_bare_transformer_is_held_too() -> None:
    """A cache of diffusers', enabled between two calls of a bare transformer, is refused at the second."""
    model = tiny.transformer()
    with torch.no_grad(), attach(model, tiny.compiled(model, P0)) as session:
        with session.step(0, branch="cond"):
            model(**tiny.inputs())
        model.enable_cache(FirstBlockCacheConfig(threshold=0.1))
        with pytest.raises(RequestError, match="disable_cache"), session.step(1, branch="cond"):
            model(**tiny.inputs())


def test_another_transformer_in_mid_run_is_no_finished_request() -> None:
    """Calls that another model answers are not this session's: the request ends incomplete."""
    pipe = tiny.pipeline()
    other = tiny.transformer(seed=5)
    with attach(pipe, tiny.compiled(pipe.transformer, P0)) as session:
        tiny.run(pipe, callback_on_step_end=at_step(2, lambda p: setattr(p, "transformer", other)))
    assert session.requests[0].outcome == "incomplete"


SETTINGS: dict[str, tuple[dict[str, Any], str]] = {
    "solver_order": ({"solver_order": 3}, "solver_order 2, and the scheduler has 3"),
    "solver_type": ({"solver_type": "bh1"}, "solver_type bh2, and the scheduler has bh1"),
    "final_sigmas_type": (
        {"final_sigmas_type": "sigma_min"},
        "final_sigmas_type zero, and the scheduler has sigma_min",
    ),
    "timestep_spacing": ({"timestep_spacing": "trailing"}, "timestep_spacing linspace, and the scheduler has trailing"),
    "num_train_timesteps": ({"num_train_timesteps": 500}, "num_train_timesteps 1000, and the scheduler has 500"),
    "lower_order_final": ({"lower_order_final": False}, "lower_order_final True"),
    "predict_x0": ({"predict_x0": False}, "predict_x0 True"),
    "thresholding": ({"thresholding": True}, "thresholding False"),
    "disable_corrector": ({"disable_corrector": [0]}, r"disable_corrector \[\]"),
    "trained_betas": ({"trained_betas": [0.1, 0.2]}, "trained_betas None"),
    "rescale_betas_zero_snr": ({"rescale_betas_zero_snr": True}, "rescale_betas_zero_snr False"),
}


@pytest.mark.parametrize(("settings", "words"), **tiny.settings(SETTINGS))
def test_settings_of_another_operating_point(settings: dict[str, Any], words: str) -> None:
    """`unipc` is the sampler that evidence is measured with: another setting is refused at attach, by name and value.

    Set between attach and a request, it is refused by the request.
    """
    pipe = tiny.pipeline()
    table, usual = tiny.compiled(pipe.transformer, P0), pipe.scheduler
    pipe.scheduler = UniPCMultistepScheduler.from_config(usual.config, **settings)
    with pytest.raises(AttachError, match=words) as refusal:
        attach(pipe, table)
    (name,) = settings
    assert f"from_config(pipe.scheduler.config, {name}=" in str(refusal.value)
    pipe.scheduler = usual
    with attach(pipe, table):
        configure(**settings)(pipe)
        with pytest.raises(RequestError, match=words):
            tiny.run(pipe)


def test_the_scheduler_of_the_folders_is_accepted() -> None:
    """Every setting written out as the Wan2.1 folders do, strangers among them, is the plain sampler."""
    pipe = tiny.pipeline()
    written = dict(pipe.scheduler.config) | {"disable_corrector": [], "skip_prk_steps": True, "flow_shift": 3}
    pipe.scheduler = UniPCMultistepScheduler.from_config(written)
    with attach(pipe, tiny.compiled(pipe.transformer, P0)) as session:
        tiny.run(pipe)
    assert session.requests[0].outcome == "finished"
