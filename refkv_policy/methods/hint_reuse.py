"""P1 `hint_reuse`: add the newest fresh VACE hint again until the next refresh. Lossy [RFC §2.5]."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar

from refkv_policy.methods.method import Lowered, Method, Placement, reuse_between

CHAIN: dict[str, Any] = {
    "enum": ["stale"],
    "description": "keep the chain's state c_j at each refresh and let the deeper blocks go on from it: a second approximation",
}


class HintReuse(Method):
    """ĥ(t) = h(t₁), t₁ the newest fresh step."""

    name = "hint_reuse"
    title = "reuse the newest fresh hint"
    tier = "P1"
    risk = "lossy-hint-cache"
    sites = frozenset({("hint", None)})
    refreshes = frozenset({"interval", "steps", "spacing"})
    takes_window = True
    params_schema: ClassVar[Mapping[str, Any]] = {
        "type": "object",
        "properties": {"chain": CHAIN},
        "additionalProperties": False,
    }

    def risks(self, params: Mapping[str, Any]) -> tuple[str, ...]:
        """A stale chain is a risk of its own."""
        return ("lossy-hint-cache", "stale-chain") if self.keeps_sources(params) else ("lossy-hint-cache",)

    def keeps_sources(self, params: Mapping[str, Any]) -> bool:
        """A stale chain keeps the state that each hint is the projection of."""
        return params.get("chain") == "stale"

    def lower(self, at: Placement) -> Lowered:
        """`C` at refreshes, `R` between them."""
        return Lowered(reuse_between(at))


METHOD = HintReuse()
