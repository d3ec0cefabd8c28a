"""A frontier of speed and error, and what lies on it."""

from __future__ import annotations

from collections.abc import Sequence

from refkv_policy.evidence.model import Figure


def ends(figure: Figure) -> tuple[float, float]:
    """Both ends of a figure's interval; twice the value where it has none."""
    interval = figure.interval
    return (figure.value, figure.value) if interval is None else (interval.low, interval.high)


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
