"""P1 `hint_forecast`: extrapolate a VACE hint linearly in sigma from its two newest fresh values. Lossy.

ĥ = h₁ + g·ρ·(h₁ − h₀), ρ = (σ − σ₁)/(σ₁ − σ₀). Linear in sigma, not in the step index, because shifted schedules are far from
uniform. Beyond `cap`, ρ is not trusted: two early refreshes close together make it large, and it then amplifies rounding
noise past the error of plain reuse; such a step reuses h₁. `gain` g damps the forecast (1: the linear one).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, ClassVar

from refkv_policy.methods.hint_reuse import CHAIN, HintReuse
from refkv_policy.methods.method import Lowered, Method, Now, Observation, Placement, reuse_between

if TYPE_CHECKING:
    import torch

DEFAULT_CAP = 2.0

CAP: dict[str, Any] = {
    "type": "number",
    "exclusiveMinimum": 0,
    "description": f"largest ratio (σ − σ₁)/(σ₁ − σ₀) to forecast at; beyond it, reuse. {DEFAULT_CAP:g} unless said",
}
"""The parameter of every method that lowers with `forecast_between`."""


class LinearForecast(Method):
    """What every linear forecast in sigma shares. A class that derives from it says where it stands and what it keeps."""

    forecasts = True

    def lower(self, at: Placement) -> Lowered:
        """`F` where two fresh values exist and ρ is within the cap, `R` at the other steps between refreshes."""
        return forecast_between(at, at.grid.sigmas)

    def predict(self, history: Sequence[Observation], now: Now, params: Mapping[str, Any]) -> torch.Tensor:
        """h₁ + g·ρ·(h₁ − h₀) in fp32; history is newest first, at least two observations of equal shape."""
        newest, before = history[0], history[1]
        step = float(params.get("gain", 1.0)) * ratio(now.sigma, newest.sigma, before.sigma)
        h1, h0 = newest.value.float(), before.value.float()
        return h1 + step * (h1 - h0)

    def describe(self, params: Mapping[str, Any]) -> str:
        """Names cap and gain."""
        cap, gain = float(params.get("cap", DEFAULT_CAP)), float(params.get("gain", 1.0))
        return f"{self.title} (gain {gain:g}, ratio capped at {cap:g}: beyond it, reuse)"


class HintForecast(LinearForecast, HintReuse):
    """Equal to `hint_reuse` until two fresh values exist, and wherever ρ exceeds the cap."""

    name = "hint_forecast"
    title = "forecast the hint linearly in sigma from its two newest fresh values"
    params_schema: ClassVar[Mapping[str, Any]] = {
        "type": "object",
        "properties": {
            "cap": CAP,
            "gain": {
                "type": "number",
                "exclusiveMinimum": 0,
                "maximum": 1,
                "description": "factor on the forecast difference. 1 unless said",
            },
            "chain": CHAIN,
        },
        "additionalProperties": False,
    }


def forecast_between(at: Placement, axis: Sequence[float], most: int = 2) -> Lowered:
    """`F` where two fresh values exist and their ratio is within `cap`, `R` at the other steps between refreshes.

    axis: the variable of the forecast at each nominal step. most: how many observations a forecast reads, once there are so many.
    """
    cap = float(at.params.get("cap", DEFAULT_CAP))
    actions = list(reuse_between(at))
    fresh: list[float] = []
    history = 1
    for step in at.grid.evaluated:
        if step in at.fresh:
            fresh.append(axis[step])
        elif len(fresh) >= 2 and ratio(axis[step], fresh[-1], fresh[-2]) <= cap:
            actions[step] = "F"
            history = min(most, len(fresh))
    return Lowered("".join(actions), history)


def ratio(x: float, newest: float, before: float) -> float:
    """ρ = (x − x₁)/(x₁ − x₀); positive while x goes on as it did. Raises ZeroDivisionError when x₁ = x₀."""
    return (x - newest) / (newest - before)


METHOD = HintForecast()
