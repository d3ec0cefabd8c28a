"""The step × site map."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from refkv_policy.audit import RequestLog, expand, read_log, verify
from refkv_policy.compiler import HookTable
from refkv_policy.report.sitemap import ABSENT, LEFT_OUT, WIDEST, SiteMap, departures, planned_maps, run_maps
from tests.audit.conftest import TABLE
from tests.report import sample


@pytest.fixture(scope="module")
def table() -> HookTable:
    """Thirty steps, text and deep hints."""
    return sample.deep_table()


def _log(path: Path, table: HookTable, **how: bool) -> tuple[RequestLog, ...]:
    sample.write_log(path / "log.jsonl", table, **how)
    assert verify(path / "log.jsonl").outcome == "ok"
    return read_log(path / "log.jsonl").requests


def _unfolded(site_map: SiteMap) -> dict[str, str]:
    """The actions of each site, a string as the table holds them."""
    return {
        d.site: "".join(s.action for s in squares)
        for name, squares in site_map.lines
        for d in expand([{"site": name, "action": "."}])
    }


def test_a_run_that_obeys_shows_its_table(tmp_path: Path, table: HookTable) -> None:
    """Unfolded, the map of a lawful run is the table, cell by cell, one map for both branches."""
    (request,) = _log(tmp_path, table)
    (both,) = run_maps(request)
    assert both.branches == "cond and uncond"
    assert _unfolded(both) == {row.site: row.cond for row in table.rows}
    assert both.departed == 0
    assert both.lines == planned_maps(table)[0].lines or both.counts == planned_maps(table)[0].counts


def test_departures_are_framed_counted_and_listed(tmp_path: Path, table: HookTable) -> None:
    """A dropped cache shows at its cells, in one branch's map only, and in the list with reason, sites and steps."""
    (request,) = _log(tmp_path, table, departing=True)
    cond, uncond = run_maps(request)
    assert (cond.departed, uncond.departed) == (0, 12)
    listed, more = departures(request)
    assert [(d.reason, d.planned, d.done, d.sites, d.steps, d.branch, d.cells) for d in listed] == [
        ("chain", "not reached", "computed", "vace[3-5]", "10-11", "uncond", "6"),
        ("budget", "forecast", "computed", "hint[3-5]", "10", "uncond", "3"),
        ("no_state", "forecast", "computed", "hint[3-5]", "11", "uncond", "3"),
    ]
    assert more == 0
    framed = {name for name, squares in uncond.lines if any("gone" in s.style for s in squares)}
    assert framed == {"vace[3-5]", "hint[3-5]"}


def test_steps_left_out_and_steps_that_did_not_run_differ(tmp_path: Path) -> None:
    """A step that the sampler leaves out is hatched; one that a cut log lacks is blank."""
    (request,) = _log(tmp_path, TABLE)
    short = replace(request, steps=request.steps[:-2])
    (both,) = run_maps(short)
    assert {actions[3] for actions in _unfolded(both).values()} == {LEFT_OUT}
    assert {actions[7] for actions in _unfolded(both).values()} == {ABSENT}
    assert {actions[3] for actions in _unfolded(planned_maps(TABLE)[0]).values()} == {LEFT_OUT}


def test_words_of_a_cell_tell_age_and_reason(tmp_path: Path) -> None:
    """What is pointed at is told whole: what was done, how old its value is, why it departed."""
    (request,) = _log(tmp_path, TABLE, departing=False)
    cells = dict(run_maps(request)[0].lines)
    assert cells["hint[1]"][1].words == "reused, 1 step old"
    assert cells["hint[1]"][2].words == "reused, 2 steps old"
    assert cells["hint[1]"][0].words == "computed and kept"


def test_very_many_steps_are_cut(table: HookTable) -> None:
    """A table of ten thousand steps draws the first and says how many are missing."""
    many = 10_000
    rows = tuple(replace(row, cond="." * many, uncond="." * many) for row in table.rows[:2])
    long = replace(table, steps=many, evaluated=tuple(range(many)), sigmas=(0.5,) * many, rows=rows)
    (both,) = planned_maps(long)
    assert (len(both.steps), both.cut) == (WIDEST, many - WIDEST)
