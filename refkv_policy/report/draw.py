"""Plots drawn by matplotlib: as SVG for the page, as PNG for pages that show no HTML.

The same plot gives the same bytes: matplotlib's own defaults and font whatever the machine's settings, no date, and
element ids from a fixed salt. Text stays text in an SVG, which has no ground of its own.
"""

from __future__ import annotations

import io
import warnings
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Literal

from refkv_policy.report.charts import STYLES, Chart, Series
from refkv_policy.report.errors import ReportError
from refkv_policy.report.heat import GREY, HEAT, HeatMap
from refkv_policy.report.model import MapPlot, Plot
from refkv_policy.report.sitemap import PAINTS, seen
from refkv_policy.report.words import number, visible

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

WIDE, NARROW = 9.6, 4.6
"""Inches, of 96 pixels in a browser: for a page, and for a small screen."""
DPI = 100
LOOKS = {
    "text.parse_math": False, "font.size": 9, "axes.spines.top": False, "axes.spines.right": False,
    "font.sans-serif": ["DejaVu Sans", "Verdana"], "svg.hashsalt": "refkv", "svg.fonttype": "none",
}  # fmt: skip
METADATA = {"png": {"Software": "refkv report"}, "svg": {"Creator": "refkv report", "Date": None}}
CROWDED = 60
"""Steps above which the cells of a map hold no characters."""
NAMED = 10
"""Lines and floors of a chart, above which there is no legend."""
FLAT = 6
"""Ratio of ends below which a logarithmic axis has ticks at equal distances."""
AROUND = (
    ((8, 0), "left", "center"), ((0, 7), "center", "bottom"), ((0, -7), "center", "top"), ((-8, 0), "right", "center"),
    ((6, 6), "left", "bottom"), ((6, -6), "left", "top"), ((-6, 6), "right", "bottom"), ((-6, -6), "right", "top"),
)  # fmt: skip
"""Where a label may stand by its point: offset in points of type, and which of its edges lies there."""


def picture(plot: Plot, kind: Literal["png", "svg"] = "png", width: float = WIDE) -> bytes:
    """The picture. width: in inches. Raises ReportError where matplotlib is missing."""
    try:
        from matplotlib import style
        from matplotlib.figure import Figure
    except ModuleNotFoundError as error:
        raise ReportError(f"plots need {error.name}: pip install 'refkv-policy[report]'") from error
    with warnings.catch_warnings(), style.context(["default", LOOKS]):
        warnings.filterwarnings("ignore", "Glyph", UserWarning)  # a name in a script that the font lacks: boxes
        figure = Figure(figsize=(width, _height(plot, width)), dpi=DPI, layout="constrained")
        axes = figure.add_subplot()
        if kind == "png":  # the page has a heading of its own
            axes.set_title(visible(_title(plot)), loc="left", fontweight="bold")
        if isinstance(plot, Chart):
            _draw_chart(figure, axes, plot, width)
        elif isinstance(plot, HeatMap):
            _draw_heat(axes, plot)
        else:
            _draw_map(axes, plot)
        held = io.BytesIO()
        figure.savefig(held, format=kind, metadata=METADATA[kind], transparent=kind == "svg")
    return held.getvalue()


def _title(plot: Plot) -> str:
    return f"{plot.plan}, {plot.map.branches}: what was decided" if isinstance(plot, MapPlot) else plot.title


