"""What a plot shows, apart from how it is drawn (`draw`), and the colours it shares with the page."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import NamedTuple

from refkv_policy.report.words import number

Span = tuple[float, float]


class Mark(NamedTuple):
    """One point. label: written beside it. xs, ys: its intervals."""

    x: float
    y: float
    label: str = ""
    xs: Span | None = None
    ys: Span | None = None


@dataclass(frozen=True, slots=True)
class Series:
    """Points of one kind. style: a key of STYLES. line: joined; stairs: joined by steps; dots: each marked.

    band: their intervals are drawn as one band, not as a bar each.
    """

    name: str
    style: str
    marks: tuple[Mark, ...]
    line: bool = True
    stairs: bool = False
    dots: bool = True
    band: bool = False


@dataclass(frozen=True, slots=True)
class Floor:
    """A level that figures are held against. below: what lies under it is shaded, for it does not count."""

    name: str
    y: float
    style: str
    below: bool = False


@dataclass(frozen=True, slots=True)
class Chart:
    """Points and lines on two axes. key: names its file; about: what it shows, in a sentence.

    x, y: the axes' titles. say: how a place on the x axis is written; steps: x counts steps, so its ticks are whole.
    log: errors, on a logarithmic axis. anchor: a value of y that is drawn as a line whatever the points are, such as 0.
    low: drawn at two thirds of the usual height.
    """

    key: str
    title: str
    about: str
    x: str
    y: str
    series: tuple[Series, ...]
    floors: tuple[Floor, ...] = ()
    say: Callable[[float], str] = number
    steps: bool = False
    log: bool = False
    anchor: float | None = None
    low: bool = False

    @property
    def rows(self) -> tuple[tuple[str, ...], ...]:
        """Each series in figures: its name, points, first and last value, smallest and largest."""
        found = [(series, [mark.y for mark in series.marks]) for series in self.series if series.marks]
        return tuple((s.name, f"{len(y):,}", *map(number, (y[0], y[-1], min(y), max(y)))) for s, y in found)


ROW_COLUMNS = ("line", "points", "first", "last", "smallest", "largest")


class Style(NamedTuple):
    """How points of a kind look: colour on light ground, matplotlib's marker, whether their line is dashed."""

    colour: str
    marker: str
    dashed: bool = False


DEPTHS = ("#8a5a00", "#a8541c", "#b5483a", "#b03a5b", "#9b367e", "#7a3f9c", "#5350ad", "#2b5fae")
STYLES: dict[str, Style] = {
    "plan": Style("#b3261e", "D"),
    "variant": Style("#7a4fbf", "o"),
    "fewer_steps": Style("#1f6f8b", "s", dashed=True),
    "respaced_steps": Style("#2e7d32", "^"),
    "respaced_steps_2": Style("#6b7a00", "v", dashed=True),
    "uncached": Style("#5f6368", "x"),
    "frontier": Style("#9aa0a6", "", dashed=True),
    "solver": Style("#a15c00", "", dashed=True),
    "noise": Style("#5f6368", "", dashed=True),
    "held": Style("#1f6f8b", "."),
    "budget": Style("#b3261e", "", dashed=True),
    "peak": Style("#a15c00", "", dashed=True),
    **{f"depth{n}": Style(colour, ".") for n, colour in enumerate(DEPTHS)},
}
"""Every kind has a shape or a dash of its own, so that nothing is told by colour alone. On dark ground the page turns
lightness round and keeps the hue (`.plot` in report.css)."""
