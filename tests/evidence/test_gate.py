"""Verdicts: worked out from what was measured, and never taken from the document."""

from __future__ import annotations

import re
from dataclasses import replace
from typing import Any

import pytest

from refkv_policy.evidence import GATE, Evidence, make_item, overall, parse_evidence
from tests.evidence import sample


@pytest.mark.parametrize(
    ("name", "measured", "verdict"),
    [
        ("mean_drop", 0.08, "green"),
        ("mean_drop", 0.0801, "red"),
        ("worst_frame_drop", 0.15, "green"),
        ("worst_frame_drop", 0.72, "red"),  # the RFC's own worst frame
        ("speedup", 0.10, "green"),
        ("speedup", 1 - 5.12 / 6.36, "green"),  # the RFC's P1: 6.36 s to 5.12 s
        ("speedup", 1 - 15.69 / 15.63, "red"),  # the RFC's P0: none
        ("pareto", 0, "green"),
        ("pareto", 1, "red"),
        ("second_half_decay", 0.5, "green"),
        ("second_half_decay", 0.51, "red"),
        ("subjective", 0.9, "green"),
        ("subjective", 0.899, "red"),
        ("fewer_steps", -0.001, "green"),
        ("respaced_steps", 0.001, "red"),
        ("mean_drop", None, "not_measured"),
    ],
)
def test_each_item_has_the_threshold_of_the_rfc(name: str, measured: float | None, verdict: str) -> None:
    """Section 5.3 and 7 of the RFC, at their edges."""
    assert make_item(name, measured, why="").verdict == verdict


@pytest.mark.parametrize(
    ("low", "high", "within", "verdict"),
    [
        (-0.2, -0.1, 0.0, "green"),
        (-0.2, 0.1, 0.0, "red"),
        (-0.2, 0.1, 0.1, "green"),
        (-0.2, 0.1, 0.09, "red"),
    ],
)
def test_an_item_may_be_judged_by_its_interval(low: float, high: float, within: float, verdict: str) -> None:
    """The less favourable end must keep the threshold, widened by what counts as equal."""
    item = make_item(
        "fewer_steps", -0.05, sample.interval(low, high), judged_by="interval", equal_within=within, why=""
    )
    assert item.verdict == verdict
    upward = make_item(
        "subjective", 0.95, sample.interval(0.9 + low, 0.9 - low), judged_by="interval", equal_within=within, why=""
    )
    assert upward.verdict == "red"  # its low end is what counts


def test_without_its_interval_an_item_is_not_measured() -> None:
    """One observation cannot be judged by an interval."""
    assert make_item("fewer_steps", -1.0, judged_by="interval", why="").verdict == "not_measured"


def test_guardrails_may_state_thresholds_and_memory_needs_one() -> None:
    """A threshold that is given takes the place of the gate's; the budget is the plan's alone."""
    assert make_item("mean_drop", 0.05, why="", threshold=0.04).verdict == "red"
    with pytest.raises(ValueError, match="memory"):
        make_item("memory", 1, why="")
    with pytest.raises(KeyError):
        make_item("speed_up", 1, why="")


@pytest.mark.parametrize(
    ("verdicts", "whole"),
    [
        (["green", "green"], "green"),
        (["green", "not_measured"], "incomplete"),
        (["green", "not_measured", "red"], "red"),
        (["red"], "red"),
        ([], "incomplete"),
        (["green", "incomplete"], "incomplete"),
    ],
)
def test_the_whole_is_green_only_when_all_is(verdicts: list[Any], whole: str) -> None:
    """One red is red; one thing unmeasured is incomplete; nothing at all proves nothing."""
    assert overall(verdicts) == whole


def test_an_item_that_is_left_out_is_not_measured() -> None:
    """A document cannot turn green by leaving out what is red."""
    assert sample.scope().verdict == "green"
    for name in GATE:
        short = sample.scope(gate=tuple(item for item in sample.items() if item.name != name))
        assert short.verdict == "incomplete"
        assert short.verdicts[name] == "not_measured"


def test_of_several_scopes_the_worst_counts() -> None:
    """The document's verdict is that of its scopes together."""
    green = sample.scope()
    red = replace(green, steps=4, gate=sample.items(speedup=0.0))
    part = replace(green, steps=8, gate=sample.items(subjective=None))
    assert Evidence("test", (green, part)).verdict == "incomplete"
    assert Evidence("test", (green, part, red)).verdict == "red"


