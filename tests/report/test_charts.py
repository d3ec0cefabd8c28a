"""Axes, labels and the SVG they become."""

from __future__ import annotations

import math
import xml.etree.ElementTree as ElementTree
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from refkv_policy.report.charts import (
    STYLES,
    Chart,
    Floor,
    Mark,
    Series,
    linear_axis,
    log_axis,
    placed_floors,
    placed_labels,
)
from refkv_policy.report.svg import chart_svg, shape_path
from refkv_policy.report.words import number


@given(st.lists(st.floats(-1e9, 1e9), min_size=1, max_size=8))
def test_a_linear_axis_holds_every_value(values: list[float]) -> None:
    """Its ends are ticks, the values lie between them, and there are neither too few nor too many ticks."""
    axis = linear_axis("x", values, number)
    slack = 1e-6 * (axis.high - axis.low)
    assert axis.low <= min(values) + slack
    assert axis.high >= max(values) - slack
    assert 2 <= len(axis.ticks) <= 10
    assert (axis.place(axis.low), axis.place(axis.high)) == (0, 1)


@given(st.lists(st.floats(1e-9, 1e9), min_size=1, max_size=8), st.booleans())
def test_a_logarithmic_axis_keeps_order_and_sets_zeros_apart(values: list[float], zero: bool) -> None:
    """Larger values lie higher; a zero lies at the foot, below every positive value."""
    axis = log_axis("y", [*values, *([0.0] if zero else [])], number)
    places = [axis.place(v) for v in sorted(values)]
    assert places == sorted(places)
    assert all(0 <= p <= 1 for p in places)
    if zero:
        assert axis.place(0.0) == 0 < min(places)


def test_a_logarithmic_axis_is_logarithmic() -> None:
    """Equal ratios lie equally far apart."""
    axis = log_axis("y", [1, 1000], number)
    assert math.isclose(axis.place(10) - axis.place(1), axis.place(100) - axis.place(10))


def test_whole_ticks_are_whole() -> None:
    """Steps are counted, so their ticks have no fractions."""
    assert all(tick.at == int(tick.at) for tick in linear_axis("step", [0, 3], number, whole=True).ticks)


def _chart(marks: list[tuple[float, float, str]], style: str = "fewer_steps") -> Chart:
    series = (Series("s", style, tuple(Mark(x, y, "title", text) for x, y, text in marks)),)
    xs, ys = [m[0] for m in marks], [m[1] for m in marks]
    return Chart("key", "Title", "about", linear_axis("x", xs, number), linear_axis("y", ys, number), series)


@given(
    st.lists(
        st.tuples(st.floats(0, 1), st.floats(0, 1), st.text("abcdef", min_size=1, max_size=12)), min_size=1, max_size=12
    )
)
def test_labels_never_overlap_or_leave_the_plot(marks: list[tuple[float, float, str]]) -> None:
    """Whatever the points, each label has a place of its own inside; one that finds none is left out."""
    chart = _chart(marks)
    boxes = []
    for label in placed_labels(chart, 700, 300):
        wide = 7.0 * len(label.text)
        left = label.x - {"start": 0, "middle": wide / 2, "end": wide}[label.anchor]
        boxes.append((left, label.y - 10, left + wide, label.y + 3))
    assert all(b[0] >= 0 and b[2] <= 700 and b[1] >= 0 and b[3] <= 300 for b in boxes)
    for n, a in enumerate(boxes):
        assert not any(a[0] < b[2] and b[0] < a[2] and a[1] < b[3] and b[1] < a[3] for b in boxes[n + 1 :])


def test_a_floors_name_makes_way_for_points_and_labels_for_it() -> None:
    """At the right end of its line, or where there is no point; no label covers it."""
    marks = [(0.0, 0.2, "a"), (1.0, 0.9, "b"), (0.95, 0.5, "near the end")]
    chart = replace(_chart(marks), floors=(Floor("solver floor 0.5", 0.5, "solver"),))
    (name,) = placed_floors(chart, 700, 300)
    assert name.anchor == "start", "the third point lies where the name would"
    assert placed_floors(replace(chart, series=()), 700, 300)[0].anchor == "end"
    labels = placed_labels(chart, 700, 300)
    assert {label.text for label in labels} == {"a", "b", "near the end"}
    for label in labels:
        far = abs(label.y - name.y) > 13
        assert far or label.x > name.x + 7 * len(name.text)


def test_the_svg_is_well_formed_and_holds_every_point() -> None:
    """It parses as XML, has one shape a point with its title, and names itself for who cannot see it."""
    marks = [(0.0, 1.0, "<a>"), (1.0, 2.0, '"&'), (2.0, 1.5, "")]
    drawn = ElementTree.fromstring(str(chart_svg(_chart(marks))))
    dots = [e for e in drawn.iter() if (e.get("class") or "").startswith("dot")]
    assert [dot.find("title").text for dot in dots] == ["title"] * 3  # type: ignore[union-attr]
    assert drawn.get("role") == "img"
    assert drawn.get("aria-label") == "Title. about"
    assert "<a>" in [e.text for e in drawn.iter("text")]


def test_every_kind_differs_in_more_than_colour() -> None:
    """Of the runs of a frontier, no two share both shape and dash."""
    kinds = ["plan", "variant", "fewer_steps", "respaced_steps", "respaced_steps_2", "uncached"]
    looks = [(STYLES[k].shape, STYLES[k].dashed) for k in kinds]
    assert len(set(looks)) == len(looks)
    assert len({shape_path(shape, 10, 10) for shape, _ in looks}) == len(looks)


def _luminance(colour: str) -> float:
    channels = [int(colour[n : n + 2], 16) / 255 for n in (1, 3, 5)]
    linear = [c / 12.92 if c <= 0.04045 else ((c + 0.055) / 1.055) ** 2.4 for c in channels]
    return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]


@pytest.mark.parametrize("kind", [k for k in STYLES if k != "frontier"])
def test_colours_stand_out_on_both_grounds(kind: str) -> None:
    """At least 4.5 : 1 (WCAG 2.2, 1.4.3), since labels are written in them."""
    for colour, ground in ((STYLES[kind].light, "#ffffff"), (STYLES[kind].dark, "#191c1f")):
        high, low = sorted((_luminance(colour), _luminance(ground)), reverse=True)
        assert (high + 0.05) / (low + 0.05) >= 4.5
