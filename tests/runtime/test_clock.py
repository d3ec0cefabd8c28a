"""The clock: a step is believed only where the scheduler and the timestep agree; a branch only where it is named."""

from __future__ import annotations

import threading
from typing import Any

import pytest
import torch

from refkv_policy import RefkvWarning
from refkv_policy.runtime import attach
from refkv_policy.runtime.clock import PipelineClock, ToldClock
from refkv_policy.runtime.pipeline import guarded_grid
from tests import tiny

CACHES = '  - {name: hints, tier: P1, method: hint_reuse, at: "hint[all]", refresh: {interval: 3}}\n'


def running(pipe: Any) -> PipelineClock:
    """The clock of a pipeline whose loop runs on this thread."""
    clock = PipelineClock(pipe)
    clock.thread = threading.get_ident()
    return clock


@pytest.fixture
def pipe() -> Any:
    """A pipeline in the middle of a run: step 2 of 6."""
    pipe = tiny.pipeline()
    pipe.scheduler.set_timesteps(6)
    stand(pipe, 2)
    return pipe


def stand(pipe: Any, index: int) -> None:
    """Put a pipeline at a step, as its own loop does."""
    pipe.scheduler._step_index = index
    pipe._current_timestep = pipe.scheduler.timesteps[index]


def test_step_is_the_schedulers_index_where_the_timestep_is_its_own(pipe: Any) -> None:
    """A view of `scheduler.timesteps` at the step index, expanded or not, names the step."""
    clock, timesteps = running(pipe), pipe.scheduler.timesteps
    clock.branch = "cond"
    for timestep in (timesteps[2], timesteps[2].expand(3), timesteps[2:3]):
        moment = clock.read(timestep)
        assert moment.key is timesteps
        assert (moment.step_index, moment.branch) == (2, "cond")


def test_view_at_another_offset_is_not_believed(pipe: Any) -> None:
    """Where the timestep belongs to another step than the scheduler says, the step is unknown, even if the values agree."""
    timesteps = pipe.scheduler.timesteps
    timesteps[3] = timesteps[2]
    assert running(pipe).read(timesteps[3].expand(1)).step_index is None
    assert running(pipe).read(timesteps[1]).step_index is None


def test_timestep_of_its_own_memory_is_compared_by_value(pipe: Any) -> None:
    """A copy of the right value is believed, in any dtype, and marked; another value, or a batch of unlike ones, is not."""
    clock, timesteps = running(pipe), pipe.scheduler.timesteps
    assert clock.read(timesteps[2].clone())[1:] == (2, None, True)
    assert not clock.read(timesteps[2].expand(2)).moved
    assert clock.read(timesteps[2].float().expand(2)).step_index == 2
    assert clock.read(timesteps[3].clone()).step_index is None
    assert clock.read(torch.stack([timesteps[2], timesteps[3]])).step_index is None


@pytest.mark.parametrize("said", ["nothing", "another step", "a copy", "another pipeline's"])
def test_step_is_not_believed_unless_the_pipeline_says_it(pipe: Any, said: str) -> None:
    """The pipeline's own `_current_timestep` has to be the scheduler's element, not only of its value."""
    timesteps = pipe.scheduler.timesteps
    other = tiny.scheduler()
    other.set_timesteps(6)
    pipe._current_timestep = {
        "nothing": None,
        "another step": timesteps[1],
        "a copy": timesteps[2].clone(),
        "another pipeline's": other.timesteps[2],
    }[said]
    assert running(pipe).read(timesteps[2].expand(1)).step_index is None


def test_another_threads_call_is_nowhere(pipe: Any) -> None:
    """Outside the pipeline's call, or on another thread than it, nothing is the pipeline's own."""
    clock, timestep = running(pipe), pipe.scheduler.timesteps[2]
    for thread in (None, threading.get_ident() + 1):
        clock.thread = thread
        assert clock.read(timestep) == (None, None, None, False)


