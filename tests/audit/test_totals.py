"""Hits, misses, departures."""

from refkv_policy.audit import Decision, Totals


def counted(tools, run):
    """The totals of a run."""
    totals = Totals.none(tools.table)
    for call in run.calls:
        totals = totals.plus(call.branch, call.decisions)
    return totals


def test_totals_of_an_obedient_run_are_the_tables_cells(tools):
    """A run that obeys has as many hits as the counted rows have R and F, and as many misses as they have C and `.`."""
    totals = counted(tools, tools.obeying())
    cells = "".join(row.cond + row.uncond for row in tools.table.rows if row.rule is not None)
    assert totals.hits == cells.count("R") + cells.count("F") > 0
    assert totals.misses == cells.count("C") + cells.count(".") > 0
    assert totals.departures == {}
    assert totals.unserved == 0
    assert totals.by_site()["hint[2]"] == (8, 6)
    assert totals.by_branch()["cond"] == totals.by_branch()["uncond"] == (totals.hits / 2, totals.misses / 2)


def test_rows_without_a_rule_and_cells_not_reached_count_as_neither(tools):
    """`-` counts as neither hit nor miss; a computed site that no rule governs counts in `sites` only."""
    totals = Totals.none(tools.table).plus(
        "cond", [Decision("vace[1].text_kv", "-", "-"), Decision("main[0]", ".", ".")]
    )
    assert (totals.hits, totals.misses) == (0, 0)
    assert totals.to_dict()["sites"] == {"main[0]": {"cond": [0, 1]}}
    assert totals.hit_rate is None


def test_departures_are_counted_apart_by_reason(tools):
    """A departed cell is a miss, is counted by its reason and as a cell the table would have served."""
    run = tools.obeying()
    run.at(1).put("hint[2]", "C", "no_state")
    run.at(1).put("vace[2]", ".", "chain")
    before, after = counted(tools, tools.obeying()), counted(tools, run)
    assert after.departures == {"no_state": 1, "chain": 1}
    assert (after.hits, after.misses, after.unserved) == (before.hits - 1, before.misses + 1, 1)
