"""Rules among too few steps, and rules that outer reuse hides."""

from __future__ import annotations

from pathlib import Path

import pytest

from refkv_policy.compiler import check_plan
from refkv_policy.plan import Plan
from tests.plans import ACKNOWLEDGED, hints, plan_of

FEWER = "  - {name: fewer, tier: S, method: step_schedule, at: step, refresh: {spacing: sigma, count: 3}}\n"
TEXT = "  - {name: text, tier: P0, method: text_kv, at: 'main[all].text_kv'}\n"
SKIPPING = "acknowledgements:\n  - {risk: fewer-steps, by: tests, date: 2026-01-01, reason: needed by a test}\n"


def codes(plan: Plan) -> list[str]:
    """What the compiler says of a plan."""
    return [d.code for d in check_plan(plan)]


@pytest.mark.parametrize(("steps", "few"), [(4, True), (8, True), (9, False), (12, False)])
def test_up_to_eight_steps_are_few(steps: int, few: bool) -> None:
    """Skipping steps and lossy reuse are warned of there, lossless reuse is fine; from nine on nothing is said."""
    lossy = hints("'hint[all]'", "interval: 2")
    for caches, rest in ((FEWER, SKIPPING), (lossy, ACKNOWLEDGED)):
        assert codes(plan_of(caches, steps=f"[{steps}]", rest=rest)) == ["RKV316"] * few
    assert codes(plan_of(TEXT, steps=f"[{steps}]", rest="")) == []


def test_few_steps_are_told_with_how_far_they_are_apart() -> None:
    """The largest fall of sigma between neighbouring steps: of 1, 0.9, 0.75, 0.5 at four steps and shift 3 it is a quarter."""
    (found,) = check_plan(plan_of(hints("'hint[all]'", "interval: 2"), steps="[4]"))
    assert found.severity == "warning"
    assert "reuses values across steps, of which a run has only 4: sigma falls by up to 0.25" in found.message


@pytest.mark.parametrize(
    ("caches", "severity"), [(FEWER, "error"), (hints("'hint[all]'", "interval: 2"), "warning"), (TEXT, None)]
)
def test_a_few_step_model_is_one_at_every_step_count(caches: str, severity: str | None) -> None:
    """A profile that says so is believed: at twelve steps skipping is refused, lossy reuse warned of, lossless fine."""
    risks = SKIPPING if caches is FEWER else "" if caches is TEXT else ACKNOWLEDGED
    profile = Path(__file__).resolve().parents[1] / "cases" / "profiles" / "distilled.yaml"
    found = check_plan(plan_of(caches, models=f"[{profile}]", rest=risks))
    assert [d.severity for d in found] == ([severity] if severity else [])


def test_a_schedule_that_leaves_out_nothing_is_no_rule() -> None:
    """At one step count it thins the grid, at the other it is believed in and does nothing."""
    every = FEWER.replace("spacing: sigma, count: 3", "steps: '0-11'")
    (found,) = check_plan(plan_of(every, steps="[12, 20]", rest=SKIPPING))
    assert (found.code, "never leaves out a step (model wan2.1-vace-mini, 12 steps)" in found.message) == (
        "RKV304",
        True,
    )


ONCE = hints("'hint[deep]'", "steps: '0'")


@pytest.mark.parametrize(
    ("at", "hint_rule", "expected"),
    [
        ("vace[deep].text_kv", ONCE, ["RKV317"]),
        ("vace[all].text_kv", ONCE, ["RKV318"]),
        ("vace[shallow].text_kv", ONCE, []),
        ("vace[all].text_kv", hints("'hint[deep]'", "interval: 11"), []),
        ("vace[deep].text_kv", hints("'hint[deep]'", "steps: '0'", more=", branches: cond"), []),
    ],
)
def test_what_outer_reuse_hides_is_told(at: str, hint_rule: str, expected: list[str]) -> None:
    """Text K/V of a block that runs once is never reused: an error for the whole rule, a warning for some of its sites.

    A block that runs a second time, or on another branch, is not hidden.
    """
    text = f"  - {{name: text, tier: P0, method: text_kv, at: '{at}'}}\n"
    assert codes(plan_of(hint_rule + text)) == expected


@pytest.mark.parametrize(
    ("interval", "more", "expected"),
    [
        (12, "", []),
        (13, "", ["RKV319"]),
        (5, ", window: first 5", []),
        (6, ", window: first 5", ["RKV319"]),
        (6, ", window: last 5", []),
        (7, ", window: last 5", ["RKV319"]),
    ],
)
def test_an_interval_that_ends_after_the_run_is_told(interval: int, more: str, expected: list[str]) -> None:
    """Of twelve steps. The step before a window is fresh, so that its first step may reuse."""
    assert codes(plan_of(hints("'hint[deep]'", f"interval: {interval}", more=more))) == expected
