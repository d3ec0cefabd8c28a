"""The frontier: lines, floors and the comparison at equal latency."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from refkv_policy.evidence import MeasuredScope, Point
from refkv_policy.report.frontier import frontier_view
from tests.report import sample


def _with(points: tuple[Point, ...]) -> MeasuredScope:
    made = sample.scope()
    assert made.levels.frontier is not None
    return replace(made, levels=replace(made.levels, frontier=replace(made.levels.frontier, points=points)))


def test_both_lines_of_fewer_steps_and_the_solver_floor_are_drawn() -> None:
    """Plain and re-spaced steps are lines of their own, each spacing apart; the solver floor lies under them."""
    view = frontier_view(sample.scope(), "k")
    assert view is not None
    chart = view.charts[0]
    lines = {s.name: [m.x for m in s.marks] for s in chart.series if s.line}
    assert {"fewer steps", "fewer steps, re-spaced (sigma)", "fewer steps, re-spaced (sqrt_sigma)"} <= lines.keys()
    assert all(xs == sorted(xs) for xs in lines.values())
    assert [(f.style, f.y, f.below) for f in chart.floors] == [("solver", 0.0043, True)]


def test_every_point_is_in_the_plot_and_in_the_table() -> None:
    """No run is left out, neither of the plot nor of the table beside it."""
    view = frontier_view(sample.scope(), "k")
    assert view is not None
    names = {p.name for p in sample.points()}
    assert {m.label for s in view.charts[0].series for m in s.marks} - {""} == names
    assert {row[0] for row in view.rows} == names


def test_the_comparison_at_equal_latency_is_interpolated() -> None:
    """The sentence's figures are those of numpy's linear interpolation along each line."""
    view = frontier_view(sample.scope(), "k")
    assert view is not None
    plain = [(p.speedup_flops / 1.02, p.error.value) for p in sample.points() if p.family == "fewer_steps"]
    expected = float(np.interp(1.33, *zip(*sorted(plain), strict=True)))
    assert f"fewer steps {expected:.3g} (less)" in view.sentences[0]
    assert "1.33× the plan's error is 0.0064" in view.sentences[0]
    assert "above it" in view.sentences[1]


def test_runs_that_were_not_timed_are_compared_by_flops() -> None:
    """Where one run has no time, all are drawn by FLOPs, and the axis says so."""
    points = tuple(replace(p, speedup=None) if p.name == "20 steps" else p for p in sample.points())
    view = frontier_view(_with(points), "k")
    assert view is not None
    assert "FLOPs, not time" in view.charts[0].x
    plan = next(s for s in view.charts[0].series if s.style == "plan")
    assert [m.x for m in plan.marks] == [1.33 * 1.02]


def test_lines_that_were_not_measured_are_said_to_be_missing() -> None:
    """A frontier without the step-reduction lines says so, and one that does not reach the plan's speed too."""
    points = [p for p in sample.points() if p.family not in ("fewer_steps", "respaced_steps")]
    slow = next(p for p in sample.points() if p.name == "26 steps")
    view = frontier_view(_with((*points, slow)), "k")
    assert view is not None
    assert "fewer steps not covered; fewer steps, re-spaced not measured" in view.sentences[0]


def test_nothing_is_drawn_of_nothing() -> None:
    """A scope without a frontier has no plot; one of a single run still has one."""
    made = sample.scope()
    assert frontier_view(replace(made, levels=replace(made.levels, frontier=None)), "k") is None
    assert frontier_view(_with(()), "k") is None
    assert frontier_view(_with(sample.points()[:1]), "k") is not None
