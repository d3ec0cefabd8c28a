"""A forward is the attached pipeline's own only if that is proven; every other is computed natively, and said."""

from __future__ import annotations

import copy
import json
import os
import threading
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from diffusers import WanVACEPipeline

import refkv_policy as refkv
from refkv_policy import RefkvWarning
from refkv_policy.audit import verify
from refkv_policy.runtime import AttachError, RequestError, attach
from tests import tiny

TEXT = "  - {name: text, tier: P0, method: text_kv, at: ['main[all].text_kv', 'vace[all].text_kv']}\n"
HINTS = '  - {name: hints, tier: P1, method: hint_reuse, at: "hint[all]", refresh: {interval: 3}}\n'
STACK = "  - {name: stack, tier: S, method: residual_reuse, at: main, refresh: {interval: 2}}\n"
FEWER = "  - {name: steps, tier: S, method: step_schedule, at: step, refresh: {steps: '0,2,4'}}\n"
PLANS = {"hints": HINTS, "text and hints": TEXT + HINTS, "stack": STACK}


def beside(pipe: Any, *, scheduler: bool = False, vae: bool = False) -> Any:
    """Another pipeline over the same transformer. scheduler: the same one, too. vae: one of its own, for threads."""
    parts = {**pipe.components, "scheduler": pipe.scheduler if scheduler else tiny.scheduler()}
    if vae:
        parts["vae"] = copy.deepcopy(pipe.vae)
    other = WanVACEPipeline(**parts)
    other.set_progress_bar_config(disable=True)
    return other


@pytest.mark.parametrize("caches", PLANS.values(), ids=PLANS)
@pytest.mark.parametrize("after", range(5))
def test_nested_in_a_callback(caches: str, after: int) -> None:
    """Run after any step, with its own scheduler, the other pipeline is exact, and the attached one as without it."""
    pipe = tiny.pipeline()
    other = beside(pipe)
    plain = tiny.run(other, seed=9)
    with attach(pipe, tiny.compiled(pipe.transformer, caches)) as session:
        planned = tiny.run(pipe)
        inner: list[Any] = []

        def nest(p: Any, index: int, t: Any, given: dict[str, Any]) -> dict[str, Any]:
            if index == after:
                inner.append(tiny.run(other, seed=9))
            return {}

        assert torch.equal(tiny.run(pipe, callback_on_step_end=nest), planned)
    assert torch.equal(inner[0], plain)
    assert [r.outcome for r in session.requests] == ["finished", "finished"]
    assert session.requests[0].total == session.requests[1].total
    assert session.summary.unplanned == 12


@pytest.mark.parametrize("caches", [HINTS, FEWER + HINTS], ids=["hints", "thinned"])
@pytest.mark.parametrize("way", ["from_pipe", "components", "own scheduler"])
def test_one_after_the_other(caches: str, way: str, tmp_path: Path) -> None:
    """A pipeline made from the attached one runs as it would alone, at its own guidance, thinned by nothing."""
    pipe = tiny.pipeline()
    other = WanVACEPipeline.from_pipe(pipe) if way == "from_pipe" else beside(pipe, scheduler=way == "components")
    other.set_progress_bar_config(disable=True)
    plain = tiny.run(other, guidance=9.0)
    log = tmp_path / "a.jsonl"
    with attach(pipe, tiny.compiled(pipe.transformer, caches, guidance="5.0"), audit=log) as session:
        first = tiny.run(pipe)
        assert torch.equal(tiny.run(other, guidance=9.0), plain)
        assert torch.equal(tiny.run(pipe), first)
    assert [r.outcome for r in session.requests] == ["finished", "finished"]
    assert session.summary.unplanned == 12
    headers = [line for line in map(json.loads, log.read_text().splitlines()) if line["kind"] == "request"]
    assert [header["guidance"] for header in headers] == [5.0, 5.0]
    assert verify(log).outcome == "ok"


def test_a_scheduler_in_the_middle_of_a_run_is_left_alone() -> None:
    """A pipeline that shares the scheduler and is called in a callback is refused before it turns the scheduler back."""
    pipe = tiny.pipeline()
    other = beside(pipe, scheduler=True)
    told: list[str] = []

    def nest(p: Any, index: int, t: Any, given: dict[str, Any]) -> dict[str, Any]:
        if index == 2:
            with pytest.raises(RequestError, match="in the middle of a run") as refused:
                tiny.run(other)
            told.append(str(refused.value))
        return {}

    with attach(pipe, tiny.compiled(pipe.transformer, HINTS)) as session:
        planned = tiny.run(pipe)
        assert torch.equal(tiny.run(pipe, callback_on_step_end=nest), planned)
    assert told
    assert {r.outcome for r in session.requests} == {"finished"}


