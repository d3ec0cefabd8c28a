"""The clock: a step is believed only where the scheduler and the timestep agree; a branch only where it is named."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from refkv_policy import RefkvWarning
from refkv_policy.runtime import RequestError, attach
from refkv_policy.runtime.clock import ManualClock, PipelineClock
from tests import tiny

CACHES = '  - {name: hints, tier: P1, method: hint_reuse, at: "hint[all]", refresh: {interval: 3}}\n'


@pytest.fixture
def pipe() -> Any:
    """A pipeline in the middle of a run: step 2 of 6."""
    pipe = tiny.pipeline()
    pipe.scheduler.set_timesteps(6)
    pipe.scheduler._step_index = 2
    pipe._current_timestep = pipe.scheduler.timesteps[2]
    return pipe


def opened(pipe: Any) -> PipelineClock:
    """A clock of a pipeline that is in its loop."""
    clock = PipelineClock(pipe)
    clock.open()
    return clock


def test_step_is_the_schedulers_index_where_the_timestep_is_its_own(pipe: Any) -> None:
    """A view of `scheduler.timesteps` at the step index, expanded or not, names the step."""
    clock, timesteps = opened(pipe), pipe.scheduler.timesteps
    clock.branch = "cond"
    for timestep in (timesteps[2], timesteps[2].expand(3), timesteps[2:3]):
        position = clock.read(timestep)
        assert position.key is timesteps
        assert (position.step_index, position.branch) == (2, "cond")


def test_view_at_another_offset_is_not_believed(pipe: Any) -> None:
    """Where the timestep belongs to another step than the scheduler says, the step is unknown, even if the values agree."""
    timesteps = pipe.scheduler.timesteps
    timesteps[3] = timesteps[2]
    assert opened(pipe).read(timesteps[3].expand(1)).step_index is None
    assert opened(pipe).read(timesteps[1]).step_index is None


def test_timestep_of_its_own_memory_is_compared_by_value(pipe: Any) -> None:
    """A copy of the right value is believed, in any dtype; another value, or a batch of unlike ones, is not."""
    clock, timesteps = opened(pipe), pipe.scheduler.timesteps
    assert clock.read(timesteps[2].clone()).step_index == 2
    assert clock.read(timesteps[2].float().expand(2)).step_index == 2
    assert clock.read(timesteps[3].clone()).step_index is None
    assert clock.read(torch.stack([timesteps[2], timesteps[3]])).step_index is None


def test_before_the_first_step_it_is_the_begin_index_or_zero(pipe: Any) -> None:
    """`step_index` is None until the scheduler has stepped."""
    pipe.scheduler._step_index = None
    timesteps = pipe.scheduler.timesteps
    pipe._current_timestep = timesteps[0]
    assert opened(pipe).read(timesteps[0]).step_index == 0
    pipe.scheduler.set_begin_index(4)
    pipe._current_timestep = timesteps[4]
    assert opened(pipe).read(timesteps[4]).step_index == 4
    assert opened(pipe).read(timesteps[0]).step_index is None


def test_after_the_last_step_it_is_unknown(pipe: Any) -> None:
    """Past the end there is no step."""
    pipe.scheduler._step_index = 6
    assert opened(pipe).read(pipe.scheduler.timesteps[5]).step_index is None


def test_request_is_the_identity_of_the_timesteps(pipe: Any) -> None:
    """`set_timesteps` begins another request, although the values are the same."""
    clock = opened(pipe)
    first = clock.read(pipe.scheduler.timesteps[2]).key
    assert first is not None
    assert clock.read(pipe.scheduler.timesteps[2]).key is first
    pipe.scheduler.set_timesteps(6)
    pipe._current_timestep = pipe.scheduler.timesteps[0]
    assert clock.read(pipe.scheduler.timesteps[0]).key is not first


def test_told_clock_begins_a_request_when_time_runs_backwards() -> None:
    """An earlier step is another request, and so is a call said to be; the other branch, or a step once more, is not."""
    clock = ManualClock((0, 2, 5))

    def key(step: int, branch: str, anew: bool = False) -> object | None:
        with clock.at(step, branch, anew):
            return clock.read(torch.zeros(1)).key

    first = key(0, "cond")
    assert first is not None
    assert key(0, "uncond") is first
    assert key(5, "cond") is first
    assert key(5, "cond") is first
    second = key(2, "cond")
    assert second not in (None, first)
    assert key(2, "cond") is second
    third = key(2, "cond", True)
    assert third not in (None, second)
    clock.end(third)
    assert key(2, "cond") not in (None, third)
    assert clock.read(torch.zeros(1)) == (None, None, None, False)
    with clock.at(1, "cond"):
        assert clock.read(torch.zeros(1)).step_index is None


@pytest.mark.parametrize("context", ["other", None])
def test_branch_is_never_inferred(context: str | None) -> None:
    """Calls outside a context, or in one of another name, are computed and never cached, however they alternate."""
    pipe = tiny.pipeline()
    model = pipe.transformer
    with attach(pipe, tiny.compiled(model, CACHES)) as session, torch.no_grad():
        pipe.scheduler.set_timesteps(6)
        for index, t in enumerate(pipe.scheduler.timesteps):
            pipe.scheduler._step_index = index
            inputs = {**tiny.inputs(seed=index), "timestep": t.expand(1)}
            if context is None:
                ours = model(**inputs)[0]
            else:
                with model.cache_context(context):
                    ours = model(**inputs)[0]
            assert torch.equal(ours, type(model).forward(model, **inputs)[0])
    assert session.summary.unplanned == 6
    assert session.requests == ()


@pytest.mark.parametrize("batch", [1, 2])
def test_a_second_call_of_a_branch_at_a_step_is_refused(batch: int) -> None:
    """Overlapping windows, clips in turn, or a sampler that evaluates twice a step: told in a sentence, nothing served."""
    model = tiny.transformer()
    with attach(model, tiny.compiled(model, CACHES)) as session, torch.no_grad():
        for step in range(3):
            with session.step(step, branch="cond"):
                model(**tiny.inputs(batch=batch))
        with (
            pytest.raises(RequestError, match="a second call of the cond branch came at step 2"),
            session.step(2, branch="cond"),
        ):
            model(**tiny.inputs(seed=9, batch=batch))
    assert session.requests[0].outcome == "failed"


def test_a_second_call_is_computed_where_that_is_allowed() -> None:
    """With `uncached`, it and all after it are the model's own, and a warning says why."""
    model = tiny.transformer()
    with attach(model, tiny.compiled(model, CACHES), on_error="uncached") as session, torch.no_grad():
        for step in range(3):
            with session.step(step, branch="cond"):
                model(**tiny.inputs())
        inputs = tiny.inputs(seed=9)
        with pytest.warns(RefkvWarning, match="second call of the cond branch"), session.step(2, branch="cond"):
            ours = model(**inputs)[0]
        assert torch.equal(ours, type(model).forward(model, **inputs)[0])
        with session.step(3, branch="cond"):
            assert torch.equal(model(**inputs)[0], ours)
        assert session.bytes_held == 0


