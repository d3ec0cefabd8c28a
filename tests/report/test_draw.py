"""Plots as pictures."""

from __future__ import annotations

import io
import re
import xml.etree.ElementTree as ElementTree
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("matplotlib", reason="matplotlib is not installed")
Image = pytest.importorskip("PIL.Image", reason="Pillow is not installed")

from refkv_policy.report.charts import STYLES, Chart, Floor, Mark, Series  # noqa: E402
from refkv_policy.report.draw import AROUND, NARROW, picture  # noqa: E402
from refkv_policy.report.frontier import frontier_view  # noqa: E402
from refkv_policy.report.heat import heat_map  # noqa: E402
from refkv_policy.report.inputs import EvidenceFile, Inputs, read_inputs  # noqa: E402
from refkv_policy.report.write import make_report, plots_of, write_plots  # noqa: E402
from tests.report import sample  # noqa: E402


def test_every_plot_becomes_a_picture_of_its_name(tmp_path: Path) -> None:
    """One PNG a plot, named by what it shows and of which scope."""
    report = make_report(Inputs(evidence=[EvidenceFile("e.json", "sha256:0", sample.evidence())]))
    written = write_plots(report, tmp_path / "plots")
    names = [p.name for p in written]
    scope = "test-wan2.1-vace-mini-12-g5"
    assert names == [f"frontier-{scope}.png", f"solver-{scope}.png", f"heat-{scope}.png"]
    assert len(names) == len(plots_of(report))
    for path in written:
        with Image.open(path) as shown:
            assert (shown.format, shown.width) == ("PNG", 960)


def test_the_map_is_drawn_with_its_departures(tmp_path: Path) -> None:
    """Each branch's map is a picture, and a departure's red frame is in the one where it happened."""
    sample.write_log(tmp_path / "a.jsonl", sample.deep_table(), departing=True)
    plots = [p for p in plots_of(make_report(read_inputs([tmp_path / "a.jsonl"]))) if p.key.startswith("map")]
    assert [p.key for p in plots] == ["map-l0-0-0", "map-l0-0-1"]
    red = tuple(int("b3261e"[n : n + 2], 16) for n in (0, 2, 4))
    seen = [{c[:3] for _, c in Image.open(io.BytesIO(picture(p))).getcolors(1 << 20)} for p in plots]
    assert [red in each for each in seen] == [False, True]


def test_pictures_hold_the_colours_of_what_they_show() -> None:
    """The plan's red, the re-spaced line's green and the heat beyond the floor are really drawn."""
    made = sample.scope()
    view, heat = frontier_view(made, "k"), heat_map(made, "k")
    assert view is not None
    assert heat is not None
    for plot, colours in ((view.charts[0], ("#b3261e", "#2e7d32")), (heat, ("#a83a16",))):
        seen = {c[:3] for _, c in Image.open(io.BytesIO(picture(plot))).getcolors(1 << 20)}
        for colour in colours:
            assert tuple(int(colour[n : n + 2], 16) for n in (1, 3, 5)) in seen


def test_hostile_names_are_no_formulas() -> None:
    """A name that looks like TeX, or like nothing a font holds, is drawn as text."""
    names = ["$\\frac{$", "a_b^c", "\u202e$x$", "</script>", "画像"]
    points = tuple(replace(p, name=names[n]) for n, p in enumerate(sample.points()[:5]))
    made = sample.scope()
    assert made.levels.frontier is not None
    changed = replace(made, levels=replace(made.levels, frontier=replace(made.levels.frontier, points=points)))
    view = frontier_view(changed, "k")
    assert view is not None
    assert picture(view.charts[0]).startswith(b"\x89PNG")


def _chart(marks: list[tuple[float, float, str]], *floors: Floor, **changes: Any) -> Chart:
    series = (Series("s", "fewer_steps", tuple(Mark(x, y, text) for x, y, text in marks)),)
    return replace(Chart("key", "Title", "about", "x", "y", series, floors), **changes)


def _svg(chart: Chart, width: float = 9.6) -> ElementTree.Element:
    return ElementTree.fromstring(picture(chart, "svg", width))


def _texts(drawn: ElementTree.Element) -> list[str]:
    return [e.text or "" for e in drawn.iter("{http://www.w3.org/2000/svg}text")]


def test_an_svg_is_the_same_bytes_each_time_and_asks_for_nothing() -> None:
    """Two processes' pictures would be equal: no date, no random id; no address but of the drawing's own parts."""
    view = frontier_view(sample.scope(), "k")
    assert view is not None
    first, second = (picture(view.charts[0], "svg") for _ in range(2))
    assert first == second
    assert b"<dc:date>" not in first
    assert set(re.findall(rb'(?:href|src)="([^"#])', first)) == set()
    assert b"<script" not in first


def test_a_picture_has_its_title_and_the_page_gives_its_own() -> None:
    """Ink in the strip above the axes of a PNG, more of it under a longer title; an SVG leaves the title to the page."""
    ink = []
    for title in ("Title", "A title of many words"):
        strip = Image.open(io.BytesIO(picture(_chart([(0.0, 1.0, ""), (1.0, 2.0, "")], title=title)))).convert("L")
        ink.append(sum(strip.crop((0, 0, strip.width, 16)).histogram()[:128]))
    assert 0 < ink[0] < ink[1]
    assert "Title" not in _texts(_svg(_chart([(0.0, 1.0, ""), (1.0, 2.0, "")])))