def _height(plot: Plot, width: float) -> float:
    if isinstance(plot, Chart):
        return (2.9 if plot.low else 4.2) + 0.2 * -(-_legend(plot) // _columns(plot, width))
    return 1.2 + (0.34 * len(plot.rows) if isinstance(plot, HeatMap) else 0.24 * len(plot.map.lines))


def _legend(chart: Chart) -> int:
    """Entries of the chart's legend; 0 where it has none."""
    entries = len(chart.series) + len(chart.floors)
    return entries if 1 < entries <= NAMED else 0


def _columns(chart: Chart, width: float) -> int:
    """Of the legend: a small picture has room for one long name beside the other, or for four short ones."""
    longest = max(map(len, [*(s.name for s in chart.series), *(f.name for f in chart.floors)]), default=0)
    return 4 if width >= WIDE or longest <= 8 else 1


def _draw_chart(figure: Figure, axes: Axes, chart: Chart, width: float) -> None:
    axes.grid(color="#e3e6e8", linewidth=0.8)
    axes.set_axisbelow(True)
    axes.set_xlabel(visible(chart.x), wrap=True)
    axes.set_ylabel(visible(chart.y))
    if chart.anchor is not None:
        axes.axhline(chart.anchor, color="#9aa0a6", linewidth=0.8)
    for series in chart.series:
        _draw_series(axes, series)
    _scale(axes, chart)
    for floor in chart.floors:
        colour, name = STYLES[floor.style].colour, visible(floor.name)
        axes.axhline(floor.y, color=colour, label=name, linewidth=1.3, linestyle=(0, (4, 3)))
        if floor.below:
            axes.axhspan(axes.get_ylim()[0], floor.y, color="#f2b35e", alpha=0.13, linewidth=0)
    if _legend(chart):
        figure.legend(loc="outside lower center", ncols=_columns(chart, width), frameon=False, fontsize=8.5)
    _write_labels(figure, axes, chart)


def _draw_series(axes: Axes, series: Series) -> None:
    look, marks = STYLES[series.style], series.marks
    xs, ys = [m.x for m in marks], [m.y for m in marks]
    if series.band:
        spans = [m.ys or (m.y, m.y) for m in marks]
        low, high = [s[0] for s in spans], [s[1] for s in spans]
        axes.fill_between(xs, low, high, color=look.colour, alpha=0.15, linewidth=0)
    else:
        axes.hlines([m.y for m in marks if m.xs], *_ends([m.xs for m in marks]), color=look.colour, linewidth=1)
        axes.vlines([m.x for m in marks if m.ys], *_ends([m.ys for m in marks]), color=look.colour, linewidth=1)
    axes.plot(
        xs, ys, color=look.colour, marker=look.marker if series.dots else "", markersize=6, linewidth=1.5,
        linestyle=("--" if look.dashed else "-") if series.line else "", clip_on=False,
        drawstyle="steps-post" if series.stairs else "default", label=visible(series.name),
    )  # fmt: skip


def _ends(spans: Sequence[tuple[float, float] | None]) -> tuple[list[float], list[float]]:
    return [s[0] for s in spans if s], [s[1] for s in spans if s]


def _scale(axes: Axes, chart: Chart) -> None:
    from matplotlib.ticker import FixedLocator, FuncFormatter, MaxNLocator, NullLocator

    values = [v for s in chart.series for m in s.marks for v in (m.y, *(m.ys or ()))] + [f.y for f in chart.floors]
    positive, zero = [v for v in values if v > 0], min(values, default=0.0) <= 0
    if chart.log and positive:
        low, high = min(positive), max(positive)
        if zero:  # it has a place of its own below the smallest error
            axes.set_yscale("symlog", linthresh=low, linscale=0.4)
        else:
            axes.set_yscale("log")
        ladder = [m * 10.0**e for e in range(-12, 13) for m in ((1, 2, 5) if high < 1000 * low else (1,))]
        ticks = ladder if high >= FLAT * low else [t for t in MaxNLocator(5).tick_values(low, high) if t > 0]
        axes.set_ylim(0 if zero else low / 1.25, high * 1.3)
        axes.yaxis.set_major_locator(FixedLocator([0.0] * zero + [t for t in ticks if t >= low / 1.25]))
        axes.yaxis.set_minor_locator(NullLocator())
    if chart.steps:
        axes.xaxis.set_major_locator(MaxNLocator(integer=True))
        first, last = axes.get_xlim()
        axes.set_xlim(right=last + 0.07 * (last - first) * any(m.label for s in chart.series for m in s.marks))
    axes.xaxis.set_major_formatter(FuncFormatter(lambda value, _: chart.say(value)))
    axes.yaxis.set_major_formatter(FuncFormatter(lambda value, _: number(float(f"{value:.9g}"))))


def _write_labels(figure: Figure, axes: Axes, chart: Chart) -> None:
    """Names of floors and labels of points where they cover no point and no other; one without room is left out."""
    from matplotlib.transforms import Bbox

    figure.draw_without_rendering()  # from here on the axes stay where they are
    figure.set_layout_engine("none")
    points = [axes.transData.transform((m.x, m.y)) for s in chart.series if s.dots for m in s.marks]
    taken = [Bbox.from_extents(x - 5, y - 5, x + 5, y + 5) for x, y in points]
    for floor in chart.floors:
        ends = ((0.995, "right"), (0.005, "left"), (0.5, "center"))
        places = [
            ((x, floor.y), (0, 3 * up), side, edge) for up, edge in ((1, "bottom"), (-1, "top")) for x, side in ends
        ]
        _write(axes, floor.name, floor.style, taken, places, axes.get_yaxis_transform())
    for series in sorted(chart.series, key=lambda s: s.style != "plan"):
        for mark in (m for m in series.marks if m.label):
            _write(axes, mark.label, series.style, taken, [((mark.x, mark.y), *around) for around in AROUND], "data")


def _write(axes: Axes, text: str, style: str, taken: list[Any], places: Sequence[tuple[Any, ...]], of: Any) -> None:
    """Write a text at the first of the places (point, offset, sides) where it has room. of: what the points are of."""
    for point, offset, side, edge in places:
        written = axes.annotate(
            visible(text), point, offset, xycoords=of, textcoords="offset points", ha=side, va=edge,
            color=STYLES[style].colour, fontsize=8, annotation_clip=False,
            bbox={"facecolor": "white", "edgecolor": "none", "alpha": 0.8, "pad": 0.5},
        )  # fmt: skip
        box = written.get_window_extent()
        around = axes.bbox
        inside = around.x0 <= box.x0 and box.x1 <= around.x1 and around.y0 <= box.y0 and box.y1 <= around.y1
        if inside and not box.count_overlaps(taken):
            taken.append(box)
            return
        written.remove()


def _draw_heat(axes: Axes, heat: HeatMap) -> None:
    palettes = [GREY if row.neutral else HEAT for row in heat.rows]
    _draw_cells(
        axes,
        [
            [None if c.level is None else p[c.level] for c in row.cells]
            for p, row in zip(palettes, heat.rows, strict=True)
        ],
    )
    axes.set_yticks(
        range(len(heat.rows)), [f"{visible(row.label)}\n{visible(row.note)}" for row in heat.rows], fontsize=7
    )
    places = range(0, len(heat.starts), max(1, -(-len(heat.starts) // 16)))
    axes.set_xticks(places, [str(heat.starts[n]) for n in places])
    axes.set_xlabel("frame (blue: within the solver floor; orange: beyond; grey: no floor)")


def _draw_map(axes: Axes, plot: MapPlot) -> None:
    from matplotlib.patches import Rectangle

    lines = plot.map.lines
    _draw_cells(axes, [[PAINTS[s.action].light if s.action in PAINTS else None for s in row] for _, row in lines])
    for index, (_, squares) in enumerate(lines):
        for step, square in enumerate(squares):
            if square.departed:
                axes.add_patch(Rectangle((step - 0.46, index - 0.44), 0.92, 0.88, fill=False, ec="#b3261e", lw=1.8))
            if len(plot.map.steps) <= CROWDED:
                ink = PAINTS[square.action].light_ink if square.action in PAINTS else "#57606a"
                axes.text(step, index, seen(square.action), ha="center", va="center", fontsize=7, color=ink)
    axes.set_yticks(range(len(lines)), [site for site, _ in lines], fontsize=8, family="monospace")
    axes.set_xticks(plot.map.steps[::5])
    legend = "  ".join(f"{seen(action)} {name}" for action, name, _ in plot.map.counts)
    axes.set_xlabel(f"step ({legend}{'  framed: departed' if plot.map.departed else ''})", fontsize=8)


def _draw_cells(axes: Axes, colours: Sequence[Sequence[str | None]]) -> None:
    """Cells in their colours, the first row on top; None stays empty."""
    from matplotlib.colors import to_rgba_array

    grid = [to_rgba_array([colour or "none" for colour in row]) for row in colours]
    edges = [[n - 0.5 for n in range(length + 1)] for length in (len(colours[0]), len(colours))]
    axes.pcolormesh(*edges, grid, edgecolors="white", linewidth=1)
    axes.invert_yaxis()
