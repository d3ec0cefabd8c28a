"""Latency out of timed pairs, against arithmetic by hand."""

from __future__ import annotations

from statistics import median

import pytest

from refkv_policy.quality.timing import end_to_end, latency, parts
from tests import sweeps
from tests.quality.test_tasks import TASK

RATIOS = (1.5, 1.2, 1.3)
PAIRS = [sweeps.pair(TASK, ratio) for ratio in RATIOS]


def test_speed_is_the_median_of_ratios_within_pairs() -> None:
    """Not the ratio of medians: a slow spell hits both runs of a pair."""
    pairs = [sweeps.pair(TASK, ratio) for ratio in RATIOS]
    for slow, pair in zip((1, 10, 3), pairs, strict=True):
        for side in ("uncached", "planned"):
            pair[side]["seconds"]["denoiser"] *= slow
    found = latency(pairs, "wall")
    assert found is not None
    assert found.speedup.value == 1.3
    assert found.speedup.interval is not None
    assert 1.2 <= found.speedup.interval.low <= 1.3 <= found.speedup.interval.high <= 1.5


def test_the_share_saved_turns_with_its_interval() -> None:
    """1 − 1/s, its low end from the interval's low end."""
    found = latency(PAIRS, "wall")
    assert found is not None
    assert found.saved.value == pytest.approx(1 - 1 / 1.3)
    interval, of_speed = found.saved.interval, found.speedup.interval
    assert interval is not None
    assert of_speed is not None
    assert (interval.low, interval.high) == pytest.approx((1 - 1 / of_speed.low, 1 - 1 / of_speed.high))


def test_processor_time_is_another_clock() -> None:
    """`cpu` reads processor time; parts and the end-to-end ratio are always wall clock."""
    wall, cpu = latency(PAIRS, "wall"), latency(PAIRS, "cpu")
    assert wall is not None
    assert cpu is not None
    assert (wall.planned.value, cpu.planned.value) == (1.0, 2.0)
    assert end_to_end(PAIRS).value == pytest.approx(median((r + 0.8) / 1.8 for r in RATIOS))
    uncached = parts(PAIRS, "uncached")
    assert (uncached.text, uncached.denoiser, uncached.vae, uncached.io) == (0.1, 1.3, 0.5, 0.2)


def test_one_pair_has_no_interval_and_none_has_no_latency() -> None:
    """An interval needs two observations."""
    one = latency(PAIRS[:1], "wall")
    assert one is not None
    assert one.speedup.interval is None
    assert one.saved.interval is None
    assert latency([], "wall") is None
