"""Sampler grids and refresh steps, in plain floats: the same on every machine, and compared with the scheduler's when running."""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import lru_cache

from refkv_policy.compiler.samplers import SAMPLERS
from refkv_policy.plan.model import Refresh, Sampler
from refkv_policy.plan.selectors import parse_steps

TIE = 1e-5
"""Distances closer than this are equal: a grid in float32 and one in float64 must choose the same steps."""
TOLERANCE = 1e-5
"""Largest difference of a sigma between a table and a scheduler, whose own grid is float32."""


@lru_cache(maxsize=256)
def sigma_grid(sampler: Sampler, steps: int) -> tuple[float, ...]:
    """The sigma of each of `steps` denoising steps, rounded to 9 decimals. Raises ValueError for an unknown sampler."""
    if sampler.name not in SAMPLERS:
        raise ValueError(f"unknown sampler {sampler.name!r}")
    return tuple(round(sigma, 9) for sigma in SAMPLERS[sampler.name].sigmas(steps, sampler.flow_shift))


def spaced_steps(sigmas: Sequence[float], evaluated: Sequence[int], count: int, spacing: str) -> tuple[int, ...]:
    """`count` of the evaluated steps, equally spaced in `sigma` or `sqrt_sigma`, the first and the last among them.

    Targets are equally spaced from the first evaluated step's sigma to the last one's; each in turn takes the nearest step
    that is later than the one before and leaves room for the rest; of two equally near, the earlier.
    Raises ValueError when count is below 2 or above the number of evaluated steps.
    """
    if not 2 <= count <= len(evaluated):
        raise ValueError(f"count {count} is not between 2 and the {len(evaluated)} steps that are run")
    scale = math.sqrt if spacing == "sqrt_sigma" else float
    heights = [scale(sigmas[step]) for step in evaluated]
    chosen: list[int] = []
    for k in range(count):
        target = heights[0] + (heights[-1] - heights[0]) * k / (count - 1)
        first = chosen[-1] + 1 if chosen else 0
        distances = {i: abs(heights[i] - target) for i in range(first, len(heights) - (count - 1 - k))}
        nearest = min(distances.values())
        chosen.append(next(i for i, distance in distances.items() if distance <= nearest + TIE))
    return tuple(evaluated[i] for i in chosen)


def fresh_steps(
    refresh: Refresh,
    allowed: frozenset[int],
    evaluated: Sequence[int],
    sigmas: Sequence[float],
    steps: int,
    *,
    from_first: bool = True,
) -> frozenset[int]:
    """The evaluated steps at which a rule's sites are computed: those its refresh names, and all outside its window.

    allowed: the window, nominal steps. An interval counts evaluated steps since the newest fresh one. from_first: whether
    listed steps must begin with the first evaluated one, before which there is nothing to reuse.
    Raises ValueError when the refresh does not fit the steps, SelectorError when `steps:` does not parse or resolve.
    """
    if refresh.interval is not None:
        fresh: set[int] = set()
        age = refresh.interval
        for step in evaluated:
            age += 1
            if age > refresh.interval or step not in allowed:
                fresh.add(step)
                age = 1
        return frozenset(fresh)
    if refresh.steps is not None:
        listed = parse_steps(refresh.steps).resolve(steps)
        missing = [s for s in listed if s not in set(evaluated)]
        if missing:
            raise ValueError(f"step {missing[0]} is left out by the plan's step_schedule")
        fresh = set(listed)
        if from_first and evaluated[0] not in fresh and evaluated[0] in allowed:
            raise ValueError(f"step {evaluated[0]} has nothing to reuse yet and is not listed")
    else:
        assert refresh.spacing is not None and refresh.count is not None
        fresh = set(spaced_steps(sigmas, evaluated, refresh.count, refresh.spacing))
    return frozenset(fresh | {s for s in evaluated if s not in allowed})
