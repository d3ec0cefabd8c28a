"""What a plot says, apart from how it is drawn: `svg` draws it for the page, `png` as a picture."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import NamedTuple


class Tick(NamedTuple):
    """A place on an axis, and what is written there."""

    at: float
    text: str


@dataclass(frozen=True, slots=True)
class Axis:
    """An axis from low to high. zero: of a logarithmic one, the place below `low` where zeros are drawn, if there are."""

    title: str
    low: float
    high: float
    ticks: tuple[Tick, ...]
    log: bool = False
    zero: bool = False

    def place(self, value: float) -> float:
        """Where a value lies, 0 at the low end and 1 at the high one. Values outside are put at the end."""
        if not self.log:
            share = (value - self.low) / (self.high - self.low)
        elif value <= 0:
            share = 0.0
        else:
            share = math.log(value / self.low) / math.log(self.high / self.low)
            share = ZERO_ROOM + (1 - ZERO_ROOM) * max(share, 0.0) if self.zero else share
        return min(max(share, 0.0), 1.0)


NARROW = 6
"""Ratio of ends below which a logarithmic axis has ticks at equal distances."""
ZERO_ROOM = 0.1
"""Share of a logarithmic axis that is set aside for zeros."""

Span = tuple[float, float]


@dataclass(frozen=True, slots=True)
class Mark:
    """One point. title: the whole of it, for who points at it. label: written beside it. xs, ys: its intervals."""

    x: float
    y: float
    title: str
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
    """Points and lines on two axes. key: names its file and its element; about: what it shows, in a sentence.

    low: drawn at two thirds of the usual height.
    """

    key: str
    title: str
    about: str
    x: Axis
    y: Axis
    series: tuple[Series, ...]
    floors: tuple[Floor, ...] = ()
    low: bool = False


@dataclass(frozen=True, slots=True)
class Cell:
    """One cell of a heat map. level: 0 to 8, None where there is nothing."""

    title: str
    level: int | None


@dataclass(frozen=True, slots=True)
class HeatRow:
    """One row. note: what is written behind it. neutral: shaded by its own range, for it has no floor to compare with."""

    label: str
    note: str
    cells: tuple[Cell, ...]
    neutral: bool = False


@dataclass(frozen=True, slots=True)
class HeatMap:
    """Rows of shaded cells over common columns. starts: the first frame of each column."""

    key: str
    title: str
    about: str
    starts: tuple[int, ...]
    rows: tuple[HeatRow, ...]


class Style(NamedTuple):
    """How points of a kind look: colour on light and on dark ground, shape, whether their line is dashed."""

    light: str
    dark: str
    shape: str
    dashed: bool = False


STYLES: dict[str, Style] = {
    "plan": Style("#b3261e", "#ff8a80", "diamond"),
    "variant": Style("#7a4fbf", "#c3a6ff", "circle"),
    "fewer_steps": Style("#1f6f8b", "#6cc7e6", "square", dashed=True),
    "respaced_steps": Style("#2e7d32", "#7fd183", "triangle"),
    "respaced_steps_2": Style("#6b7a00", "#cbd65c", "down", dashed=True),
    "uncached": Style("#5f6368", "#bdc1c6", "cross"),
    "frontier": Style("#9aa0a6", "#80868b", "none", dashed=True),
    "solver": Style("#a15c00", "#f2b35e", "none", dashed=True),
    "noise": Style("#5f6368", "#9aa0a6", "none", dashed=True),
    "held": Style("#1f6f8b", "#6cc7e6", "small"),
    "budget": Style("#b3261e", "#ff8a80", "none", dashed=True),
    "peak": Style("#a15c00", "#f2b35e", "none", dashed=True),
    **{
        f"depth{n}": Style(light, dark, "small")
        for n, (light, dark) in enumerate(
            zip(
                ("#8a5a00", "#a8541c", "#b5483a", "#b03a5b", "#9b367e", "#7a3f9c", "#5350ad", "#2b5fae"),
                ("#ffd27a", "#ffbd78", "#ffa687", "#ff97a6", "#f292cb", "#d39af0", "#aaa8ff", "#7fbcff"),
                strict=True,
            )
        )
    },
}
"""Every kind has a shape or a dash of its own, so that nothing is told by colour alone."""


class Paint(NamedTuple):
    """Ground and ink of a cell, on a light page and on a dark one."""

    light: str
    light_ink: str
    dark: str
    dark_ink: str


PAINTS = {
    "C": Paint("#1c4f79", "#ffffff", "#8cc4ee", "#0f1b26"),
    ".": Paint("#bcd6ea", "#1b3a52", "#2d4d68", "#cfe4f5"),
    "R": Paint("#cdebd4", "#0f4d26", "#1f5a35", "#d7f5df"),
    "F": Paint("#e3d8f6", "#42267a", "#4f3b7c", "#eee5ff"),
    "?": Paint("#fbe3b8", "#5f3d00", "#6b4a10", "#ffe7bd"),
}
"""Of the actions of a step × site map; one that is not reached has the page's own."""

