"""Taylor expansions against diffusers' TaylorSeer and scipy's interpolation."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
import torch
from diffusers.hooks.taylorseer_cache import TaylorSeerState
from scipy.interpolate import BarycentricInterpolator

from refkv_policy import methods
from refkv_policy.methods import Now, Observation
from tests.methods.placements import MAIN, place

TAYLOR = methods.get("taylor")


def values(count: int, seed: int = 0) -> list[torch.Tensor]:
    """Random fp32 tensors."""
    generator = torch.Generator().manual_seed(seed)
    return [torch.randn(3, 5, generator=generator) for _ in range(count)]


@pytest.mark.parametrize("order", [1, 2, 3])
@pytest.mark.parametrize("fresh", [(0, 1, 2, 3, 8, 13), (0, 4, 5, 11, 12), (0, 1), (0, 7, 9)])
def test_in_the_step_index_it_is_diffusers_taylorseer_to_the_bit(order: int, fresh: tuple[int, ...]) -> None:
    """Each forecast of a run with unequal gaps, from the first two fresh values on, equals `TaylorSeerState.predict`."""
    theirs = TaylorSeerState(taylor_factors_dtype=torch.float32, max_order=order)
    params, seen, compared = {"order": order, "variable": "step", "cap": 1e9}, [], 0
    row = TAYLOR.lower(place(16, fresh, params))
    for step, value in enumerate(values(16)):
        theirs.current_step = step
        if step in fresh:
            theirs.update((value,))
            seen.insert(0, Observation(0.0, value, step))
        elif row.actions[step] == "F":
            found = TAYLOR.predict(seen[: row.history], Now(0.0, step, MAIN), params)
            assert torch.equal(found, theirs.predict()[0])
            compared += 1
    assert compared == sum(1 for s in range(fresh[1], 16) if s not in fresh)


@pytest.mark.parametrize("order", [1, 2, 3])
@pytest.mark.parametrize("seed", range(3))
def test_in_sigma_it_is_the_polynomial_through_the_fresh_values(order: int, seed: int) -> None:
    """Newton's form agrees with scipy's barycentric one on unequal sigmas, to fp32's rounding."""
    nodes = [0.55, 0.62, 0.8, 0.93][: order + 1]
    seen = [Observation(s, v) for s, v in zip(nodes, values(order + 1, seed), strict=True)]
    found = TAYLOR.predict(seen, Now(0.5, 0, MAIN), {"order": order})
    exact = BarycentricInterpolator(nodes, np.stack([o.value.double().numpy() for o in seen]))(0.5)
    np.testing.assert_allclose(found.numpy(), exact, rtol=2e-5, atol=2e-5)


@pytest.mark.parametrize("order", [1, 2, 3])
def test_in_sigma_it_is_exact_for_polynomials_of_its_order(order: int) -> None:
    """A value that is a polynomial of degree n in sigma is met to 1e-5; one of degree n + 1 is not."""
    sigmas = (0.9, 0.85, 0.7, 0.6)
    for degree in (order, order + 1):
        seen = [Observation(s, torch.tensor([s**degree])) for s in sigmas[: order + 1][::-1]]
        error = abs(float(TAYLOR.predict(seen, Now(0.5, 0, MAIN), {"order": order})) - 0.5**degree)
        assert (error < 1e-5) == (degree == order)


def test_order_one_in_sigma_is_the_linear_forecast() -> None:
    """As `residual_forecast` with gain 1 has it, to fp32's rounding."""
    seen = [Observation(s, v) for s, v in zip((0.7, 0.82), values(2), strict=True)]
    now = Now(0.61, 0, MAIN)
    linear = methods.get("residual_forecast").predict(seen, now, {})
    torch.testing.assert_close(TAYLOR.predict(seen, now, {}), linear, rtol=1e-6, atol=1e-6)


def test_with_one_observation_it_reuses() -> None:
    """No difference can be taken."""
    (value,) = values(1)
    for variable in ("sigma", "step"):
        assert torch.equal(
            TAYLOR.predict([Observation(0.7, value, 3)], Now(0.6, 4, MAIN), {"variable": variable}), value
        )


def test_a_forecast_reads_no_more_than_are_kept() -> None:
    """Order 3 forecasts from two fresh values where there are no more, and asks the store for as many as it ever reads."""
    for order, fresh in itertools.product((1, 2, 3), ({0, 3}, {0, 3, 6}, {0, 2, 4, 6})):
        lowered = TAYLOR.lower(place(9, fresh, {"order": order, "cap": 100}))
        assert lowered.history == min(order + 1, len(fresh))
        assert lowered.actions[max(fresh) + 1 :] == "F" * (8 - max(fresh))


def test_the_cap_is_held_against_the_ratio_in_its_own_variable() -> None:
    """After refreshes at 0 and 2, step 2 + 2c is at ratio c in the step index; with a shift, sigma falls faster later on."""
    assert TAYLOR.lower(place(9, {0, 2}, {"variable": "step", "cap": 1.5})).actions == "CRCFFFRRR"
    assert TAYLOR.lower(place(9, {0, 2}, {"variable": "step", "cap": 1.0})).actions == "CRCFFRRRR"
    late, even = (TAYLOR.lower(place(9, {0, 2}, {"cap": 1.55}, shift=s)).actions for s in (8.0, 1.0))
    assert even == "CRCFFFRRR"
    assert late.count("F") < even.count("F")
