"""P1 `hint_forecast`: extrapolate a VACE hint linearly in sigma from its two newest fresh values. Lossy.

ĥ = h₁ + g·ρ·(h₁ − h₀), ρ = (σ − σ₁)/(σ₁ − σ₀). Linear in sigma, not in the step index, because shifted schedules are far from
uniform. Beyond `cap`, ρ is not trusted: two early refreshes close together make it large, and it then amplifies rounding
noise past the error of plain reuse; such a step reuses h₁. `gain` g damps the forecast (1: the linear one).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, ClassVar

from refkv_policy.methods.hint_reuse import CHAIN, HintReuse
from refkv_policy.methods.method import Lowered, Now, Observation, Placement, reuse_between

if TYPE_CHECKING:
    import torch

DEFAULT_CAP = 2.0


class HintForecast(HintReuse):
    """Equal to `hint_reuse` until two fresh values exist, and wherever ρ exceeds the cap."""

    name = "hint_forecast"
    title = "forecast the hint linearly in sigma from its two newest fresh values"
    forecasts = True
    params_schema: ClassVar[Mapping[str, Any]] = {
        "type": "object",
        "properties": {
            "cap": {
                "type": "number",
                "exclusiveMinimum": 0,
                "description": f"largest ratio (σ − σ₁)/(σ₁ − σ₀) to forecast at; beyond it, reuse. {DEFAULT_CAP:g} unless said",
            },
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

    def lower(self, at: Placement) -> Lowered:
        """`F` where two fresh values exist and ρ is within the cap, `R` at the other steps between refreshes."""
        cap = float(at.params.get("cap", DEFAULT_CAP))
        grid = at.grid
        actions = list(reuse_between(at))
        seen: list[float] = []
        for step in grid.evaluated:
            if step in at.fresh:
                seen.append(grid.sigmas[step])
            elif len(seen) >= 2 and ratio(grid.sigmas[step], seen[-1], seen[-2]) <= cap:
                actions[step] = "F"
        return Lowered("".join(actions), history=2 if "F" in actions else 1)

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


def ratio(sigma: float, newest: float, before: float) -> float:
    """ρ = (σ − σ₁)/(σ₁ − σ₀); positive while sigma falls. Raises ZeroDivisionError when both observations share a sigma."""
    return (sigma - newest) / (newest - before)


METHOD = HintForecast()
