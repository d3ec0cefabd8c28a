"""MagCache against the published count, the authors' loop and diffusers' hook."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from diffusers import MagCacheConfig
from diffusers.hooks.mag_cache import nearest_interp
from hypothesis import assume, given
from hypothesis import strategies as st

from refkv_policy import methods
from refkv_policy.methods.magcache import nearest
from tests.methods.placements import place
from tests.methods.stubs import Block, Stack, cached, decisions

PUBLISHED: dict[str, Any] = json.loads((Path(__file__).parent / "data/magcache_vace_1.3b.json").read_text("utf-8"))
BRANCHES = ("cond", "uncond")


def lowered(steps: int, branch: str = "cond", evaluated: list[int] | None = None, **params: Any) -> str:
    """The actions at the whole stack."""
    return methods.get("magcache").lower(place(steps, params=params, branch=branch, evaluated=evaluated)).actions


def authors(ratios: list[list[float]], steps: int, delta: float, K: int, retention: float) -> list[str]:
    """The loop of MagCache4Wan2.1 over one counter for both branches, each with its own ratios and state."""
    taken = np.stack(
        [np.array(r)[np.round(np.arange(steps) * (len(r) - 1) / max(steps - 1, 1)).astype(int)] for r in ratios]
    )
    flat = taken.T.reshape(-1)
    acc, err, skipped, found = [1.0, 1.0], [0.0, 0.0], [0, 0], ["", ""]
    for count in range(2 * steps):
        b, serve = count % 2, False
        if count >= int(2 * steps * retention):
            acc[b] *= flat[count]
            skipped[b] += 1
            err[b] += np.abs(1 - acc[b])
            serve = bool(err[b] < delta and skipped[b] <= K)
            if not serve:
                acc[b], err[b], skipped[b] = 1.0, 0.0, 0
        found[b] += "R" if serve else "C"
    return found


def test_the_published_setting_computes_29_of_50_on_both_branches() -> None:
    """VACE-1.3B at K = 3, δ = 0.02 and 50 steps, the branches at the same steps though their ratios differ."""
    rows = [lowered(50, b, delta=0.02, k=3, ratios=PUBLISHED[b]) for b in BRANCHES]
    assert PUBLISHED["cond"] != PUBLISHED["uncond"]
    assert rows[0] == rows[1]
    assert rows[0].count("C") == 29


@pytest.mark.parametrize("steps", [20, 30, 50, 77])
@pytest.mark.parametrize(("delta", "k"), [(0.02, 3), (0.06, 2), (0.12, 4), (0.24, 6)])
def test_the_published_ratios_give_the_authors_decisions(steps: int, delta: float, k: int) -> None:
    """At their own step count and at others, where the nearest ratio is taken."""
    expected = authors([PUBLISHED[b] for b in BRANCHES], steps, delta, k, 0.2)
    # An odd product of both branches' steps and the share is one cond call more: refkv retains the step on both.
    retained = {"cond": int(0.2 * steps + 0.5), "uncond": int(2 * steps * 0.2) // 2}
    for branch, row in zip(BRANCHES, expected, strict=True):
        if retained[branch] == retained["cond"]:
            assert lowered(steps, branch, delta=delta, k=k, ratios=PUBLISHED[branch]) == row
    assert "R" in expected[0]


@given(
    steps=st.integers(1, 60),
    retained=st.integers(1, 20),
    ratios=st.lists(st.floats(0.8, 1.1), min_size=1, max_size=60),
    delta=st.floats(1e-3, 1.0),
    k=st.integers(1, 8),
)
def test_any_ratios_give_the_authors_decisions(
    steps: int, retained: int, ratios: list[float], delta: float, k: int
) -> None:
    """Random ratios, thresholds, bounds and retained shares, at every step count."""
    assume(retained <= steps)
    share = min((retained + 0.25) / steps, 1.0)
    expected = authors([ratios, ratios], steps, delta, k, share)
    for branch, row in zip(BRANCHES, expected, strict=True):
        assert lowered(steps, branch, delta=delta, k=k, retain=share, ratios=ratios) == row


@pytest.mark.parametrize("steps", [10, 28, 50])
@pytest.mark.parametrize(("delta", "k", "retain"), [(0.02, 3, 0.2), (0.06, 1, 0.3), (0.12, 5, 0.0), (0.5, 3, 0.25)])
def test_diffusers_hook_decides_alike(steps: int, delta: float, k: int, retain: float) -> None:
    """A stack under diffusers' MagCache computes the same calls in each of its contexts."""
    stack = Stack(Block(), Block(), Block())
    config = MagCacheConfig(
        threshold=delta,
        max_skip_steps=k,
        retention_ratio=retain,
        num_inference_steps=steps,
        mag_ratios=PUBLISHED["cond"],
    )
    with cached(stack, config):
        found = decisions(stack, steps, BRANCHES)
    expected = lowered(steps, delta=delta, k=k, retain=retain, ratios=PUBLISHED["cond"])
    assert found == dict.fromkeys(BRANCHES, expected)


