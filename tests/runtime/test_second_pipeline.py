"""A forward counts as the attached pipeline's only where it is provably its own; any other is computed natively, and said."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from accelerate import cpu_offload
from accelerate.hooks import ModelHook, add_hook_to_module
from diffusers import WanVACEPipeline
from torch import Tensor

from refkv_policy import RefkvWarning
from refkv_policy.audit import verify
from refkv_policy.runtime import RequestError, Session, attach
from tests import tiny

REUSE = '  - {name: hints, tier: P1, method: hint_reuse, at: "hint[all]", refresh: {interval: 3}}\n'
STEPS = '  - {name: steps, tier: S, method: step_schedule, at: step, refresh: {steps: "0,2,4"}}\n'
TOLD = "no step of the attached generation"


def parts_table(model: Any) -> Any:
    """A table that serves the outputs of a self-attention and a feed-forward, which the executor does not call itself."""
    rows = {"main[1].self@0": "CRRCRR", "main[2].ffn@0": "CRCRRR"}
    return tiny.written(model, 6, rows, rules=(tiny.rule(),))


TABLES: dict[str, Callable[[Any], Any]] = {
    "hints": lambda model: tiny.compiled(model, REUSE),
    "parts": parts_table,
}


def second(pipe: Any, **others: Any) -> Any:
    """A pipeline over the same transformer, with a scheduler of its own."""
    parts = {**pipe.components, "scheduler": tiny.scheduler(), **others}
    other = WanVACEPipeline(**parts)
    other.set_progress_bar_config(disable=True)
    return other


def sharing(pipe: Any) -> Any:
    """A pipeline over the same transformer and scheduler."""
    other = WanVACEPipeline.from_pipe(pipe)
    other.set_progress_bar_config(disable=True)
    return other


def after(step: int, act: Callable[[], Any]) -> Callable[..., dict[str, Any]]:
    """A step callback that acts once."""

    def callback(pipe: Any, index: int, t: Any, kwargs: Any) -> dict[str, Any]:
        if index == step:
            act()
        return {}

    return callback


def alone(pipe: Any, table: Any, **arguments: Any) -> Tensor:
    """What a request of the attached pipeline gives with nothing beside it."""
    with attach(pipe, table) as session:
        result = tiny.run(pipe, **arguments)
    assert session.requests[0].outcome == "finished"
    return result


def assert_undisturbed(session: Session, unplanned: int) -> None:
    """One request, as planned to the cell, and the foreign calls counted outside it."""
    (request,) = session.requests
    assert (request.outcome, request.total.departures, request.reasons) == ("finished", 0, {})
    assert request.total.hits > 0
    assert request.calls == 12
    assert session.summary.unplanned == unplanned
    assert session.bytes_held == 0


@pytest.mark.parametrize("step", range(6))
@pytest.mark.parametrize("make", **tiny.settings(TABLES))
def test_pipeline_nested_in_a_callback(step: int, make: Any, tmp_path: Path) -> None:
    """A second pipeline with the same prompt and clip and another seed, run after any step, is exact, and so is the first."""
    pipe = tiny.pipeline()
    other, table = second(pipe), make(pipe.transformer)
    plain, planned, found = tiny.run(other, seed=9), alone(pipe, table), []
    with pytest.warns(RefkvWarning, match=TOLD), attach(pipe, table, audit=tmp_path / "run.jsonl") as session:
        ours = tiny.run(pipe, callback_on_step_end=after(step, lambda: found.append(tiny.run(other, seed=9))))
    assert torch.equal(found[0], plain)
    assert torch.equal(ours, planned)
    assert_undisturbed(session, 12)
    assert verify(tmp_path / "run.jsonl", table=table).outcome == "ok"


@pytest.mark.parametrize("inside", ["the transformer's own hook", "a block's hook"])
@pytest.mark.parametrize("at", [0, 3, 6])
@pytest.mark.parametrize("make", **tiny.settings(TABLES))
def test_pipeline_nested_in_a_forward(inside: str, at: int, make: Any) -> None:
    """A second pipeline that runs in the middle of a forward of the first, or just before it, changes neither."""
    pipe = tiny.pipeline()
    other, table = second(pipe), make(pipe.transformer)
    plain, planned, found, calls = tiny.run(other, seed=9), alone(pipe, table), [], []

    def hook(*_: Any) -> None:
        calls.append(1)
        if len(calls) == at + 1:
            found.append(tiny.run(other, seed=9))

    module = pipe.transformer if inside.startswith("the") else pipe.transformer.blocks[1]
    told = pytest.warns(RefkvWarning, match=TOLD)
    with told, attach(pipe, table) as session:
        handle = module.register_forward_pre_hook(hook)
        ours = tiny.run(pipe)
        handle.remove()
    assert torch.equal(found[0], plain)
    assert torch.equal(ours, planned)
    assert_undisturbed(session, 12)


@pytest.mark.parametrize("make", **tiny.settings(TABLES))
def test_pipelines_in_threads_step_by_step(make: Any) -> None:
    """Two pipelines that take turns at each step, on two threads, are each exact."""
    pipe = tiny.pipeline()
    other, table = second(pipe, vae=tiny.pipeline().vae), make(pipe.transformer)
    plain, planned = tiny.run(other, seed=9), alone(pipe, table)
    barrier, found = threading.Barrier(2, timeout=60), []

    def meet(*_: Any) -> dict[str, Any]:
        barrier.wait()
        return {}

    told = pytest.warns(RefkvWarning, match=TOLD)
    with told, attach(pipe, table) as session:
        thread = threading.Thread(
            target=lambda: found.append(tiny.run(other, seed=9, callback_on_step_end=meet)), daemon=True
        )
        thread.start()
        ours = tiny.run(pipe, callback_on_step_end=meet)
        thread.join()
    assert torch.equal(found[0], plain)
    assert torch.equal(ours, planned)
    assert_undisturbed(session, 12)


@pytest.mark.parametrize("make", [second, sharing], ids=["own scheduler", "from_pipe"])
@pytest.mark.parametrize("caches", [REUSE, STEPS], ids=["hints", "fewer steps"])
@pytest.mark.parametrize("guidance", [9.0, 1.0, 5.0])
def test_pipeline_called_in_turn(make: Any, caches: str, guidance: float, tmp_path: Path) -> None:
    """Called before and after the attached one, it is neither cached nor thinned, and no header tells its guidance."""
    pipe = tiny.pipeline()
    other, table = make(pipe), tiny.compiled(pipe.transformer, caches, guidance="5.0")
    plain, planned = tiny.run(other, guidance=guidance), alone(pipe, table)
    told = pytest.warns(RefkvWarning, match=TOLD)
    with told, attach(pipe, table, audit=tmp_path / "run.jsonl") as session:
        assert torch.equal(tiny.run(other, guidance=guidance), plain)
        assert torch.equal(tiny.run(pipe), planned)
        assert torch.equal(tiny.run(other, guidance=guidance), plain)
        assert session.bytes_held == 0
    assert [r.outcome for r in session.summary.requests] == ["finished"]
    assert session.summary.unplanned == (12 if guidance == 1.0 else 24)
    assert verify(tmp_path / "run.jsonl", table=table).outcome == "ok"
    records = [json.loads(line) for line in (tmp_path / "run.jsonl").read_text().splitlines()]
    assert [r["guidance"] for r in records if r["kind"] == "request"] == [5.0]


def test_scheduler_taken_away_in_mid_run() -> None:
    """A pipeline that shares the scheduler and is called in the middle of a request would spoil both: refused."""
    pipe = tiny.pipeline()
    other, table = sharing(pipe), tiny.compiled(pipe.transformer, REUSE)
    planned = alone(pipe, table)
    with attach(pipe, table) as session:
        with pytest.raises(RequestError, match="in the middle of a run of the pipeline"):
            tiny.run(pipe, callback_on_step_end=after(2, lambda: tiny.run(other)))
        assert torch.equal(tiny.run(pipe), planned)
    assert [r.outcome for r in session.requests] == ["failed", "finished"]


@pytest.mark.parametrize("failing", ["check_inputs", "encode_prompt", "prepare_latents"])
def test_call_that_fails_before_its_loop_leaves_no_claim(failing: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """After it, a pipeline that shares the scheduler is not taken for the attached one."""
    pipe = tiny.pipeline()
    other, table = sharing(pipe), tiny.compiled(pipe.transformer, STEPS)
    plain = tiny.run(other)
    told = pytest.warns(RefkvWarning)
    with told, attach(pipe, table) as session:
        with monkeypatch.context() as patch:
            patch.setattr(pipe, failing, lambda *_, **__: 1 / 0)
            with pytest.raises(ZeroDivisionError):
                tiny.run(pipe)
        assert torch.equal(tiny.run(other), plain)
    assert [str(w.message)[:40] for w in told] == [
        "a call of the transformer is no step of ",
        "12 calls of the transformer came while t",
    ]
    assert session.requests == ()


@pytest.mark.parametrize("where", ["the next timestep", "this timestep", "a copy of the next", "another context"])
def test_call_by_hand_in_a_callback(where: str) -> None:
    """A preview or a metric computed between steps, with the request's own prompt and control, is exact and outside it."""
    pipe = tiny.pipeline()
    table, model, found, own = tiny.compiled(pipe.transformer, REUSE), pipe.transformer, [], {}
    handle = model.register_forward_pre_hook(lambda m, a, kwargs: own.update(kwargs), with_kwargs=True)
    tiny.run(pipe)
    handle.remove()
    planned = alone(pipe, table)

    def probe() -> None:
        timesteps = pipe.scheduler.timesteps
        at = timesteps[2] if where == "this timestep" else timesteps[3]
        arguments = {**own, "timestep": (at.clone() if "copy" in where else at).expand(1)}
        with torch.no_grad(), model.cache_context("preview" if "context" in where else "cond"):
            found.append((model(**arguments)[0], type(model).forward(model, **arguments)[0]))

    with pytest.warns(RefkvWarning, match=TOLD), attach(pipe, table) as session:
        ours = tiny.run(pipe, callback_on_step_end=after(2, probe))
    assert torch.equal(*found[0])
    assert torch.equal(ours, planned)
    assert_undisturbed(session, 1)


