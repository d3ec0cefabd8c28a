"""The frame × metric heat map: which frames suffer, by every metric that has frames, on one scale."""

from __future__ import annotations

from dataclasses import dataclass

from refkv_policy.evidence import MeasuredScope, Metric
from refkv_policy.report.words import number

COLUMNS = 120
"""Columns at most; of more frames, neighbours share one and the worst of them counts."""
BEYOND = (1.25, 1.5, 2.0)
"""Multiples of the solver floor at which the levels above it part."""
HEAT = ("#f3f7fb", "#dbe9f4", "#bfd8ea", "#9cc3de", "#74aacd", "#fbc78d", "#f39b56", "#dd6b33", "#a83a16")
GREY = ("#f6f6f6", "#ebebeb", "#dedede", "#d0d0d0", "#c0c0c0", "#afafaf", "#9c9c9c", "#888888", "#737373")
"""Levels 0 to 8: up to 4 within the floor, above it beyond. Greys for rows that have no floor."""


@dataclass(frozen=True, slots=True)
class HeatCell:
    """One cell. level: 0 to 8, None where there is nothing."""

    title: str
    level: int | None


@dataclass(frozen=True, slots=True)
class HeatRow:
    """One row. note: its mean and worst frame. neutral: shaded by its own range, for it has no floor to compare with."""

    label: str
    note: str
    cells: tuple[HeatCell, ...]
    neutral: bool = False


@dataclass(frozen=True, slots=True)
class HeatMap:
    """Rows of shaded cells over common columns. starts: the first frame of each column."""

    key: str
    title: str
    about: str
    starts: tuple[int, ...]
    rows: tuple[HeatRow, ...]


def heat_map(scope: MeasuredScope, key: str) -> HeatMap | None:
    """The heat map of a scope's metrics; None where none has frames."""
    metrics = [m for m in scope.metrics if m.per_frame]
    if not metrics:
        return None
    frames = max(len(m.per_frame) for m in metrics)
    wide = -(-frames // COLUMNS)
    starts = tuple(range(0, frames, wide))
    return HeatMap(
        f"heat-{key}",
        "Error by frame and metric",
        "Mean over clips and seeds. Blue lies within the solver floor (the uncached run's own distance from one of many more "
        "steps), orange beyond it. Grey rows have no such floor and span their own range only.",
        starts,
        tuple(_row(m, starts, wide) for m in metrics),
    )


def _row(metric: Metric, starts: tuple[int, ...], wide: int) -> HeatRow:
    """One metric. Levels go from the noise floor (0) to the solver floor (4) and beyond it (8 is twice and more)."""
    sign = 1 if metric.better == "lower" else -1
    bad = [sign * value for value in metric.per_frame]
    zero = sign * metric.noise.value if metric.noise is not None else 0.0 if metric.better == "lower" else min(bad)
    floor = sign * metric.solver.value if metric.solver is not None else None
    neutral = floor is None or floor <= zero
    top = floor if floor is not None and not neutral else max(bad)
    cells = []
    for start in starts:
        part = range(start, min(start + wide, len(bad)))
        if not part:
            cells.append(HeatCell("", None))
            continue
        worst = max(part, key=lambda n: (bad[n], -n))
        share = (bad[worst] - zero) / (top - zero) if top > zero else 0.0
        frames = f"frame {worst}" if wide == 1 else f"frames {start} to {part[-1]}, the worst is {worst}"
        cells.append(HeatCell(f"{metric.name}, {frames}: {number(metric.per_frame[worst])}", level(share, neutral)))
    at = max(range(len(bad)), key=lambda n: (bad[n], -n))
    mean = f"mean {number(metric.mean.value)}"
    label = metric.name if metric.reference == "uncached" else f"{metric.name} from many steps"
    mean = f"a stand-in; {mean}" if metric.stand_in else mean
    return HeatRow(label, f"{mean}, worst {number(metric.per_frame[at])} at frame {at}", tuple(cells), neutral)


def level(share: float, neutral: bool) -> int:
    """0 to 8. share: 0 at the noise floor, 1 at the solver floor, or at the row's own worst where it is neutral."""
    if neutral:
        return min(max(int(share * 9), 0), 8)
    if share <= 1:
        return min(max(int(share * 5), 0), 4)
    return 5 + sum(share > edge for edge in BEYOND)
