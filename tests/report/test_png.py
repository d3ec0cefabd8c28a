"""PNG plots."""

from __future__ import annotations

import io
from dataclasses import replace
from pathlib import Path

import pytest

pytest.importorskip("matplotlib", reason="matplotlib is not installed")
Image = pytest.importorskip("PIL.Image", reason="Pillow is not installed")

from refkv_policy.report.frontier import frontier_view  # noqa: E402
from refkv_policy.report.heat import heat_map  # noqa: E402
from refkv_policy.report.inputs import EvidenceFile, Inputs, read_inputs  # noqa: E402
from refkv_policy.report.png import png  # noqa: E402
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
        with Image.open(path) as picture:
            assert (picture.format, picture.width) == ("PNG", 900)


def test_the_map_is_drawn_with_its_departures(tmp_path: Path) -> None:
    """Each branch's map is a picture, and a departure's red frame is in the one where it happened."""
    sample.write_log(tmp_path / "a.jsonl", sample.deep_table(), departing=True)
    plots = [p for p in plots_of(make_report(read_inputs([tmp_path / "a.jsonl"]))) if p.key.startswith("map")]
    assert [p.key for p in plots] == ["map-l0-0-0", "map-l0-0-1"]
    red = tuple(int("b3261e"[n : n + 2], 16) for n in (0, 2, 4))
    seen = [{c[:3] for _, c in Image.open(io.BytesIO(png(p))).getcolors(1 << 20)} for p in plots]
    assert [red in each for each in seen] == [False, True]


def test_pictures_hold_the_colours_of_what_they_show() -> None:
    """The plan's red, the re-spaced line's green and the heat beyond the floor are really drawn."""
    made = sample.scope()
    view, heat = frontier_view(made, "k"), heat_map(made, "k")
    assert view is not None
    assert heat is not None
    for plot, colours in ((view.charts[0], ("#b3261e", "#2e7d32")), (heat, ("#a83a16",))):
        seen = {c[:3] for _, c in Image.open(io.BytesIO(png(plot))).getcolors(1 << 20)}
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
    assert png(view.charts[0]).startswith(b"\x89PNG")
