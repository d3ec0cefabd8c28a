"""The gate: which items a plan is judged on, and how a verdict follows from what was measured.

Verdicts are never stored truths: they are worked out here, when evidence is written and again when it is read.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Literal

Verdict = Literal["green", "red", "not_measured"]
Outcome = Literal["green", "red", "incomplete"]
Sense = Literal["at_most", "at_least"]


@dataclass(frozen=True, slots=True)
class Interval:
    """An interval of confidence `level` (0.95), and by which method it was made."""

    low: float
    high: float
    level: float
    method: Literal["bootstrap", "wilson"]


@dataclass(frozen=True, slots=True)
class Requirement:
    """An item of the gate: what is measured, and the threshold it must keep. None: the plan's own (its budget)."""

    name: str
    title: str
    must_be: Sense
    threshold: float | None


GATE_ITEMS = (
    Requirement("mean_drop", "mean drop of DINOv2 feature similarity", "at_most", 0.08),
    Requirement("worst_frame_drop", "largest drop of DINOv2 feature similarity of a single frame", "at_most", 0.15),
    Requirement("speedup", "share of the denoising latency saved", "at_least", 0.10),
    Requirement("pareto", "variants that are both faster and nearer to the uncached run", "at_most", 0.0),
    Requirement(
        "second_half_decay", "points of similarity lost a second in the second half of long clips", "at_most", 0.5
    ),
    Requirement("subjective", "share of answers that see no noticeable degradation", "at_least", 0.90),
    Requirement("fewer_steps", "error beyond that of fewer steps at equal latency", "at_most", 0.0),
    Requirement("respaced_steps", "error beyond that of re-spaced fewer steps at equal latency", "at_most", 0.0),
    Requirement("memory", "peak bytes of the cache", "at_most", None),
)
"""The first six with their thresholds are the RFC's (section 5.3 and, for the decay, section 7)."""

GATE: Mapping[str, Requirement] = MappingProxyType({item.name: item for item in GATE_ITEMS})
"""By name. An evidence document that leaves one out has not measured it."""


@dataclass(frozen=True, slots=True)
class Item:
    """One item as it was judged.

    judged_by: `value`, or `interval`: then its less favourable end must keep the threshold. equal_within: what counts
    as equal (the solver floor, say) and widens the threshold. metric: the name of the metric it was measured with, if
    any. why: the sentence for the reviewer, above all where nothing was measured.
    """

    name: str
    title: str
    must_be: Sense
    threshold: float
    judged_by: Literal["value", "interval"]
    equal_within: float
    measured: float | None
    interval: Interval | None
    metric: str | None
    why: str

    @property
    def verdict(self) -> Verdict:
        """Worked out by `judge`."""
        return judge(self)


def judge(item: Item) -> Verdict:
    """Red when the threshold is not kept; not measured without a value, or without the interval it is judged by."""
    if item.measured is None:
        return "not_measured"
    worst = item.measured
    if item.judged_by == "interval":
        if item.interval is None:
            return "not_measured"
        worst = item.interval.high if item.must_be == "at_most" else item.interval.low
    if item.must_be == "at_most":
        return "green" if worst <= item.threshold + item.equal_within else "red"
    return "green" if worst >= item.threshold - item.equal_within else "red"


def overall(verdicts: Iterable[Verdict | Outcome]) -> Outcome:
    """Red when anything is; green only when all are and there are any; incomplete otherwise."""
    found = set(verdicts)
    if "red" in found:
        return "red"
    return "green" if found == {"green"} else "incomplete"


def make_item(
    name: str,
    measured: float | None,
    interval: Interval | None = None,
    *,
    why: str,
    threshold: float | None = None,
    judged_by: Literal["value", "interval"] = "value",
    equal_within: float = 0.0,
    metric: str | None = None,
) -> Item:
    """An item of the gate, with its own threshold unless one is given (guardrails may).

    Raises KeyError for a name that is not the gate's, ValueError where neither it nor the caller states a threshold.
    """
    requirement = GATE[name]
    limit = requirement.threshold if threshold is None else threshold
    if limit is None:
        raise ValueError(f"the item {name} has no threshold of its own: state one")
    return Item(
        name, requirement.title, requirement.must_be, limit, judged_by, equal_within, measured, interval, metric, why
    )
