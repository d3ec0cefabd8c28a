"""TeaCache against the published loop, on given embeddings."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from refkv_policy import methods
from refkv_policy.methods import MethodError
from tests.methods.placements import place

# TeaCache4Wan2.1/teacache_generate.py of ali-vilab/TeaCache at 7c10efc (Apache-2.0), T2V-1.3B.
E_MODE = [2.39676752e03, -1.31110545e03, 2.01331979e02, -8.29855975e00, 1.37887774e-01]
E0_MODE = [-5.21862437e04, 9.23041404e03, -5.28275948e02, 1.36987616e01, -4.99875664e-02]


def lowered(signals: list[float], **params: Any) -> str:
    """The actions at the whole stack where every step is reached."""
    return methods.get("teacache").lower(place(len(signals), params={"signals": signals, **params})).actions


def published(embeddings: np.ndarray, coefficients: list[float], delta: float, ret_steps: int, cutoff: int) -> str:
    """The loop of TeaCache4Wan2.1 in one branch. embeddings: one row a step; cutoff: the step from which all are computed."""
    rescale = np.poly1d(coefficients)
    total, previous, found = 0.0, embeddings[0], ""
    for count, now in enumerate(embeddings):
        if count < ret_steps or count >= cutoff:
            total, computes = 0.0, True
        else:
            total += rescale(np.abs(now - previous).mean() / np.abs(previous).mean())
            computes = not total < delta
            total = 0.0 if computes else total
        previous = now
        found += "C" if computes else "R"
    return found


def distances(embeddings: np.ndarray) -> list[float]:
    """L1rel of each row to the one before; 0 for the first."""
    change = np.abs(np.diff(embeddings, axis=0)).mean(axis=1) / np.abs(embeddings[:-1]).mean(axis=1)
    return [0.0, *change.tolist()]


@pytest.mark.parametrize("steps", [8, 30, 50])
@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize("delta", [0.05, 0.08, 0.2])
@pytest.mark.parametrize(
    ("coefficients", "retain", "last"), [(E_MODE, 1, 1), (E0_MODE, 5, 0)], ids=["mode e", "mode e0"]
)
def test_both_published_modes_decide_alike(
    steps: int, seed: int, delta: float, coefficients: list[float], retain: int, last: int
) -> None:
    """Mode e forces the first and the last step, mode e0 the first five."""
    embeddings = np.random.default_rng(seed).normal(size=(steps, 16)).cumsum(axis=0) * 0.03 + 1
    expected = published(embeddings, coefficients, delta, retain, steps - last)
    signals = distances(embeddings)
    assert lowered(signals, delta=delta, polynomial=coefficients, retain=retain, last=last) == expected
    assert expected[:retain] == "C" * retain


def test_the_defaults_are_mode_e() -> None:
    """The first step and the last are computed, whatever the signals; a change that has added up to δ is too."""
    assert lowered([0.0] * 6, delta=1.0, polynomial=[1.0, 0.0]) == "CRRRRC"
    assert lowered([0.0, 0.25, 0.25, 0.25, 0.25, 0.0], delta=0.5, polynomial=[1.0, 0.0]) == "CRCRCC"


@given(
    signals=st.lists(st.floats(0, 1), min_size=1, max_size=60),
    coefficients=st.lists(st.floats(-3, 3), min_size=1, max_size=6),
    delta=st.floats(1e-3, 2),
    retain=st.integers(1, 8),
    last=st.integers(0, 4),
)
def test_any_distances_decide_as_published(
    signals: list[float], coefficients: list[float], delta: float, retain: int, last: int
) -> None:
    """Random distances and polynomials: embeddings in one dimension that have just these distances."""
    embeddings = np.cumprod([1.0, *(1 + np.array(signals[1:]))])[:, None]
    taken = distances(embeddings)
    expected = published(embeddings, coefficients, delta, retain, len(signals) - last)
    assert lowered(taken, delta=delta, polynomial=coefficients, retain=retain, last=last) == expected


@pytest.mark.parametrize(("evaluated", "signals"), [(range(12), 11), (range(0, 12, 2), 12), ([0, 5, 7], 4)])
def test_a_signal_that_is_missing_or_over_is_refused(evaluated: range | list[int], signals: int) -> None:
    """The change between steps that are further apart cannot be told from the changes between."""
    params = {"delta": 0.1, "polynomial": [1.0, 0.0], "signals": [0.01] * signals}
    with pytest.raises(MethodError) as caught:
        methods.get("teacache").lower(place(12, params=params, evaluated=evaluated))
    assert caught.value.field == "params"


def test_steps_that_are_run_take_their_signals_in_order() -> None:
    """Of a thinned grid, the second number is the change from the first step that is run to the second."""
    params = {"delta": 0.25, "polynomial": [1.0, 0.0], "signals": [9.0, 0.2, 0.2, 0.1, 9.0]}
    row = methods.get("teacache").lower(place(9, params=params, evaluated=range(0, 9, 2))).actions
    assert row == "C-R-C-R-C"
