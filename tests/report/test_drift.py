"""Drift figures and their curves."""

from __future__ import annotations

from typing import Any

import pytest

from refkv_policy.report import ReportError
from refkv_policy.report.drift import drift_charts, drift_of
from tests.report import sample


def test_each_reference_and_measure_has_its_chart() -> None:
    """Three measures against three references in two branches; the distance from the first step comes first."""
    charts = drift_charts(drift_of(sample.drift_value(), "drift.json"), "d")
    assert len(charts) == 18
    assert [c.title for c in charts[:2]] == [
        "hint, cond: relative L2 distance from the first step",
        "hint, uncond: relative L2 distance from the first step",
    ]
    assert len({c.key for c in charts}) == 18


def test_curves_go_from_the_shallowest_to_the_deepest() -> None:
    """One curve a site, in the order of the blocks (not of their names), with the colours of their depth."""
    value = sample.drift_value(layers=12)
    chart = drift_charts(drift_of(value, "drift.json"), "d")[0]
    assert [s.name for s in chart.series] == [f"hint[{n}]" for n in range(12)]
    assert (chart.series[0].style, chart.series[-1].style) == ("depth0", "depth7")


def _broken(**changes: Any) -> dict[str, Any]:
    value = sample.drift_value(steps=4, layers=1)
    value["series"][0].update(changes)
    return value


@pytest.mark.parametrize(
    "value",
    [
        {**sample.drift_value(4, 1), "version": 2},
        {**sample.drift_value(4, 1), "series": {}},
        _broken(site="<script>"),
        _broken(against="yesterday"),
        _broken(mean=[1.0]),
        _broken(mean=[1.0, float("nan"), 2.0]),
        _broken(mean=[1.0, "2", 3.0]),
        _broken(mean=7),
        _broken(steps=None),
        {**sample.drift_value(4, 1), "series": [None]},
        {**sample.drift_value(4, 1), "series": [{}]},
    ],
)
def test_what_is_no_drift_is_refused_with_a_sentence(value: dict[str, Any]) -> None:
    """Another version, a missing key, a site that is none, values that are not one finite number a step."""
    with pytest.raises(ReportError, match=r"drift.json holds .* write it"):
        drift_of(value, "drift.json")
