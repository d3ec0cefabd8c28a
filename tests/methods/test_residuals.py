"""Residuals of the main stack and of guidance: reused, forecast with a fitted gain, skipped."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from refkv_policy import methods
from refkv_policy.methods import MethodError, Now, Observation
from refkv_policy.methods.residual_forecast import fit_gain
from refkv_policy.plan.selectors import Site
from tests.methods.placements import MAIN, place

CFG = Site("cfg")


@pytest.mark.parametrize("name", ["residual_reuse", "profilingdit", "cfg_reuse"])
def test_what_is_reused_is_computed_at_refreshes_alone(name: str) -> None:
    """`C` at refreshes, `R` between them, nothing where the site is not reached."""
    site = CFG if name == "cfg_reuse" else Site("main", 10, None, 20)
    at = place(9, {0, 4, 6}, site=site, evaluated=[0, 1, 2, 4, 5, 6, 8])
    assert methods.get(name).lower(at).actions == "CRR-CRC-R"
    assert methods.get(name).keeps == "residual"


def test_the_authors_wan_setting_of_profilingdit_computes_6_steps_and_then_every_sixth() -> None:
    """`step_start` 6 and `step_interval` 6 of 50: (step − 6) mod 6 = 0 from step 6 on."""
    authors = {s for s in range(50) if s < 6 or (s - 6) % 6 == 0}
    row = methods.get("profilingdit").lower(place(50, authors, site=Site("main", 10, None, 20))).actions
    assert row[:14] == "CCCCCCCRRRRRCR"
    assert row.count("C") == 14


@pytest.mark.parametrize("site", [MAIN, Site("main", 0, None, 3), Site("main", 37)])
def test_profilingdit_stands_at_chosen_blocks(site: Site) -> None:
    """The whole stack is refused, runs and single blocks are not."""
    method = methods.get("profilingdit")
    if site == MAIN:
        with pytest.raises(MethodError):
            method.lower(place(4, {0}, site=site))
    else:
        assert method.lower(place(4, {0}, site=site)).actions == "CRRR"


def test_a_residual_forecast_lowers_as_a_hint_forecast_does() -> None:
    """One rule of when for both: two fresh values, and a ratio within the cap."""
    for cap in (0.5, 2.0, 50.0):
        at = place(12, {0, 4, 5, 9}, {"cap": cap})
        assert methods.get("residual_forecast").lower(at) == methods.get("hint_forecast").lower(at)


def cases(gain: float, noise: float, seed: int) -> list[tuple[list[Observation], Observation]]:
    """Fresh values that lie at `gain` times the linear forecast, and noise."""
    generator = torch.Generator().manual_seed(seed)
    found = []
    for s0, s1, s in ((0.95, 0.9, 0.8), (0.8, 0.7, 0.65), (0.6, 0.5, 0.3)):
        y0, y1, error = torch.randn(3, 40, generator=generator)
        y = y1 + gain * (s - s1) / (s1 - s0) * (y1 - y0) + noise * error
        found.append(([Observation(s1, y1), Observation(s0, y0)], Observation(s, y)))
    return found


@pytest.mark.parametrize("gain", [-0.3, 0.4, 1.0, 1.7])
@pytest.mark.parametrize("noise", [0.0, 0.5])
def test_the_fitted_gain_is_the_least_squares_one(gain: float, noise: float) -> None:
    """Against numpy's least squares of y − y₁ on d over all cases together; without noise it is the gain itself."""
    given = cases(gain, noise, seed=3)
    d, wanted = [], []
    for (newest, before), fresh in given:
        rho = (fresh.sigma - newest.sigma) / (newest.sigma - before.sigma)
        y1, y0, y = (o.value.double().numpy() for o in (newest, before, fresh))
        d.append(rho * (y1 - y0))
        wanted.append(y - y1)
    ((exact,), *_) = np.linalg.lstsq(np.concatenate(d)[:, None], np.concatenate(wanted), rcond=None)
    assert fit_gain(given) == pytest.approx(exact, rel=1e-9)
    if noise == 0:
        assert fit_gain(given) == pytest.approx(gain, abs=1e-6)


@pytest.mark.parametrize("gain", [0.4, 1.7])
def test_forecasts_with_the_fitted_gain_err_least(gain: float) -> None:
    """On the cases it was fitted on: less than reuse, than the linear forecast, and than a gain a little off."""
    given, method = cases(gain, 0.3, seed=5), methods.get("residual_forecast")

    def error(g: float) -> float:
        forecasts = ((method.predict(h, Now(y.sigma, 0, MAIN), {"gain": g}), y.value) for h, y in given)
        return sum(float((a - b).double().square().sum()) for a, b in forecasts)

    fitted = fit_gain(given)
    assert error(fitted) < min(error(0.0), error(1.0), error(fitted - 0.01), error(fitted + 0.01))


def test_a_gain_cannot_be_fitted_to_nothing() -> None:
    """Neither without a case nor where both observations are equal."""
    y = torch.ones(4)
    still = [([Observation(0.8, y), Observation(0.9, y)], Observation(0.7, y))]
    for given in ([], still):
        with pytest.raises(ValueError, match="no case"):
            fit_gain(given)


def test_guidance_is_reused_on_the_uncond_branch_alone() -> None:
    """The cond branch is computed at every step it is reached at, and keeps nothing."""
    for params in ({}, {"skip": True}, {"skip": False}):
        at = place(6, {0, 3}, params, site=CFG, branch="cond", evaluated=[0, 1, 3, 4, 5])
        assert methods.get("cfg_reuse").lower(at).actions == "..-..."


def test_a_skipped_difference_is_zero_and_reads_nothing() -> None:
    """What stands in for v_uncond − v_cond has the cond velocity's shape, so that guidance leaves v_cond as it is."""
    method, params = methods.get("cfg_reuse"), {"skip": True}
    lowered = method.lower(place(6, {0, 1}, params, site=CFG))
    assert lowered.actions == "CCFFFF"
    assert lowered.history == 0
    cond = torch.randn(1, 16, 2, 4, 4, dtype=torch.bfloat16)
    difference = method.predict([], Now(0.5, 3, CFG, base=cond), params)
    assert difference.dtype == torch.float32
    assert difference.shape == cond.shape
    assert not difference.any()
    with pytest.raises(ValueError, match="conditional velocity"):
        method.predict([], Now(0.5, 3, CFG), params)
