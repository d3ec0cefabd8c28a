"""Every request equals the same request run alone, whatever went before it; the store is empty after each."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch

from refkv_policy.runtime import RequestError, Session, attach
from tests import tiny

CACHES = (
    '  - {name: hints, tier: P1, method: hint_forecast, at: "hint[all]", refresh: {interval: 2}}\n'
    '  - {name: text, tier: P0, method: text_kv, at: ["main[all].text_kv", "vace[all].text_kv"]}\n'
)


@pytest.fixture(scope="module")
def pipe() -> Any:
    """One pipeline for the module; sessions leave it as it was, which these tests also show."""
    return tiny.pipeline()


@pytest.fixture(scope="module")
def table(pipe: Any) -> Any:
    """Hints forecast and text kept."""
    return tiny.compiled(pipe.transformer, CACHES)


@pytest.fixture(scope="module")
def clean(pipe: Any, table: Any) -> torch.Tensor:
    """A request alone in its session."""
    with attach(pipe, table) as session:
        result = tiny.run(pipe)
    assert session.requests[0].outcome == "finished"
    assert not torch.equal(result, tiny.run(pipe)), "the table does something"
    return result


class StopError(Exception):
    """An error of the caller's."""


def raising(error: BaseException, at: int) -> Callable[..., dict[str, Any]]:
    """A step callback that raises after a step."""

    def callback(pipe: Any, step: int, t: Any, kwargs: dict[str, Any]) -> dict[str, Any]:
        if step == at:
            raise error
        return {}

    return callback


def assert_clean(pipe: Any, session: Session, expected: torch.Tensor) -> None:
    """The next request is served, and equals a clean run; nothing is held after it."""
    assert torch.equal(tiny.run(pipe), expected)
    assert session.bytes_held == 0
    assert session.requests[-1].outcome == "finished"
    assert session.requests[-1].total.departures == 0


@pytest.mark.parametrize(("error", "outcome"), [(StopError("stop"), "failed"), (KeyboardInterrupt(), "cancelled")])
@pytest.mark.parametrize("at", [0, 3, 5])
def test_exception_between_steps(
    pipe: Any, table: Any, clean: torch.Tensor, error: BaseException, outcome: str, at: int
) -> None:
    """An error or an interrupt in a callback ends the request at once, and leaves nothing behind."""
    with attach(pipe, table) as session:
        with pytest.raises(type(error)):
            tiny.run(pipe, callback_on_step_end=raising(error, at))
        assert session.bytes_held == 0
        assert [r.outcome for r in session.requests] == [outcome]
        assert_clean(pipe, session, clean)


@pytest.mark.parametrize(("error", "outcome"), [(StopError("stop"), "failed"), (KeyboardInterrupt(), "cancelled")])
def test_exception_inside_a_block(
    pipe: Any, table: Any, clean: torch.Tensor, error: BaseException, outcome: str
) -> None:
    """An error in the middle of a forward likewise."""
    calls = []

    def fail(*_: Any) -> None:
        calls.append(1)
        if len(calls) == 5:
            raise error

    with attach(pipe, table) as session:
        handle = pipe.transformer.blocks[2].register_forward_pre_hook(fail)
        with pytest.raises(type(error)):
            tiny.run(pipe)
        handle.remove()
        assert session.bytes_held == 0
        assert session.requests[0].outcome == outcome
        assert session.requests[0].calls == 4
        assert_clean(pipe, session, clean)


def test_exception_in_the_scheduler(pipe: Any, table: Any, clean: torch.Tensor, monkeypatch: Any) -> None:
    """An error in the sampler's own step ends the request too."""
    with attach(pipe, table) as session:
        with monkeypatch.context() as patch:
            patch.setattr(pipe.scheduler, "step", lambda *_, **__: (_ for _ in ()).throw(StopError("sampler")))
            with pytest.raises(StopError):
                tiny.run(pipe)
        assert session.bytes_held == 0
        assert session.requests[0].error == "StopError: sampler"
        assert_clean(pipe, session, clean)


def test_exception_that_leaves_the_session(pipe: Any, table: Any, clean: torch.Tensor) -> None:
    """A session left by an exception restores the model; a new one starts clean."""
    with pytest.raises(StopError), attach(pipe, table) as session:
        tiny.run(pipe, callback_on_step_end=raising(StopError("stop"), 2))
    assert session.bytes_held == 0
    assert "forward" not in vars(pipe.transformer)
    with attach(pipe, table) as session:
        assert_clean(pipe, session, clean)


