"""S `firstblock`: block 0 always runs; the others are reused while what it adds changes little. Lossy.

`dbcache` behind one block and without bounds [FBCache of ParaAttention; diffusers `FirstBlockCacheConfig`, which reuses at a
change equal to δ as well].
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar

from refkv_policy.methods.dbcache import DBCache
from refkv_policy.methods.method import Lowered, MethodError, Placement


class FirstBlock(DBCache):
    """Stands at `main[1..last]`."""

    name = "firstblock"
    title = "reuse the residual while what the first block adds changes little"
    due = "the first of the steps, and wherever the first block has changed by the threshold"
    params_schema: ClassVar[Mapping[str, Any]] = {
        **DBCache.params_schema,
        "properties": {k: v for k, v in DBCache.params_schema["properties"].items() if k in ("delta", "hints")},
    }

    def lower(self, at: Placement) -> Lowered:
        """`C` at the first step, `?` at all others. Raises MethodError for a span that does not begin with block 1."""
        if at.site.index != 1:
            raise MethodError(
                "at",
                f"`{at.site}` does not begin with block 1, and firstblock looks at block 0 alone",
                "begin with block 1 and end with the model's last, such as `main[1..29]`, or take method dbcache",
            )
        return super().lower(at)


METHOD = FirstBlock()