def test_the_transformer_called_by_hand_in_a_callback() -> None:
    """In the context of a branch, at any timestep of the run, it is computed, and nothing of it is kept."""
    pipe = tiny.pipeline()
    model = pipe.transformer

    def by_hand(p: Any, index: int, t: Any, given: dict[str, Any]) -> dict[str, Any]:
        for timestep in p.scheduler.timesteps:
            inputs = {**tiny.inputs(seed=index), "timestep": timestep.expand(1)}
            with model.cache_context("cond"):
                assert torch.equal(model(**inputs)[0], type(model).forward(model, **inputs)[0])
        return {}

    with attach(pipe, tiny.compiled(model, HINTS)) as session:
        planned = tiny.run(pipe)
        assert torch.equal(tiny.run(pipe, callback_on_step_end=by_hand), planned)
    assert session.summary.unplanned == 36


@pytest.mark.parametrize("caches", PLANS.values(), ids=PLANS)
def test_in_another_thread(caches: str) -> None:
    """While the attached pipeline runs in one thread, another pipeline over its transformer is exact in a second one."""
    pipe = tiny.pipeline()
    other = beside(pipe, vae=True)
    plain, done = tiny.run(other, seed=9), threading.Event()
    with attach(pipe, tiny.compiled(pipe.transformer, caches)) as session:
        planned, runs = tiny.run(pipe), []

        def again() -> None:
            while not done.is_set():
                runs.append(tiny.run(pipe))

        thread = threading.Thread(target=again)
        thread.start()
        try:
            assert all(torch.equal(tiny.run(other, seed=9), plain) for _ in range(4))
        finally:
            done.set()
            thread.join()
    assert runs
    assert all(torch.equal(run, planned) for run in runs)
    assert {r.outcome for r in session.requests} == {"finished"}


def test_the_attached_pipeline_in_two_threads_and_around_itself() -> None:
    """The second call is refused in a sentence; the first goes on as if it had not been."""
    pipe = tiny.pipeline()
    told: list[BaseException] = []

    def second() -> None:
        try:
            tiny.run(pipe, seed=4, guidance=1.0)
        except RequestError as error:
            told.append(error)

    def meet(p: Any, index: int, t: Any, given: dict[str, Any]) -> dict[str, Any]:
        if index == 1:
            thread = threading.Thread(target=second)
            thread.start()
            thread.join()
        if index == 3:
            second()
        return {}

    with attach(pipe, tiny.compiled(pipe.transformer, HINTS)) as session:
        planned = tiny.run(pipe)
        assert torch.equal(tiny.run(pipe, callback_on_step_end=meet), planned)
    assert len(told) == 2
    assert all("generating already" in str(error) for error in told)
    assert session.requests[0].outcome == "finished"


def test_two_threads_over_one_bare_session() -> None:
    """A step in a second thread, while one is open, is refused; forwards of another thread are never taken for it."""
    model = tiny.transformer()
    told: list[str] = []
    inputs = tiny.inputs()
    with torch.no_grad(), attach(model, tiny.compiled(model, HINTS)) as session, session.step(0, branch="cond"):

        def other() -> None:
            with torch.no_grad():
                model(**inputs)
            try:
                with session.step(0, branch="cond"):
                    pass
            except RequestError as error:
                told.append(str(error))

        thread = threading.Thread(target=other)
        thread.start()
        thread.join()
        model(**inputs)
    assert told
    assert "another thread" in told[0]
    assert session.summary.unplanned == 1


# Nothing happened in silence -------------------------------------------------------------------------------------------


def unseen(pipe: Any) -> None:
    """A denoising loop as a modular pipeline has it: no `progress_bar`, no `cache_context`."""
    pipe.scheduler.set_timesteps(6)
    for t in pipe.scheduler.timesteps:
        with torch.no_grad():
            pipe.transformer(**{**tiny.inputs(), "timestep": t.expand(1)})


@pytest.mark.parametrize("target", ["pipe", "transformer"])
def test_a_session_that_saw_only_calls_of_others_warns(target: str) -> None:
    """A whole generation without a hit does not end quietly."""
    pipe = tiny.pipeline()
    attached = pipe if target == "pipe" else pipe.transformer
    session = attach(attached, tiny.compiled(pipe.transformer, HINTS))
    unseen(pipe)
    with pytest.warns(RefkvWarning, match="nothing was cached"):
        session.detach()
    assert session.summary.unplanned == 6
    assert session.requests == ()


def test_a_pipeline_that_names_no_branch_warns(monkeypatch: pytest.MonkeyPatch) -> None:
    """Where no call of a run is recognised, the end of the run says so."""
    from contextlib import nullcontext

    pipe = tiny.pipeline()
    with attach(pipe, tiny.compiled(pipe.transformer, HINTS)) as session:
        monkeypatch.setattr(pipe.transformer, "cache_context", lambda name: nullcontext())
        with pytest.warns(RefkvWarning, match="no call of its transformer was recognised"):
            tiny.run(pipe)
        assert session.summary.hits == 0


