"""S `dbcache`: the first main blocks always run; a span behind them is reused while what they add changes little. Lossy.

Stands at a span such as `main[8..29]`, or `main[8..25]` where the last blocks run as well. Reuse while L1rel(p, p₁) < δ, p what
blocks 0 to 7 add to the stream in this call and p₁ in the newest call in which the span was computed; at most k times in a row
and `most` times in all [DBCache of cache-dit, `Fn_compute_blocks` 8 and `Bn_compute_blocks` 0 or 4; after FBCache of
ParaAttention]. The decision needs the sample, so it falls in the run.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, ClassVar, NamedTuple

from refkv_policy.methods.method import HINTS, Lowered, MethodError, Online, Placement, Probe, reuse_between
from refkv_policy.methods.residual_reuse import RefreshesItself


class Served(NamedTuple):
    """Calls served in a row, and in all, before the newest. pending: that is to be served, and nothing has said otherwise."""

    run: int = 0
    total: int = 0
    pending: bool = False


@dataclass(frozen=True, slots=True)
class Below(Online):
    """Serves while the signal is below the threshold and neither bound is met. None is no bound."""

    threshold: float
    k: int | None = None
    most: int | None = None

    def begin(self) -> Served:
        """None was served."""
        return Served()

    def decide(self, state: Served, signal: float | None) -> tuple[bool, Served]:
        """A call counts as served once the next begins: until then it may turn out computed, by the table or a departure."""
        run, total = state.run + state.pending, state.total + state.pending
        serves = (
            signal is not None
            and signal < self.threshold
            and (self.k is None or run < self.k)
            and (self.most is None or total < self.most)
        )
        return serves, Served(run, total, serves)

    def computed(self, state: Served) -> Served:
        """The run ends."""
        return Served(0, state.total)


class DBCache(RefreshesItself):
    """ŷ(t) = x(t) + r(t₁), t₁ the newest step at which the span was computed, decided in each call."""

    name = "dbcache"
    title = "reuse the residual while what the blocks before add changes little"
    due = "the first of the steps, and wherever the blocks before have changed by the threshold, or a bound is met"
    by_site = True
    params_schema: ClassVar[Mapping[str, Any]] = {
        "type": "object",
        "properties": {
            "delta": {
                "type": "number",
                "exclusiveMinimum": 0,
                "description": "δ: the relative change at which to compute",
            },
            "k": {"type": "integer", "minimum": 1, "description": "most reuses in a row. No bound unless said"},
            "most": {
                "type": "integer",
                "minimum": 1,
                "description": "most reuses in all, in a branch. No bound unless said",
            },
            "retain": {"type": "integer", "minimum": 1, "description": "first steps always computed. 1 unless said"},
            "hints": HINTS,
        },
        "required": ["delta"],
        "additionalProperties": False,
    }

    def lower(self, at: Placement) -> Lowered:
        """`C` at the first `retain` steps, `?` at all others, the last among them.

        Raises MethodError where no block runs before the site, so that there is nothing to look at.
        """
        if not at.site.index:
            raise MethodError(
                "at",
                f"`{at.site}` begins with block 0, and {self.name} looks at the blocks before its site",
                "begin it later, such as `main[1..29]`",
            )
        fresh = at.fresh | frozenset(at.grid.evaluated[: int(at.params.get("retain", 1))])
        bounds = [int(at.params[key]) for key in ("k", "most") if key in at.params]
        return Lowered(reuse_between(replace(at, fresh=fresh), served="?"), longest=min(bounds, default=None))

    def probe(self, at: Placement) -> Probe:
        """What the blocks before the site add, against what they added when it was last computed."""
        assert at.site.index
        return Probe(0, at.site.index - 1, "computed")

    def online(self, at: Placement) -> Below:
        """δ and both bounds."""
        return Below(float(at.params["delta"]), at.params.get("k"), at.params.get("most"))

    def describe(self, params: Mapping[str, Any]) -> str:
        """Names δ and the bounds."""
        bounds = [(params.get("k"), "in a row"), (params.get("most"), "in all")]
        told = "".join(f", at most {n} {how}" for n, how in bounds if n is not None)
        return f"{self.title} (δ {float(params['delta']):g}{told})"


METHOD = DBCache()
