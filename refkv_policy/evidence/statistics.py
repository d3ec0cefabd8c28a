"""The statistics of the gate, in plain Python: intervals, the frontier, its elbow, and the choice among near equals."""

from __future__ import annotations

import math
import random
from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass
from statistics import NormalDist, fmean

from refkv_policy.evidence.gate import Interval
from refkv_policy.evidence.model import Figure

LEVEL = 0.95
RESAMPLES = 2000

Statistic = Callable[[Sequence[float]], float]


def quantile(values: Sequence[float], share: float) -> float:
    """The quantile of ascending values, linear between them (type 7 of Hyndman and Fan, numpy's default).

    Raises ValueError for no values or a share outside 0 to 1.
    """
    if not values or not 0 <= share <= 1:
        raise ValueError("a quantile needs values, and a share of 0 to 1")
    place = share * (len(values) - 1)
    below = math.floor(place)
    above = min(below + 1, len(values) - 1)
    return values[below] + (values[above] - values[below]) * (place - below)


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
    drawn = sorted(
        statistic([value for _ in range(count) for value in blocks[int(pick() * count)]]) for _ in range(resamples)
    )
    tail = (1 - level) / 2
    return Interval(quantile(drawn, tail), quantile(drawn, 1 - tail), level, "bootstrap")


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
    z = NormalDist().inv_cdf((1 + level) / 2)
    p, n = successes / trials, trials
    centre = (p + z * z / (2 * n)) / (1 + z * z / n)
    half = z / (1 + z * z / n) * math.sqrt(p * (1 - p) / n + z * z / (4 * n * n))
    low = 0.0 if successes == 0 else centre - half
    high = 1.0 if successes == trials else centre + half
    return Interval(low, high, level, "wilson")


def overlap(a: Figure, b: Figure) -> bool:
    """Whether two figures count as equal: their intervals share a point. A figure without one is a point."""
    (low_a, high_a), (low_b, high_b) = ends(a), ends(b)
    return low_a <= high_b and low_b <= high_a


def ends(figure: Figure) -> tuple[float, float]:
    """Both ends of a figure's interval; twice the value where it has none."""
    interval = figure.interval
    return (figure.value, figure.value) if interval is None else (interval.low, interval.high)


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


def pareto(points: Sequence[tuple[float, float]]) -> tuple[int, ...]:
    """Indexes of the (speed, error) points that no other is as good as in both and better in one, by rising speed.

    Equal points are all on it.
    """
    on = [
        index
        for index, (speed, error) in enumerate(points)
        if not any(s >= speed and e <= error and (s, e) != (speed, error) for s, e in points)
    ]
    return tuple(sorted(on, key=lambda index: (points[index], index)))


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


def error_at(points: Sequence[tuple[float, float]], speed: float) -> float | None:
    """The error of a line of (speed, error) points at a speed, linear between neighbours; None outside what it covers.

    This is how a plan is compared with fewer steps at equal latency. Of points of equal speed the smallest error
    counts.
    """
    line: dict[float, float] = {}
    for at, error in points:
        line[at] = min(error, line.get(at, error))
    if speed in line:
        return line[speed]
    slower = max((at for at in line if at < speed), default=None)
    faster = min((at for at in line if at > speed), default=None)
    if slower is None or faster is None:
        return None
    share = (speed - slower) / (faster - slower)
    return line[slower] + (line[faster] - line[slower]) * share
