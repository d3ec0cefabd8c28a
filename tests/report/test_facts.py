"""Speed, error and memory of the first screen, and the gate's rows."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from refkv_policy.evidence import Figure, Interval, MeasuredScope, Memory, StepLatency, make_item
from refkv_policy.report.facts import facts
from refkv_policy.report.inputs import EvidenceFile, Inputs
from refkv_policy.report.model import Report
from refkv_policy.report.scopes import ItemRow
from refkv_policy.report.write import make_report
from tests.report import sample

SPACE = "\N{NO-BREAK SPACE}"


def _report(*scopes: MeasuredScope, plan: str = "test", edited: bool = False) -> Report:
    document = replace(sample.evidence(*scopes), plan=plan, edited=edited)
    return make_report(Inputs(evidence=[EvidenceFile("e.json", "sha256:0", document)]))


def _timed(scope: MeasuredScope, speedup: float) -> MeasuredScope:
    latency = StepLatency(Figure(1 / speedup), Figure(1.0), Figure(speedup))
    return replace(scope, levels=replace(scope.levels, step_latency=latency))


def test_one_scope_has_its_figures_with_intervals_and_floor() -> None:
    """Value and remark of each of the three, as the evidence holds them."""
    speed, error, memory = facts([sample.scope()])
    assert (speed.value, speed.remark) == ("1.24×", "of a denoising step, 1.21× to 1.27×")
    assert error.value == "0.00526"
    assert error.remark.endswith("share of full scale, 0.00447 to 0.00605; solver floor 0.0043")
    assert (memory.value, memory.remark) == (f"1{SPACE}MiB", f"the cache at its peak; budget 2{SPACE}MiB")


def test_several_scopes_give_the_least_and_the_most() -> None:
    """From the slowest to the fastest; equal figures stand once."""
    speed, _, memory = facts([_timed(sample.scope(), 1.1), _timed(sample.scope(), 1.5), _timed(sample.scope(), 1.3)])
    assert (speed.value, memory.value) == ("1.10× to 1.50×", f"1{SPACE}MiB")


def test_what_was_not_measured_is_said() -> None:
    """Without times the speed is by FLOPs and says so; without metrics or memory there is a dash, never a zero."""
    made = sample.scope()
    bare = replace(made, levels=replace(made.levels, step_latency=None), metrics=(), memory=None)
    speed, error, memory = facts([bare])
    assert speed.remark == "by FLOPs; time was not measured"
    assert [(f.value, f.remark) for f in (error, memory)] == [("–", "not measured")] * 2
    assert facts([made, bare])[0].remark == speed.remark


def test_errors_of_different_metrics_are_not_ranged_together() -> None:
    """A range over pixels and decibels would mean nothing."""
    other = replace(sample.scope(), metrics=sample.metrics()[1:2])
    assert facts([sample.scope(), other])[1].remark == "of different metrics, by scope"


def test_a_budget_of_some_scopes_says_of_how_many() -> None:
    """It is not taken for everybody's."""
    memory = sample.scope().memory
    assert isinstance(memory, Memory)
    free = replace(sample.scope(), memory=replace(memory, budget=None))
    assert facts([sample.scope(), free])[2].remark.endswith(f"budget 2{SPACE}MiB in 1 of 2 scopes")
    assert facts([free])[2].remark.endswith("no budget")


def test_the_first_screen_has_figures_of_one_plan_only() -> None:
    """Of two plans each scope's row has its own; edited evidence has none, for nobody knows whose they are."""
    one = _report(sample.scope(), replace(sample.scope(), guidance=3.0))
    assert len(one.facts) == 3
    assert (one.answer, one.title) == ("No", "test")
    assert _report(sample.scope(), edited=True).facts == ()
    both = replace(one, scopes=(*one.scopes, *_report(sample.scope(), plan="other").scopes))
    assert (both.facts, both.title) == ((), "test, other")


def _row(name: str, measured: float, interval: tuple[float, float] | None = None, **changes: Any) -> ItemRow:
    ends = None if interval is None else Interval(*interval, 0.95, "bootstrap")
    item = make_item(name, measured, ends, why="because", **changes)
    (scope,) = _report(sample.scope(gate=(item,))).scopes
    return next(row for row in scope.items if row.name == name)


@pytest.mark.parametrize(
    ("row", "word", "judged", "threshold"),
    [
        (
            lambda: _row("speedup", 0.10036748805784634, (0.0717195, 0.1096437), judged_by="interval"),
            "red", (f"7.172{SPACE}%", "the interval's low end"), (f"at least 10{SPACE}%", ""),
        ),
        (
            lambda: _row("fewer_steps", 0.00144, (0.00098, 0.0021), judged_by="interval", equal_within=0.00156),
            "red", ("0.0021", "the interval's high end"), ("at most 0.00156", "0, equal within 0.00156"),
        ),
        (lambda: _row("mean_drop", 0.080001), "red", (f"8.0001{SPACE}%", "the figure itself"), (f"at most 8{SPACE}%", "")),
        (lambda: _row("subjective", 0.9), "green", (f"90{SPACE}%", "the figure itself"), (f"at least 90{SPACE}%", "")),
        (
            lambda: _row("memory", (1 << 20) + 1, threshold=1 << 20),
            "red", (f"1,048,577{SPACE}B", "the figure itself"), (f"at most 1,048,576{SPACE}B", ""),
        ),
    ],
)  # fmt: skip
def test_a_gate_row_reads_true(row: Any, word: str, judged: Any, threshold: Any) -> None:
    """What is judged stands beside the limit that it is judged by, in so many digits that the verdict follows from them."""
    made = row()
    assert (made.word, made.judged, made.threshold) == (word, judged, threshold)
