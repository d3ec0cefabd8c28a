"""One forward as the executor sees it: what is served, what is kept, and what departed from the table."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from types import MappingProxyType
from typing import NamedTuple

from torch import Tensor

from refkv_policy import methods
from refkv_policy.audit import Decision
from refkv_policy.compiler.table import COMPUTE, COMPUTE_KEEP, FORECAST, ONLINE, REUSE, SERVED, UNREACHED, TableRule
from refkv_policy.methods import Now
from refkv_policy.plan.selectors import Site, site_named
from refkv_policy.runtime.attention import KeepText, KeptText, Sink
from refkv_policy.runtime.cells import CallPlan, Cell, Region
from refkv_policy.runtime.gate import Gate
from refkv_policy.runtime.store import BUDGET, NO_STATE, Kept, Store


class Inputs(NamedTuple):
    """What one forward is given. latents: (batch, channels, frames, height, width); timestep: (batch,).

    prompt: (batch, length, width); image: embedding of an image beside it, or None. control: of a model that has one.
    scale: one number a hint.
    """

    latents: Tensor
    timestep: Tensor
    prompt: Tensor
    image: Tensor | None = None
    control: Tensor | None = None
    scale: Tensor | None = None


class Call:
    """Serves and keeps values for one forward. The executor asks at each site, in the order in which it computes.

    withheld: why nothing may be served or kept in this call (`unknown_step`, `error`), None where the table governs.
    changes: the decisions that are not as compiled, by the row's position: departures, what was decided online, and served
    values of another age. base: the cond velocity of the same step, where `cfg` asks for it.
    """

    __slots__ = ("base", "changes", "gates", "plan", "rules", "store", "withheld")

    def __init__(
        self,
        plan: CallPlan,
        store: Store,
        rules: Sequence[TableRule],
        withheld: str | None = None,
        gates: Mapping[int, Gate] = MappingProxyType({}),
    ) -> None:
        self.plan, self.store, self.rules, self.withheld, self.gates = plan, store, rules, withheld, gates
        self.changes: dict[int, Decision] = {}
        self.base: Tensor | None = None

    # What is served ---------------------------------------------------------------------------------------------------

    def servable(self, cell: Cell) -> bool:
        """Whether `serve` would give a value, for a cell that is not decided online."""
        if cell.action not in SERVED or self.withheld is not None:
            return False
        return (cell.action == FORECAST and cell.history == 0) or self.store.history(cell) is not None

    def serve(self, cell: Cell, writable: bool = False) -> Tensor | None:
        """The value that an `R` or `F` cell, or a `?` cell, stands for; None where it has to be computed (then `keep` it).

        To be read only, unless asked for as writable.
        """
        if cell.action == ONLINE:
            return self._serve_online(cell, writable)
        if cell.action == FORECAST and cell.history == 0 and self.withheld is None:
            return self._predicted(cell, ())
        history = self._history(cell)
        if history is None:
            return None
        if cell.action == FORECAST:
            value = self._predicted(cell, history[: len(cell.sources)])
        else:
            # The last reader is given the kept memory itself: nobody reads it afterwards.
            (value, *_) = history[0].restored(writable and cell.retained > 0)
        self.store.trim(cell, cell.retained)
        return value

    def _predicted(self, cell: Cell, history: Sequence[Kept]) -> Tensor:
        """What the rule's method makes of observations, in the dtype that they were kept from; of none, in its own."""
        rule = self.rules[cell.rule or 0]
        gate = self.gates.get(cell.rule or 0)
        now = Now(cell.sigma, cell.step, site_named(cell.site), None if gate is None else gate.value, self.base)
        seen = [kept.observation() for kept in history]
        value = methods.get(rule.method).predict(seen, now, rule.params)
        return value.to(history[0].dtypes[0]) if history else value

    def _history(self, cell: Cell) -> Sequence[Kept] | None:
        """What a served cell reads, its age noted where it is not the planned one; None where it is not served."""
        if cell.action not in SERVED or self.withheld is not None:
            return None
        history = self.store.history(cell)
        if history is not None and history[0].step > cell.sources[0]:
            self.changes[cell.position] = Decision(cell.site, cell.action, cell.action, None, self._age(history))
        return history

    def _age(self, history: Sequence[Kept]) -> int:
        return self.plan.index - self.plan.evaluated.index(history[0].step)

    def _serve_online(self, cell: Cell, writable: bool) -> Tensor | None:
        gate = self.gates.get(cell.rule or 0)
        if self.withheld is not None or gate is None or gate.step != self.plan.step or not gate.serves:
            return None
        history = self.store.newest(cell)
        if not history:
            return None
        forecasts = gate.method.forecasts
        value = (
            self._predicted(cell, history[: cell.history])
            if forecasts
            else history[0].restored(writable and cell.retained > 0)[0]
        )
        done = FORECAST if forecasts else REUSE
        age = self._age(history)
        self.changes[cell.position] = Decision(cell.site, done, ONLINE, None, age, gate.signal, gate.threshold)
        for position in cell.inner:
            told = self.plan.decisions[position]
            if told.planned != UNREACHED:
                self.changes[position] = Decision(told.site, UNREACHED, told.planned)
        self.store.trim(cell, cell.retained)
        return value

    # What is kept -----------------------------------------------------------------------------------------------------

    def keep(self, cell: Cell, *parts: Tensor) -> None:
        """Take note of a value that was computed at a cell, and hold it where later cells read it."""
        action = cell.action
        if action == COMPUTE:
            return
        if action == ONLINE:
            self._keep_online(cell, *parts)
            return
        self._reached(cell)
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

    def _keep_online(self, cell: Cell, *parts: Tensor) -> None:
        """A `?` cell that was computed: decided so, or for want of what it was to be served from."""
        gate = self.gates.get(cell.rule or 0)
        if self.withheld is not None or gate is None or gate.step != self.plan.step:
            self._note(cell, COMPUTE, self.withheld or NO_STATE)
            return
        # With nothing to compare with, it was computed for want of what was dropped, not because a rule said so.
        dropped = self.store.dropped(cell)
        reason = dropped or NO_STATE if gate.serves else dropped if gate.signal is None else None
        held = cell.retained > 0 and reason != BUDGET and self.store.keep(cell, *parts)
        if not held and cell.retained > 0:
            reason = BUDGET
        done = COMPUTE_KEEP if held else COMPUTE
        self.changes[cell.position] = Decision(cell.site, done, ONLINE, reason, None, gate.signal, gate.threshold)

    def _reached(self, cell: Cell) -> None:
        """What lies inside a site that was computed though the table has it served, or not reached, is computed with it."""
        if cell.inner and cell.action not in (COMPUTE_KEEP, COMPUTE):
            for position in cell.inner:
                told = self.plan.decisions[position]
                if told.planned == UNREACHED:
                    self.changes.setdefault(position, Decision(told.site, COMPUTE, UNREACHED, "chain"))

    def _note(self, cell: Cell, action: str, reason: str) -> None:
        self.changes[cell.position] = Decision(cell.site, action, cell.action, reason)

    def serve_call(self, cell: Cell) -> Tensor | None:
        """The velocity of a call that is served as a whole: kept, or the cond velocity of this step and the difference."""
        if cell.residual and self.base is None:
            return None
        value = self.serve(cell, writable=not cell.residual)  # a sampler may work in place on it
        if value is None or not cell.residual:
            return value
        assert self.base is not None
        return (self.base.float() + value).type_as(self.base)

    def keep_call(self, cell: Cell, sample: Tensor) -> None:
        """`keep` for a call that ran: its velocity, or how that differs from the cond velocity of this step."""
        if not cell.residual:
            self.keep(cell, sample)
        elif self.base is not None:
            self.keep(cell, sample.float() - self.base.float())
        else:
            self._reached(cell)
            self._note(cell, COMPUTE, NO_STATE)

    # Regions ----------------------------------------------------------------------------------------------------------

    def serve_region(self, cell: Cell, stream: Tensor) -> Tensor | None:
        """The output of a region that is served: its kept output, or what it was given and the residual, added in float32."""
        value = self.serve(cell, writable=not cell.residual)  # a block may work in place on its input
        if value is None or not cell.residual:
            return value
        return (stream.float() + value).type_as(stream)

    def keep_region(self, cell: Cell, given: Tensor, output: Tensor, hints: Tensor | None = None) -> None:
        """`keep` for a region that ran. hints: the sum of those added inside, to be left out of its residual."""
        value = output
        if cell.residual:
            value = output.float() - given.float()
            if hints is not None:
                value = value - hints
        gate = self.gates.get(cell.rule if cell.rule is not None else -1)
        kept = (value,) if gate is None or gate.value is None or not gate.probe.keep else (value, gate.value)
        self.keep(cell, *kept)

    def look(self, region: Region, given: Tensor, output: Tensor) -> None:
        """Give the rules that look at a region what it has added to the stream; each decides about its `?` cells."""
        if self.withheld is not None:
            return
        value: Tensor | None = None
        for rule in region.probes:
            gate, looking = self.gates.get(rule), self.plan.looking[rule]
            if gate is None or not looking.decides:
                continue
            value = output.float() - given.float() if value is None else value
            kept = self.store.newest(looking.cell)
            gate.look(self.plan.step, value, kept[0].restored()[0] if kept else None, looking.online)
            if gate.probe.against == "previous":
                self._refer(looking.cell, value)

    def _refer(self, cell: Cell, value: Tensor) -> None:
        """Hold a probe for a later call to compare with."""
        if cell.retained:
            self.store.keep(cell, value)
        else:
            self.store.trim(cell, 0)

    def finish(self) -> None:
        """Settle, once the forward has run, what its decisions mean for the rules that made them."""
        for rule, looking in self.plan.looking.items():
            gate = self.gates.get(rule)
            if gate is None or not looking.decides or gate.step != self.plan.step:
                continue
            if not self._served(rule):
                gate.computed()
                if gate.probe.against == "computed" and gate.value is not None:
                    self._refer(looking.cell, gate.value)
            elif not looking.cell.retained:
                self.store.trim(looking.cell, 0)
            gate.value = None

    def _served(self, rule: int) -> bool:
        return any(
            decision.planned == ONLINE
            and decision.action in SERVED
            and self.plan.cells[site_named(decision.site)].rule == rule
            for decision in self.changes.values()
        )

    def idle(self, site: Site) -> None:
        """Take note that a site that is computed on demand was not asked for, since all that need it were served online."""
        cell = self.plan.cells.get(site)
        if cell is not None and self.changes:
            for position in (cell.position, *cell.inner):
                told = self.plan.decisions[position]
                if told.planned != UNREACHED and position not in self.changes:
                    self.changes[position] = Decision(told.site, UNREACHED, told.planned)

    # Text K and V -----------------------------------------------------------------------------------------------------

    def text(self, cell: Cell, text: Tensor) -> Tensor | KeepText | KeptText:
        """What a block is given for the text: kept K and V, the text with a sink for them, or the text alone."""
        history = self._history(cell)
        if history is not None:
            key, value = history[0].restored()
            self.store.trim(cell, cell.retained)
            return KeptText(key, value)
        if cell.action == UNREACHED:
            return text
        if cell.action == COMPUTE or self.withheld is not None:
            self.keep(cell)
            return text
        return KeepText(text, Sink())

    def keep_text(self, cell: Cell, given: Tensor | KeepText | KeptText) -> None:
        """Keep the K and V that the block left in the sink of what `text` gave it."""
        if isinstance(given, KeepText):
            if given.sink.value is None:
                raise RuntimeError(f"{cell.site}: the block did not pass the text on to its cross-attention")
            self.keep(cell, *given.sink.value)


Run = Callable[[Inputs, Callable[[Call], Tensor]], Tensor]
"""Runs the body of a forward under the call that its inputs turn out to be."""
