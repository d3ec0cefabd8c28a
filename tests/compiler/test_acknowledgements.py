"""Acknowledgements: needed, dated, in force."""

from __future__ import annotations

import datetime

import pytest

from refkv_policy.compiler import check_plan
from tests.plans import hints, plan_of

TODAY = datetime.date(2026, 11, 30)
RULE = hints("'hint[all]'", "interval: 2")


@pytest.mark.parametrize(
    ("entries", "expected"),
    [
        ("", ["RKV501"]),
        ("risk: lossy-hint-cache, by: a, date: 2026-11-30, reason: because of it", []),
        ("risk: lossy-hint-cashe, by: a, date: 2026-11-30, reason: because of it", ["RKV501", "RKV502"]),
        ("risk: lossy-hint-cache, by: a, date: 2026-12-01, reason: because of it", ["RKV504"]),
        ("risk: lossy-hint-cache, by: a, date: 2026-01-01, expires: 2026-11-29, reason: because of it", ["RKV503"]),
        ("risk: lossy-hint-cache, by: a, date: 2026-01-01, expires: 2026-11-30, reason: because of it", []),
        ("risk: lossy-hint-cache, by: a, date: 2026-10-01, expires: 2026-09-01, reason: because of it", ["RKV505"]),
    ],
)
def test_a_risk_needs_an_acknowledgement_in_force(entries: str, expected: list[str]) -> None:
    """Missing, misnamed, future, expired and self-contradicting ones are told; the last day still counts."""
    rest = f"acknowledgements:\n  - {{{entries}}}\n" if entries else ""
    assert [d.code for d in check_plan(plan_of(RULE, rest=rest), TODAY)] == expected