def test_another_transformer_in_the_pipeline_is_refused() -> None:
    """Its calls would pass the session by: the loop is not entered; or it runs uncached, with a warning."""
    pipe = tiny.pipeline()
    table = tiny.compiled(pipe.transformer, HINTS)
    with attach(pipe, table):
        pipe.transformer = tiny.transformer(seed=3)
        with pytest.raises(RequestError, match="transformer was replaced"):
            tiny.run(pipe)
    pipe = tiny.pipeline()
    with attach(pipe, table, on_error="uncached"):
        pipe.transformer = tiny.transformer(seed=3)
        with pytest.warns(RefkvWarning, match="transformer was replaced"):
            tiny.run(pipe)


def test_uncached_says_why() -> None:
    """A request that is finished without the cache warns, and its summary has the reason."""
    pipe = tiny.pipeline()
    session = attach(pipe, tiny.compiled(pipe.transformer, HINTS, guidance="5.0"), on_error="uncached")
    with pytest.warns(RefkvWarning, match="without the cache: the request runs at guidance 3"):
        tiny.run(pipe, guidance=3.0)
    session.detach()
    assert session.requests[0].outcome == "incomplete"
    assert "guidance 3" in str(session.requests[0].error)


def test_an_incomplete_request_says_what_is_missing() -> None:
    """A bare loop that never called the uncond branch is told of it."""
    model = tiny.transformer()
    session = attach(model, tiny.compiled(model, HINTS, guidance="5.0"))
    for step in range(6):
        with session.step(step, branch="cond"), torch.no_grad():
            model(**tiny.inputs())
    with pytest.warns(RefkvWarning, match="6 calls did not come .uncond at step 0"):
        session.detach()
    assert session.requests[0].outcome == "incomplete"


def test_a_detached_session_does_nothing_and_says_so() -> None:
    """Entered again, or told a step, it raises; detaching twice is fine."""
    model = tiny.transformer()
    session = attach(model, tiny.compiled(model, HINTS))
    with session:
        pass
    session.detach()
    with pytest.raises(RequestError, match="detached"), session:
        pass
    with pytest.raises(RequestError, match="detached"), session.step(0, branch="cond"):
        pass


def test_attached_in_mid_run() -> None:
    """The run that goes on is not the table's; the next one is. Nothing stays open."""
    pipe = tiny.pipeline()
    plain, sessions = tiny.run(pipe), []

    def attach_now(p: Any, index: int, t: Any, given: dict[str, Any]) -> dict[str, Any]:
        if index == 2:
            sessions.append(attach(p, tiny.compiled(p.transformer, HINTS)))
        return {}

    assert torch.equal(tiny.run(pipe, callback_on_step_end=attach_now), plain)
    (session,) = sessions
    assert session.summary.requests == ()
    tiny.run(pipe)
    session.detach()
    assert [r.outcome for r in session.requests] == ["finished"]


# Copies, forks, and what is asked for -----------------------------------------------------------------------------------


def test_a_deep_copy_of_an_attached_pipeline_is_a_plain_one() -> None:
    """It computes natively, with its own scheduler and contexts, while attached and after, and can be attached to."""
    pipe = tiny.pipeline()
    plain = tiny.run(pipe)
    table = tiny.compiled(pipe.transformer, TEXT + FEWER + HINTS)
    with attach(pipe, table) as session:
        copied = copy.deepcopy(pipe)
        assert torch.equal(tiny.run(copied), plain)
        planned = tiny.run(pipe)
        with attach(copied, table) as theirs:
            assert torch.equal(tiny.run(copied), planned)
        assert session.summary.unplanned == 0
    assert torch.equal(tiny.run(copied), plain)
    assert torch.equal(tiny.run(pipe), plain)
    assert [r.outcome for s in (session, theirs) for r in s.requests] == ["finished", "finished"]


@pytest.mark.parametrize("what", ["transformer", "scheduler"])
def test_a_deep_copy_of_a_part(what: str) -> None:
    """A copied transformer or scheduler acts on itself."""
    pipe = tiny.pipeline()
    plain = tiny.run(pipe)
    with attach(pipe, tiny.compiled(pipe.transformer, TEXT + FEWER + HINTS)) as session:
        copied = copy.deepcopy(getattr(pipe, what))
        other = tiny.pipeline()
        setattr(other, what, copied)
        if what == "transformer":
            other.scheduler = tiny.scheduler()
        else:
            other.transformer = copy.deepcopy(pipe.transformer)
        assert torch.equal(tiny.run(other), plain)
        assert session.summary.unplanned == 0