# Hooks that move what a forward is given --------------------------------------------------------------------------------


class Copying(ModelHook):
    """Gives the module copies of its arguments, as a hook does that brings them from another device."""

    def pre_forward(self, module: Any, *args: Any, **kwargs: Any) -> Any:
        return args, {name: value.clone() if isinstance(value, Tensor) else value for name, value in kwargs.items()}


HOOKS: dict[str, Callable[[Any], Any]] = {
    "copies": lambda pipe: add_hook_to_module(pipe.transformer, Copying()),
    "sequential": lambda pipe: cpu_offload(pipe.transformer, torch.device("cpu")),
    "block groups": lambda pipe: tiny.offload_groups(pipe.transformer, "block_level"),
    "leaf groups": lambda pipe: tiny.offload_groups(pipe.transformer, "leaf_level"),
}


@pytest.mark.parametrize("put", **tiny.settings(HOOKS))
@pytest.mark.parametrize("step", [None, 0, 2])
def test_offload_hooks(put: Callable[[Any], Any], step: int | None) -> None:
    """Under a hook that moves the timestep the attached pipeline is recognised, and a nested one is not taken for it."""
    pipe = tiny.pipeline()
    table = tiny.compiled(pipe.transformer, REUSE)
    planned, plain = alone(pipe, table), tiny.run(second(pipe), seed=9)
    put(pipe)
    other, found = second(pipe), []
    nested = (
        {} if step is None else {"callback_on_step_end": after(step, lambda: found.append(tiny.run(other, seed=9)))}
    )
    with attach(pipe, table) as session:
        if step is None:
            assert torch.equal(tiny.run(pipe), planned)
        else:
            with pytest.warns(RefkvWarning, match=TOLD):
                assert torch.equal(tiny.run(pipe, **nested), planned)
            assert torch.equal(found[0], plain)
    assert_undisturbed(session, 0 if step is None else 12)


