"""One request: its store, what it watches, and what its calls did."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from torch import Tensor

from refkv_policy.compiler.table import BRANCHES, ONLINE, HookTable
from refkv_policy.profiles.sites import CFG
from refkv_policy.runtime.call import Call, Inputs
from refkv_policy.runtime.cells import CallPlan
from refkv_policy.runtime.errors import RequestError
from refkv_policy.runtime.gate import Gate
from refkv_policy.runtime.store import Store
from refkv_policy.runtime.summary import Counts, RequestSummary
from refkv_policy.runtime.watch import Watch

NEW_CONTROL = "new_control"
_KINDS = ("prompt", "prompt", "prompt", "control")
"""What a change of each watched content is a change of: prompt, image beside it, adapters, control."""


class Request:
    """Owns the state of one generation.

    planned: whether its steps are the table's. plans: its calls, by branch and ordinal of the step. withheld: once nothing
    of it may be cached any more, the reason.
    """

    def __init__(
        self,
        name: str,
        key: object,
        table: HookTable,
        plans: Mapping[tuple[str, int], CallPlan],
        depends: Mapping[str, tuple[int, ...]],
        branches: tuple[str, ...],
    ) -> None:
        self.name, self.key, self.table, self.branches = name, key, table, branches
        self.store = Store(table.rules)
        self.planned = True
        self.withheld: str | None = None
        self.error: str | None = None
        self._depends = depends
        self.plans: Mapping[tuple[str | None, int | None], CallPlan] = {
            (branch, index): plan for (branch, index), plan in plans.items() if branch in branches
        }
        self._expected = set(self.plans.values())
        self._expected_at_first = {plan for plan in self._expected if plan.index == 0}
        self._last = {plan for plan in self._expected if plan.index == len(table.evaluated) - 1}
        self._counts = Counts(table)
        self._seen: set[CallPlan] = set()
        self._form: tuple[Any, ...] | None = None
        self._watches: dict[str, tuple[Watch, ...]] = {}
        self._gates = _gates(table, branches)
        self._base: tuple[int, Tensor] | None = None
        self._wants_base = CFG in table.by_at

    def check_place(self, plan: CallPlan, latents: Tensor, moved: bool, guided: bool) -> bool:
        """Whether a call can be the one that stands at a plan's place: its latents are of the first call's form.

        moved: whether its timestep came in memory of its own. guided: whether the pipeline calls both branches at a step.
        Raises RequestError where several calls share a place, or several places one call: their state would be mixed.
        """
        if plan in self._seen:
            raise RequestError(
                f"the branch {plan.branch} was called twice at step {plan.step} of one request; windows over the latents, and "
                "samplers that evaluate a step twice, are not supported: run them without refkv (for a second request "
                "over a bare transformer: `session.step(…, new_request=True)`)"
            )
        form = latents.shape, latents.dtype, latents.device, moved
        if self._form is None:
            self._form = form
            return True
        if plan.index == 1 and guided and not self._expected_at_first <= self._seen:
            raise RequestError(
                "the first step was over without a call of its own for each guidance branch; cond and uncond in one "
                "batch are not supported: call the transformer once for each, in a `cache_context` named after it"
            )
        if form == self._form:
            return True
        if latents.shape[0] == 2 * self._form[0][0]:
            raise RequestError(
                f"the latents are a batch of {latents.shape[0]}, and were {self._form[0][0]} at the request's first call; "
                "cond and uncond, or several windows, in one batch are not supported: call the transformer once for each"
            )
        return False

    def call(self, plan: CallPlan, inputs: Inputs, adapters: tuple[Any, ...]) -> Call:
        """The call of a planned step. State that depends on a prompt, control or adapter that changed is dropped."""
        self._seen.add(plan)
        watched = inputs.prompt, inputs.image, adapters, inputs.control
        watches = self._watches.get(plan.branch)
        if watches is None:
            self._watches[plan.branch] = tuple(map(Watch, watched))
        else:
            for kind, watch, content in zip(_KINDS, watches, watched, strict=True):
                if watch.changed(content):
                    self.store.drop(plan.branch, self._depends[kind], NEW_CONTROL)
        call = Call(plan, self.store, self.table.rules, self.withheld, self._gates[plan.branch])
        if self._base is not None and self._base[0] == plan.step:
            call.base = self._base[1]
        return call

    def ran(self, call: Call, sample: Tensor) -> None:
        """Count a call that has returned. sample: its velocity."""
        self._counts.add(call)
        if self._wants_base and call.plan.branch == BRANCHES[0]:
            # A copy, since the sampler may write to what it was given; it is of the latents' size, and let go a step later.
            self._base = call.plan.step, sample.detach().clone()

    def give_up(self, error: BaseException) -> None:
        """From now on compute everything and keep nothing."""
        self.withheld, self.error = "error", f"{type(error).__name__}: {error}"
        self.store.clear()

    @property
    def over(self) -> bool:
        """Whether the last step of every expected branch has run."""
        return self._last <= self._seen

    @property
    def complete(self) -> bool:
        """Whether every call that was expected has run, and every cell that the table serves in them was served."""
        return self._counts.unserved == 0 and self._expected <= self._seen

    def shortfall(self) -> str:
        """What an incomplete request lacks, in words."""
        if self.error is not None:
            return self.error
        missing = self._expected - self._seen
        if not missing:
            return f"{self._counts.unserved} cells that the table serves were computed"
        never = [b for b in self.branches if all(plan in missing for plan in self._expected if plan.branch == b)]
        which = f" (the branch {' and '.join(never)} never ran)" if never else ""
        return f"{len(missing)} of {len(self._expected)} calls of the table did not come{which}"

    def close(self) -> None:
        """Let go of everything that is held."""
        self.store.clear()
        self._watches.clear()
        self._gates, self._base = {}, None

    def summary(self, outcome: str) -> RequestSummary:
        """What it did so far."""
        return self._counts.summary(self.name, outcome, self.store, self.error)


def _gates(table: HookTable, branches: tuple[str, ...]) -> dict[str, dict[int, Gate]]:
    """A gate for each online rule: one for both branches, unless they are to decide each for itself."""
    found: dict[str, dict[int, Gate]] = {branch: {} for branch in branches}
    for n, rule in enumerate(table.rules):
        acting = [b for b in branches if any(ONLINE in row.actions(b) for row in table.governed(n))]
        shared = None if rule.apart or not acting else Gate(table, n, acting[0])
        for branch in acting:
            found[branch][n] = shared or Gate(table, n, branch)
    return found
