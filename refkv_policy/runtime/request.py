"""One request: its store, what it watches, and what its calls did."""

from __future__ import annotations

from typing import Any

from torch import nn

from refkv_policy.compiler.table import HookTable
from refkv_policy.runtime.call import Call, Inputs
from refkv_policy.runtime.cells import CallPlan
from refkv_policy.runtime.store import Store
from refkv_policy.runtime.summary import Counts, RequestSummary
from refkv_policy.runtime.watch import Watch

NEW_CONTROL = "new_control"


class Request:
    """Owns the state of one generation.

    planned: whether its steps are the table's. withheld: once nothing of it may be cached any more, the reason.
    """

    def __init__(
        self, name: str, key: object, table: HookTable, depends: dict[str, tuple[int, ...]], branches: tuple[str, ...]
    ) -> None:
        self.name, self.key, self.table, self.branches = name, key, table, branches
        self.store = Store(table.rules)
        self.planned = True
        self.withheld: str | None = None
        self.error: str | None = None
        self._depends = depends
        self._counts = Counts(table)
        self._seen: set[tuple[str, int]] = set()
        self._form: tuple[Any, ...] | None = None
        self._watches: dict[tuple[str, str], Watch] = {}

    def strays(self, plan: CallPlan, inputs: Inputs) -> bool:
        """Whether a call stands where one has already run, or is of another shape, dtype or device than the first."""
        form = inputs.latents.shape, inputs.latents.dtype, inputs.latents.device
        self._form = self._form or form
        return form != self._form or (plan.branch, plan.index) in self._seen

    def call(self, plan: CallPlan, inputs: Inputs, adapters: tuple[Any, ...]) -> Call:
        """The call of a planned step. State that depends on a prompt, control or adapter that changed is dropped."""
        self._seen.add((plan.branch, plan.index))
        watched = {"prompt": (inputs.prompt, inputs.image, adapters), "control": (inputs.control,)}
        for kind, contents in watched.items():
            if self._watches.setdefault((plan.branch, kind), Watch()).changed(*contents):
                self.store.drop(plan.branch, self._depends[kind], NEW_CONTROL)
        return Call(plan, self.store, self.table.rules, self.withheld)

    def ran(self, call: Call) -> None:
        """Count a call that has returned."""
        self._counts.add(call)

    def give_up(self, error: BaseException) -> None:
        """From now on compute everything and keep nothing."""
        self.withheld, self.error = "error", f"{type(error).__name__}: {error}"
        self.store.clear()

    @property
    def over(self) -> bool:
        """Whether the last step of every expected branch has run."""
        last = len(self.table.evaluated) - 1
        return all((branch, last) in self._seen for branch in self.branches)

    @property
    def complete(self) -> bool:
        """Whether every call that was expected has run, and every cell that the table serves in them was served."""
        steps = range(len(self.table.evaluated))
        return self._counts.unserved == 0 and all((b, i) in self._seen for b in self.branches for i in steps)

    def close(self) -> None:
        """Let go of everything that is held."""
        self.store.clear()
        self._watches.clear()

    def summary(self, outcome: str) -> RequestSummary:
        """What it did so far."""
        return self._counts.summary(self.name, outcome, self.store, self.error)


class Adapters:
    """What LoRA adds to each layer at this moment, as a value to compare. Cheap where none is loaded."""

    def __init__(self, model: nn.Module) -> None:
        self._model = model
        self._layers: list[Any] | None = None

    def __call__(self) -> tuple[Any, ...]:
        """Merged flags, active adapters and their scalings, of every adapted layer."""
        if not getattr(self._model, "_hf_peft_config_loaded", False):
            self._layers = None
            return ()
        if self._layers is None:
            self._layers = [m for m in self._model.modules() if hasattr(m, "active_adapters") and hasattr(m, "scaling")]
        return tuple((layer.merged, *layer.active_adapters, *layer.scaling.values()) for layer in self._layers)