def test_interrupt_flag(pipe: Any, table: Any, clean: torch.Tensor) -> None:
    """The pipeline's own interrupt ends the request as cancelled."""

    def interrupt(pipe: Any, step: int, t: Any, kwargs: dict[str, Any]) -> dict[str, Any]:
        pipe._interrupt = step >= 2
        return {}

    with attach(pipe, table) as session:
        tiny.run(pipe, callback_on_step_end=interrupt)
        assert session.bytes_held == 0
        assert session.requests[0].outcome == "cancelled"
        assert_clean(pipe, session, clean)


def test_bare_call_after_a_crash(pipe: Any, table: Any, clean: torch.Tensor) -> None:
    """A forward outside any request is uncached, keeps nothing, and does not disturb the next request."""
    with attach(pipe, table) as session, torch.no_grad():
        with pytest.raises(StopError):
            tiny.run(pipe, callback_on_step_end=raising(StopError("stop"), 2))
        ours = pipe.transformer(**tiny.inputs())[0]
        with pipe.transformer.cache_context("cond"):
            at_a_step = {**tiny.inputs(), "timestep": pipe.scheduler.timesteps[3].expand(1)}
            pipe.transformer(**at_a_step)
        assert session.summary.unplanned == 2
        assert session.bytes_held == 0
        assert_clean(pipe, session, clean)
    with torch.no_grad():
        assert torch.equal(pipe.transformer(**tiny.inputs())[0], ours)


@pytest.mark.parametrize(
    "other",
    [{"size": 48}, {"frames": 9}, {"text": 7}, {"clip": 7}, {"seed": 7}, {"guidance": 1.0}],
    ids=["size", "frames", "prompt", "video", "seed", "guidance 1"],
)
def test_other_requests_in_between(pipe: Any, table: Any, clean: torch.Tensor, other: dict[str, Any]) -> None:
    """A request of another size, length, prompt, video, seed or guidance equals itself alone, and so does the next."""
    with attach(pipe, table):
        alone = tiny.run(pipe, **other)
    with attach(pipe, table) as session:
        assert_clean(pipe, session, clean)
        assert torch.equal(tiny.run(pipe, **other), alone)
        assert session.requests[-1].outcome == "finished"
        assert_clean(pipe, session, clean)


@pytest.mark.parametrize("steps", [1, 5, 7])
def test_another_step_count_is_refused_and_leaves_nothing(
    pipe: Any, table: Any, clean: torch.Tensor, steps: int
) -> None:
    """Another step count (a one-step warm-up too) is refused at its first forward; the next request is clean."""
    with attach(pipe, table) as session:
        with pytest.raises(RequestError, match=f"runs {steps} steps"):
            tiny.run(pipe, steps=steps)
        assert session.bytes_held == 0
        assert session.requests[0].calls == 0
        assert_clean(pipe, session, clean)


@pytest.mark.parametrize("steps", [1, 5, 7])
def test_another_step_count_runs_uncached_where_allowed(pipe: Any, table: Any, clean: torch.Tensor, steps: int) -> None:
    """With `on_error="uncached"` a warm-up or another step count runs as without a session, and says why."""
    native = tiny.run(pipe, steps=steps)
    with attach(pipe, table, on_error="uncached") as session:
        assert torch.equal(tiny.run(pipe, steps=steps), native)
        request = session.requests[0]
        assert (request.outcome, request.total.hits) == ("incomplete", 0)
        assert set(request.reasons) == {"error"}
        assert f"runs {steps} steps" in str(request.error)
        assert_clean(pipe, session, clean)


def test_a_failure_of_the_cache_finishes_uncached_where_allowed(
    pipe: Any, table: Any, clean: torch.Tensor, monkeypatch: Any
) -> None:
    """When a forecast fails in mid-run the call is repeated uncached and the rest follows; the next request is served."""
    from refkv_policy import methods

    def fail(*_: Any) -> None:
        raise RuntimeError("no forecast today")

    with monkeypatch.context() as patch:
        patch.setattr(type(methods.get("hint_forecast")), "predict", fail)
        with attach(pipe, table) as session, pytest.raises(RuntimeError, match="no forecast today"):
            tiny.run(pipe)
        assert session.requests[0].outcome == "failed"
        with attach(pipe, table, on_error="uncached") as session:
            ours = tiny.run(pipe)
    assert session.requests[0].outcome == "incomplete"
    assert session.requests[0].reasons["error"] > 0
    assert session.requests[0].calls == 12
    assert ours.isfinite().all()
    with attach(pipe, table, on_error="uncached") as session:
        assert_clean(pipe, session, clean)