def test_before_the_first_step_it_is_the_begin_index_or_zero(pipe: Any) -> None:
    """`step_index` is None until the scheduler has stepped."""
    timesteps = pipe.scheduler.timesteps
    stand(pipe, 0)
    pipe.scheduler._step_index = None
    assert running(pipe).read(timesteps[0]).step_index == 0
    pipe.scheduler.set_begin_index(4)
    pipe._current_timestep = timesteps[4]
    assert running(pipe).read(timesteps[4]).step_index == 4
    assert running(pipe).read(timesteps[0]).step_index is None


def test_after_the_last_step_it_is_unknown(pipe: Any) -> None:
    """Past the end there is no step."""
    pipe.scheduler._step_index = 6
    assert running(pipe).read(pipe.scheduler.timesteps[5]).step_index is None


def test_request_is_the_identity_of_the_timesteps(pipe: Any) -> None:
    """`set_timesteps` begins another request, although the values are the same."""
    clock = running(pipe)
    first = clock.read(pipe.scheduler.timesteps[2]).key
    assert clock.read(pipe.scheduler.timesteps[2]).key is first
    pipe.scheduler.set_timesteps(6)
    assert clock.read(pipe.scheduler.timesteps[0]).key is not first


def test_told_clock_begins_a_request_when_time_runs_backwards() -> None:
    """An earlier step is another request, and so is a call said to be; the other branch, or a step once more, is not."""
    clock = ToldClock(6, (0, 2, 5))

    def key(step: int, branch: str, anew: bool = False) -> object | None:
        with clock.at(step, branch, anew):
            return clock.read(torch.zeros(1)).key

    first = key(0, "cond")
    assert first is not None
    assert key(0, "uncond") is first
    assert key(0, "cond") is first
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
    pipe.scheduler.set_timesteps(6)
    told = pytest.warns(RefkvWarning)
    table = tiny.compiled(model, CACHES)
    with told, attach(pipe, table) as session, torch.no_grad(), pipe.progress_bar(total=6):
        for index, t in enumerate(pipe.scheduler.timesteps):
            stand(pipe, index)
            inputs = {**tiny.inputs(seed=index), "timestep": t.expand(1)}
            if context is None:
                ours = model(**inputs)[0]
            else:
                with model.cache_context(context):
                    ours = model(**inputs)[0]
            assert torch.equal(ours, type(model).forward(model, **inputs)[0])
    assert session.summary.unplanned == 6
    assert session.requests == ()
    assert ["no `cache_context` named" in str(w.message) for w in told] == [True, False]


def test_steps_the_table_leaves_out_and_other_shapes_are_computed() -> None:
    """A step that the table does not run, and a call of another size in mid-run, are computed and keep nothing."""
    model = tiny.transformer()
    caches = CACHES + '  - {name: steps, tier: S, method: step_schedule, at: step, refresh: {steps: "0,1,2,3,5"}}\n'
    with attach(model, tiny.compiled(model, caches)) as session, torch.no_grad():
        for step, side in ((0, 4), (1, 8), (4, 4), (2, 4)):
            inputs = tiny.inputs(side=side)
            with session.step(step, branch="cond"):
                ours = model(**inputs)[0]
            if (step, side) in ((1, 8), (4, 4)):
                assert torch.equal(ours, type(model).forward(model, **inputs)[0])
    assert set(session.summary.reasons) == {"unknown_step"}
    assert session.requests[0].calls == 4


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
    from refkv_policy.runtime.checks import check_grid

    caches = "  - {name: steps, tier: S, method: step_schedule, at: step, refresh: {spacing: sigma, count: 3}}\n"
    pipe = tiny.pipeline(flow_shift=shift)
    table, scheduler = tiny.compiled(pipe.transformer, caches, steps=steps, shift=shift), pipe.scheduler
    clock = PipelineClock(pipe)
    set_timesteps = guarded_grid(scheduler, clock, table, lambda error: None)
    with clock.inside(loop=False):
        set_timesteps(steps, device="cpu")
        check_grid(scheduler, table)
        set_timesteps(steps + 1)
        assert len(scheduler.timesteps) == steps + 1
    set_timesteps(steps)
    assert len(scheduler.timesteps) == steps, "only for the pipeline's own call"
