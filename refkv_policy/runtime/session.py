"""A table attached to a model: the session owns clock, requests and log, and puts everything back when it ends."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from types import TracebackType
from typing import Any, Literal
from weakref import WeakKeyDictionary, ref

import torch
from torch import Tensor

from refkv_policy.audit import AuditWriter, outcome_of
from refkv_policy.audit.totals import UNKNOWN
from refkv_policy.compiler import branches_of
from refkv_policy.compiler.table import BRANCHES, HookTable
from refkv_policy.runtime import checks
from refkv_policy.runtime.attention import TextKVProcessor
from refkv_policy.runtime.call import Call, Inputs
from refkv_policy.runtime.cells import CallPlan, plan_calls, unplanned_call
from refkv_policy.runtime.clock import CallPosition, ManualClock, PipelineClock
from refkv_policy.runtime.errors import RequestError, warn
from refkv_policy.runtime.families import executor_of
from refkv_policy.runtime.held import Held
from refkv_policy.runtime.log import Log
from refkv_policy.runtime.lora import Loads
from refkv_policy.runtime.pipeline import bracketed, guarded_grid, named_contexts, tracked_loop
from refkv_policy.runtime.placement import Patches, displace, place
from refkv_policy.runtime.request import Request
from refkv_policy.runtime.stack import Current, part_forward
from refkv_policy.runtime.store import Store
from refkv_policy.runtime.summary import RequestSummary, Summary, Tally, summarise

OnError = Literal["raise", "uncached"]

ATTACHED: WeakKeyDictionary[Any, ref[Session]] = WeakKeyDictionary()
"""The session that is attached to a transformer, which holds on to it by its forward."""
KEPT = 100
"""Summaries of ended requests that a session holds on to; of those before, the sums."""


class Session:
    """See `attach`. A request runs in one thread; sessions on different models do not touch each other."""

    def __init__(
        self, model: Any, pipe: Any, table: HookTable, writer: Any, on_error: OnError, header: Mapping[str, Any]
    ) -> None:
        self.table, self.on_error = table, on_error
        self._model, self._pipe = model, pipe
        self._owned: AuditWriter | None = None
        self._scheduler = None if pipe is None else pipe.scheduler
        self._clock: PipelineClock | ManualClock = ManualClock(table.evaluated) if pipe is None else PipelineClock(pipe)
        self._executor = executor_of(model)
        self._current = Current()
        self._plans = plan_calls(table, self._executor.view)
        self._uncached_plans: dict[tuple[str, str], CallPlan] = {}
        self._depends = self._executor.depends_on(table)
        self._loads = Loads()
        self._log = Log(writer, model, table, header, self._loads)
        self._held: Held | None = None
        self._processors: dict[Any, TextKVProcessor] = {}
        self._parts: dict[Any, tuple[Callable[..., Any], bool]] = {}
        self._patches = Patches()
        self._forward: Callable[..., Any] | None = None
        self._bare = "forward" not in vars(model)
        self._request: Request | None = None
        self._past: object | None = None
        self._done: deque[RequestSummary] = deque(maxlen=KEPT)
        self._sums = summarise((), 0)
        self._count = self._began_loop = 0
        self._running = False

    @property
    def summary(self) -> Summary:
        """Hits, misses, departures and peak bytes so far: in all, by site and branch, by request."""
        running = () if self._request is None else (self._request.summary("running"),)
        found = summarise(running, self._log.unplanned, before=self._sums)
        return replace(found, requests=(*self._done, *running))

    @property
    def requests(self) -> tuple[RequestSummary, ...]:
        """The newest requests that have ended, in order: a hundred of them; `summary` has the sums of all."""
        return tuple(self._done)

    @property
    def bytes_held(self) -> int:
        """Bytes in the store now; 0 whenever no request is running."""
        return 0 if self._request is None else self._request.store.bytes

    @contextmanager
    def step(self, step: int, *, branch: str, new_request: bool = False) -> Iterator[None]:
        """Forwards of a bare transformer inside this context belong to a nominal step and branch.

        A step that the table leaves out is computed and never cached. An earlier step than the one before begins a new
        request, and so does `new_request`; an exception that leaves the context ends the request. Raises RequestError on
        a pipeline's session or a detached one, for a step that the table does not have, for a branch that is neither
        `cond` nor `uncond`, and while another thread is in a step.
        """
        self._check_attached()
        if not isinstance(self._clock, ManualClock):
            raise RequestError(
                "this session follows its pipeline's scheduler; attach to the transformer to tell it the steps"
            )
        if type(step) is not int or not 0 <= step < self.table.steps:
            raise RequestError(f"there is no step {step!r}; the table has steps 0 to {self.table.steps - 1}")
        if branch not in BRANCHES:
            raise RequestError(f"there is no branch {branch!r}; it is one of {', '.join(BRANCHES)}")
        with self._clock.at(step, branch, new_request):
            try:
                yield
            except BaseException as error:
                self._ended(error)
                raise

    def detach(self) -> None:
        """End the request that is open and put the model (and pipeline) back as it was. A second call does nothing."""
        self._close(None)

    def __enter__(self) -> Session:
        self._check_attached()
        return self

    def _check_attached(self) -> None:
        if self._forward is None:
            raise RequestError("this session is detached, and does nothing any more; attach again")

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._close(error)

    def _install(self) -> None:
        # Never traced, so that a transformer that is compiled as a whole later on is refused by name.
        self._forward = self._executor.make_forward(self._model, torch.compiler.disable(self._run))
        place(self._model, self._forward)
        ATTACHED[self._model] = ref(self)
        stacks = self._executor.stacks(self._model)
        for site, module in self._executor.parts(stacks, self.table).items():
            self._parts[module] = part_forward(module, site, self._current), "forward" not in vars(module)
            place(module, self._parts[module][0])
        for attention in self._executor.text_attentions(stacks, self.table).values():
            self._processors[attention] = TextKVProcessor(attention.processor)
            self._patches.set(attention, "processor", self._processors[attention])
        self._patches.set(self._model, "load_lora_adapter", self._loads.counted(self._model.load_lora_adapter))
        if isinstance(self._clock, PipelineClock):
            self._patches.set(self._model, "cache_context", named_contexts(self._model, self._clock))
            self._patches.set(self._pipe, "progress_bar", tracked_loop(self._pipe, self.table, self))
            self._patches.set(
                self._scheduler, "set_timesteps", guarded_grid(self._scheduler, self.table, self._clock, self._refuse)
            )
            self._patches.become(self._pipe, bracketed(self._pipe, self._around_call))

    @contextmanager
    def _around_call(self) -> Iterator[None]:
        """A call of the attached pipeline, from before its first line to its return."""
        assert isinstance(self._clock, PipelineClock)
        with self._clock.call():
            try:
                yield
            except BaseException as error:
                self._ended(error)
                raise

    def began(self) -> None:
        """The pipeline enters its denoising loop. Raises RequestError where the table cannot hold there."""
        assert isinstance(self._clock, PipelineClock)
        self._clock.open()
        self._began_loop = self._count
        try:
            checks.check_transformer(self._model, self._pipe)
        except RequestError as error:
            if self.on_error == "raise":
                self._clock.close()
            self._refuse(error)
            self._began_loop = -1
            # No forward will come by: the request is known by this alone.
            self._count += 1
            self._add(RequestSummary(f"r{self._count}", "incomplete", Tally(), {}, {}, {}, 0, str(error)))

    def _refuse(self, error: RequestError) -> None:
        """Raise, or let a call of the pipeline go on without the cache, and say so. For what is noticed before a forward."""
        if self.on_error == "raise":
            raise error
        warn(f"the request runs without the cache: {error}")

    def ended(self, error: BaseException | None) -> None:
        """The pipeline has left its denoising loop."""
        assert isinstance(self._clock, PipelineClock)
        try:
            self._ended(error)
            if error is None and self._count == self._began_loop and not getattr(self._pipe, "_interrupt", False):
                warn(
                    "the pipeline has run, and no call of its transformer was recognised: nothing was cached; "
                    "attach to the transformer and tell the steps with `session.step` where a pipeline has a loop of its own"
                )
        finally:
            self._clock.close()

    def _close(self, error: BaseException | None) -> None:
        try:
            self._ended(error)
            if self._forward is not None and error is None and self._log.unplanned and not self._count:
                warn(
                    f"{self._log.unplanned} calls of the transformer came while the table was attached, none of them its own: "
                    "nothing was cached; run the attached pipeline itself, or tell the steps of a bare transformer with "
                    "`session.step`"
                )
        finally:
            if self._forward is not None:
                displace(self._model, self._forward, self._bare)
                for module, (forward, bare) in self._parts.items():
                    displace(module, forward, bare)
                self._parts.clear()
                ATTACHED.pop(self._model, None)
                self._forward = None
            self._patches.undo()
            if self._owned is not None:
                self._owned.close()

    def _run(self, inputs: Inputs, body: Callable[[Call], Tensor]) -> Tensor:
        """One forward: find out which call it is, run it under the table, count it and log it."""
        position = self._clock.read(inputs.timestep)
        request = self._request_of(position, inputs)
        if request is None:
            self._note_unplanned(position)
            return self._perform(self._unplanned_call(position, "unknown_step"), body)
        call = self._call_of(position, request, inputs)
        self._running = True
        try:
            try:
                sample = self._perform(call, body)
            except Exception as error:
                if self.on_error == "raise" or call.withheld is not None:
                    raise
                self._give_up(request, error)
                call = Call(call.plan, request.store, self.table.rules, request.withheld)
                sample = self._perform(call, body)
            request.ran(call, sample)
            self._log.step(request, position.branch, call)
        except BaseException as error:
            self._ended(error)
            raise
        finally:
            self._running = False
        if self._pipe is None and request.over:
            self._end(request, "finished" if request.complete else "incomplete")
        return sample

    def _perform(self, call: Call, body: Callable[[Call], Tensor]) -> Tensor:
        """Run the body of a forward under a call, or serve the whole of it (`cfg`)."""
        plan, before = call.plan, self._current.call
        if plan.bare and before is None:  # a call inside another's forward is not to be taken for that one
            return body(call)
        cell, self._current.call = plan.cfg, call
        try:
            sample = None if cell is None else call.serve_call(cell)
            if sample is None:
                sample = body(call)
                if cell is not None:
                    call.keep_call(cell, sample)
            call.finish()
            return sample
        finally:
            self._current.call = before

    def _note_unplanned(self, position: CallPosition) -> None:
        """Count a call that is no step of the attached generation, log it, and tell of the first."""
        if self._log.note_unplanned(position.branch, write=self._forward is not None):
            warn(
                "a call of the transformer is no step of the attached generation (another pipeline's, one by hand, or one in no "
                "`cache_context` named cond or uncond): it is computed without the cache, and so is each such call; "
                "`session.summary.unplanned` counts them"
            )

    def _request_of(self, position: CallPosition, inputs: Inputs) -> Request | None:
        """The request that a forward belongs to, begun where it is the first of one; None where it belongs to none."""
        request = self._request
        if self._running or (self._pipe is not None and (position.step_index is None or position.branch is None)):
            return None  # inside another forward, or not proven
        if request is not None and request.key is position.key:
            return request if request.moved is position.moved else None
        if position.key is None or position.key is self._past or position.step_index is None or position.branch is None:
            return None
        self._ended(None)
        return self._begin(position, inputs)

    def _begin(self, position: CallPosition, inputs: Inputs) -> Request:
        guidance = None if self._pipe is None else checks.guidance_of(self._pipe)
        branches = branches_of(self.table, guidance)
        self._count += 1
        request = Request(f"r{self._count}", position.key, self.table, self._plans, self._depends, branches)
        request.moved = position.moved
        self._log.begin(request, inputs, guidance)
        self._request = request
        try:
            checks.check_request(self._model, self._pipe, self._scheduler, self.table, inputs)
            checks.check_processors(self._processors)
            self._held = self._hold(request)
        except RequestError as error:
            self._stop(request, error)
            request.planned = False
        return request

    def _call_of(self, position: CallPosition, request: Request, inputs: Inputs) -> Call:
        if not request.planned:
            return self._unplanned_call(position, "error")
        branch, index = position.branch, position.step_index
        plan = None if index is None or branch is None else self._plans.get((branch, index))
        if plan is None or position.branch not in request.branches:
            return self._unplanned_call(position, "unknown_step")
        guided = self._pipe is not None and len(request.branches) == len(BRANCHES)
        if (problem := request.out_of_order(plan, inputs, guided)) is not None:
            self._stop(request, RequestError(problem))
            return self._unplanned_call(position, "unknown_step")
        held = self._held
        assert held is not None
        if request.withheld is None:
            try:
                held.check(position.step_index)
            except RequestError as error:
                self._stop(request, error)
        return request.call(plan, inputs, held.weights(position.step_index))

    def _hold(self, request: Request) -> Held:
        def note(name: str, **fields: Any) -> None:
            self._log.event(request, name, **fields)

        return Held(self._model, self._pipe, self._scheduler, self.table, self._processors, self._loads, note)

    def _unplanned_call(self, position: CallPosition, reason: str) -> Call:
        key = position.branch or UNKNOWN, reason
        if key not in self._uncached_plans:
            self._uncached_plans[key] = unplanned_call(self.table, *key, self._executor.view)
        return Call(self._uncached_plans[key], Store(()), (), reason)

    def _stop(self, request: Request, error: RequestError) -> None:
        """End a request that is not the table's by raising the error, or finish it without the cache."""
        if self.on_error == "raise":
            self._ended(error)
            raise error
        self._give_up(request, error)

    def _give_up(self, request: Request, error: Exception) -> None:
        """Finish the request without the cache."""
        request.give_up(error)
        warn(f"request {request.name} is finished without the cache: {error}")
        self._log.event(request, "uncached", error=request.error)

    def _ended(self, error: BaseException | None) -> None:
        """End the open request, if there is one: by what an exception says, by an interrupt, or by what it did."""
        request = self._request
        if request is None:
            return
        if error is not None:
            request.error = request.error or f"{type(error).__name__}: {error}"
            self._end(request, outcome_of(error))
        elif self._pipe is not None and getattr(self._pipe, "_interrupt", False):
            self._end(request, "cancelled")
        else:
            self._end(request, "finished" if request.complete else "incomplete")

    def _add(self, summary: RequestSummary) -> None:
        self._done.append(summary)
        self._sums = replace(summarise((summary,), 0, before=self._sums), requests=())

    def _end(self, request: Request, outcome: str) -> None:
        self._request, self._held, self._past = None, None, request.key
        if isinstance(self._clock, ManualClock):
            self._clock.end(request.key)
        summary = request.summary(outcome)
        request.close()
        self._add(summary)
        if outcome == "incomplete" and summary.error is None:
            warn(f"request {request.name} is incomplete: {request.why_incomplete()}")
        if summary.never_served:
            warn(
                f"request {request.name}: rule {', '.join(summary.never_served)} decided every time to compute, and saved nothing"
            )
        self._log.seal(summary)
