"""S `residual_reuse`: the main stack, or a run of its blocks, adds what it added at the newest refresh. Lossy.

ŷ(t) = x(t) + r(t₁), r = output − input, t₁ the newest fresh step [Δ-DiT, arXiv 2406.01125; FORA, arXiv 2407.01425]. Methods
that find the refreshes by a rule of their own, or more in the residual than its newest value, derive from it.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar

from refkv_policy.methods.method import HINTS, MAIN_STACK, Grid, Lowered, Method, Placement, reuse_between


class ResidualReuse(Method):
    """One float32 residual a site and branch; the executor adds it to what the site is given."""

    name = "residual_reuse"
    title = "reuse the residual of the newest refresh"
    tier = "S"
    risk = "lossy-main-cache"
    sites = MAIN_STACK
    refreshes = frozenset({"interval", "steps", "spacing"})
    takes_window = True
    keeps = "residual"
    params_schema: ClassVar[Mapping[str, Any]] = {
        "type": "object",
        "properties": {"hints": HINTS},
        "additionalProperties": False,
    }

    def lower(self, at: Placement) -> Lowered:
        """`C` at refreshes, `R` between them."""
        return Lowered(reuse_between(at))


class RefreshesItself(ResidualReuse):
    """Base of those that stand at the stack or a run of blocks and find their refreshes by a rule of their own."""

    sites = frozenset({("main", "span")})
    refreshes = frozenset()

    def fresh_without_refresh(self, grid: Grid) -> frozenset[int]:
        """None: the rule decides."""
        return frozenset()


METHOD = ResidualReuse()
