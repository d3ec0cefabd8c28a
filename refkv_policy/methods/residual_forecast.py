"""S `residual_forecast`: extrapolate a residual linearly in sigma from its two newest fresh values, times a gain. Lossy.

r̂ = r₁ + g·ρ·(r₁ − r₀), ρ = (σ − σ₁)/(σ₁ − σ₀) within a cap: `hint_forecast` for residuals. At `cfg`, r is v_uncond − v_cond.
g is 1, or fitted (`fit_gain`): with the step index for sigma, that is the α of ScalingCache (ICLR 2026), which its authors find
stable over prompts.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, ClassVar

from refkv_policy.methods.hint_forecast import CAP, LinearForecast, ratio
from refkv_policy.methods.method import HINTS, MAIN_STACK, Observation
from refkv_policy.methods.residual_reuse import ResidualReuse


class ResidualForecast(LinearForecast, ResidualReuse):
    """Equal to `residual_reuse` until two fresh values exist, and wherever ρ exceeds the cap."""

    name = "residual_forecast"
    title = "forecast the residual linearly in sigma from its two newest fresh values"
    risk = "lossy-forecast"
    sites = MAIN_STACK | {("cfg", None)}
    params_schema: ClassVar[Mapping[str, Any]] = {
        "type": "object",
        "properties": {
            "cap": CAP,
            "gain": {
                "type": "number",
                "exclusiveMinimum": 0,
                "description": "g: factor on the forecast difference; fitted, it may exceed 1. 1 unless said",
            },
            "hints": HINTS,
        },
        "additionalProperties": False,
    }


def fit_gain(cases: Iterable[tuple[Sequence[Observation], Observation]]) -> float:
    """The gain that makes the squared error of linear forecasts least: g* = Σ⟨y − y₁, d⟩ / Σ⟨d, d⟩, d = ρ·(y₁ − y₀).

    cases: the two newest observations before a step, newest first, and the fresh value of that step. Sums are in float64.
    Raises ValueError when no case has two observations that differ.
    """
    above = below = 0.0
    for (newest, before), fresh in cases:
        y1, y0, y = (seen.value.double() for seen in (newest, before, fresh))
        d = ratio(fresh.sigma, newest.sigma, before.sigma) * (y1 - y0)
        above += float(((y - y1) * d).sum())
        below += float((d * d).sum())
    if below == 0:
        raise ValueError("no case has two observations that differ")
    return above / below


METHOD = ResidualForecast()