@pytest.mark.parametrize("leaves", ["exit", "use"])
def test_a_fork_leaves_the_log_to_its_parent(leaves: str, tmp_path: Path) -> None:
    """A child that unwinds the session, or runs the pipeline, writes nothing into the parent's log."""
    pipe, log = tiny.pipeline(), tmp_path / "a.jsonl"
    with attach(pipe, tiny.compiled(pipe.transformer, HINTS), audit=log) as session:
        tiny.run(pipe)
        child = os.fork()
        if child == 0:
            try:
                with warnings.catch_warnings():
                    warnings.simplefilter("ignore")
                    if leaves == "use":
                        tiny.run(pipe)
                    session.detach()
            finally:
                os._exit(0)
        os.waitpid(child, 0)
        tiny.run(pipe)
    assert verify(log).outcome == "ok"
    assert len(verify(log).requests) == 2


PLAN = """version: 1
kind: plan
name: mine
models: [any]
run:
  steps: [6]
  sampler: {name: unipc, flow_shift: 3.0}
  guidance: 5.0
  shapes: [{size: 32x32, frames: 5}]
caches:
""" + HINTS + """acknowledgements:
  - {risk: lossy-hint-cache, by: tests, date: 2026-01-01, reason: a test}
"""  # fmt: skip


def test_a_plan_is_attached_in_every_form(tmp_path: Path) -> None:
    """A table, a plan, its file as text or path: the same session."""
    file = tmp_path / "plan.yaml"
    file.write_text(PLAN)
    pipe = tiny.pipeline()
    plan = refkv.load_plan(file)
    table = refkv.compile_plan(plan, pipe.transformer, 6)
    for given in (table, plan, str(file), file):
        with refkv.attach(pipe, given) as session:
            assert session.table.digest == table.digest
    with refkv.attach(pipe, file, steps=6) as session:
        assert session.table.steps == 6


def test_a_shipped_plan_is_found_by_its_name() -> None:
    """`load_plan` takes what `refkv plans` prints."""
    assert refkv.load_plan("wan21_p1_k4").name == "wan21-p1-k4"
    with pytest.raises(refkv.PlanError):
        refkv.load_plan("wan21_p9")


@pytest.mark.parametrize("given", [None, {"plan": 1}, 4, b"plan"])
def test_what_is_no_plan_is_refused_in_a_sentence(given: Any) -> None:
    """Never an AttributeError."""
    with pytest.raises(AttachError, match="cannot be attached"):
        attach(tiny.transformer(), given)


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ({"steps": 7}, "the table is for 6 steps"),
        ({"header": {"request": "r"}}, "may not set request"),
        ({"header": {"hash": 1, "kind": 2}}, "may not set hash, kind"),
        ({"on_error": "ignore"}, "on_error"),
    ],
)
def test_arguments_that_cannot_hold(arguments: dict[str, Any], words: str) -> None:
    """Refused when the table is attached, with nothing changed."""
    model = tiny.transformer()
    with pytest.raises(AttachError, match=words):
        attach(model, tiny.compiled(model, HINTS), **arguments)
    assert "forward" not in vars(model)


def test_several_step_counts_are_asked_for() -> None:
    """A plan of two counts does not say which one is meant."""
    pipe = tiny.pipeline()
    with pytest.raises((AttachError, refkv.PlanError)) as refused:
        attach(pipe, "wan21_p1_k4")
    assert "steps" in str(refused.value)


def test_a_lost_session_is_found_by_its_pipeline() -> None:
    """`refkv.detach` ends it; where there is none, it says so."""
    pipe = tiny.pipeline()
    attach(pipe, tiny.compiled(pipe.transformer, HINTS))
    refkv.detach(pipe)
    assert "forward" not in vars(pipe.transformer)
    with pytest.raises(refkv.AttachError, match="no table is attached"):
        refkv.detach(pipe)


def test_a_summary_reads_as_text() -> None:
    """A few lines with the counts."""
    pipe = tiny.pipeline()
    with attach(pipe, tiny.compiled(pipe.transformer, HINTS)) as session:
        tiny.run(pipe)
    text = str(session.summary)
    assert "requests: 1 finished" in text
    assert f"hits {session.summary.hits}, misses {session.summary.misses}, departures 0" in text
    assert len(text.splitlines()) == 3


def test_a_long_session_forgets_all_but_the_newest_requests() -> None:
    """Three hundred requests: the sums of all, the summaries of a hundred."""
    model = tiny.transformer()
    forward: Callable[..., Any] = model.__call__
    with attach(model, tiny.compiled(model, HINTS, steps=2, guidance="1.0")) as session, torch.no_grad():
        for _ in range(300):
            for step in range(2):
                with session.step(step, branch="cond"):
                    forward(**tiny.inputs())
    assert len(session.requests) == 100
    assert session.requests[-1].request == "r300"
    assert session.summary.outcomes == {"finished": 300}
    assert session.summary.hits == 300 * session.requests[0].total.hits > 0
