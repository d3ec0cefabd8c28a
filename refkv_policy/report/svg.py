"""Plots as SVG for the page: they take its colours, need no script and no other file, and print.

A plotting library would add megabytes and styles that a strict content security policy forbids.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence

from markupsafe import Markup, escape

from refkv_policy.report.charts import STYLES, Chart, HeatMap, Mark, Series, placed_floors, placed_labels
from refkv_policy.report.words import visible

WIDTH, HEIGHT, LOW = 860.0, 400.0, 270.0
LEFT, RIGHT, TOP, BOTTOM = 74.0, 18.0, 14.0, 52.0
LABELS, ROW = 232.0, 22.0


def chart_svg(chart: Chart) -> Markup:
    """The plot; its points carry their title for who points at them. Its figures belong in a table beside it."""
    height = LOW if chart.low else HEIGHT
    return _svg(chart.title, chart.about, WIDTH, height, _chart_parts(chart, height))


def _chart_parts(chart: Chart, height: float) -> Iterator[Markup]:
    wide, tall = WIDTH - LEFT - RIGHT, height - TOP - BOTTOM

    def x(value: float) -> float:
        return LEFT + chart.x.place(value) * wide

    def y(value: float) -> float:
        return TOP + (1 - chart.y.place(value)) * tall

    for floor in chart.floors:
        if floor.below:
            yield Markup('<rect class="below" x="{}" y="{}" width="{}" height="{}"/>').format(
                _n(LEFT), _n(y(floor.y)), _n(wide), _n(TOP + tall - y(floor.y))
            )
    for tick in chart.y.ticks:
        yield _line("grid", LEFT, y(tick.at), LEFT + wide, y(tick.at))
        yield _text("tick", LEFT - 8, y(tick.at) + 4, "end", tick.text)
    for tick in chart.x.ticks:
        yield _line("grid", x(tick.at), TOP, x(tick.at), TOP + tall)
        yield _text("tick", x(tick.at), TOP + tall + 18, "middle", tick.text)
    yield _text("axis", LEFT + wide / 2, height - 8, "middle", chart.x.title)
    yield Markup('<text class="axis" text-anchor="middle" transform="translate(14 {}) rotate(-90)">{}</text>').format(
        _n(TOP + tall / 2), visible(chart.y.title)
    )
    for floor in chart.floors:
        yield _line(f"floor s-{floor.style}", LEFT, y(floor.y), LEFT + wide, y(floor.y))
    for name in placed_floors(chart, wide, tall):
        yield _text(f"name s-{name.style}", LEFT + name.x, TOP + name.y, name.anchor, name.text)
    for series in chart.series:
        places = [(x(m.x), y(m.y)) for m in series.marks]
        yield from _series_parts(series, places, x, y)
    for label in placed_labels(chart, wide, tall):
        yield _text(f"label s-{label.style}", LEFT + label.x, TOP + label.y, label.anchor, label.text)


Place = Callable[[float], float]


def _series_parts(series: Series, places: Sequence[tuple[float, float]], x: Place, y: Place) -> Iterator[Markup]:
    kind = f"s-{series.style}"
    if series.band:
        spans = [m.ys or (m.y, m.y) for m in series.marks]
        ends = [*((at, y(s[1])) for (at, _), s in zip(places, spans, strict=True))]
        ends += reversed([(at, y(s[0])) for (at, _), s in zip(places, spans, strict=True)])
        yield Markup('<polygon class="band {}" points="{}"/>').format(
            kind, " ".join(f"{_n(a)},{_n(b)}" for a, b in ends)
        )
    if series.line and len(places) > 1:
        path = _stairs(places) if series.stairs else places
        dashed = " dashed" if STYLES[series.style].dashed else ""
        points = " ".join(f"{_n(a)},{_n(b)}" for a, b in path)
        yield Markup('<polyline class="line {}{}" points="{}"/>').format(kind, dashed, points)
    for mark, (at, height) in zip(series.marks, places, strict=True):
        if mark.xs is not None and not series.band:
            yield _line(f"error {kind}", x(mark.xs[0]), height, x(mark.xs[1]), height)
        if mark.ys is not None and not series.band:
            yield _line(f"error {kind}", at, y(mark.ys[0]), at, y(mark.ys[1]))
    if series.dots:
        for mark, place in zip(series.marks, places, strict=True):
            yield _dot(kind, STYLES[series.style].shape, place, mark)


def _stairs(places: Sequence[tuple[float, float]]) -> Iterator[tuple[float, float]]:
    for index, (at, height) in enumerate(places):
        if index:
            yield at, places[index - 1][1]
        yield at, height


def _dot(kind: str, shape: str, place: tuple[float, float], mark: Mark) -> Markup:
    return Markup('<path class="dot {}" d="{}"><title>{}</title></path>').format(
        kind, shape_path(shape, *place), visible(mark.title)
    )


def shape_path(shape: str, x: float, y: float) -> str:
    """The outline of a point's shape around a place, for a path's `d`."""
    r = {"diamond": 7.5, "cross": 5.0, "triangle": 6.0, "down": 6.0, "square": 4.5, "small": 2.6}.get(shape, 4.5)
    if shape == "diamond":
        return f"M{_n(x)} {_n(y - r)}l{_n(r)} {_n(r)} {_n(-r)} {_n(r)} {_n(-r)} {_n(-r)}z"
    if shape == "square":
        return f"M{_n(x - r)} {_n(y - r)}h{_n(2 * r)}v{_n(2 * r)}h{_n(-2 * r)}z"
    if shape == "triangle":
        return f"M{_n(x)} {_n(y - r)}l{_n(r)} {_n(1.8 * r)}h{_n(-2 * r)}z"
    if shape == "down":
        return f"M{_n(x)} {_n(y + r)}l{_n(r)} {_n(-1.8 * r)}h{_n(-2 * r)}z"
    if shape == "cross":
        return f"M{_n(x - r)} {_n(y - r)}l{_n(2 * r)} {_n(2 * r)}m0 {_n(-2 * r)}l{_n(-2 * r)} {_n(2 * r)}"
    return f"M{_n(x - r)} {_n(y)}a{_n(r)} {_n(r)} 0 1 0 {_n(2 * r)} 0a{_n(r)} {_n(r)} 0 1 0 {_n(-2 * r)} 0z"


def key_svg(style: str) -> Markup:
    """The sign of a kind of points, for the legend."""
    look = STYLES[style]
    dashed = " dashed" if look.dashed else ""
    line = Markup('<line class="line s-{}{}" x1="0" y1="8" x2="26" y2="8"/>').format(style, dashed)
    dot = (
        ""
        if look.shape == "none"
        else Markup('<path class="dot s-{}" d="{}"/>').format(style, shape_path(look.shape, 13, 8))
    )
    return Markup('<svg class="key" viewBox="0 0 26 16" width="26" height="16" aria-hidden="true">{}{}</svg>').format(
        line, dot
    )


def heat_svg(heat: HeatMap) -> Markup:
    """The heat map; each cell carries its title and its first frame."""
    height = TOP + ROW * len(heat.rows) + 26
    return _svg(heat.title, heat.about, WIDTH, height, _heat_parts(heat))


def _heat_parts(heat: HeatMap) -> Iterator[Markup]:
    wide = (WIDTH - LABELS - RIGHT) / max(len(heat.starts), 1)
    for index, row in enumerate(heat.rows):
        top = TOP + index * ROW
        yield _text("name", LABELS - 10, top + ROW / 2 + 4, "end", _shortened(row.label, 32))
        for column, (start, cell) in enumerate(zip(heat.starts, row.cells, strict=True)):
            if cell.level is None:
                continue
            yield Markup(
                '<rect class="{}{}" data-frame="{}" x="{}" y="{}" width="{}" height="{}"><title>{}</title></rect>'
            ).format(
                "g" if row.neutral else "h", cell.level, start, _n(LABELS + column * wide), _n(top), _n(wide - 1),
                _n(ROW - 2), visible(cell.title),
            )  # fmt: skip
    for column, start in enumerate(heat.starts):
        if column % max(1, -(-len(heat.starts) // 16)) == 0:
            middle = LABELS + (column + 0.5) * wide
            yield _text("tick", middle, TOP + ROW * len(heat.rows) + 14, "middle", str(start))
    yield _text("axis", LABELS - 10, TOP + ROW * len(heat.rows) + 14, "end", "frame")


def _shortened(text: str, most: int) -> str:
    return text if len(text) <= most else text[: most - 1] + "…"


def _svg(title: str, about: str, width: float, height: float, parts: Iterable[Markup]) -> Markup:
    return Markup('<svg class="chart" role="img" viewBox="0 0 {} {}" aria-label="{}">{}</svg>').format(
        _n(width), _n(height), visible(f"{title}. {about}"), Markup("").join(parts)
    )


def _line(kind: str, x1: float, y1: float, x2: float, y2: float) -> Markup:
    return Markup('<line class="{}" x1="{}" y1="{}" x2="{}" y2="{}"/>').format(kind, _n(x1), _n(y1), _n(x2), _n(y2))


def _text(kind: str, x: float, y: float, anchor: str, text: str) -> Markup:
    return Markup('<text class="{}" x="{}" y="{}" text-anchor="{}">{}</text>').format(
        kind, _n(x), _n(y), anchor, escape(visible(text))
    )


def _n(value: float) -> str:
    """A coordinate, to a tenth of a pixel."""
    return f"{value:.1f}".removesuffix(".0")