def test_guidance_switched_off_in_mid_run(pipe: Any, table: Any) -> None:
    """When uncond stops, nothing of it is left over at the end, and the request does not pass for a whole one."""

    def off(pipe: Any, step: int, t: Any, kwargs: dict[str, Any]) -> dict[str, Any]:
        pipe._guidance_scale = 1.0 if step >= 2 else 5.0
        return {}

    with attach(pipe, table) as session:
        tiny.run(pipe, callback_on_step_end=off)
    assert session.requests[0].outcome == "incomplete"
    assert session.requests[0].calls == 3 + 6
    assert session.requests[0].reasons == {}
    assert session.bytes_held == 0


def test_guidance_off_and_on_again(pipe: Any, table: Any) -> None:
    """A branch that missed its refreshes has no state when it returns: legal departures `no_state`, each computed."""

    def pause(pipe: Any, step: int, t: Any, kwargs: dict[str, Any]) -> dict[str, Any]:
        pipe._guidance_scale = 1.0 if step in (1, 2, 3) else 5.0
        return {}

    with attach(pipe, table) as session:
        tiny.run(pipe, callback_on_step_end=pause)
    request = session.requests[0]
    assert request.calls == 6 + 3
    assert request.reasons["no_state"] > 0
    assert set(request.reasons) <= {"no_state", "chain"}
    assert request.branches["cond"].departures == 0
    assert session.bytes_held == 0


def test_guidance_switched_on_in_mid_run(pipe: Any, table: Any) -> None:
    """A branch that was not expected when the request began is computed, never cached."""

    def on(pipe: Any, step: int, t: Any, kwargs: dict[str, Any]) -> dict[str, Any]:
        pipe._guidance_scale = 5.0 if step >= 2 else 1.0
        return {"negative_prompt_embeds": tiny.embeds(101)}

    arguments = {
        "callback_on_step_end_tensor_inputs": ["latents", "negative_prompt_embeds"],
        "callback_on_step_end": on,
    }
    with attach(pipe, table) as session:
        tiny.run(pipe, guidance=1.0, negative_prompt_embeds=tiny.embeds(101), **arguments)
    request = session.requests[0]
    assert request.calls == 6 + 3
    assert set(request.reasons) == {"unknown_step"}
    assert (request.branches["cond"].departures, request.branches["uncond"].hits) == (0, 0)


def test_many_requests_in_one_session(pipe: Any, table: Any, clean: torch.Tensor) -> None:
    """Requests follow one another, each with its own state, and the summary adds them up."""
    with attach(pipe, table) as session:
        for _ in range(3):
            assert_clean(pipe, session, clean)
    one = session.requests[0].total
    assert session.summary.hits == 3 * one.hits
    assert session.summary.bytes_peak == one.bytes_peak > 0


def test_sessions_interleaved_on_two_models(pipe: Any, table: Any, clean: torch.Tensor) -> None:
    """A request on another model runs inside a step of this one; both equal their clean runs."""
    other = tiny.pipeline(tiny.transformer(seed=5))
    other_table = tiny.compiled(other.transformer, CACHES)
    with attach(other, other_table):
        alone = tiny.run(other)
    inner = []

    def nested(pipe: Any, step: int, t: Any, kwargs: dict[str, Any]) -> dict[str, Any]:
        if step in (0, 3):
            inner.append(tiny.run(other))
        return {}

    with attach(pipe, table) as one, attach(other, other_table) as two:
        assert torch.equal(tiny.run(pipe, callback_on_step_end=nested), clean)
    assert all(torch.equal(result, alone) for result in inner)
    assert one.requests[0].total.departures == 0
    assert [r.outcome for r in two.requests] == ["finished", "finished"]


