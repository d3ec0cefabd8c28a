"""The frame × metric heat map."""

from __future__ import annotations

from dataclasses import replace

import pytest

from refkv_policy.evidence import Figure
from refkv_policy.report.heat import COLUMNS, heat_map, level
from tests.report import sample


@pytest.mark.parametrize(
    ("share", "expected"), [(-1, 0), (0, 0), (0.5, 2), (1, 4), (1.01, 5), (1.3, 6), (1.6, 7), (9, 8)]
)
def test_levels_part_at_the_solver_floor(share: float, expected: int) -> None:
    """Up to the solver floor a cell is blue (0 to 4), beyond it orange (5 to 8)."""
    assert level(share, neutral=False) == expected


def test_a_frame_at_the_solver_floor_counts_as_within() -> None:
    """By hand: noise 0, solver floor 0.004; 0.004 is within, 0.0041 beyond, whichever way is better."""
    values = (0.0, 0.004, 0.0041, 0.009)
    rows = [
        sample.metric("lower", "", values, solver=Figure(0.004)),
        sample.metric("higher", "", [1 - v for v in values], better="higher", noise=Figure(1.0), solver=Figure(0.996)),
    ]
    heat = heat_map(replace(sample.scope(), metrics=tuple(rows)), "k")
    assert heat is not None
    assert [[c.level for c in row.cells] for row in heat.rows] == [[0, 4, 5, 8]] * 2


def test_a_metric_without_a_floor_is_grey() -> None:
    """It is shaded by its own range, and cannot be taken for one within the floor."""
    heat = heat_map(sample.scope(), "k")
    assert heat is not None
    assert {row.label: row.neutral for row in heat.rows}["efficientnet_lite0_similarity"]


def test_of_very_many_frames_the_worst_of_neighbours_shows() -> None:
    """A single bad frame among a thousand is not averaged away."""
    values = [0.0] * 1000
    values[777] = 1.0
    heat = heat_map(replace(sample.scope(), metrics=(sample.metric("m", "", values),)), "k")
    assert heat is not None
    assert len(heat.starts) <= COLUMNS
    bad = [(s, c.title) for s, c in zip(heat.starts, heat.rows[0].cells, strict=True) if c.level == 8]
    assert len(bad) == 1
    assert bad[0][0] <= 777 < bad[0][0] + 9
    assert "the worst is 777" in bad[0][1]


def test_metrics_of_fewer_frames_leave_cells_empty() -> None:
    """A metric of pairs of frames has one cell less, not a wrong one."""
    metrics = (sample.metric("a", "", [0.1] * 5), sample.metric("b", "", [0.1] * 4), sample.metric("c", "", [0.1]))
    heat = heat_map(replace(sample.scope(), metrics=metrics), "k")
    assert heat is not None
    assert [sum(c.level is not None for c in row.cells) for row in heat.rows] == [5, 4, 1]
