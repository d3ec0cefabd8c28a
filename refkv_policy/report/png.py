"""Plots as PNG pictures, for pages that show no HTML: the same plots as the report's, drawn by matplotlib."""

from __future__ import annotations

import io
import warnings
from typing import TYPE_CHECKING, Any

from refkv_policy.report.charts import (
    GREY_LIGHT,
    HEAT_LIGHT,
    PAINTS,
    STYLES,
    Axis,
    Chart,
    HeatMap,
    placed_floors,
    placed_labels,
)
from refkv_policy.report.errors import ReportError
from refkv_policy.report.model import MapPlot, Plot
from refkv_policy.report.sitemap import seen
from refkv_policy.report.words import visible

if TYPE_CHECKING:
    from matplotlib.figure import Figure

DPI = 100
WIDTH, HEIGHT = 9.0, 4.8
LOOKS = {"text.parse_math": False, "font.size": 9, "axes.spines.top": False, "axes.spines.right": False}
CROWDED = 60
"""Steps above which the cells of a map hold no characters."""
MARKERS = {
    "diamond": "D",
    "circle": "o",
    "small": ".",
    "square": "s",
    "triangle": "^",
    "down": "v",
    "cross": "x",
    "none": "",
}


def png(plot: Plot) -> bytes:
    """The picture. Raises ReportError where matplotlib is missing."""
    try:
        from matplotlib import rc_context
        from matplotlib.figure import Figure
    except ModuleNotFoundError as error:
        raise ReportError(f"PNG plots need {error.name}: pip install 'refkv-policy[report]'") from error
    with warnings.catch_warnings(), rc_context(LOOKS):  # type: ignore[arg-type]
        warnings.filterwarnings("ignore", "Glyph", UserWarning)  # a name in a script that the font lacks: boxes
        height = _height(plot)
        figure = Figure(figsize=(WIDTH, height), dpi=DPI, layout="constrained")
        if isinstance(plot, Chart):
            _chart(figure, plot)
        elif isinstance(plot, HeatMap):
            _heat(figure, plot)
        else:
            _map(figure, plot)
        picture = io.BytesIO()
        figure.savefig(picture, format="png", metadata={"Software": "refkv report"})
    return picture.getvalue()


def _height(plot: Plot) -> float:
    if isinstance(plot, Chart):
        return HEIGHT * (2 / 3 if plot.low else 1)
    return 1.2 + (0.34 * len(plot.rows) if isinstance(plot, HeatMap) else 0.24 * len(plot.map.lines))


def _chart(figure: Figure, chart: Chart) -> None:
    from matplotlib.patheffects import withStroke

    axes = figure.add_subplot()
    axes.set_title(visible(chart.title), loc="left", fontweight="bold")
    for name, axis in (("x", chart.x), ("y", chart.y)):
        _axis(axes, name, axis)
    axes.grid(visible=True, color="#e3e6e8", linewidth=0.8)
    axes.set_axisbelow(True)
    for floor in chart.floors:
        y = chart.y.place(floor.y)
        colour = STYLES[floor.style].light
        if floor.below:
            axes.axhspan(0, y, color="#f2b35e", alpha=0.13, linewidth=0)
        axes.axhline(y, color=colour, linewidth=1.3, linestyle=(0, (4, 3)))
    for series in chart.series:
        look = STYLES[series.style]
        xs, ys = [chart.x.place(m.x) for m in series.marks], [chart.y.place(m.y) for m in series.marks]
        for mark, x, y in zip(series.marks, xs, ys, strict=True):
            if mark.xs is not None and not series.band:
                axes.plot([chart.x.place(v) for v in mark.xs], [y, y], color=look.light, linewidth=1)
            if mark.ys is not None and not series.band:
                axes.plot([x, x], [chart.y.place(v) for v in mark.ys], color=look.light, linewidth=1)
        if series.band:
            spans = [m.ys or (m.y, m.y) for m in series.marks]
            low, high = ([chart.y.place(s[end]) for s in spans] for end in (0, 1))
            axes.fill_between(xs, low, high, color=look.light, alpha=0.15, linewidth=0)
        axes.plot(
            xs, ys, clip_on=False, color=look.light, marker=MARKERS[look.shape] if series.dots else "", markersize=6,
            linestyle=("--" if look.dashed else "-") if series.line else "", linewidth=1.5,
            drawstyle="steps-post" if series.stairs else "default", label=visible(series.name),
        )  # fmt: skip
    halo = [withStroke(linewidth=2.5, foreground="white")]
    # The picture's axes are nearly this many pixels; the labels were placed on the page in the same way.
    wide, tall = 0.9 * WIDTH * DPI, 0.78 * _height(chart) * DPI
    for label in (*placed_floors(chart, wide, tall), *placed_labels(chart, wide, tall)):
        axes.text(
            label.x / wide, 1 - label.y / tall, visible(label.text), color=STYLES[label.style].light, fontsize=8,
            ha={"start": "left", "middle": "center", "end": "right"}[label.anchor], transform=axes.transAxes,
            path_effects=halo,
        )  # fmt: skip
    if len(chart.series) > 1:
        figure.legend(loc="outside lower center", ncols=min(len(chart.series), 5), frameon=False, fontsize=8)