def test_copied_timestep_among_views_is_not_the_requests_own() -> None:
    """Where the request's own timesteps are views, a hook's call with a copy, at the right step, is computed for itself."""
    pipe = tiny.pipeline()
    table, model, found = tiny.compiled(pipe.transformer, REUSE), pipe.transformer, []

    def probe(module: Any, args: Any, kwargs: Any) -> None:
        if not found and pipe.scheduler.step_index == 1:
            found.append(None)
            arguments = {**kwargs, "timestep": kwargs["timestep"].clone()}
            found[0] = model(**arguments)[0], type(model).forward(model, **arguments)[0]

    planned = alone(pipe, table)
    told = pytest.warns(RefkvWarning, match=TOLD)
    with told, attach(pipe, table) as session:
        handle = model.register_forward_pre_hook(probe, with_kwargs=True)
        assert torch.equal(tiny.run(pipe), planned)
        handle.remove()
    assert torch.equal(*found[0])
    assert session.requests[0].reasons == {}
    assert session.summary.unplanned == 1


# Several calls at one place ---------------------------------------------------------------------------------------------


def loop(pipe: Any, calls: Callable[[Any, int], list[tuple[str, dict[str, Any]]]], steps: int = 6) -> list[Tensor]:
    """A pipeline's denoising loop of one's own, of given calls at each step. Returns their outputs."""
    model, scheduler, found = pipe.transformer, pipe.scheduler, []
    scheduler.set_timesteps(steps)
    pipe._guidance_scale, pipe._interrupt = 5.0, False
    with torch.no_grad(), pipe.progress_bar(total=steps):
        for index, t in enumerate(scheduler.timesteps):
            scheduler._step_index, pipe._current_timestep = index, t
            for branch, arguments in calls(t, index):
                with model.cache_context(branch):
                    found.append(model(**arguments)[0])
    return found


