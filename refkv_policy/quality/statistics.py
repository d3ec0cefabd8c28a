"""The statistics of the gate: intervals, the elbow of a frontier, and the choice among near equals."""

from __future__ import annotations

import math
import random
from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass
from statistics import fmean

import numpy as np

from refkv_policy.evidence import Figure, Interval
from refkv_policy.evidence.frontier import ends, pareto

LEVEL = 0.95
RESAMPLES = 2000

Statistic = Callable[[Sequence[float]], float]


def bootstrap_interval(
    values: Sequence[float],
    *,
    groups: Sequence[Hashable] | None = None,
    statistic: Statistic = fmean,
    level: float = LEVEL,
    resamples: int = RESAMPLES,
    seed: int = 0,
) -> Interval:
    """The percentile interval of a statistic (Efron and Tibshirani 1993, section 13.3); the same on every machine.

    groups: one label a value, the clip for example; whole groups are then drawn, since values of one are not
    independent. Raises ValueError for fewer than two values or groups, and for a value that is not finite.
    """
    if not all(map(math.isfinite, values)):
        raise ValueError("an interval needs finite values")
    blocks = _blocks(values, groups)
    if len(blocks) < 2:
        raise ValueError("an interval needs at least two independent values")
    pick = random.Random(seed).random  # noqa: S311  its sequence is promised to stay, that of `choices` is not
    count = len(blocks)
    drawn = [statistic([v for _ in range(count) for v in blocks[int(pick() * count)]]) for _ in range(resamples)]
    low, high = np.quantile(drawn, [(1 - level) / 2, (1 + level) / 2])
    return Interval(float(low), float(high), level, "bootstrap")


def figure_of(
    values: Sequence[float],
    *,
    groups: Sequence[Hashable] | None = None,
    statistic: Statistic = fmean,
    level: float = LEVEL,
    seed: int = 0,
) -> Figure:
    """A statistic of values with its bootstrap interval; without one where fewer than two are independent.

    Raises ValueError for no values, and for one that is not finite.
    """
    if not values or not all(map(math.isfinite, values)):
        raise ValueError("a figure needs finite values")
    alone = len(_blocks(values, groups)) < 2
    interval = None if alone else bootstrap_interval(values, groups=groups, statistic=statistic, level=level, seed=seed)
    return Figure(statistic(values), interval)


def _blocks(values: Sequence[float], groups: Sequence[Hashable] | None) -> list[list[float]]:
    """Values by group, in the order in which groups first appear; each its own where none are given."""
    if groups is None:
        return [[value] for value in values]
    by: dict[Hashable, list[float]] = {}
    for value, group in zip(values, groups, strict=True):
        by.setdefault(group, []).append(value)
    return list(by.values())


def wilson_interval(successes: int, trials: int, level: float = LEVEL) -> Interval:
    """The score interval of a share, without continuity correction (Wilson 1927; method 3 of Newcombe 1998).

    Raises ValueError unless 0 ≤ successes ≤ trials and there is a trial.
    """
    if not 0 <= successes <= trials or trials < 1:
        raise ValueError(f"{successes} of {trials} is not a share")
    from scipy.stats import binomtest  # here, since it is slow to import

    found = binomtest(successes, trials).proportion_ci(level, method="wilson")
    return Interval(float(found.low), float(found.high), level, "wilson")


def overlap(a: Figure, b: Figure) -> bool:
    """Whether two figures count as equal: their intervals share a point. A figure without one is a point."""
    (low_a, high_a), (low_b, high_b) = ends(a), ends(b)
    return low_a <= high_b and low_b <= high_a


@dataclass(frozen=True, slots=True)
class Candidate:
    """A refresh interval K, and its error."""

    interval: int
    error: Figure


def choose(candidates: Sequence[Candidate], redline: float | None = None) -> Candidate | None:
    """The refresh interval that the RFC picks, whose errors need not rise with it (section 5.3, Critical Notes, and 7).

    With a redline: the largest K whose whole interval stays within it; None where none does. Without: of the K whose
    interval overlaps that of the smallest error, and so count as equal to it, the largest; None of no candidates.
    """
    if redline is not None:
        near = [c for c in candidates if ends(c.error)[1] <= redline]
    else:
        best = min(candidates, key=lambda c: (c.error.value, -c.interval), default=None)
        near = [c for c in candidates if best is not None and overlap(c.error, best.error)]
    return max(near, key=lambda c: c.interval, default=None)


def elbow(points: Sequence[tuple[float, float]]) -> int | None:
    """The index of the frontier's elbow: the point farthest below the chord between its ends, both axes scaled to 0..1.

    That is Kneedle without smoothing for a convex rising curve (Satopää et al. 2011), at which speed − error, scaled,
    is largest. None where the frontier has fewer than three different points, or none below the chord.
    """
    front = pareto(points)
    (first, lowest), (last, highest) = (points[front[0]], points[front[-1]]) if front else ((0.0, 0.0), (0.0, 0.0))
    if last == first or highest == lowest:
        return None

    def below(index: int) -> float:
        speed, error = points[index]
        return (speed - first) / (last - first) - (error - lowest) / (highest - lowest)

    best = max(front, key=below)
    return best if below(best) > 1e-12 else None
