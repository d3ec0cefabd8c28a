"""Each sampler of the registry runs a pipeline under a table: its grid, its clock, its thinned steps, and what is refused."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import diffusers
import pytest
import torch

from refkv_policy.compiler.samplers import SAMPLERS
from refkv_policy.runtime import AttachError, RequestError, attach
from tests import tiny

P0 = '  - {name: text, tier: P0, method: text_kv, at: "main[all].text_kv"}\n'
THINNED = '  - {name: steps, tier: S, method: step_schedule, at: step, refresh: {steps: "0,2,3,5"}}\n'
FAMILIES = pytest.mark.parametrize("layers", [tiny.MAP_SMALL, tiny.MAP_PLAIN], ids=["vace", "plain"])
EACH = pytest.mark.parametrize("name", SAMPLERS)


def scheduler(name: str, shift: float = 3.0, **more: Any) -> Any:
    """Diffusers' scheduler of a sampler, with some settings changed."""
    kind = SAMPLERS[name]
    return getattr(diffusers, kind.scheduler)(**{**kind.settings, kind.shift: shift, **more})


def pipeline(name: str, layers: Any = tiny.MAP_PLAIN, **more: Any) -> Any:
    """A pipeline with that scheduler."""
    pipe = tiny.pipeline(tiny.transformer(layers))
    pipe.scheduler = scheduler(name, **more)
    return pipe


def table_of(pipe: Any, name: str, caches: str = P0, **more: Any) -> Any:
    """The table of some rules for that sampler."""
    return tiny.compiled(pipe.transformer, caches, sampler=name, **more)


@EACH
@FAMILIES
@pytest.mark.parametrize("shift", [1.0, 5.0])
def test_whole_runs_are_equal(name: str, layers: Any, shift: float) -> None:
    """With the text's K and V kept a run differs by nothing; every call is in its step and branch, and each run a request."""
    pipe = pipeline(name, layers, shift=shift)
    before = tiny.run(pipe)
    grids = []
    with attach(pipe, table_of(pipe, name, shift=shift)) as session:
        for _ in range(2):
            assert torch.equal(tiny.run(pipe), before)
            grids.append(pipe.scheduler.timesteps)
    assert grids[0] is not grids[1]
    assert [(r.calls, r.outcome) for r in session.requests] == [(12, "finished")] * 2
    assert session.summary.hits == 2 * 2 * 5 * 4
    assert "set_timesteps" not in vars(pipe.scheduler)


@EACH
@pytest.mark.parametrize("steps", [1, 2, 13])
def test_other_step_counts(name: str, steps: int) -> None:
    """From one step on the clock finds each step of the sampler."""
    pipe = pipeline(name)
    before = tiny.run(pipe, steps=steps)
    with attach(pipe, tiny.compiled(pipe.transformer, "[]", sampler=name, steps=steps)) as session:
        assert torch.equal(tiny.run(pipe, steps=steps), before)
    assert [(r.calls, r.outcome) for r in session.requests] == [(2 * steps, "finished")]


@EACH
@FAMILIES
def test_a_step_schedule_runs_its_steps_of_the_samplers_own_grid(name: str, layers: Any) -> None:
    """A thinned run is that of a scheduler whose sigmas and timesteps are the evaluated ones and the last sigma, to the bit."""
    pipe, twin = pipeline(name, layers), pipeline(name, layers)
    table, evaluated = table_of(pipe, name, THINNED), [0, 2, 3, 5]
    own, full = twin.scheduler.set_timesteps, scheduler(name)
    full.set_timesteps(6)

    def thin(count: int, device: Any = None) -> None:
        own(count, device=device)
        twin.scheduler.sigmas = twin.scheduler.sigmas[[*evaluated, -1]]
        twin.scheduler.timesteps = twin.scheduler.timesteps[evaluated]
        twin.scheduler.num_inference_steps = 4

    twin.scheduler.set_timesteps = thin
    with attach(pipe, table) as session:
        ours = tiny.run(pipe)
        assert torch.equal(pipe.scheduler.sigmas, full.sigmas[[*evaluated, 6]])
        assert torch.equal(pipe.scheduler.timesteps, full.timesteps[evaluated])
    assert pipe.scheduler.sigmas[-1] == 0
    assert torch.equal(ours, tiny.run(twin))
    assert not torch.equal(ours, tiny.run(pipe))
    assert [(r.calls, r.outcome) for r in session.requests] == [(8, "finished")]


