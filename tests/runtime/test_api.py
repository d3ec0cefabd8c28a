"""The few lines that a person types first: attach a name, a path or a plan; detach; read the summary; catch the errors."""

from __future__ import annotations

import gc
import os
import sys
import tracemalloc
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

import refkv_policy as refkv
from refkv_policy.audit import AuditError, read_log, verify
from refkv_policy.mini import model_path
from refkv_policy.resources import resource
from refkv_policy.runtime.session import KEPT as NEWEST
from tests import tiny
from tests.audit.test_fork import in_a_child

REUSE = '  - {name: hints, tier: P1, method: hint_reuse, at: "hint[all]", refresh: {interval: 3}}\n'


@pytest.fixture(scope="module")
def mini() -> Any:
    """The embedded model's transformer, for which plans are shipped."""
    from diffusers import WanVACETransformer3DModel

    return WanVACETransformer3DModel.from_pretrained(model_path(), subfolder="transformer").eval()


PLANS: dict[str, Callable[[], Any]] = {
    "name": lambda: "wan21_p1_k4",
    "name as the plan spells it": lambda: "wan21-p1-k4",
    "path": lambda: resource("plans") / "wan21_p1_k4.yaml",
    "path as text": lambda: str(resource("plans") / "wan21_p1_k4.yaml"),
    "plan": lambda: refkv.load_plan("wan21_p1_k4"),
}


@pytest.mark.parametrize("plan", **tiny.settings(PLANS))
def test_plan_in_every_form(mini: Any, plan: Callable[[], Any], tmp_path: Path, monkeypatch: Any) -> None:
    """Each form compiles to the same table, wherever one stands."""
    monkeypatch.chdir(tmp_path)
    expected = refkv.compile_plan(refkv.load_plan("wan21_p1_k4"), "wan2.1-vace-mini", 50)
    with refkv.attach(mini, plan(), steps=50) as session:
        assert session.table.digest == expected.digest


def test_steps_are_asked_for_where_there_are_several(mini: Any) -> None:
    """A plan of one count needs none; one of two says which there are; a table has its own."""
    plan = refkv.load_plan("wan21_p1_k4")
    table = refkv.compile_plan(plan, mini, 30)
    with pytest.raises(refkv.AttachError, match="several step counts; say which with steps="):
        refkv.attach(mini, plan)
    with pytest.raises(refkv.PlanError, match="40"):
        refkv.attach(mini, plan, steps=40)
    with pytest.raises(refkv.AttachError, match="the table is for 30 steps, and steps=50"):
        refkv.attach(mini, table, steps=50)
    with refkv.attach(mini, table, steps=30) as session:
        assert session.table is table
    one = refkv.load_plan("wan21_steps15of30")
    assert one.run.steps == (30,)
    with refkv.attach(mini, one) as session:
        assert session.table.steps == 30


WRONG: dict[str, tuple[dict[str, Any], str]] = {
    "no plan": ({"plan": None}, "a NoneType cannot be attached"),
    "a mapping": ({"plan": {"version": 1}}, "a dict cannot be attached"),
    "a number": ({"plan": 4}, "a int cannot be attached"),
    "a class": ({"plan": refkv.HookTable}, "a type cannot be attached"),
    "steps as text": ({"steps": "30"}, "steps is '30'"),
    "steps as truth": ({"steps": True}, "steps is True"),
    "steps as fraction": ({"steps": 30.0}, "steps is 30.0"),
    "no target": ({"target": None}, "NoneType is no transformer"),
    "target is a name": ({"target": "Wan-AI/Wan2.1"}, "str is no transformer"),
    "target is a class": ({"target": torch.nn.Module}, "type is no transformer"),
    "target is the scheduler": ({"target": tiny.scheduler()}, "UniPCMultistepScheduler is no transformer"),
    "audit": ({"audit": 7}, "audit is 7"),
    "audit as truth": ({"audit": True}, "audit is True"),
    "header": ({"header": [1]}, r"header is \[1\]"),
    "reserved": ({"header": {"request": "x"}}, "may not set request"),
    "reserved too": ({"header": {"seed": 1, "hash": "", "kind": ""}}, "may not set hash, kind"),
    "on_error": ({"on_error": None}, "on_error is None"),
}


@pytest.mark.parametrize(("arguments", "words"), **tiny.settings(WRONG))
def test_arguments_of_the_wrong_type(mini: Any, arguments: dict[str, Any], words: str) -> None:
    """Each is refused with a sentence, and nothing is changed."""
    given = {"target": mini, "plan": "wan21_p1_k4", "steps": 30, **arguments}
    with pytest.raises(refkv.AttachError, match=words):
        refkv.attach(given.pop("target"), given.pop("plan"), **given)
    assert "forward" not in vars(mini)


@pytest.mark.parametrize("value", [object(), float("nan"), {1, 2}, b"x"])
def test_header_that_json_has_no_form_of(mini: Any, value: Any, tmp_path: Path) -> None:
    """Refused when the session would begin, not at its first request; no log is begun."""
    with pytest.raises(AuditError):
        refkv.attach(mini, "wan21_p1_k4", steps=30, header={"mine": value}, audit=tmp_path / "run.jsonl")
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("name", ["wan21_p9", "no/such/wan21_p1_k4", "wan21_p1_k4.yml", "../wan21_p1_k4", ""])
def test_name_of_no_plan(name: str) -> None:
    """A name that is no shipped plan's, or a path to nothing, is a diagnostic with its place."""
    with pytest.raises(refkv.PlanError) as refused:
        refkv.load_plan(name)
    assert refused.value.diagnostics[0].code == "RKV001"


