"""An online rule in one request: its state, and what it decided last."""

from __future__ import annotations

from typing import Any

from torch import Tensor

from refkv_policy import methods
from refkv_policy.compiler.placement import placement_of
from refkv_policy.compiler.table import HookTable


class Gate:
    """Decides all `?` cells of a rule in one call, for one branch, or for both where they go together.

    serves: the decision of the step `step`. signal: the number it was made from, None where there was none. value: the probe
    of the newest look.
    """

    def __init__(self, table: HookTable, rule: int, branch: str) -> None:
        self.rule, self.method = rule, methods.get(table.rules[rule].method)
        self.at = placement_of(table, rule, branch)
        probe = self.method.probe(self.at)
        assert probe is not None
        self.probe, self.online = probe, self.method.online(self.at)
        self.state: Any = self.online.begin()
        self.step, self.serves = -1, False
        self.signal: float | None = None
        self.value: Tensor | None = None

    @property
    def threshold(self) -> float:
        """What the signal, or its sum, is held against."""
        return self.online.threshold

    def look(self, step: int, value: Tensor, reference: Tensor | None, online: bool) -> None:
        """Decide about a call from its probe. online: whether the rule has `?` cells in it.

        The signal is the only number that is read from the device.
        """
        self.step, self.value, self.signal = step, value, None
        if online and reference is not None:
            self.signal = float(self.method.measure(value, reference, self.at))
        decided, self.state = self.online.decide(self.state, self.signal)
        self.serves = decided and online and self.signal is not None

    def computed(self) -> None:
        """The rule's sites were computed in this call."""
        self.state = self.online.computed(self.state)
