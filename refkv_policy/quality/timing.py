"""Latency out of timed pairs: an uncached request and a planned one, whose steps alternate. Needs no torch.

Ratios are taken within a pair, so that a slow spell of the machine hits both; medians over pairs, with intervals.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from statistics import median
from typing import Any, Literal

from refkv_policy.evidence import Figure, Seconds
from refkv_policy.quality.statistics import figure_of

Pair = Mapping[str, Any]
"""The stored result of a pair: `uncached` and `planned`, each with `seconds` by part and `denoiser_cpu`."""
Clock = Literal["wall", "cpu"]
Side = Literal["uncached", "planned"]
SIDES: tuple[Side, Side] = ("uncached", "planned")
PARTS = ("text", "denoiser", "vae", "io", "total")
TIMING = {
    "wall": "wall clock, from the drawn noise to the end of the last step, the device's queue drained at both",
    "cpu": "processor time of the process, from the drawn noise to the end of the last step",
}
TURNS = {
    "step": "; the steps of both runs alternate, and waiting does not count",
    "request": "; one run after the other, since parts are offloaded",
}


@dataclass(frozen=True, slots=True)
class Latency:
    """Of one entry. planned and uncached: median seconds of the denoising; speedup: median of the pairs' ratios."""

    planned: Figure
    uncached: Figure
    speedup: Figure

    @property
    def saved(self) -> Figure:
        """The share of the denoising latency saved, 1 − 1/speedup; an interval turns with it."""
        interval = self.speedup.interval
        turned = None
        if interval is not None:
            turned = type(interval)(1 - 1 / interval.low, 1 - 1 / interval.high, interval.level, interval.method)
        return Figure(1 - 1 / self.speedup.value, turned)


def latency(pairs: Sequence[Pair], clock: Clock) -> Latency | None:
    """Of pairs; None without any. Bootstrap intervals of medians, from two pairs on."""
    if not pairs:
        return None
    planned, uncached = ([denoising(pair[side], clock) for pair in pairs] for side in ("planned", "uncached"))
    ratios = [u / p for u, p in zip(uncached, planned, strict=True)]
    return Latency(*(figure_of(values, statistic=median) for values in (planned, uncached, ratios)))


def timing_text(pairs: Sequence[Pair], clock: Clock) -> str:
    """How pairs were timed, in words."""
    return TIMING[clock] + "".join(TURNS[turns] for turns in sorted({pair["turns"] for pair in pairs}))


def denoising(side: Mapping[str, Any], clock: Clock) -> float:
    """Seconds of one request's denoising loop."""
    return float(side["denoiser_cpu"] if clock == "cpu" else side["seconds"]["denoiser"])


def parts(pairs: Sequence[Pair], side: Side) -> Seconds:
    """Median wall-clock seconds of each part; medians of parts need not add up to that of the whole."""
    return Seconds(**{part: median(float(pair[side]["seconds"][part]) for pair in pairs) for part in PARTS})


def end_to_end(pairs: Sequence[Pair]) -> Figure:
    """Uncached over planned seconds of the whole request, from input file to output file."""
    totals = [[float(pair[side]["seconds"]["total"]) for pair in pairs] for side in SIDES]
    return figure_of([u / p for u, p in zip(*totals, strict=True)], statistic=median)