def place(value: dict[str, Any]) -> dict[str, Any]:
    """The one scope of a document."""
    return value["scopes"][0]


CONTRADICTIONS = {
    "item": (lambda v: place(v)["gate"][2].update(measured=0.0), "the verdict says green"),
    "item not measured": (lambda v: place(v)["gate"][2].update(measured=None), "is not_measured"),
    "scope": (lambda v: place(v).update(verdict="red"), "the verdict says red, and what was measured is green"),
    "document": (lambda v: v.update(verdict="incomplete"), "the verdict says incomplete"),
    "left out": (lambda v: place(v)["gate"].pop(0), "what was measured is incomplete"),
    "side": (lambda v: place(v)["gate"][2].update(must_be="at_most"), "must be at_least its threshold"),
    "scope twice": (lambda v: v["scopes"].append(place(v)), "stands here a second time"),
    "item twice": (lambda v: place(v)["gate"].append(place(v)["gate"][0]), "the item mean_drop stands here"),
    "metric twice": (lambda v: place(v)["metrics"].append(place(v)["metrics"][0]), "the metric pixel_difference"),
    "sample twice": (
        lambda v: place(v)["metrics"][0]["samples"].append(place(v)["metrics"][0]["samples"][0]),
        "the sample of clip bunny with seed 0",
    ),
    "clip twice": (lambda v: place(v)["setting"]["clips"].append(place(v)["setting"]["clips"][0]), "the clip bunny"),
    "point twice": (
        lambda v: place(v)["levels"]["frontier"]["points"][1].update(name="k2"),
        "the point k2 stands here",
    ),
    "unknown clip": (lambda v: place(v)["metrics"][0]["samples"][0].update(clip="cat"), 'no clip "cat"'),
    "unknown seed": (lambda v: place(v)["metrics"][0]["samples"][0].update(seed=7), "names no seed 7"),
    "unknown metric": (lambda v: place(v)["levels"]["frontier"].update(metric="x"), 'no metric "x"'),
    "unknown metric of an item": (lambda v: place(v)["gate"][0].update(metric="x"), 'no metric "x"'),
    "interval": (
        lambda v: place(v)["levels"]["step_latency"]["speedup"]["interval"].update(low=2.0),
        "the interval's low end 2 is above its high end 1.27",
    ),
    "day": (lambda v: place(v).update(created="2026-02-30T00:00:00Z"), "not a time of the calendar"),
}


@pytest.mark.parametrize("name", CONTRADICTIONS)
def test_a_forged_document_that_contradicts_itself_is_refused(name: str) -> None:
    """Even with a digest worked out anew, what does not follow from the figures is told by its path."""
    change, words = CONTRADICTIONS[name]
    evidence, diagnostics = parse_evidence(sample.forged(sample.value(), change), "x.json")
    assert evidence is None
    assert {d.code for d in diagnostics} == {"RKV514"}
    assert any(words in d.message for d in diagnostics), diagnostics
    assert all(re.match(r"(scopes\[[01]\]\.\S+|scopes\[1\]|verdict): ", d.message) for d in diagnostics), diagnostics
    assert {d.file for d in diagnostics} == {"x.json"}


def test_no_item_is_judged_on_a_stand_in() -> None:
    """The stand-in's value may be reported as a metric, never as the gate's."""

    def change(value: dict[str, Any]) -> None:
        place(value)["metrics"][0]["stand_in"] = True
        place(value)["gate"][6]["metric"] = "pixel_difference"

    evidence, diagnostics = parse_evidence(sample.forged(sample.value(), change))
    assert evidence is None
    assert ["judged on pixel_difference, which is a stand-in" in d.message for d in diagnostics] == [True]


def test_a_stored_verdict_is_not_looked_at() -> None:
    """An edit of a verdict alone is an edit, and what is read from it is still what was measured."""
    import json

    value = sample.value()
    place(value)["verdict"] = value["verdict"] = "red"
    evidence, diagnostics = parse_evidence(json.dumps(value))
    assert [d.code for d in diagnostics] == ["RKV513"]
    assert evidence is not None
    assert evidence.verdict == "green"