def windows(t: Tensor, index: int) -> list[tuple[str, dict[str, Any]]]:
    """Three windows of a long video, in alternating order, of one control."""
    order = (0, 1, 2) if index % 2 == 0 else (2, 1, 0)
    latents = [tiny.noise(1, 16, 2, 4, 4, seed=10 * index + window) for window in order]
    return [("cond", {**tiny.inputs(), "timestep": t.expand(1), "hidden_states": x}) for x in latents]


def twice_uncond(t: Tensor, index: int) -> list[tuple[str, dict[str, Any]]]:
    """Two unconditional calls, as perturbed guidance makes."""
    return [(b, {**tiny.inputs(seed=n), "timestep": t.expand(1)}) for n, b in enumerate(("cond", "uncond", "uncond"))]


def late_windows(t: Tensor, index: int) -> list[tuple[str, dict[str, Any]]]:
    """One window at first, two from the second step on."""
    both = [
        ("cond", {**tiny.inputs(), "timestep": t.expand(1)}),
        ("uncond", {**tiny.inputs(seed=7), "timestep": t.expand(1)}),
    ]
    return both if index == 0 else [*both, *windows(t, index)[:1]]


def batched(t: Tensor, index: int) -> list[tuple[str, dict[str, Any]]]:
    """Both branches in one call, under one name."""
    return [("cond", {**tiny.inputs(batch=2, seed=index), "timestep": t.expand(2)})]


def batched_later(t: Tensor, index: int) -> list[tuple[str, dict[str, Any]]]:
    """Both branches in one call from the second step on."""
    both = [(b, {**tiny.inputs(seed=n), "timestep": t.expand(1)}) for n, b in enumerate(("cond", "uncond"))]
    return both if index == 0 else batched(t, index)


SHARED: dict[str, tuple[Any, str]] = {
    "windows": (windows, "second call of the cond branch came at step 0"),
    "two unconditional calls": (twice_uncond, "second call of the uncond branch came at step 0"),
    "batched branches": (batched, "cond and uncond in one batch"),
    "batched branches later": (batched_later, "latents are .2, 16, .*began with .1, 16"),
}


@pytest.mark.parametrize(("calls", "words"), **tiny.settings(SHARED))
def test_calls_that_share_a_place(calls: Any, words: str) -> None:
    """Two calls of a branch at a step, or two branches in one call: refused; or computed, each exactly, and said."""
    pipe = tiny.pipeline()
    table = tiny.compiled(pipe.transformer, REUSE)
    with attach(pipe, table) as session, pytest.raises(RequestError, match=words):
        loop(pipe, calls)
    assert session.requests[0].total.hits == 0
    native = loop(pipe, calls)
    with attach(pipe, table, on_error="uncached") as session, pytest.warns(RefkvWarning, match=words):
        ours = loop(pipe, calls)
    assert all(map(torch.equal, ours, native))
    assert (session.requests[0].outcome, session.requests[0].total.hits) == ("incomplete", 0)