@EACH
def test_a_grid_of_ones_own_is_not_thinned_and_is_refused(name: str) -> None:
    """Sigmas or timesteps that a caller gives stay as they are, however they are passed; the table is not for them."""
    given: dict[str, Callable[[Any, Any], None]] = {}
    custom = [0.95, 0.8, 0.6, 0.5, 0.3, 0.1]
    if name != "dpm++":
        given["sigmas"] = lambda s, device: s.set_timesteps(sigmas=torch.tensor(custom).numpy(), device=device)
        given["by position"] = lambda s, device: s.set_timesteps(None, device, torch.tensor(custom).numpy())
    if name == "euler":
        given["sigmas and count"] = lambda s, device: s.set_timesteps(6, device, torch.tensor(custom).numpy())
        given["timesteps"] = lambda s, device: s.set_timesteps(6, device=device, timesteps=[1000 * c for c in custom])
        given["both"] = lambda s, device: s.set_timesteps(
            6, device, torch.tensor(custom).numpy(), None, [1000 * c for c in custom]
        )
    if name == "dpm++":
        given["shift"] = lambda s, device: s.set_timesteps(7, device=device)
    for how, ask in given.items():
        for caches in (P0, THINNED):
            pipe = pipeline(name)
            with attach(pipe, table_of(pipe, name, caches)):
                asked = pipe.scheduler.set_timesteps
                pipe.scheduler.set_timesteps = lambda count, device=None, ask=ask, asked=asked: ask(
                    type("Scheduler", (), {"set_timesteps": staticmethod(asked)}), device
                )
                with pytest.raises(RequestError, match=r"sigma at step|steps, and the table is for"):
                    tiny.run(pipe)
                assert len(pipe.scheduler.timesteps) == (7 if how == "shift" else 6), how


SETTINGS: dict[str, dict[str, Any]] = {
    "unipc": {
        "solver_order": 3, "solver_type": "bh1", "final_sigmas_type": "sigma_min", "timestep_spacing": "trailing",
        "use_karras_sigmas": True, "use_beta_sigmas": True, "predict_x0": False, "flow_shift": 5.0, "use_flow_sigmas": False,
        "disable_corrector": [0], "thresholding": True,
    },
    "euler": {
        "shift": 5.0, "use_karras_sigmas": True, "use_exponential_sigmas": True, "use_beta_sigmas": True,
        "shift_terminal": 0.1, "invert_sigmas": True, "stochastic_sampling": True, "use_dynamic_shifting": True,
        "num_train_timesteps": 500,
    },
    "dpm++": {
        "solver_order": 3, "solver_type": "heun", "algorithm_type": "sde-dpmsolver++", "euler_at_final": True,
        "final_sigmas_type": "sigma_min", "use_lu_lambdas": True, "lower_order_final": False, "flow_shift": 5.0,
        "prediction_type": "v_prediction", "use_flow_sigmas": False, "lambda_min_clipped": -5.1,
    },
}  # fmt: skip


@pytest.mark.parametrize(("name", "setting"), [(name, each) for name, some in SETTINGS.items() for each in some])
def test_other_settings_are_refused(name: str, setting: str) -> None:
    """Each setting by which a scheduler is not the sampler that evidence is measured with is named, with what to write."""
    pipe = pipeline(name, **{setting: SETTINGS[name][setting]})
    kind = SAMPLERS[name]
    with pytest.raises(AttachError, match=rf"{setting} .*, and the scheduler has .*{kind.scheduler}\.from_config\("):
        attach(pipe, table_of(pipe, name))
    assert "forward" not in vars(pipe.transformer)