def test_two_sessions_on_threads_of_their_own(pipe: Any, table: Any, clean: torch.Tensor) -> None:
    """Two pipelines that run at the same time on two threads do not touch each other."""
    from concurrent.futures import ThreadPoolExecutor

    other = tiny.pipeline(tiny.transformer())
    with attach(pipe, table), attach(other, tiny.compiled(other.transformer, CACHES)), ThreadPoolExecutor(2) as pool:
        results = list(pool.map(tiny.run, (pipe, other)))
    assert all(torch.equal(result, clean) for result in results)


def test_nothing_of_the_request_stays_alive(pipe: Any, table: Any) -> None:
    """After a request the session holds no tensor of it: not the store's, not the prompt, not the control."""
    import gc

    with attach(pipe, table) as session:
        tiny.run(pipe)
        gc.collect()
        reachable, todo = set(), [session._request, session._done, session._past, session._clock]
        found = []
        while todo:
            item = todo.pop()
            if id(item) in reachable or isinstance(item, (type, torch.nn.Module)) or item is pipe or callable(item):
                continue
            reachable.add(id(item))
            if isinstance(item, torch.Tensor):
                found.append(item)
            elif type(item).__module__.startswith("refkv_policy") or isinstance(item, (list, tuple, dict)):
                todo.extend(gc.get_referents(item))
    assert all(t is session._past for t in found), "only the timesteps, whose identity names the request"


def test_bare_transformer_runs_as_a_pipeline_does(pipe: Any, table: Any, clean: torch.Tensor) -> None:
    """An own loop with `session.step` gives the pipeline's latents; a second loop starts a new request by itself."""
    model = pipe.transformer
    seen: list[dict[str, Any]] = []
    handle = model.register_forward_pre_hook(lambda _m, _a, kwargs: seen.append(kwargs), with_kwargs=True)
    tiny.run(pipe)
    handle.remove()
    fixed, latents = seen[0], seen[0]["hidden_states"]
    negative = seen[1]["encoder_hidden_states"]

    def loop(session: Session) -> torch.Tensor:
        scheduler, x = tiny.scheduler(), latents
        scheduler.set_timesteps(6)
        for i, t in enumerate(scheduler.timesteps):
            both = {}
            for branch, prompt in (("cond", fixed["encoder_hidden_states"]), ("uncond", negative)):
                with session.step(i, branch=branch):
                    arguments = {**fixed, "hidden_states": x, "timestep": t.expand(1), "encoder_hidden_states": prompt}
                    both[branch] = model(**arguments)[0]
            guided = both["uncond"] + 5.0 * (both["cond"] - both["uncond"])
            x = scheduler.step(guided, t, x, return_dict=False)[0]
        return x

    with attach(model, table) as session, torch.no_grad():
        assert torch.equal(loop(session), clean)
        assert session.bytes_held == 0
        assert [r.outcome for r in session.requests] == ["finished"]
        with pytest.raises(StopError), session.step(0, branch="cond"):
            raise StopError
        assert torch.equal(loop(session), clean)
    assert [r.outcome for r in session.requests] == ["finished", "finished"]


def test_bare_loop_abandoned_and_begun_again(table: Any) -> None:
    """A loop given up in mid-run leaves an incomplete request; the next one starts from nothing.

    After its first step alone it has to say so, for it looks like a second window at that step.
    """
    model = tiny.transformer()

    def steps(session: Session, until: int) -> torch.Tensor:
        for step in range(until):
            for branch in ("cond", "uncond"):
                with session.step(step, branch=branch, new_request=(step, branch) == (0, "cond")):
                    last = model(**{**tiny.inputs(), "hidden_states": tiny.noise(1, 16, 2, 4, 4, seed=step)})[0]
        return last

    with torch.no_grad(), attach(model, table) as session:
        alone = steps(session, 6)
        for until in (1, 3):
            steps(session, until)
            assert torch.equal(steps(session, 6), alone)
    outcomes = ["finished", "incomplete", "finished", "incomplete", "finished"]
    assert [r.outcome for r in session.requests] == outcomes
    assert all(r.total.departures == 0 for r in session.requests)


def test_a_session_that_was_forgotten_does_not_outlive_its_model() -> None:
    """Model and session go together when nobody holds them, even without detach."""
    import gc
    import weakref

    model = tiny.transformer()
    session = attach(model, tiny.compiled(model, CACHES))
    seen = weakref.ref(model)
    del model, session
    gc.collect()
    assert seen() is None
