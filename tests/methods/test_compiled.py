"""Methods that find their refreshes themselves, in a compiled plan."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from refkv_policy.compiler import HookTable, compile_plan
from tests.plans import plan_of

ACKNOWLEDGED = (
    "acknowledgements:\n  - {risk: lossy-main-cache, by: tests, date: 2026-01-01, reason: needed by a test}\n"
)
RATIOS = json.loads((Path(__file__).parent / "data/magcache_vace_1.3b.json").read_text("utf-8"))["cond"]

RULES = {
    "magcache": f"at: main, params: {{delta: 0.02, k: 3, ratios: {RATIOS}}}",
    "teacache": f"at: main, params: {{delta: 0.2, polynomial: [1.0, 0.0], signals: {[0.06] * 50}}}",
    "dbcache": "at: 'main[2..29]', params: {delta: 0.1, k: 3}",
    "firstblock": "at: 'main[1..29]', params: {delta: 0.1}",
}


def compiled(name: str, more: str = "") -> HookTable:
    """The table of one rule on the 1.3B at 50 steps."""
    rule = f"  - {{name: r, tier: S, method: {name}, {RULES[name]}{more}}}\n"
    plan = plan_of(rule, models="[wan2.1-vace-1.3b]", steps="[50]", rest=ACKNOWLEDGED)
    return compile_plan(plan, "wan2.1-vace-1.3b", 50)


def test_magcache_is_locked_at_the_published_count() -> None:
    """29 of 50 main stacks are computed in each branch, and every decision stands in the table."""
    table = compiled("magcache")
    (row,) = table.governed(0)
    for branch in ("cond", "uncond"):
        assert sum(action in "C." for action in row.actions(branch)) == 29
        assert row.actions(branch).count("R") == 21
    assert not table.online


@pytest.mark.parametrize("name", sorted(RULES))
@pytest.mark.parametrize(("window", "within"), [("20..44", range(20, 45)), ("all,!last 10", range(40))])
def test_outside_its_window_such_a_rule_computes(name: str, window: str, within: range) -> None:
    """No cell is served, or left open, outside the window; some are inside."""
    (row,) = compiled(name, f", window: '{window}'").governed(0)
    for branch in ("cond", "uncond"):
        acting = {step for step, action in enumerate(row.actions(branch)) if action in "R?"}
        assert acting
        assert acting <= set(within)
        assert {s for s, action in enumerate(compiled(name).governed(0)[0].actions(branch)) if action in "R?"} - set(
            within
        )
