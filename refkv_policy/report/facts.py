"""Speed, error and memory: the three figures by which a plan is judged, of one scope or from the least to the most of several."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from refkv_policy.evidence import MeasuredScope, Metric
from refkv_policy.report.words import NONE, Say, between, number, size, times


class Fact(NamedTuple):
    """A figure by its name, and a remark on it."""

    name: str
    value: str
    remark: str


def facts(entries: Sequence[MeasuredScope]) -> tuple[Fact, ...]:
    """The three figures of scopes, at least one; what was not measured says so."""
    return _speed(entries), _error(entries), _memory(entries)


def _speed(entries: Sequence[MeasuredScope]) -> Fact:
    timed = [entry.levels.step_latency.speedup for entry in entries if entry.levels.step_latency is not None]
    if len(timed) < len(entries):
        by_flops = [1 / (1 - entry.levels.counts.saved) for entry in entries]
        return Fact("Speed", _from_to(by_flops, times), "by FLOPs; time was not measured")
    scatter = between(timed[0].interval, times).strip(" ()") if len(timed) == 1 else ""
    return Fact("Speed", _from_to([f.value for f in timed], times), f"of a denoising step{scatter and ', ' + scatter}")


def _error(entries: Sequence[MeasuredScope]) -> Fact:
    found = [metric for metric in map(headline_metric, entries) if metric is not None]
    names = {metric.name for metric in found}
    if len(found) < len(entries) or len(names) > 1:
        return Fact("Error", NONE, "not measured" if not found else "of different metrics, by scope")
    floors = [metric.solver.value for metric in found if metric.solver is not None]
    floor = f"; solver floor {_from_to(floors, number)}" if len(floors) == len(found) else ""
    scatter = between(found[0].mean.interval).strip(" ()") if len(found) == 1 else ""
    remark = f"{found[0].title}{scatter and ', ' + scatter}{floor}"
    return Fact("Error", _from_to([metric.mean.value for metric in found], number), remark)


def _memory(entries: Sequence[MeasuredScope]) -> Fact:
    found = [entry.memory for entry in entries if entry.memory is not None]
    if len(found) < len(entries):
        return Fact("Memory", NONE, "not measured")
    stated = [memory.budget for memory in found if memory.budget is not None]
    remark = f"budget {_from_to(stated, size)}" if stated else "no budget"
    remark += "" if len(stated) in (0, len(found)) else f" in {len(stated)} of {len(found)} scopes"
    return Fact("Memory", _from_to([memory.cache for memory in found], size), f"the cache at its peak; {remark}")


def _from_to(values: Sequence[float], say: Say) -> str:
    low, high = say(min(values)), say(max(values))
    return low if low == high else f"{low} to {high}"


def headline_metric(entry: MeasuredScope) -> Metric | None:
    """The metric of the frontier, or else the first that compares with the uncached run and is no stand-in."""
    frontier = entry.levels.frontier
    own = [m for m in entry.metrics if m.reference == "uncached"]
    named = [m for m in own if frontier is not None and m.name == frontier.metric]
    return next(iter([*named, *(m for m in own if not m.stand_in)]), None)