def test_a_users_matplotlib_settings_change_nothing() -> None:
    """Fonts, sizes and colours of a matplotlibrc do not reach the picture, and ours do not reach other figures."""
    import matplotlib as mpl

    chart = _chart([(0.0, 1.0, "a"), (1.0, 2.0, "b")])
    plain = picture(chart, "svg")
    with mpl.rc_context({"font.size": 30, "axes.facecolor": "red", "svg.fonttype": "path", "font.family": "serif"}):
        assert picture(chart, "svg") == plain
        assert mpl.rcParams["font.size"] == 30


def test_text_stays_text_and_every_point_is_drawn() -> None:
    """Names with markup come through XML as they are; each point has its sign, each axis its title."""
    drawn = _svg(_chart([(0.0, 1.0, "<a>"), (1.0, 2.0, '"&'), (2.0, 1.5, "")]))
    assert {"<a>", '"&', "x", "y"} <= set(_texts(drawn))
    assert len(list(drawn.iter("{http://www.w3.org/2000/svg}use"))) >= 3


@pytest.mark.parametrize("width", [9.6, NARROW])
@pytest.mark.parametrize(
    ("values", "ticks"),
    [
        ([0.0, 0.0003, 0.004], {"0", "0.001"}),
        ([0.0012, 0.0013, 0.0021], {"0.0012", "0.002"}),
        ([0.00001, 0.5], {"0.001", "0.1"}),
        ([30.0, 52.0], {"40"}),
        ([0.0, 0.0], {"0"}),
        ([0.004], {"0.004"}),
    ],
)
def test_errors_have_readable_ticks(values: list[float], ticks: set[str], width: float) -> None:
    """Over decades or within one, with zeros or alone, ticks are plain numbers, at least two where there is a range."""
    texts = _texts(_svg(_chart([(n, v, "") for n, v in enumerate(values)], log=True), width))
    assert ticks <= set(texts), texts
    assert not [t for t in texts if "$" in t]


def test_whole_steps_have_whole_ticks() -> None:
    """Steps are counted, so their ticks have no fractions."""
    texts = _texts(_svg(_chart([(n, 5.0, "") for n in range(4)], steps=True)))
    assert {"0", "1", "2", "3"} <= set(texts)
    assert not [t for t in texts if re.fullmatch(r"[0-3]\.\d+", t)]


def test_labels_cover_no_point_and_no_other_label() -> None:
    """Where points crowd, labels that find no room are left out, the plan's last; where there is room all stand."""
    crowd = [(n / 500, 1.0 + n / 500, f"a long name {n}") for n in range(30)]
    plan = Series("the plan", "plan", (Mark(0.03, 1.03, "plan test"),))
    chart = _chart(crowd)
    told = [t for t in _texts(_svg(replace(chart, series=(*chart.series, plan)))) if "name" in t or t == "plan test"]
    assert "plan test" in told
    assert len(told) < 31
    roomy = _texts(_svg(_chart([(0.0, 1.0, "a"), (1.0, 3.0, "b"), (2.0, 2.0, "c")])))
    assert {"a", "b", "c"} <= set(roomy)
    assert len(AROUND) == len(set(AROUND))


def test_floors_are_named_in_the_legend_even_without_room_on_their_line() -> None:
    """Three levels close together: each name is at least in the legend."""
    floors = [Floor(f"floor {n}", 1.0 + n / 1000, "solver") for n in range(3)]
    texts = _texts(_svg(_chart([(0.0, 0.0, ""), (1.0, 2.0, "")], *floors), NARROW))
    assert {f.name for f in floors} <= set(texts)


def test_every_kind_differs_in_more_than_colour() -> None:
    """Of the runs of a frontier, no two share both marker and dash."""
    kinds = ["plan", "variant", "fewer_steps", "respaced_steps", "respaced_steps_2", "uncached"]
    assert len({(STYLES[k].marker, STYLES[k].dashed) for k in kinds}) == len(kinds)


def _luminance(channels: list[float]) -> float:
    linear = [c / 12.92 if c <= 0.04045 else ((c + 0.055) / 1.055) ** 2.4 for c in channels]
    return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]


def _contrast(one: list[float], other: list[float]) -> float:
    high, low = sorted((_luminance(one), _luminance(other)), reverse=True)
    return (high + 0.05) / (low + 0.05)


def _turned(channels: list[float]) -> list[float]:
    """What `invert(1) hue-rotate(180deg)` of Filter Effects makes of a colour (its matrix for hueRotate at 180°)."""
    r, g, b = (1 - c for c in channels)
    rows = ((-0.574, 1.43, 0.144), (0.426, 0.43, 0.144), (0.426, 1.43, -0.856))
    return [min(max(x * r + y * g + z * b, 0.0), 1.0) for x, y, z in rows]


@pytest.mark.parametrize("kind", [k for k in STYLES if k != "frontier"])
def test_colours_stand_out_on_both_grounds(kind: str) -> None:
    """At least 4.5 : 1 (WCAG 2.2, 1.4.3) on light and, lightness turned, on dark, since labels are written in them."""
    colour = [int(STYLES[kind].colour[n : n + 2], 16) / 255 for n in (1, 3, 5)]
    assert _contrast(colour, [1.0, 1.0, 1.0]) >= 4.5
    assert _contrast(_turned(colour), [0x19 / 255, 0x1C / 255, 0x1F / 255]) >= 4.5