@EACH
def test_what_the_help_says_is_taken(name: str) -> None:
    """A scheduler made from another one's config, as the help says, is the sampler."""
    pipe = pipeline(name, shift=5.0)
    shift = SAMPLERS[name].shift
    pipe.scheduler = type(pipe.scheduler).from_config(pipe.scheduler.config, **{shift: 3.0})
    attach(pipe, table_of(pipe, name)).detach()


def test_a_shift_that_is_set_later_counts() -> None:
    """Euler's `set_shift` changes what its config does not tell: refused at attach, at a request's begin and in mid-run."""
    pipe = pipeline("euler")
    table = table_of(pipe, "euler")
    pipe.scheduler.set_shift(5.0)
    with pytest.raises(AttachError, match="shift 3, and the scheduler has 5"):
        attach(pipe, table)
    pipe.scheduler.set_shift(3.0)

    def change(pipe: Any, step: int, *_: Any) -> dict[str, Any]:
        pipe.scheduler.set_shift(4.0 if step == 2 else pipe.scheduler.shift)
        return {}

    with attach(pipe, table) as session:
        with pytest.raises(RequestError, match="shift 3, and the scheduler has 4"):
            tiny.run(pipe, callback_on_step_end=change)
        with pytest.raises(RequestError, match="shift 3, and the scheduler has 4"):
            tiny.run(pipe)
        assert session.requests[0].calls == 6


class Sub(diffusers.FlowMatchEulerDiscreteScheduler):
    """A subclass, whose steps may be anything."""


OTHERS: dict[str, Callable[[], Any]] = {
    "flow heun": lambda: diffusers.FlowMatchHeunDiscreteScheduler(shift=3.0),
    "heun": lambda: diffusers.HeunDiscreteScheduler(),
    "kdpm2": lambda: diffusers.KDPM2DiscreteScheduler(),
    "single step": lambda: diffusers.DPMSolverSinglestepScheduler(use_flow_sigmas=True, flow_shift=3.0),
    "a subclass": lambda: Sub(shift=3.0),
}


@EACH
@pytest.mark.parametrize("make", **tiny.settings(OTHERS))
def test_schedulers_of_another_class_are_refused(name: str, make: Callable[[], Any]) -> None:
    """Those that evaluate the model more than once a step, and those that may: the help writes the right one out."""
    pipe = pipeline(name)
    table, kind = table_of(pipe, name), SAMPLERS[name]
    pipe.scheduler = make()
    with pytest.raises(AttachError, match=rf"set `pipe.scheduler` to a {kind.scheduler}, such as") as caught:
        attach(pipe, table)
    written = str(caught.value).rpartition("such as ")[2]
    pipe.scheduler = eval(written, vars(diffusers))
    attach(pipe, table).detach()


@EACH
def test_each_sampler_is_only_for_its_own_tables(name: str) -> None:
    """A table of one sampler is refused by the schedulers of the others."""
    pipe = pipeline(name)
    for other in SAMPLERS:
        pipe.scheduler = scheduler(other)
        if other == name:
            attach(pipe, table_of(pipe, name)).detach()
            continue
        with pytest.raises(AttachError, match=f"the table is for the {name.replace('+', '.')} sampler"):
            attach(pipe, table_of(pipe, name))


def test_a_table_of_a_sampler_that_is_not_known_is_refused() -> None:
    """A table written by a later version may name a sampler that this one has not."""
    from dataclasses import replace

    pipe = pipeline("unipc")
    with pytest.raises(AttachError, match="the sampler 'sa', which is not known"):
        attach(pipe, replace(tiny.written(pipe.transformer, 6), sampler="sa"))
