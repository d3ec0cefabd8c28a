"""One forward as the executor sees it: what is served, what is kept, and what departed from the table."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple

from torch import Tensor

from refkv_policy import methods
from refkv_policy.audit import Decision
from refkv_policy.compiler.table import COMPUTE, COMPUTE_KEEP, FORECAST, SERVED, UNREACHED, TableRule
from refkv_policy.runtime.attention import KeepText, KeptText, Sink
from refkv_policy.runtime.cells import CallPlan, Cell
from refkv_policy.runtime.store import BUDGET, Kept, Store


class Inputs(NamedTuple):
    """What one forward is given. latents: (batch, channels, frames, height, width); timestep: (batch,).

    prompt: (batch, length, width); image: embedding of an image beside it, or None. scale: one number a hint.
    """

    latents: Tensor
    timestep: Tensor
    prompt: Tensor
    image: Tensor | None
    control: Tensor
    scale: Tensor | None


class Call:
    """Serves and keeps values for one forward. The executor asks at each site, in the order in which it computes.

    withheld: why nothing may be served or kept in this call (`unknown_step`, `error`), None where the table governs.
    changes: the decisions that are not as compiled, by the row's position: departures, and served values of another age.
    """

    __slots__ = ("changes", "plan", "rules", "store", "withheld")

    def __init__(self, plan: CallPlan, store: Store, rules: Sequence[TableRule], withheld: str | None = None) -> None:
        self.plan, self.store, self.rules, self.withheld = plan, store, rules, withheld
        self.changes: dict[int, Decision] = {}

    def servable(self, cell: Cell) -> bool:
        """Whether `serve` would give a value."""
        return cell.action in SERVED and self.withheld is None and self.store.history(cell) is not None

    def serve(self, cell: Cell, writable: bool = False) -> Tensor | None:
        """The value that an `R` or `F` cell stands for; None where it has to be computed (and then given to `keep`).

        To be read only, unless asked for as writable.
        """
        history = self._history(cell)
        if history is None:
            return None
        if cell.action == FORECAST:
            rule = self.rules[cell.rule or 0]
            seen = [kept.observation() for kept in history]
            value = methods.get(rule.method).predict(seen, cell.sigma, rule.params).to(history[0].dtypes[0])
        else:
            # The last reader is given the kept memory itself: nobody reads it afterwards.
            (value,) = history[0].restored(writable and cell.retained > 0)
        self.store.trim(cell, cell.retained)
        return value

    def _history(self, cell: Cell) -> Sequence[Kept] | None:
        """What a served cell reads, its age noted where it is not the planned one; None where it is not served."""
        if cell.action not in SERVED or self.withheld is not None:
            return None
        history = self.store.history(cell)
        if history is not None and history[0].step > cell.sources[0]:
            age = self.plan.index - self.plan.evaluated.index(history[0].step)
            self.changes[cell.position] = Decision(cell.site, cell.action, cell.action, None, age)
        return history

    def keep(self, cell: Cell, *parts: Tensor) -> None:
        """Take note of a value that was computed at a cell, and hold it where later cells read it."""
        action = cell.action
        if action == COMPUTE:
            return
        if action == UNREACHED:
            self._note(cell, COMPUTE, "chain")
        elif self.withheld is not None:
            self._note(cell, COMPUTE, self.withheld)
        else:
            reason = None if action == COMPUTE_KEEP else self.store.missing(cell)
            held = cell.retained > 0 and reason != BUDGET and self.store.keep(cell, *parts)
            done = COMPUTE_KEEP if held else COMPUTE
            if done != action:
                self._note(cell, done, reason or BUDGET)

    def text(self, cell: Cell, text: Tensor) -> Tensor | KeepText | KeptText:
        """What a block is given for the text: kept K and V, the text with a sink for them, or the text alone."""
        history = self._history(cell)
        if history is not None:
            key, value = history[0].restored()
            self.store.trim(cell, cell.retained)
            return KeptText(key, value)
        if cell.action == COMPUTE or cell.action == UNREACHED or self.withheld is not None:
            self.keep(cell)
            return text
        return KeepText(text, Sink())

    def keep_text(self, cell: Cell, given: Tensor | KeepText | KeptText) -> None:
        """Keep the K and V that the block left in the sink of what `text` gave it."""
        if isinstance(given, KeepText):
            if given.sink.value is None:
                raise RuntimeError(f"{cell.site}: the block did not pass the text on to its cross-attention")
            self.keep(cell, *given.sink.value)

    def _note(self, cell: Cell, action: str, reason: str) -> None:
        self.changes[cell.position] = Decision(cell.site, action, cell.action, reason)


Run = Callable[[Inputs, Callable[[Call], Tensor]], Tensor]
"""Runs the body of a forward under the call that its inputs turn out to be."""
