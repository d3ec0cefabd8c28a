"""One request: its store, what it watches, and what its calls did."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from torch import Tensor

from refkv_policy.compiler.table import BRANCHES, ONLINE, HookTable
from refkv_policy.compiler.walk import online_rules
from refkv_policy.profiles.sites import CFG
from refkv_policy.runtime.call import Call, Inputs
from refkv_policy.runtime.cells import CallPlan
from refkv_policy.runtime.gate import Gate
from refkv_policy.runtime.store import Store
from refkv_policy.runtime.summary import Counts, RequestSummary
from refkv_policy.runtime.watch import Watch

NEW_CONTROL = "new_control"
_KINDS = ("prompt", "prompt", "prompt", "control")
"""What a change of each watched content is a change of: prompt, image beside it, weights, control."""


class Request:
    """Owns the state of one generation.

    planned: whether its steps are the table's. withheld: once nothing of it may be cached any more, the
    reason. moved: whether its timesteps come in memory of their own.
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
        self.moved = False
        kept = {n for n, row in enumerate(table.rows) if row.keeps}
        kept |= {-1 - n for n in online_rules(table)}  # where the probes of online rules are kept
        self._depends = {kind: tuple(n for n in rows if n in kept) for kind, rows in depends.items()}
        self._expected = {plan for (branch, _), plan in plans.items() if branch in branches}
        self._last = {plan for plan in self._expected if plan.index == len(table.evaluated) - 1}
        self._counts = Counts(table)
        self._seen: set[CallPlan] = set()
        self._form: tuple[Any, ...] | None = None
        self._watches: dict[str, tuple[Watch, ...]] = {}
        self._gates = _gates(table, branches)
        self._base: tuple[int, Tensor] | None = None
        self._wants_base = CFG in table.by_at

    def out_of_order(self, plan: CallPlan, inputs: Inputs, guided: bool) -> str | None:
        """Why a call cannot be the one that is due, as a sentence: it ran before, or is of another form than the first.

        guided: whether the pipeline calls both branches at a step, each for itself.
        """
        latents = inputs.latents
        form = latents.shape, latents.dtype, latents.device
        if self._form is None:
            self._form = form
        if form != self._form:
            return (
                f"the latents are {tuple(latents.shape)}, {latents.dtype} on {latents.device}, and the request began with "
                f"{tuple(self._form[0])}, {self._form[1]} on {self._form[2]}; run each size as a request of its own"
            )
        if plan in self._seen:
            return (
                f"a second call of the {plan.branch} branch came at step {plan.step}: overlapping windows, or several clips in "
                "turn, cannot share what is kept; run them as requests of their own (over a bare transformer: "
                "`session.step(…, new_request=True)`), or detach"
            )
        if guided and plan.index == 1 and any(p.index == 0 for p in self._expected - self._seen):
            return (
                "the first step was over without a call for each guidance branch: cond and uncond in one batch are not "
                "supported; call the transformer once for each, in a `cache_context` named after it"
            )
        return None

    def why_incomplete(self) -> str:
        """What of the table did not happen."""
        missing = sorted({(p.index, p.branch) for p in self._expected - self._seen})
        if missing:
            calls = ", ".join(f"{branch} at step {self.table.evaluated[index]}" for index, branch in missing[:3])
            more = f" and {len(missing) - 3} more" if len(missing) > 3 else ""
            return f"{len(missing)} calls did not come ({calls}{more})"
        return f"{self._counts.unserved} values that the table serves were computed"

    def call(self, plan: CallPlan, inputs: Inputs, weights: tuple[Any, ...]) -> Call:
        """The call of a planned step. State that depends on a prompt, control or weights that changed is dropped."""
        self._seen.add(plan)
        if self._depends["prompt"]:  # everything that is kept depends on it: a table that keeps nothing needs no look
            watched = inputs.prompt, inputs.image, weights, inputs.control if self._depends["control"] else None
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
