"""A caching method of another distribution: reuses at the main stack, a span, or parts, deciding in the run where asked to."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar

from refkv_policy.methods import Lowered, Method, Online, Placement, Probe


class Small(Online):
    """Serves below a threshold, never twice in a row."""

    def __init__(self, threshold: float) -> None:
        self.threshold = threshold

    def begin(self) -> bool:
        """The call before was not served."""
        return False

    def decide(self, state: bool, signal: float | None) -> tuple[bool, bool]:
        """After a computed call only."""
        serves = signal is not None and signal < self.threshold and not state
        return serves, serves


class SampleCache(Method):
    """Every second step, or where block 0 changes little."""

    name = "sample_cache"
    title = "reuse at every second step"
    due = "every second step"
    tier = "S"
    risk = "sample-risk"
    sites = frozenset({("main", "span"), ("main", "ffn"), ("vace", "self")})
    keeps = "residual"
    params_schema: ClassVar[Mapping[str, Any]] = {
        "type": "object",
        "properties": {"below": {"type": "number"}},
        "additionalProperties": False,
    }

    def fresh_without_refresh(self, grid: Any) -> frozenset[int]:
        """Every second of the steps that are run."""
        return frozenset(grid.evaluated[::2])

    def lower(self, at: Placement) -> Lowered:
        """`C` and `R` in turn; with `below`, `?` after the first."""
        online = "below" in at.params
        actions = ["-"] * at.grid.steps
        for n, step in enumerate(at.grid.evaluated):
            actions[step] = "C" if n == 0 else "?" if online else "R" if n % 2 else "C"
        return Lowered("".join(actions), longest=1 if online else None)

    def probe(self, at: Placement) -> Probe | None:
        """Block 0, where the rule decides in the run."""
        return Probe(0, 0, "previous") if "below" in at.params else None

    def online(self, at: Placement) -> Online:
        """The threshold."""
        return Small(float(at.params["below"]))


METHOD = SampleCache()