def test_another_size_in_mid_run_is_refused() -> None:
    """What is kept is of the size that the request began with."""
    model = tiny.transformer()
    with attach(model, tiny.compiled(model, CACHES)) as session, torch.no_grad():
        with session.step(0, branch="cond"):
            model(**tiny.inputs(side=4))
        with pytest.raises(RequestError, match="the request began with"), session.step(1, branch="cond"):
            model(**tiny.inputs(side=8))


@pytest.mark.parametrize("step", [-1, 6, 99, "3", 2.0, None, True])
def test_a_step_that_the_table_does_not_have_is_refused(step: Any) -> None:
    """Steps are whole numbers within the table's; nothing is counted for another."""
    model = tiny.transformer()
    session = attach(model, tiny.compiled(model, CACHES))
    with pytest.raises(RequestError, match="the table has steps 0 to 5"), session.step(step, branch="cond"):
        pass
    assert session.summary.unplanned == 0


def test_thinned_grid_is_the_tables_own() -> None:
    """The sampler visits exactly the sigmas of the evaluated steps; after detach it has its own grid again."""
    pipe = tiny.pipeline()
    caches = "  - {name: steps, tier: S, method: step_schedule, at: step, refresh: {spacing: sqrt_sigma, count: 7}}\n"
    table = tiny.compiled(pipe.transformer, caches, steps=20)
    full = tiny.scheduler()
    full.set_timesteps(20)
    seen: list[int] = []
    with attach(pipe, table) as session:
        handle = pipe.transformer.register_forward_pre_hook(
            lambda _m, _a, kwargs: seen.append(int(kwargs["timestep"][0])), with_kwargs=True
        )
        tiny.run(pipe, steps=20)
        handle.remove()
        assert torch.allclose(pipe.scheduler.sigmas[:-1], full.sigmas[list(table.evaluated)], atol=1e-6)
        assert len(pipe.scheduler.timesteps) == 7
    assert seen[::2] == seen[1::2] == [int(full.timesteps[step]) for step in table.evaluated]
    assert session.requests[0].outcome == "finished"
    assert session.requests[0].calls == 14
    pipe.scheduler.set_timesteps(20)
    assert torch.equal(pipe.scheduler.sigmas, full.sigmas)
    assert "set_timesteps" not in vars(pipe.scheduler)


@pytest.mark.parametrize("shift", [1.0, 3.0, 8.0, 16.0])
@pytest.mark.parametrize("steps", [4, 30, 60])
def test_thinned_grid_for_other_shifts(shift: float, steps: int) -> None:
    """Sigmas given unshifted come back as the table's, for any shift and step count."""
    from refkv_policy.runtime.pipeline import guarded_grid
    from refkv_policy.runtime.schedulers import check_grid

    caches = "  - {name: steps, tier: S, method: step_schedule, at: step, refresh: {spacing: sigma, count: 3}}\n"
    pipe = tiny.pipeline(flow_shift=shift)
    table = tiny.compiled(pipe.transformer, caches, steps=steps, shift=shift)
    clock = PipelineClock(pipe)
    set_timesteps = guarded_grid(pipe.scheduler, table, clock, lambda error: None)
    with clock.call():
        set_timesteps(steps, device="cpu")
        check_grid(pipe.scheduler, table)
        set_timesteps(steps + 1)
        assert len(pipe.scheduler.timesteps) == steps + 1
    set_timesteps(steps)  # not the pipeline's own asking
    assert len(pipe.scheduler.timesteps) == steps