def test_windows_that_come_later() -> None:
    """A window more from the second step on is refused where it comes; what was served before it was its own branch's."""
    pipe = tiny.pipeline()
    table = tiny.compiled(pipe.transformer, REUSE)
    with (
        attach(pipe, table) as session,
        pytest.raises(RequestError, match="second call of the cond branch came at step 1"),
    ):
        loop(pipe, late_windows)
    assert (session.requests[0].outcome, session.requests[0].total.hits) == ("failed", 4)
    native, told = (
        loop(pipe, late_windows),
        pytest.warns(RefkvWarning, match="second call of the cond branch came at step 1"),
    )
    with attach(pipe, table, on_error="uncached") as session, told:
        ours = loop(pipe, late_windows)
    assert all(map(torch.equal, ours[4:], native[4:]))
    assert session.requests[0].outcome == "incomplete"


@pytest.mark.parametrize("apart", [False, True], ids=["one context", "a context each"])
def test_windows_over_a_bare_transformer(apart: bool) -> None:
    """Two windows told as one step are refused, also at the first step; a second request says that it is one."""
    model = tiny.transformer()
    table = tiny.compiled(model, REUSE)
    with attach(model, table) as session, torch.no_grad():
        for new_request in (False, True):
            with session.step(0, branch="cond"):
                model(**tiny.inputs())
                if not apart:
                    with pytest.raises(RequestError, match="second call of the cond branch came at step 0"):
                        model(**tiny.inputs(seed=5))
            if apart and not new_request:
                with pytest.raises(RequestError, match="second call"), session.step(0, branch="cond"):
                    model(**tiny.inputs(seed=5))
            elif apart:
                with session.step(0, branch="cond", new_request=True):
                    model(**tiny.inputs(seed=5))
    assert session.requests[0].outcome == "failed"


# Threads ----------------------------------------------------------------------------------------------------------------


def refused_in_a_thread(act: Callable[[], Any]) -> str:
    """The sentence with which a thread's call was refused."""
    found: list[str] = []

    def run() -> None:
        try:
            act()
        except RequestError as error:
            found.append(str(error))

    thread = threading.Thread(target=run, daemon=True)
    thread.start()
    thread.join(60)
    return found[0]


@pytest.mark.parametrize("step", [0, 3, 5])
def test_second_thread_through_one_pipeline(step: int) -> None:
    """Refused with a sentence before it touches anything; the first goes on as planned, and later calls may come."""
    pipe = tiny.pipeline()
    table = tiny.compiled(pipe.transformer, REUSE)
    planned, said = alone(pipe, table), []
    with attach(pipe, table) as session:
        callback = after(step, lambda: said.append(refused_in_a_thread(lambda: tiny.run(pipe, seed=4, guidance=1.0))))
        assert torch.equal(tiny.run(pipe, callback_on_step_end=callback), planned)
        assert_undisturbed(session, 0)
        thread = threading.Thread(target=lambda: tiny.run(pipe), daemon=True)
        thread.start()
        thread.join(60)
    assert "generating already, in another thread" in said[0]
    assert [r.outcome for r in session.requests] == ["finished", "finished"]


def test_pipeline_called_inside_its_own_call() -> None:
    """A callback that calls the same pipeline would reset its scheduler: refused."""
    pipe = tiny.pipeline()
    table = tiny.compiled(pipe.transformer, REUSE)
    refused = pytest.raises(RequestError, match="generating already, in another thread or around this call")
    with attach(pipe, table) as session, refused:
        tiny.run(pipe, callback_on_step_end=after(1, lambda: tiny.run(pipe)))
    assert session.bytes_held == 0


def test_second_thread_through_one_transformer() -> None:
    """`session.step` in a second thread is refused while the first is in a step, and a forward there is not the step's."""
    model = tiny.transformer()
    with attach(model, tiny.compiled(model, REUSE)) as session, torch.no_grad():
        native, found = type(model).forward(model, **tiny.inputs(seed=8))[0], []

        def step() -> None:
            with session.step(0, branch="cond"):
                pass

        def forward() -> None:
            with torch.no_grad():
                found.append(model(**tiny.inputs(seed=8))[0])

        for index in range(2):
            with session.step(index, branch="cond"):
                assert "another thread is inside a step of this session" in refused_in_a_thread(step)
                if index:
                    thread = threading.Thread(target=forward, daemon=True)
                    told = pytest.warns(RefkvWarning, match="no step of the attached generation")
                    with told:
                        thread.start()
                        thread.join(60)
                model(**tiny.inputs())
        step()
    assert torch.equal(found[0], native)
    assert (session.summary.unplanned, session.summary.total.departures) == (1, 0)
