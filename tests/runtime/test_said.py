"""A plan that is not applied is never a silent no-op: an error, or a warning and a log record; and the summary says it."""

from __future__ import annotations

import copy
import logging
from collections.abc import Callable
from typing import Any

import pytest
import torch
from diffusers.models.transformers.transformer_wan import WanAttnProcessor

import refkv_policy as refkv
from refkv_policy import RefkvWarning
from refkv_policy.runtime import RequestError, attach
from tests import tiny

REUSE = '  - {name: hints, tier: P1, method: hint_reuse, at: "hint[all]", refresh: {interval: 3}}\n'
THINNED = "  - {name: steps, tier: S, method: step_schedule, at: step, refresh: {spacing: sigma, count: 3}}\n"


@pytest.fixture
def pipe() -> Any:
    """A pipeline of its own for each test."""
    return tiny.pipeline()


@pytest.fixture
def table(pipe: Any) -> Any:
    """Hints reused."""
    return tiny.compiled(pipe.transformer, REUSE)


def modular(pipe: Any) -> None:
    """A loop that calls the transformer by signature, without `cache_context`, as modular pipelines do."""
    pipe.scheduler.set_timesteps(6)
    with torch.no_grad():
        for t in pipe.scheduler.timesteps:
            pipe.transformer(**{**tiny.inputs(), "timestep": t.expand(1)})


def by_hand(pipe: Any) -> None:
    """One call of the transformer."""
    with torch.no_grad():
        pipe.transformer(**tiny.inputs())


def unnamed(pipe: Any) -> None:
    """The pipeline's own loop, with a branch of another name."""
    scheduler = pipe.scheduler
    scheduler.set_timesteps(6)
    with torch.no_grad(), pipe.progress_bar(total=6):
        for index, t in enumerate(scheduler.timesteps):
            scheduler._step_index, pipe._current_timestep = index, t
            with pipe.transformer.cache_context("pred"):
                pipe.transformer(**{**tiny.inputs(), "timestep": t.expand(1)})


def twin(pipe: Any) -> None:
    """Another pipeline over the transformer."""
    tiny.run(tiny.pipeline(pipe.transformer))


@pytest.mark.parametrize("use", [modular, by_hand, unnamed, twin])
@pytest.mark.parametrize("bare", [False, True])
def test_session_of_unplanned_calls(pipe: Any, use: Callable[[Any], None], bare: bool, caplog: Any) -> None:
    """Told at the first call, for a server that never ends; and at the end, with their number; in the log too."""
    target = pipe.transformer if bare else pipe
    told = pytest.warns(RefkvWarning)
    with told:
        with attach(target, tiny.compiled(pipe.transformer, REUSE)) as session:
            use(pipe)
            assert told
        count = session.summary.unplanned
    first, *_, last = texts = [str(w.message) for w in told]
    assert count > 0
    assert "is computed without the cache" in first
    assert last.startswith(f"{count} calls of the transformer came while the table was attached, none of them its own")
    assert [r.message for r in caplog.records if r.name == "refkv"] == texts
    assert f"calls that were not the table's: {count}" in str(session.summary)


def test_session_that_was_detached(pipe: Any, table: Any) -> None:
    """Entered a second time, or told a step, it raises: the model it had is no longer its own."""
    session = attach(pipe, table)
    with session:
        pass
    with pytest.raises(RequestError, match="detached"), session:
        pass
    bare = attach(pipe.transformer, table)
    bare.detach()
    with pytest.raises(RequestError, match="detached"), bare.step(0, branch="cond"):
        pass
    with pytest.raises(RequestError, match="detached"), bare:
        pass
    assert "forward" not in vars(pipe.transformer)


@pytest.mark.parametrize("step", [-1, 6, 99, "3", None, 1.0, 2.5, True, [1], torch.tensor([0, 1])])
def test_step_that_the_table_has_not(pipe: Any, table: Any, step: Any) -> None:
    """A number outside the table's, or no integer, is refused by name of the steps there are."""
    refused = pytest.raises(RequestError, match="the table has steps 0 to 5")
    with attach(pipe.transformer, table) as session:
        with refused, session.step(step, branch="cond"):
            pass
        with session.step(3, branch="cond"), torch.no_grad():
            pipe.transformer(**tiny.inputs())
    assert session.requests[0].calls == 1


@pytest.mark.parametrize("other", ["a second model", "the same one, wrapped", "a copy"])
def test_transformer_replaced_after_attach(pipe: Any, table: Any, other: str) -> None:
    """Refused before the call does any work; or run without the cache, said, and counted as an incomplete request."""
    mine = pipe.transformer
    theirs = {
        "a second model": tiny.transformer(seed=4),
        "the same one, wrapped": torch.compile(mine),
        "a copy": copy.deepcopy(mine),
    }[other]
    for on_error in ("raise", "uncached"):
        with attach(pipe, table, on_error=on_error) as session:
            pipe.transformer = theirs
            if on_error == "raise":
                with pytest.raises(RequestError, match=r"transformer was replaced|compiled as a whole"):
                    tiny.run(pipe)
                assert session.requests == ()
            elif "wrapped" not in other:
                with pytest.warns(RefkvWarning, match="without the cache: .*transformer was replaced"):
                    tiny.run(pipe)
                (request,) = session.requests
                assert (request.outcome, request.calls) == ("incomplete", 0)
                assert "replaced" in str(request.error)
            pipe.transformer = mine
            tiny.run(pipe)
        assert session.requests[-1].outcome == "finished"