DEPTHS = 8
HEAT_LIGHT = ("#f3f7fb", "#dbe9f4", "#bfd8ea", "#9cc3de", "#74aacd", "#fbc78d", "#f39b56", "#dd6b33", "#a83a16")
HEAT_DARK = ("#1c2a38", "#223a50", "#2a4d6b", "#356388", "#457ea8", "#8a5524", "#b3672a", "#d9803a", "#ffa45c")
GREY_LIGHT = ("#f6f6f6", "#ebebeb", "#dedede", "#d0d0d0", "#c0c0c0", "#afafaf", "#9c9c9c", "#888888", "#737373")
GREY_DARK = ("#222426", "#2b2e31", "#36393d", "#42464b", "#50555a", "#60666c", "#72787f", "#868d94", "#9ca3aa")
"""Heat of levels 0 to 8: up to 4 within the floor, above it beyond. Greys for rows that have no floor."""


def linear_axis(title: str, values: Iterable[float], say: Callable[[float], str], *, whole: bool = False) -> Axis:
    """An axis that holds every value, its ends on ticks. whole: ticks at whole numbers only."""
    low, high = _range(values)
    if low == high:
        low, high = low - (abs(low) / 2 or 0.5), high + (abs(high) / 2 or 0.5)
    step = _nice((high - low) / 6)
    if whole:
        step = max(1.0, float(math.ceil(step)))
    first, last = math.floor(low / step + 1e-9), math.ceil(high / step - 1e-9)
    ticks = tuple(Tick(n * step, say(n * step)) for n in range(first, last + 1))
    return Axis(title, first * step, last * step, ticks)


def log_axis(title: str, values: Iterable[float], say: Callable[[float], str]) -> Axis:
    """A logarithmic axis that holds every positive value; zeros have a place of their own below."""
    known = list(values)
    low, high = _range(value for value in known if value > 0)
    if low <= 0:
        return linear_axis(title, known, say)
    zero = any(value <= 0 for value in known)
    if high / low < NARROW:
        return _narrow_axis(title, low, high, zero, say)
    steps = sorted(
        m * 10.0**e for e in range(math.floor(math.log10(low)), math.ceil(math.log10(high)) + 1) for m in (1, 2, 5)
    )
    below = max((s for s in steps if s <= low), default=low)
    above = min((s for s in steps if s >= high), default=high)
    if below == above:
        below, above = below / 2, above * 2
    decades = math.log10(above / below)
    shown = [s for s in steps if below <= s <= above and (decades < 3 or _mantissa(s) == 1)]
    ticks = [Tick(s, say(s)) for s in shown]
    return Axis(title, below, above, tuple([Tick(0.0, "0"), *ticks] if zero else ticks), log=True, zero=zero)


def _narrow_axis(title: str, low: float, high: float, zero: bool, say: Callable[[float], str]) -> Axis:
    """A logarithmic axis of less than a decade, with ticks as a linear one has them."""
    if low == high:
        low, high = low * 0.8, high * 1.25
    step = _nice((high - low) / 5)
    first, last = math.floor(low / step + 1e-9), math.ceil(high / step - 1e-9)
    below = first * step if first > 0 else low
    ticks = [Tick(n * step, say(n * step)) for n in range(max(first, 1), last + 1)]
    return Axis(title, below, last * step, tuple([Tick(0.0, "0"), *ticks] if zero else ticks), log=True, zero=zero)


