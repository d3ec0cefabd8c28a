"""S `teacache`: reuse the residual while the calibrated change of the time embedding adds up to little. Lossy.

acc += p(L1rel(e_t, e_{t−1})), p a polynomial fitted to the change of the output; reuse while acc < δ; a computed step sets acc 0
[TeaCache, arXiv 2411.19108; TeaCache4Wan2.1, as in MagCache's evaluation of it]. On Wan, e is the time embedding or its
projection e0: a function of the timestep and the weights. So `signals` is calibrated once a model and grid of sigmas, without a
clip, and every decision is known when the plan is compiled: no `?` cell.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any, ClassVar

from refkv_policy.methods.method import HINTS, Lowered, MethodError, Placement, reuse_between
from refkv_policy.methods.residual_reuse import RefreshesItself


class TeaCache(RefreshesItself):
    """ŷ(t) = x(t) + r(t₁), t₁ the newest computed step."""

    name = "teacache"
    title = "reuse the residual while the change of the time embedding adds up to little"
    due = "the first and last of the steps, and where the calibrated change adds up to the threshold"
    params_schema: ClassVar[Mapping[str, Any]] = {
        "type": "object",
        "properties": {
            "delta": {"type": "number", "exclusiveMinimum": 0, "description": "δ: bound on the accumulated change"},
            "polynomial": {
                "type": "array",
                "items": {"type": "number"},
                "minItems": 1,
                "description": "coefficients of p, of the highest power first",
            },
            "signals": {
                "type": "array",
                "items": {"type": "number", "minimum": 0},
                "minItems": 1,
                "description": "L1rel(e_t, e_{t−1}) of each step that is run; that of the first is not read",
            },
            "retain": {"type": "integer", "minimum": 1, "description": "first steps always computed. 1 unless said"},
            "last": {"type": "integer", "minimum": 0, "description": "last steps always computed. 1 unless said"},
            "hints": HINTS,
        },
        "required": ["delta", "polynomial", "signals"],
        "additionalProperties": False,
    }

    def lower(self, at: Placement) -> Lowered:
        """`C` where the accumulated change reaches δ, `R` elsewhere; the first `retain` and the `last` steps are computed.

        Raises MethodError unless there is one signal a step: the change over several steps does not follow from those between.
        """
        signals, count = at.params["signals"], len(at.grid.evaluated)
        if len(signals) != count:
            raise MethodError(
                "params",
                f"`signals` has {len(signals)} numbers, and the sites are reached at {count} steps",
                "calibrate on the steps that are run",
            )
        delta = float(at.params["delta"])
        retained, tail = int(at.params.get("retain", 1)), count - int(at.params.get("last", 1))
        computed, acc = set(at.fresh), 0.0
        for n, step in enumerate(at.grid.evaluated):
            forced = n < retained or n >= tail or step in at.fresh
            acc += 0.0 if forced else polynomial(at.params["polynomial"], signals[n])
            if forced or acc >= delta:
                computed.add(step)
                acc = 0.0
        return Lowered(reuse_between(replace(at, fresh=frozenset(computed))))

    def describe(self, params: Mapping[str, Any]) -> str:
        """Names δ."""
        return f"{self.title} (δ {float(params['delta']):g})"


def polynomial(coefficients: Sequence[float], x: float) -> float:
    """Σ c_k x^(n−k), by Horner's rule, as numpy.poly1d evaluates it."""
    value = 0.0
    for coefficient in coefficients:
        value = value * x + coefficient
    return value


METHOD = TeaCache()
