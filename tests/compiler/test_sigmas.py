"""Sampler grids and refresh steps against the real scheduler and an independent computation."""

from __future__ import annotations

import itertools

import diffusers
import numpy as np
import pytest
from diffusers import UniPCMultistepScheduler

from refkv_policy.compiler.samplers import SAMPLERS
from refkv_policy.compiler.sigmas import TOLERANCE, fresh_steps, sigma_grid, spaced_steps
from refkv_policy.plan.model import Refresh, Sampler


def scheduler_sigmas(shift: float, steps: int) -> np.ndarray:
    """The sigmas of diffusers' own grid."""
    scheduler = UniPCMultistepScheduler(prediction_type="flow_prediction", use_flow_sigmas=True, flow_shift=shift)
    scheduler.set_timesteps(steps)
    return scheduler.sigmas.numpy()[:-1].astype(np.float64)


def independent_choice(heights: np.ndarray, count: int) -> list[int]:
    """Greedy nearest in numpy: mask what is not allowed, take the first of the nearest."""
    chosen: list[int] = []
    for k, target in enumerate(np.linspace(heights[0], heights[-1], count)):
        distance = np.abs(heights - target)
        distance[: chosen[-1] + 1 if chosen else 0] = np.inf
        distance[len(heights) - (count - 1 - k) :] = np.inf
        chosen.append(int(np.flatnonzero(distance <= distance.min() + 1e-5)[0]))
    return chosen


@pytest.mark.parametrize("shift", [1.0, 2.0, 3.0, 5.0, 8.0, 16.0])
def test_the_grid_is_the_schedulers_own(shift: float) -> None:
    """Each step's sigma equals that of diffusers' UniPC to float32, for 4 to 60 steps."""
    for steps in range(4, 61):
        np.testing.assert_allclose(
            sigma_grid(Sampler("unipc", shift), steps), scheduler_sigmas(shift, steps), atol=2e-7
        )


@pytest.mark.parametrize("spacing", ["sigma", "sqrt_sigma"])
@pytest.mark.parametrize("shift", [1.0, 2.0, 3.0, 5.0, 8.0, 16.0])
def test_spaced_refreshes_equal_an_independent_computation(shift: float, spacing: str) -> None:
    """For 4 to 60 steps and every count, the chosen steps are those computed apart from the scheduler's own sigmas."""
    for steps in range(4, 61):
        ours = sigma_grid(Sampler("unipc", shift), steps)
        theirs = scheduler_sigmas(shift, steps)
        heights = np.sqrt(theirs) if spacing == "sqrt_sigma" else theirs
        for count in range(2, steps + 1):
            chosen = spaced_steps(ours, range(steps), count, spacing)
            assert len(set(chosen)) == count
            assert (chosen[0], chosen[-1]) == (0, steps - 1)
            assert list(chosen) == independent_choice(heights, count), (steps, count)


def test_a_count_that_does_not_fit_is_refused() -> None:
    """Fewer than two refreshes, or more than there are steps, is an error and is not rescaled."""
    grid = sigma_grid(Sampler("unipc", 3.0), 10)
    for count in (0, 1, 11):
        with pytest.raises(ValueError, match="count"):
            spaced_steps(grid, range(10), count, "sigma")


def fresh(refresh: Refresh, allowed: range | None = None, evaluated: tuple[int, ...] = tuple(range(12))) -> list[int]:
    """The fresh steps of a refresh on twelve steps."""
    window = frozenset(range(12) if allowed is None else allowed)
    return sorted(fresh_steps(refresh, window, evaluated, sigma_grid(Sampler("unipc", 3.0), 12), 12))


def test_an_interval_counts_from_the_newest_fresh_step() -> None:
    """Reuse lasts interval − 1 steps; steps outside the window are fresh and restart the count."""
    assert fresh(Refresh(interval=4)) == [0, 4, 8]
    assert fresh(Refresh(interval=1)) == list(range(12))
    assert fresh(Refresh(interval=4), range(3, 10)) == [0, 1, 2, 6, 10, 11]


def test_an_interval_counts_only_steps_that_are_run() -> None:
    """On a thinned schedule the interval is in evaluated steps."""
    assert fresh(Refresh(interval=2), evaluated=(0, 3, 5, 9, 11)) == [0, 5, 11]


def test_listed_steps_must_be_run_and_begin_with_the_first() -> None:
    """A listed step that the schedule leaves out, or a first step with nothing to reuse, is an error."""
    assert fresh(Refresh(steps="0,3-4,9")) == [0, 3, 4, 9]
    with pytest.raises(ValueError, match="step 4 is left out"):
        fresh(Refresh(steps="0,4"), evaluated=(0, 3, 5, 11))
    with pytest.raises(ValueError, match="nothing to reuse"):
        fresh(Refresh(steps="3,9"))
    assert fresh(Refresh(steps="3,9"), range(2, 12)) == [0, 1, 3, 9]


def other_sigmas(name: str, shift: float, steps: int) -> np.ndarray:
    """The sigmas of diffusers' scheduler of a sampler, the last among them."""
    kind = SAMPLERS[name]
    scheduler = getattr(diffusers, kind.scheduler)(**{**kind.settings, kind.shift: shift})
    scheduler.set_timesteps(steps)
    return scheduler.sigmas.numpy().astype(np.float64)


@pytest.mark.parametrize("shift", [0.5, 1.0, 2.0, 3.0, 5.0, 8.0, 16.0])
@pytest.mark.parametrize("name", SAMPLERS)
def test_each_samplers_grid_is_its_schedulers(name: str, shift: float) -> None:
    """Each step's sigma is the scheduler's to a tenth of the tolerance, from one step to a thousand; the last sigma is 0."""
    for steps in (*range(1, 61), 75, 100, 250, 1000):
        theirs = other_sigmas(name, shift, steps)
        ours = sigma_grid(Sampler(name, shift), steps)
        assert theirs[-1] == 0.0
        np.testing.assert_allclose(ours, theirs[:-1], atol=TOLERANCE / 10, rtol=0, err_msg=f"{steps} steps")
        assert all(a > b for a, b in itertools.pairwise(ours))


def test_the_samplers_grids_differ() -> None:
    """A table of one sampler is not taken for another's: some sigma differs by more than the tolerance."""
    for steps in (4, 30, 50):
        grids = [sigma_grid(Sampler(name, 3.0), steps) for name in SAMPLERS]
        for one, other in itertools.combinations(grids, 2):
            assert max(abs(a - b) for a, b in zip(one, other, strict=True)) > TOLERANCE


@pytest.mark.parametrize("name", ["heun", "UniPC", "ddim", "euler-ancestral"])
def test_an_unknown_sampler_has_no_grid(name: str) -> None:
    """Neither another sampler nor another spelling has one."""
    with pytest.raises(ValueError, match="unknown sampler"):
        sigma_grid(Sampler(name, 3.0), 10)