@pytest.mark.parametrize("step", [0, 2, 5])
def test_attached_in_mid_run(pipe: Any, table: Any, step: int) -> None:
    """The rest of that call runs as it began, and is said; nothing stays open; the next call is served."""
    plain, sessions = tiny.run(pipe), []

    def callback(pipe: Any, index: int, t: Any, kwargs: Any) -> dict[str, Any]:
        if index == step:
            sessions.append(attach(pipe, table))
        return {}

    if step < 5:
        with pytest.warns(RefkvWarning, match="no step of the attached generation"):
            assert torch.equal(tiny.run(pipe, callback_on_step_end=callback), plain)
    else:
        assert torch.equal(tiny.run(pipe, callback_on_step_end=callback), plain)
    (session,) = sessions
    assert session.summary.requests == ()
    assert session.summary.unplanned == 2 * (5 - step)
    tiny.run(pipe)
    session.detach()
    assert [r.outcome for r in session.requests] == ["finished"]


def test_detached_in_mid_run(pipe: Any, table: Any) -> None:
    """The request ends there, incomplete, and the call goes on as the pipeline's own."""
    session = attach(pipe, table)

    def callback(pipe: Any, index: int, t: Any, kwargs: Any) -> dict[str, Any]:
        if index == 2:
            session.detach()
        return {}

    assert tiny.run(pipe, callback_on_step_end=callback).isfinite().all()
    assert [(r.outcome, r.calls) for r in session.requests] == [("incomplete", 6)]
    assert "WanVACEPipeline" in repr(type(pipe))
    assert "progress_bar" not in vars(pipe)


SPOILT: dict[str, tuple[Callable[[Any], Any], dict[str, Any], str]] = {
    "steps": (lambda pipe: None, {"steps": 5}, "runs 5 steps"),
    "guidance": (lambda pipe: None, {"guidance": 4.0}, "guidance 4"),
    "scheduler": (lambda pipe: setattr(pipe, "scheduler", tiny.scheduler()), {}, "scheduler was replaced"),
}


@pytest.mark.parametrize("case", SPOILT)
def test_uncached_request_is_said(pipe: Any, table: Any, case: str, caplog: Any) -> None:
    """`on_error="uncached"` warns, logs why, and the request is incomplete with its reason."""
    spoil, arguments, words = SPOILT[case]
    told = pytest.warns(RefkvWarning, match=words)
    with attach(pipe, table, on_error="uncached") as session, told:
        spoil(pipe)
        tiny.run(pipe, **arguments)
    assert len(told) == 1
    assert words in str(session.requests[0].error)
    assert [r.message for r in caplog.records if r.name == "refkv"] == [str(told[0].message)]


def test_processor_replaced_is_said_once(pipe: Any) -> None:
    """A request that gives the cache up tells it once, however many calls follow."""
    table = tiny.compiled(pipe.transformer, '  - {name: t, tier: P0, method: text_kv, at: "main[all].text_kv"}\n')
    told = pytest.warns(RefkvWarning, match="processor was replaced")
    with attach(pipe, table, on_error="uncached"), told:
        pipe.transformer.blocks[0].attn2.set_processor(WanAttnProcessor())
        tiny.run(pipe)
    assert len(told) == 1


@pytest.mark.parametrize("count", [3, 4])
def test_count_of_a_thinned_plan(pipe: Any, count: int) -> None:
    """Asked for the steps that the plan evaluates, the error names the count to ask for; another count does not."""
    table = tiny.compiled(pipe.transformer, THINNED, steps=9)
    with attach(pipe, table) as session:
        with pytest.raises(RequestError) as refused:
            tiny.run(pipe, steps=count)
        tiny.run(pipe, steps=9)
    assert ("ask for 9 (`num_inference_steps=9`)" in str(refused.value)) == (count == 3)
    assert session.requests[-1].outcome == "finished"


def test_silent_where_all_is_well(pipe: Any, table: Any, caplog: Any) -> None:
    """Requests as planned, and a session that nobody used, say nothing."""
    with attach(pipe, table):
        pass
    with attach(pipe, table):
        tiny.run(pipe)
        tiny.run(pipe, guidance=1.0)
    assert [r for r in caplog.records if r.name == "refkv"] == []


def test_warning_is_a_category_to_filter() -> None:
    """`RefkvWarning` is a UserWarning of the package, and its logger has no handler that prints."""
    assert issubclass(refkv.RefkvWarning, UserWarning)
    assert [type(h) for h in logging.getLogger("refkv").handlers] == [logging.NullHandler]
