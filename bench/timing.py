"""What the benchmarks share: interleaved runs, medians with intervals, tables."""

from __future__ import annotations

import random
import statistics
from collections.abc import Callable, Mapping, Sequence
from typing import Any


def interleave(contestants: Mapping[str, Callable[[], float]], rounds: int) -> dict[str, list[float]]:
    """Each contestant's readings, taken round by round and never in the same order, so that a slow spell hits all alike."""
    order = list(contestants)
    readings: dict[str, list[float]] = {name: [] for name in contestants}
    shuffle = random.Random(0)
    for _ in range(rounds):
        shuffle.shuffle(order)
        for name in order:
            readings[name].append(contestants[name]())
    return readings


def interval(values: Sequence[float], share: float = 0.95, draws: int = 2000) -> tuple[float, float]:
    """Bootstrap interval of the median."""
    pick = random.Random(0)
    medians = sorted(statistics.median(pick.choices(values, k=len(values))) for _ in range(draws))
    low = int(draws * (1 - share) / 2)
    return medians[low], medians[draws - 1 - low]


def ratios(above: Sequence[float], below: Sequence[float]) -> tuple[float, float, float]:
    """Median of the round-by-round ratios above/below, and its 95 % interval."""
    paired = [a / b for a, b in zip(above, below, strict=True)]
    return statistics.median(paired), *interval(paired)


def table(head: Sequence[str], rows: Sequence[Sequence[Any]]) -> str:
    """A table in plain text (and in Markdown)."""
    texts = [[str(c) for c in row] for row in (head, *rows)]
    widths = [max(len(row[i]) for row in texts) for i in range(len(head))]
    lines = ["| " + " | ".join(c.ljust(w) for c, w in zip(row, widths, strict=True)) + " |" for row in texts]
    return "\n".join([lines[0], "|" + "|".join("-" * (w + 2) for w in widths) + "|", *lines[1:]])


def verdict(fine: bool, goal: str) -> str:
    """`goal: reached` or `goal: NOT reached`."""
    return f"goal {goal}: {'reached' if fine else 'NOT reached'}"
