"""A copy of an attached model, pipeline or scheduler is plain and attached to nothing; the original is never touched."""

from __future__ import annotations

import copy
import pickle
from collections.abc import Callable
from typing import Any

import pytest
import torch
from accelerate.hooks import AlignDevicesHook, add_hook_to_module

from refkv_policy.runtime import attach
from tests import tiny

CACHES = (
    '  - {name: hints, tier: P1, method: hint_reuse, at: "hint[all]", refresh: {interval: 3}}\n'
    '  - {name: text, tier: P0, method: text_kv, at: ["main[all].text_kv", "vace[all].text_kv"]}\n'
)
THINNED = CACHES + '  - {name: steps, tier: S, method: step_schedule, at: step, refresh: {steps: "0,2,4"}}\n'


def parts_table(model: Any) -> Any:
    """A table that serves outputs of attentions and feed-forwards."""
    rows = {"main[1].self@0": "CRRCRR", "vace[0].cross@0": "CRRCRR", "main[2].ffn@0": "CRCRRR"}
    return tiny.written(model, 6, rows, rules=(tiny.rule(),))


TABLES: dict[str, Callable[[Any], Any]] = {
    "hints and text": lambda model: tiny.compiled(model, CACHES),
    "fewer steps": lambda model: tiny.compiled(model, THINNED),
    "parts": parts_table,
}
HOOKS: dict[str, Callable[[Any], Any]] = {
    "no hook": lambda model: None,
    "accelerate": lambda model: add_hook_to_module(model, AlignDevicesHook("cpu", io_same_device=True)),
}


def written_over(model: Any) -> None:
    """Weights of its own, so that a copy which still runs the original's is found out."""
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.mul_(0.5)


@pytest.mark.parametrize("make", **tiny.settings(TABLES))
@pytest.mark.parametrize("put", **tiny.settings(HOOKS))
@pytest.mark.parametrize("running", [False, True])
def test_deep_copy_of_a_transformer(make: Any, put: Any, running: bool) -> None:
    """It computes with its own weights, during the session and after it, and may be attached to; between and in requests."""
    pipe = tiny.pipeline()
    model, table, found = pipe.transformer, make(pipe.transformer), []
    put(model)
    with attach(pipe, table) as session:
        planned = tiny.run(pipe)

    def take(*_: Any) -> dict[str, Any]:
        if not found:
            found.append(copy.deepcopy(model))
        return {}

    with attach(pipe, table) as session:
        if not running:
            take()
        assert torch.equal(tiny.run(pipe, callback_on_step_end=take), planned)
        (other,) = found
        written_over(other)
        with torch.no_grad():
            plain = type(other).forward(other, **tiny.inputs())[0]
            with other.cache_context("cond"):
                assert torch.equal(other(**tiny.inputs())[0], plain)
        assert torch.equal(tiny.run(pipe), planned)
        with attach(other, make(other)):
            pass
        assert session.summary.unplanned == 0
        assert [r.total.departures for r in session.requests] == [0, 0]
    with torch.no_grad():
        assert torch.equal(other(**tiny.inputs())[0], plain)
    assert "cache_context" not in vars(other)


@pytest.mark.parametrize("make", **tiny.settings(TABLES))
@pytest.mark.parametrize("how", [copy.deepcopy, copy.copy], ids=["deep", "shallow"])
def test_copy_of_a_pipeline(make: Any, how: Any) -> None:
    """A deep copy runs plainly, with its own scheduler; a shallow one shares the transformer and is computed natively."""
    pipe = tiny.pipeline()
    table, plain = make(pipe.transformer), tiny.run(pipe)
    with attach(pipe, table) as session:
        planned = tiny.run(pipe)
        other = how(pipe)
        assert type(other).__mro__[0] is not type(pipe)
        if how is copy.deepcopy:
            assert torch.equal(tiny.run(other), plain)
            assert session.summary.unplanned == 0
        else:
            with pytest.warns(UserWarning, match="another pipeline"):
                assert torch.equal(tiny.run(other), plain)
            assert session.summary.unplanned == 12
        assert torch.equal(tiny.run(pipe), planned)
    assert torch.equal(tiny.run(other), plain)
    assert torch.equal(tiny.run(pipe), plain)


COPIES: dict[str, Callable[[Any], Any]] = {
    "deepcopy": copy.deepcopy,
    "copy": copy.copy,
    "pickle": lambda thing: pickle.loads(pickle.dumps(thing)),
    "from_config": lambda thing: type(thing).from_config(thing.config),
}


@pytest.mark.parametrize("how", **tiny.settings(COPIES))
@pytest.mark.parametrize("caches", [CACHES, THINNED], ids=["all steps", "fewer steps"])
def test_copy_of_a_scheduler(how: Any, caches: str) -> None:
    """Its `set_timesteps` is its own, of all steps, also in the middle of a request, which it leaves alone."""
    pipe = tiny.pipeline()
    table, full, found = tiny.compiled(pipe.transformer, caches), tiny.scheduler(), []
    full.set_timesteps(6)
    with attach(pipe, table):
        planned = tiny.run(pipe)

    def take(*_: Any) -> dict[str, Any]:
        other = how(pipe.scheduler)
        other.set_timesteps(6)
        found.append(other)
        return {}

    with attach(pipe, table) as session:
        assert torch.equal(tiny.run(pipe, callback_on_step_end=take), planned)
    for other in found:
        assert torch.equal(other.timesteps, full.timesteps)
        assert "set_timesteps" not in vars(other)
    assert session.requests[0].outcome == "finished"


def test_nothing_of_it_stays_after_detach() -> None:
    """Classes, attributes and forwards of model, pipeline, scheduler and parts are what they were."""
    pipe = tiny.pipeline()
    model = pipe.transformer
    owners = [pipe, pipe.scheduler, *model.modules()]
    before = [(type(owner), dict(vars(owner))) for owner in owners]
    for make in TABLES.values():
        session = attach(pipe, make(model))
        assert type(pipe).__name__ == "WanVACEPipeline"
        assert isinstance(pipe, before[0][0])
        session.detach()
        for owner, (cls, attributes) in zip(owners, before, strict=True):
            assert type(owner) is cls
            assert vars(owner).keys() == attributes.keys()
            assert all(vars(owner)[name] is value for name, value in attributes.items())
