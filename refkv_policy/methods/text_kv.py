"""P0 `text_kv`: keep the text's K and V of every cross-attention. Lossless.

K (after norm_k) and V of `attn2` depend on the prompt alone, so they are projected once a branch and prompt [RFC §2.4].
"""

from __future__ import annotations

from refkv_policy.methods.method import Grid, Lowered, Method, Placement, reuse_between


class TextKV(Method):
    """Bit-exact while attention runs in its native dtype."""

    name = "text_kv"
    title = "reuse the text's K and V, projected once a branch and prompt"
    tier = "P0"
    risk = None
    sites = frozenset({("main", "text_kv"), ("vace", "text_kv")})

    def fresh_without_refresh(self, grid: Grid) -> frozenset[int]:
        """The first visited step."""
        return frozenset(grid.evaluated[:1])

    def lower(self, at: Placement) -> Lowered:
        """`C` once, `R` ever after."""
        return Lowered(reuse_between(at))


METHOD = TextKV()
