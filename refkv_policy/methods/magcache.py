"""S `magcache`: reuse the residual while its calibrated magnitude ratios say that it has changed little. Lossy.

After the first `retain` share of the steps, at each: acc *= γ_t; err += |1 − acc|; reuse while err < δ and at most K in a row; a
computed step sets acc to 1 and err to 0. γ_t = mean(‖r_t‖ / ‖r_{t−1}‖), over tokens, is nearly free of content [MagCache, arXiv
2506.09045; authors' code, MagCache4Wan2.1]. Given γ, every decision is known when the plan is compiled: no `?` cell.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any, ClassVar

from refkv_policy.methods.method import HINTS, Lowered, Placement, reuse_between
from refkv_policy.methods.residual_reuse import RefreshesItself


class MagCache(RefreshesItself):
    """ŷ(t) = x(t) + r(t₁), t₁ the newest computed step."""

    name = "magcache"
    title = "reuse the residual while its magnitude stays near that of the newest computed one"
    due = "the first of the steps, and where the calibrated ratios say that the magnitude has changed"
    params_schema: ClassVar[Mapping[str, Any]] = {
        "type": "object",
        "properties": {
            "delta": {"type": "number", "exclusiveMinimum": 0, "description": "δ: bound on the accumulated error"},
            "k": {"type": "integer", "minimum": 1, "description": "K: longest run of reused steps. 3 unless said"},
            "retain": {
                "type": "number",
                "minimum": 0,
                "maximum": 1,
                "description": "share of the steps, from the first, that is always computed. 0.2 unless said",
            },
            "ratios": {
                "type": "array",
                "items": {"type": "number", "exclusiveMinimum": 0},
                "minItems": 1,
                "description": "γ of each step of the calibrated run; at another step count, the nearest is taken",
            },
            "hints": HINTS,
        },
        "required": ["delta", "ratios"],
        "additionalProperties": False,
    }

    def lower(self, at: Placement) -> Lowered:
        """`C` where the accumulated error reaches δ or the run K, `R` elsewhere.

        γ of steps that are not reached is multiplied in at the next one that is: acc is then still ‖r_t‖ / ‖r_{t₁}‖.
        """
        delta, K = float(at.params["delta"]), int(at.params.get("k", 3))
        gamma = nearest(at.params["ratios"], at.grid.steps)
        retained = int(float(at.params.get("retain", 0.2)) * len(at.grid.evaluated) + 0.5)
        computed, acc, err, run, before = set(at.fresh), 1.0, 0.0, 0, -1
        for n, step in enumerate(at.grid.evaluated):
            for passed in range(before + 1, step + 1):
                acc *= gamma[passed]
            err, run, before = err + abs(1 - acc), run + 1, step
            if n == 0 or n < retained or step in at.fresh or err >= delta or run > K:
                computed.add(step)
                acc, err, run = 1.0, 0.0, 0
        return Lowered(reuse_between(replace(at, fresh=frozenset(computed))))

    def describe(self, params: Mapping[str, Any]) -> str:
        """Names δ and K."""
        return f"{self.title} (δ {float(params['delta']):g}, at most {int(params.get('k', 3))} in a row)"


def nearest(ratios: Sequence[float], steps: int) -> list[float]:
    """`ratios` of another step count: for each step the one at the nearest place, and of two equally near the even one.

    Authors' `nearest_interp`, in float64 as theirs. diffusers' is in float32 and takes the other neighbour at some ties.
    """
    if steps == 1:
        return [ratios[-1]]
    scale = (len(ratios) - 1) / (steps - 1)
    return [ratios[round(n * scale)] for n in range(steps)]


METHOD = MagCache()