def test_an_error_equal_to_the_threshold_computes() -> None:
    """As in the authors' loop; diffusers' hook reuses there."""
    params = {"delta": 0.5, "k": 9, "retain": 0.25, "ratios": [1.0, 0.5, 1.0, 1.0]}
    assert lowered(4, **params) == authors([[1.0, 0.5, 1.0, 1.0]] * 2, 4, 0.5, 9, 0.25)[0] == "CCRR"
    stack = Stack(Block(), Block(), Block())
    config = MagCacheConfig(
        threshold=0.5, max_skip_steps=9, retention_ratio=0.25, num_inference_steps=4, mag_ratios=params["ratios"]
    )
    with cached(stack, config):
        assert decisions(stack, 4) == {"cond": "CRCR"}


def test_ratios_of_another_step_count_are_the_authors_and_but_for_ties_diffusers() -> None:
    """Rounded as numpy does in float64 everywhere; in float32, diffusers takes the other neighbour at some exact ties."""
    tied = 0
    for length in (1, 28, 40, 50):
        for steps in range(1, 200):
            found = nearest(list(range(length)), steps)
            scale = (length - 1) / max(steps - 1, 1)
            exact = [length - 1] if steps == 1 else np.round(np.arange(steps) * scale).astype(int).tolist()
            assert found == exact
            theirs = nearest_interp(torch.arange(length), steps).tolist()
            for n in (n for n in range(steps) if theirs[n] != found[n]):
                assert 2 * n * (length - 1) % (2 * (steps - 1)) == steps - 1
                tied += 1
    assert tied > 0


@given(
    reached=st.sets(st.integers(0, 49), min_size=1),
    delta=st.floats(0.005, 0.5),
    k=st.integers(1, 6),
    retain=st.sampled_from([0.0, 0.2, 0.5]),
)
def test_ratios_of_steps_that_are_not_reached_are_multiplied_in(
    reached: set[int], delta: float, k: int, retain: float
) -> None:
    """A served step's error is the sum of |1 − ‖r_s‖/‖r_{t₁}‖| over the reached steps since the computed one."""
    size = np.cumprod(PUBLISHED["cond"])
    steps = sorted(reached)
    row = lowered(50, evaluated=steps, delta=delta, k=k, retain=retain, ratios=PUBLISHED["cond"])
    assert row[steps[0]] == "C"
    since: list[int] = []
    for n, step in enumerate(steps):
        error = sum(abs(1 - size[s] / size[since[0]]) for s in (*since[1:], step)) if since else 0.0
        if abs(error - delta) > 1e-9 and since:
            serves = n >= int(retain * len(steps) + 0.5) and error < delta and len(since) <= k
            assert row[step] == ("R" if serves else "C")
        since = [step] if row[step] == "C" else [*since, step]


def test_a_window_starts_the_sum_afresh() -> None:
    """A step outside the window is computed, and the error is counted from it."""
    method = methods.get("magcache")
    params = {"delta": 0.25, "k": 9, "retain": 0.0, "ratios": [0.9] * 10}
    assert method.lower(place(10, params=params)).actions == "CRCRCRCRCR"
    assert method.lower(place(10, {3}, params)).actions == "CRCCRCRCRC"