def _mantissa(value: float) -> int:
    return round(value / 10 ** math.floor(math.log10(value) + 1e-9))


def _range(values: Iterable[float]) -> Span:
    known = [value for value in values if math.isfinite(value)]
    return (min(known), max(known)) if known else (0.0, 1.0)


def _nice(step: float) -> float:
    """The next of 1, 2, 2.5, 5, 10 times a power of ten."""
    power = 10.0 ** math.floor(math.log10(step))
    return next(m * power for m in (1, 2, 2.5, 5, 10) if m * power >= step * (1 - 1e-9))


class Label(NamedTuple):
    """A text on a chart: where its anchor lies, and whether it starts, ends or is centred there."""

    text: str
    x: float
    y: float
    anchor: str
    style: str


Box = tuple[float, float, float, float]
DENSE = 12
"""Points of a line, above which its labels may cover them."""
WIDE, TALL = 7.0, 13.0
"""Pixels that a character is wide and a line high, in the charts' lettering."""


def placed_floors(chart: Chart, width: float, height: float) -> tuple[Label, ...]:
    """The names of the floors on their lines: at the right, or where they cover no point. width, height: as below."""
    points = [box for _, box in _points(chart, width, height)]
    labels: list[Label] = []
    for floor in chart.floors:
        y = (1 - chart.y.place(floor.y)) * height
        others = [*points, *(_box((one.x, one.y, one.anchor), one.text) for one in labels)]
        above, under = y - 5, y + 13
        places: tuple[tuple[float, float, str], ...] = (
            (width - 6, above, "end"), (6, above, "start"), (width / 2, above, "middle"), (width - 6, under, "end"),
        )  # fmt: skip
        at = next((place for place in places if not _hits(_box(place, floor.name), others)), places[0])
        labels.append(Label(floor.name, *at, floor.style))
    return tuple(labels)


def _points(chart: Chart, width: float, height: float) -> list[tuple[Series, Box]]:
    return [
        (series, (x - 4, y - 4, x + 4, y + 4))
        for series in chart.series
        if series.dots
        for mark in series.marks
        for x, y in [(chart.x.place(mark.x) * width, (1 - chart.y.place(mark.y)) * height)]
    ]


def placed_labels(chart: Chart, width: float, height: float) -> tuple[Label, ...]:
    """The points' labels where they cover no point, no floor's name and no other label; one without room is left out.

    width, height: of the plot in pixels, y downward. The plan's label comes first, then line by line.
    """
    points = _points(chart, width, height)
    placed = [_box((name.x, name.y, name.anchor), name.text) for name in placed_floors(chart, width, height)]
    labels = []
    for series in sorted(chart.series, key=lambda s: s.style != "plan"):
        # The points of its own line may be covered: a line of many points leaves no room beside it.
        dense = len(series.marks) > DENSE
        taken = [box for other, box in points if not (dense and other is series)]
        for mark in (m for m in series.marks if m.label):
            x, y = chart.x.place(mark.x) * width, (1 - chart.y.place(mark.y)) * height
            for at in _around(x, y, mark.label):
                box = _box(at, mark.label)
                inside = box[0] >= 0 and box[2] <= width and box[1] >= 0 and box[3] <= height
                if inside and not _hits(box, [*taken, *placed]):
                    placed.append(box)
                    labels.append(Label(mark.label, *at, series.style))
                    break
    return tuple(labels)


def _around(x: float, y: float, text: str) -> Sequence[tuple[float, float, str]]:
    return (
        (x + 8, y + 4, "start"),
        (x, y - 9, "middle"),
        (x, y + 17, "middle"),
        (x - 8, y + 4, "end"),
        (x + 8, y - 7, "start"),
        (x + 8, y + 15, "start"),
        (x - 8, y - 7, "end"),
        (x - 8, y + 15, "end"),
    )


def _box(at: tuple[float, float, str], text: str) -> Box:
    x, y, anchor = at
    wide = WIDE * len(text)
    left = {"start": x, "middle": x - wide / 2, "end": x - wide}[anchor]
    return left, y - TALL + 3, left + wide, y + 3


def _hits(box: Box, others: Iterable[Box]) -> bool:
    return any(box[0] < o[2] and o[0] < box[2] and box[1] < o[3] and o[1] < box[3] for o in others)