def test_file_of_a_shipped_name_comes_first(tmp_path: Path, monkeypatch: Any) -> None:
    """A file in the working directory is what its name means there."""
    text = (resource("plans") / "wan21_p1_k4.yaml").read_text("utf-8")
    (tmp_path / "wan21_p1_k4").write_text(text.replace("name: wan21-p1-k4", "name: mine"), "utf-8")
    monkeypatch.chdir(tmp_path)
    assert refkv.load_plan("wan21_p1_k4").name == "mine"


@pytest.mark.parametrize("lost", ["pipeline", "transformer", "replaced", "another pipeline"])
def test_session_that_was_lost(lost: str) -> None:
    """`detach` finds it by the pipeline, by its transformer, and though the transformer was exchanged meanwhile."""
    pipe = tiny.pipeline()
    model = pipe.transformer
    refkv.attach(pipe, tiny.compiled(model, REUSE))
    with pytest.raises(refkv.AttachError, match=r"`refkv.detach`"):
        refkv.attach(pipe, tiny.compiled(model, REUSE))
    if lost == "replaced":
        pipe.transformer = tiny.transformer(seed=3)
    refkv.detach({"transformer": model, "another pipeline": tiny.pipeline(model)}.get(lost, pipe))
    assert "forward" not in vars(model)
    for target in (pipe, model, None, "x", torch.zeros(2)):
        with pytest.raises(refkv.AttachError, match="no table is attached"):
            refkv.detach(target)


def test_errors_are_where_they_are_looked_for() -> None:
    """Every public name is an attribute of the package, and the errors are caught as one."""
    for name in refkv.__all__:
        assert getattr(refkv, name) is not None
    assert issubclass(refkv.AttachError, refkv.RefkvError)
    assert issubclass(refkv.RequestError, refkv.RefkvError)
    with pytest.raises(AttributeError, match="no attribute 'atach'"):
        _ = refkv.atach


class Pass(torch.nn.Module):
    """A main block that computes nothing."""

    def forward(self, hidden_states: Any, *_: Any) -> Any:
        """The main stream."""
        return hidden_states


class PassVACE(torch.nn.Module):
    """A VACE block that computes nothing."""

    def forward(self, hidden_states: Any, text: Any, control: Any, *_: Any) -> Any:
        """The control stream, as hint and as itself."""
        return control, control


def held_by_refkv() -> int:
    """Bytes that the package's own lines have allocated and not let go of."""
    gc.collect()
    only = [tracemalloc.Filter(True, str(Path(refkv.__file__).parent / "*"))]
    return sum(trace.size for trace in tracemalloc.take_snapshot().filter_traces(only).traces)


def test_long_session_does_not_grow(tmp_path: Path) -> None:
    """Over several hundred requests the sums go on, the newest hundred stay, and memory does not grow."""
    model = tiny.transformer()
    table = tiny.compiled(model, REUSE, steps=3)
    model.blocks = torch.nn.ModuleList(Pass() for _ in model.blocks)
    model.vace_blocks = torch.nn.ModuleList(PassVACE() for _ in model.vace_blocks)

    def requests(session: Any, count: int) -> None:
        for _ in range(count):
            for step in range(3):
                for branch in ("cond", "uncond"):
                    with session.step(step, branch=branch):
                        model(**inputs)

    inputs = tiny.inputs()
    with refkv.attach(model, table) as session, torch.no_grad():
        tracemalloc.start()
        requests(session, NEWEST + 40)
        before = held_by_refkv()
        requests(session, 300)
        grown = held_by_refkv() - before
        tracemalloc.stop()
        count = NEWEST + 340
        assert len(session.requests) == len(session.summary.requests) == NEWEST
        assert session.requests[-1].request == f"r{count}"
        assert session.summary.outcomes == {"finished": count}
        one = session.requests[0].total
        assert (session.summary.hits, session.summary.misses) == (one.hits * count, one.misses * count)
        assert session.summary.sites["hint[1]"]["cond"].hits == 2 * count
    assert one.hits > 0
    assert grown < 10_000, "a request's summary alone is some two kilobytes"
    assert session.summary.to_dict()["outcomes"] == {"finished": count}


@pytest.mark.skipif(not hasattr(os, "fork"), reason="this system forks no process")
@pytest.mark.parametrize("step", [None, 2])
def test_fork_inside_a_session(step: int | None, tmp_path: Path) -> None:
    """A child that leaves by `sys.exit`, between requests or in one, or uses the pipeline, leaves the parent's log whole."""
    pipe = tiny.pipeline()
    table, said = tiny.compiled(pipe.transformer, REUSE), []
    with refkv.attach(pipe, table) as session:
        planned = tiny.run(pipe)

    def fork(*_: Any) -> dict[str, Any]:
        if len(said) < 2:

            def leave() -> None:
                with session:
                    sys.exit()

            said.append(in_a_child(leave))
            said.append(
                in_a_child(lambda: session.detach()) if step is not None else in_a_child(lambda: tiny.run(pipe))
            )
        return {}

    with refkv.attach(pipe, table, audit=tmp_path / "run.jsonl") as session:
        if step is None:
            fork()
        ours = tiny.run(pipe, callback_on_step_end=fork)
    assert torch.equal(ours, planned)
    assert verify(tmp_path / "run.jsonl", table=table).outcome == "ok"
    assert len(read_log(tmp_path / "run.jsonl").requests) == 1
    assert said[0] == "SystemExit"
    assert ("not logged" in said[1]) == (step is None)
