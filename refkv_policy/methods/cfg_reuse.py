"""S `cfg_reuse`: take the unconditional velocity from the conditional one and the newest difference of the two. Lossy.

v̂_uncond(t) = v_cond(t) + Δ(t₁), Δ = v_uncond − v_cond of one step, t₁ the newest step at which both were computed [FasterCache,
arXiv 2410.19355: its CFG-Cache, without the weights by frequency]. Guidance g is v_cond − (g − 1)·Δ: an error of Δ counts g − 1
times. With `skip`, Δ is 0 between refreshes: no guidance, as outside a guidance interval [arXiv 2404.07724].
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, ClassVar

from refkv_policy.methods.method import Lowered, Method, Now, Observation, Placement, reuse_between

if TYPE_CHECKING:
    import torch


class CfgReuse(Method):
    """Acts on the uncond branch alone; the cond branch is computed at every step."""

    name = "cfg_reuse"
    title = "reuse the newest difference of the unconditional from the conditional velocity"
    tier = "S"
    risk = "lossy-guidance-cache"
    sites = frozenset({("cfg", None)})
    refreshes = frozenset({"interval", "steps", "spacing"})
    takes_window = True
    keeps = "residual"
    by_site = True
    params_schema: ClassVar[Mapping[str, Any]] = {
        "type": "object",
        "properties": {
            "skip": {
                "type": "boolean",
                "description": "take the difference as 0 between refreshes: no guidance there. False unless said",
            }
        },
        "additionalProperties": False,
    }

    def lower(self, at: Placement) -> Lowered:
        """`R` between refreshes, or `F` (a forecast from nothing) with `skip`; `.` throughout in the cond branch."""
        if at.branch == "cond":
            return Lowered(reuse_between(at, served=".").replace("C", "."))
        if at.params.get("skip"):
            return Lowered(reuse_between(at, served="F"), history=0)
        return Lowered(reuse_between(at))

    def predict(self, history: Sequence[Observation], now: Now, params: Mapping[str, Any]) -> torch.Tensor:
        """A difference of 0, in fp32 and the shape of the cond velocity. Raises ValueError when that is not given."""
        if now.base is None:
            raise ValueError("a skipped difference has the shape of the conditional velocity, which is not given")
        return now.base.float().new_zeros(now.base.shape)

    def describe(self, params: Mapping[str, Any]) -> str:
        """Says where there is no guidance."""
        return "run the conditional branch alone, without guidance" if params.get("skip") else self.title


METHOD = CfgReuse()
