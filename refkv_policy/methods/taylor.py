"""S `taylor`: forecast a value by a Taylor expansion of order n about its newest refresh, by finite differences. Lossy.

In sigma, Newton's divided differences, which unequal steps leave exact for polynomials of degree n:
    ŷ(σ) = Σ_k y[σ₁ … σ_{k+1}] · Π_{j ≤ k} (σ − σ_j)
In the step index s, as TaylorSeer has it [arXiv 2503.06923; diffusers `TaylorSeerState`]:
    ŷ(s) = Σ_k Δ^k y₁ · (s − s₁)^k / k!,  Δ^k y_i = (Δ^(k−1) y_i − Δ^(k−1) y_{i+1}) / (s_i − s_{i+1})
The two agree at order 1 where sigma is linear in the step. Order k is left out until k + 1 fresh values exist.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import pairwise
from math import factorial
from typing import TYPE_CHECKING, Any, ClassVar

from refkv_policy.methods.hint_forecast import CAP, DEFAULT_CAP, forecast_between
from refkv_policy.methods.method import HINTS, MAIN_STACK, PARTS, Lowered, Method, Now, Observation, Placement

if TYPE_CHECKING:
    import torch


class Taylor(Method):
    """Reuses where fewer than two fresh values exist, and where the ratio (x − x₁)/(x₁ − x₀) is beyond the cap."""

    name = "taylor"
    title = "expand the newest fresh values by finite differences"
    tier = "S"
    risk = "lossy-forecast"
    sites = MAIN_STACK | PARTS | {("hint", None), ("cfg", None)}
    refreshes = frozenset({"interval", "steps", "spacing"})
    takes_window = True
    forecasts = True
    keeps = "residual"
    params_schema: ClassVar[Mapping[str, Any]] = {
        "type": "object",
        "properties": {
            "order": {"type": "integer", "minimum": 1, "maximum": 3, "description": "n. 1 unless said"},
            "variable": {
                "enum": ["sigma", "step"],
                "description": "what is expanded in: `sigma` (unless said), or the step index, as TaylorSeer does",
            },
            "cap": CAP,
            "hints": HINTS,
        },
        "additionalProperties": False,
    }

    def lower(self, at: Placement) -> Lowered:
        """`F` where two fresh values exist and the ratio is within the cap, `R` at the other steps between refreshes."""
        axis = range(at.grid.steps) if at.params.get("variable") == "step" else at.grid.sigmas
        return forecast_between(at, axis, most=int(at.params.get("order", 1)) + 1)

    def predict(self, history: Sequence[Observation], now: Now, params: Mapping[str, Any]) -> torch.Tensor:
        """The expansion in fp32, of as many orders as there are observations for; with one, its value."""
        values = [seen.value.float() for seen in history]
        if params.get("variable") == "step":
            return expand(now.step, [seen.step for seen in history], values)
        return interpolate(now.sigma, [seen.sigma for seen in history], values)

    def describe(self, params: Mapping[str, Any]) -> str:
        """Names order, variable and cap."""
        order, variable = int(params.get("order", 1)), params.get("variable", "sigma")
        cap = float(params.get("cap", DEFAULT_CAP))
        return f"{self.title} (order {order} in {variable}, ratio capped at {cap:g}: beyond it, reuse)"


def interpolate(x: float, nodes: Sequence[float], values: Sequence[torch.Tensor]) -> torch.Tensor:
    """Newton's polynomial through the values at the nodes, newest first."""
    column, value, factor = list(values), values[0], 1.0
    for k in range(1, len(nodes)):
        column = [(a - b) / (nodes[i] - nodes[i + k]) for i, (a, b) in enumerate(pairwise(column))]
        factor *= x - nodes[k - 1]
        value = value + column[0] * factor
    return value


def expand(x: float, nodes: Sequence[float], values: Sequence[torch.Tensor]) -> torch.Tensor:
    """TaylorSeer's expansion about the newest node: each difference is divided by the gap of its two newest nodes."""
    column, value = list(values), values[0]
    for k in range(1, len(nodes)):
        column = [(a - b) / (nodes[i] - nodes[i + 1]) for i, (a, b) in enumerate(pairwise(column))]
        value = value + column[0] * ((x - nodes[0]) ** k / factorial(k))
    return value


METHOD = Taylor()
