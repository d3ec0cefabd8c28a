"""A table attached to a model: the session owns clock, requests and log, and puts everything back when it ends."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from types import TracebackType
from typing import Any, Literal

from torch import Tensor

from refkv_policy.audit import AuditWriter, outcome_of
from refkv_policy.audit.totals import UNKNOWN
from refkv_policy.compiler import branches_of
from refkv_policy.compiler.table import BRANCHES, HookTable
from refkv_policy.notice import LOGGER, tell
from refkv_policy.runtime import checks
from refkv_policy.runtime.attention import TextKVProcessor
from refkv_policy.runtime.call import Call, Inputs
from refkv_policy.runtime.cells import CallPlan, plan_calls, unplanned_call
from refkv_policy.runtime.clock import Clock, Moment, PipelineClock, ToldClock
from refkv_policy.runtime.errors import AttachError, RequestError
from refkv_policy.runtime.families import executor_of
from refkv_policy.runtime.log import Log
from refkv_policy.runtime.lora import Adapters
from refkv_policy.runtime.pipeline import bracketed, guarded_grid, named_contexts, watched_loop
from refkv_policy.runtime.placement import Patches
from refkv_policy.runtime.request import Request
from refkv_policy.runtime.stack import Current, part_forward
from refkv_policy.runtime.store import Store
from refkv_policy.runtime.summary import Ledger, RequestSummary, Summary, Tally

OnError = Literal["raise", "uncached"]


class Session:
    """See `attach`. Serves one generation at a time; sessions on different models do not touch each other."""

    def __init__(
        self, model: Any, pipe: Any, table: HookTable, writer: Any, on_error: OnError, header: Mapping[str, Any]
    ) -> None:
        self.table, self.on_error = table, on_error
        self._model, self._pipe = model, pipe
        self._log = Log(writer, model, table, header)
        self._owned: AuditWriter | None = None
        self._scheduler = None if pipe is None else pipe.scheduler
        self._clock: Clock = ToldClock(table.steps, table.evaluated) if pipe is None else PipelineClock(pipe)
        self._executor = executor_of(model)
        self._current, self._serves_parts = Current(), False
        self._plans = plan_calls(table, self._executor.view)
        self._strays: dict[tuple[str, str], CallPlan] = {}
        self._depends = self._executor.depends_on(table)
        self._adapters = Adapters(model)
        self._processors: dict[Any, TextKVProcessor] = {}
        self._patches = Patches()
        self._request: Request | None = None
        self._past: object | None = None
        self._ledger = Ledger()
        self._running = False
        self.closed = False

    @property
    def summary(self) -> Summary:
        """Hits, misses, departures and peak bytes so far: in all, by site and branch, by request."""
        running = None if self._request is None else self._request.summary("running")
        return self._ledger.summary(running, self._log.unplanned)

    @property
    def requests(self) -> tuple[RequestSummary, ...]:
        """The newest requests that have ended, in order: at most 100; `summary` holds the sums over all."""
        return tuple(self._ledger.newest)

    @property
    def bytes_held(self) -> int:
        """Bytes in the store now; 0 whenever no request is running."""
        return 0 if self._request is None else self._request.store.bytes

    @contextmanager
    def step(self, step: int, *, branch: str, new_request: bool = False) -> Iterator[None]:
        """Forwards of a bare transformer inside this context, on this thread, belong to a nominal step and branch.

        A step that the table leaves out is computed and never cached. An earlier step than the one before begins a new
        request, and so does `new_request`; an exception that leaves the context ends the request. Raises RequestError on
        a pipeline's session or one that was detached, for a step or branch that the table has not, and while another
        thread is in a step.
        """
        if not isinstance(self._clock, ToldClock):
            raise RequestError(
                "this session follows its pipeline's scheduler; attach to the transformer to tell it the steps"
            )
        if self.closed:
            raise RequestError(_DETACHED)
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
        if self.closed:
            raise AttachError(_DETACHED)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._close(error)

    def _install(self) -> None:
        patches, model = self._patches, self._model
        patches.place(model, self._executor.make_forward(model, self._run))
        stacks = self._executor.stacks(model)
        for site, module in self._executor.parts(stacks, self.table).items():
            patches.place(module, part_forward(module, site, self._current))
            self._serves_parts = True
        for attention in self._executor.text_attentions(stacks, self.table).values():
            self._processors[attention] = TextKVProcessor(attention.processor)
            patches.set(attention, "processor", self._processors[attention])
        if isinstance(self._clock, PipelineClock):
            clock, pipe, scheduler = self._clock, self._pipe, self._scheduler
            patches.set(model, "cache_context", named_contexts(model, clock))
            patches.set(pipe, "progress_bar", watched_loop(pipe, clock, self.table, self._ended))
            patches.set(scheduler, "set_timesteps", guarded_grid(scheduler, clock, self.table, self._refuse))
            patches.become(pipe, bracketed(pipe, self._around_call))

    def _close(self, error: BaseException | None) -> None:
        if self.closed:
            return
        self.closed = True
        try:
            self._ended(error)
        finally:
            self._patches.undo()
            if self._owned is not None:
                self._owned.close()
        if self._log.unplanned and not self._ledger.count and error is None:
            tell(f"the session ends without a request: the plan was applied to none of {self._log.unplanned} calls")

    @contextmanager
    def _around_call(self) -> Iterator[None]:
        """A call of the attached pipeline, from before its first line to its return."""
        assert isinstance(self._clock, PipelineClock)
        with self._clock.inside(loop=False):
            if self._pipe.transformer is not self._model:
                self._refuse(
                    RequestError(
                        "the pipeline's transformer was replaced after the table was attached; detach, and attach again"
                    )
                )
            try:
                yield
            except BaseException as error:
                self._ended(error)
                raise
            self._ended(None)

    def _refuse(self, error: RequestError) -> None:
        """Raise, or let a call of the pipeline go on without the cache and say so. For what is noticed before a forward."""
        if self.on_error == "raise":
            raise error
        tell(f"a request runs without the cache: {error}")
        if self._pipe.transformer is not self._model:  # no forward will come by, and no request begin
            name = f"r{self._ledger.count + 1}"
            self._ledger.add(RequestSummary(name, "incomplete", Tally(), {}, {}, {}, 0, str(error)))

    def _run(self, inputs: Inputs, body: Callable[[Call], Tensor]) -> Tensor:
        """One forward: find out which call it is, run it under the table, count it and log it."""
        moment = self._clock.read(inputs.timestep)
        request = self._request
        if request is None or request.key is not moment.key or self._running:
            request = self._request_of(moment, inputs)
        if request is None or (moment.step_index is None and self._pipe is not None) or moment.branch is None:
            self._note_unplanned(moment)
            return self._perform(self._unplanned_call(moment, "unknown_step"), body)
        try:
            self._running = True
            call = self._call_of(moment, request, inputs)
            try:
                sample = self._perform(call, body)
            except Exception as error:
                if self.on_error == "raise" or call.withheld is not None:
                    raise
                self._give_up(request, error)
                call = Call(call.plan, request.store, self.table.rules, request.withheld)
                sample = self._perform(call, body)
            request.ran(call, sample)
            self._log.step(request, moment.branch, call)
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
        plan = call.plan
        if not (self._serves_parts or plan.looking or plan.cfg is not None):
            return body(call)
        cell, before, self._current.call = plan.cfg, self._current.call, call
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

    def _request_of(self, moment: Moment, inputs: Inputs) -> Request | None:
        """The request that a forward belongs to, begun where it is the first of one; None where it belongs to none."""
        if self._running or moment.key is None or moment.key is self._past:
            return None
        if moment.step_index is None or moment.branch is None or self.closed:
            return None
        self._ended(None)
        return self._begin(moment, inputs)

    def _note_unplanned(self, moment: Moment) -> None:
        """Count a call that is no step of the attached generation, log it, and tell of the first."""
        if not self._log.note_unplanned(moment.branch, write=not self.closed):
            return
        why = "it was made by hand, or by another pipeline"
        if self._pipe is None:
            why = "it was made outside `session.step`, or at a step that the table leaves out"
        elif moment.step_index is not None:
            why = "it stands in no `cache_context` named cond or uncond"
        tell(
            f"a call of the transformer is no step of the attached generation ({why}): it is computed without the cache, "
            "and so is each such call; `session.summary.unplanned` counts them"
        )

    def _begin(self, moment: Moment, inputs: Inputs) -> Request:
        guidance = None if self._pipe is None else checks.guidance_of(self._pipe)
        branches = branches_of(self.table, guidance)
        request = Request(f"r{self._ledger.count + 1}", moment.key, self.table, self._plans, self._depends, branches)
        self._log.begin(request, inputs, guidance)
        self._request = request
        try:
            checks.check_request(self._model, self._pipe, self._scheduler, self.table, inputs)
            checks.check_processors(self._processors)
        except RequestError as error:
            if self.on_error == "raise":
                self._ended(error)
                raise
            self._give_up(request, error)
            request.planned = False
        return request

    def _call_of(self, moment: Moment, request: Request, inputs: Inputs) -> Call:
        if not request.planned:
            return self._unplanned_call(moment, "error")
        plan = request.plans.get((moment.branch, moment.step_index))
        if plan is None:
            return self._unplanned_call(moment, "unknown_step")
        guided = self._pipe is not None and len(request.branches) == len(BRANCHES)
        try:
            if not request.check_place(plan, inputs.latents, moment.moved, guided):
                return self._unplanned_call(moment, "unknown_step")
        except RequestError as error:
            if self.on_error == "raise":
                raise
            self._give_up(request, error)
            return self._unplanned_call(moment, "unknown_step")
        return request.call(plan, inputs, self._adapters())

    def _unplanned_call(self, moment: Moment, reason: str) -> Call:
        key = moment.branch or UNKNOWN, reason
        if key not in self._strays:
            self._strays[key] = unplanned_call(self.table, *key, self._executor.view)
        return Call(self._strays[key], Store(()), (), reason)

    def _give_up(self, request: Request, error: Exception) -> None:
        """Finish the request without the cache, and say so."""
        if request.withheld is not None:
            return
        request.give_up(error)
        self._log.event(request, "uncached", error=request.error)
        tell(f"request {request.name} is finished without the cache: {request.error}")

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

    def _end(self, request: Request, outcome: str) -> None:
        self._request, self._past = None, request.key
        if isinstance(self._clock, ToldClock):
            self._clock.end(request.key)
        summary, shortfall = request.summary(outcome), request.shortfall()
        request.close()
        self._ledger.add(summary)
        self._log.seal(summary)
        if outcome == "incomplete":
            LOGGER.warning(f"request {request.name} is incomplete: {shortfall}")


_DETACHED = "this session was detached from its model; attach the table again for another"