def _axis(axes: Any, name: str, axis: Axis) -> None:
    """Both axes run from 0 to 1, with the ticks where the page has them."""
    getattr(axes, f"set_{name}lim")(0, 1)
    getattr(axes, f"set_{name}ticks")([axis.place(t.at) for t in axis.ticks], [t.text for t in axis.ticks])
    getattr(axes, f"set_{name}label")(visible(axis.title))


def _heat(figure: Figure, heat: HeatMap) -> None:
    axes = figure.add_subplot()
    axes.set_title(visible(heat.title), loc="left", fontweight="bold")
    for index, row in enumerate(heat.rows):
        palette = GREY_LIGHT if row.neutral else HEAT_LIGHT
        known = [(column, cell.level) for column, cell in enumerate(row.cells) if cell.level is not None]
        axes.broken_barh(
            [(column, 0.94) for column, _ in known], (index - 0.45, 0.9), color=[palette[at] for _, at in known]
        )
    axes.set_xlim(0, len(heat.starts))
    axes.set_ylim(len(heat.rows) - 0.5, -0.5)
    axes.set_yticks(
        range(len(heat.rows)), [f"{visible(row.label)}\n{visible(row.note)}" for row in heat.rows], fontsize=7
    )
    every = max(1, -(-len(heat.starts) // 16))
    places = range(0, len(heat.starts), every)
    axes.set_xticks([n + 0.47 for n in places], [str(heat.starts[n]) for n in places])
    axes.set_xlabel("frame (blue: within the solver floor; orange: beyond; grey: no floor)")


def _map(figure: Figure, plot: MapPlot) -> None:
    axes = figure.add_subplot()
    axes.set_title(visible(f"{plot.plan}, {plot.map.branches}: what was decided"), loc="left", fontweight="bold")
    for index, (_, squares) in enumerate(plot.map.lines):
        for step, square in enumerate(squares):
            paint = PAINTS.get(square.action)
            if paint is not None:
                axes.broken_barh([(step, 0.92)], (index - 0.44, 0.88), color=paint.light)
            if square.departed:
                axes.broken_barh(
                    [(step, 0.92)], (index - 0.44, 0.88), facecolor="none", edgecolor="#b3261e", linewidth=1.8
                )
            if len(plot.map.steps) <= CROWDED:
                ink = paint.light_ink if paint is not None else "#57606a"
                axes.text(step + 0.46, index, seen(square.action), ha="center", va="center", fontsize=7, color=ink)
    axes.set_xlim(0, len(plot.map.steps))
    axes.set_ylim(len(plot.map.lines) - 0.5, -0.5)
    axes.set_yticks(range(len(plot.map.lines)), [site for site, _ in plot.map.lines], fontsize=8, family="monospace")
    axes.set_xticks([step + 0.46 for step in plot.map.steps[::5]], [str(step) for step in plot.map.steps[::5]])
    legend = "  ".join(f"{seen(action)} {name}" for action, name, _ in plot.map.counts)
    framed = "  framed: departed" if plot.map.departed else ""
    axes.set_xlabel(f"step ({legend}{framed})", fontsize=8)
