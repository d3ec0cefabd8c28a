"""A table attached to a model: the session owns clock, requests and log, and puts everything back when it ends."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from functools import partial
from os import PathLike
from types import TracebackType
from typing import Any, Literal
from weakref import WeakSet

import torch
from torch import Tensor

from refkv_policy.audit import AuditWriter, fold, outcome_of
from refkv_policy.audit.totals import UNKNOWN
from refkv_policy.compiler import branches_of
from refkv_policy.compiler.table import BRANCHES, HookTable
from refkv_policy.runtime import checks, wan_vace
from refkv_policy.runtime.attention import TextKVProcessor
from refkv_policy.runtime.call import Call, Inputs
from refkv_policy.runtime.cells import CallPlan, plan_calls, unplanned_call
from refkv_policy.runtime.clock import Moment, PipelineClock, ToldClock
from refkv_policy.runtime.errors import AttachError, RequestError
from refkv_policy.runtime.header import Headers
from refkv_policy.runtime.held import Held
from refkv_policy.runtime.lora import Loads
from refkv_policy.runtime.pipeline import named_contexts, thinned_grid, watched_loop
from refkv_policy.runtime.placement import Patches, displace, find_place, place
from refkv_policy.runtime.request import Request
from refkv_policy.runtime.store import Store
from refkv_policy.runtime.summary import RequestSummary, Summary, summarise

OnError = Literal["raise", "uncached"]

_ATTACHED: WeakSet[Any] = WeakSet()
"""Transformers that a session is attached to."""


def attach(
    target: Any,
    table: HookTable,
    *,
    audit: str | PathLike[str] | AuditWriter | None = None,
    on_error: OnError = "raise",
    header: Mapping[str, Any] | None = None,
) -> Session:
    """Apply a table to a `WanVACEPipeline`, or to a bare `WanVACETransformer3DModel`, until the session is detached.

    Best used as a context manager. Many requests may follow one another; each has its own store and clock.
    audit: where to write the log (a path that does not exist yet), or a writer that stays the caller's to close.
    on_error: `raise`, or `uncached`: a request that differs from the table, or whose caching fails, is finished without
    the cache, and the log says why. header: further fields of each request's log header, such as `seed` or `digests`.
    Raises AttachError, with nothing changed, for a target that the table cannot be applied to; AuditError for the log.
    """
    model, pipe = checks.transformer_of(target)
    if model in _ATTACHED:
        raise AttachError("a table is attached to this model already; detach that session first")
    if on_error not in ("raise", "uncached"):
        raise AttachError(f"on_error is {on_error!r}; it is 'raise' or 'uncached'")
    checks.check_model(model, table)
    find_place(model)
    if pipe is not None:
        checks.check_scheduler(pipe.scheduler, table)
    owned = None if audit is None or isinstance(audit, AuditWriter) else AuditWriter(audit)
    session = Session(model, pipe, table, audit if owned is None else owned, on_error, header or {})
    session._owned = owned
    try:
        session._install()
    except BaseException:
        session.detach()
        raise
    return session


class Session:
    """See `attach`. Not for several threads at once; sessions on different models do not touch each other."""

    def __init__(
        self, model: Any, pipe: Any, table: HookTable, writer: Any, on_error: OnError, header: Mapping[str, Any]
    ) -> None:
        self.table, self.on_error = table, on_error
        self._model, self._pipe, self._writer = model, pipe, writer
        self._owned: AuditWriter | None = None
        self._scheduler = None if pipe is None else pipe.scheduler
        self._clock: PipelineClock | ToldClock = ToldClock(table.evaluated) if pipe is None else PipelineClock(pipe)
        self._plans = plan_calls(table)
        self._strays: dict[tuple[str, str], CallPlan] = {}
        self._depends = wan_vace.depends_on(table)
        self._loads = Loads()
        self._headers = None if writer is None else Headers(model, table, header, self._loads)
        self._held: Held | None = None
        self._processors: dict[Any, TextKVProcessor] = {}
        self._patches = Patches()
        self._forward: Callable[..., Any] | None = None
        self._bare = "forward" not in vars(model)
        self._request: Request | None = None
        self._past: object | None = None
        self._done: list[RequestSummary] = []
        self._unplanned = 0

    @property
    def summary(self) -> Summary:
        """Hits, misses, departures and peak bytes so far: in all, by site and branch, by request."""
        running = () if self._request is None else (self._request.summary("running"),)
        return summarise((*self._done, *running), self._unplanned)

    @property
    def requests(self) -> tuple[RequestSummary, ...]:
        """The requests that have ended, in order."""
        return tuple(self._done)

    @property
    def bytes_held(self) -> int:
        """Bytes in the store now; 0 whenever no request is running."""
        return 0 if self._request is None else self._request.store.bytes

    @contextmanager
    def step(self, step: int, *, branch: str) -> Iterator[None]:
        """Forwards of a bare transformer inside this context belong to a nominal step and branch.

        A step that the table does not run is computed and never cached. An earlier step than the one before begins a new
        request; an exception that leaves the context ends the request. Raises RequestError on a pipeline's session, or
        for a branch that is neither `cond` nor `uncond`.
        """
        if not isinstance(self._clock, ToldClock):
            raise RequestError(
                "this session follows its pipeline's scheduler; attach to the transformer to tell it the steps"
            )
        if branch not in BRANCHES:
            raise RequestError(f"there is no branch {branch!r}; it is one of {', '.join(BRANCHES)}")
        try:
            with self._clock.at(step, branch):
                yield
        except BaseException as error:
            self._ended(error)
            raise

    def detach(self) -> None:
        """End the request that is open and put the model (and pipeline) back as it was. A second call does nothing."""
        self._close(None)

    def __enter__(self) -> Session:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._close(error)

    def _install(self) -> None:
        # Never traced, so that a transformer that is compiled as a whole later on is refused by name.
        self._forward = wan_vace.make_forward(self._model, torch.compiler.disable(self._run))
        place(self._model, self._forward)
        _ATTACHED.add(self._model)
        for attention in wan_vace.text_attentions(self._model, self.table).values():
            self._processors[attention] = TextKVProcessor(attention.processor)
            self._patches.set(attention, "processor", self._processors[attention])
        self._patches.set(self._model, "load_lora_adapter", self._loads.counted(self._model.load_lora_adapter))
        if isinstance(self._clock, PipelineClock):
            self._patches.set(self._model, "cache_context", named_contexts(self._model, self._clock))
            self._patches.set(self._pipe, "progress_bar", watched_loop(self._pipe, self.table, self._ended))
            if self.table.left_out:
                self._patches.set(self._scheduler, "set_timesteps", thinned_grid(self._scheduler, self.table))

    def _close(self, error: BaseException | None) -> None:
        try:
            self._ended(error)
        finally:
            if self._forward is not None:
                displace(self._model, self._forward, self._bare)
                _ATTACHED.discard(self._model)
                self._forward = None
            self._patches.undo()
            if self._owned is not None:
                self._owned.close()

    def _run(self, inputs: Inputs, body: Callable[[Call], Tensor]) -> Tensor:
        """One forward: find out which call it is, run it under the table, count it and log it."""
        moment = self._clock.read(inputs.timestep)
        request = self._request_of(moment, inputs)
        if request is None:
            self._unplanned += 1
            if self._writer is not None:
                self._writer.event(None, "unplanned_call", branch=moment.branch)
            return body(self._unplanned_call(moment, "unknown_step"))
        call = self._call_of(moment, request, inputs)
        try:
            try:
                sample = body(call)
            except Exception as error:
                if self.on_error == "raise" or call.withheld is not None:
                    raise
                self._give_up(request, error)
                call = Call(call.plan, request.store, self.table.rules, request.withheld)
                sample = body(call)
            request.ran(call)
            self._log(request, moment, call)
        except BaseException as error:
            self._ended(error)
            raise
        if self._pipe is None and request.over:
            self._end(request, "finished" if request.complete else "incomplete")
        return sample

    def _request_of(self, moment: Moment, inputs: Inputs) -> Request | None:
        """The request that a forward belongs to, begun where it is the first of one; None where it belongs to none."""
        request = self._request
        if request is not None and request.key is moment.key:
            return request
        if moment.key is None or moment.key is self._past or moment.step_index is None or moment.branch is None:
            return None
        self._ended(None)
        return self._begin(moment, inputs)

    def _begin(self, moment: Moment, inputs: Inputs) -> Request:
        guidance = None if self._pipe is None else checks.guidance_of(self._pipe)
        branches = branches_of(self.table, guidance)
        request = Request(f"r{len(self._done) + 1}", moment.key, self.table, self._plans, self._depends, branches)
        if self._writer is not None:
            assert self._headers is not None
            self._writer.begin(request.name, self._headers.of(inputs, branches, guidance), self.table)
        self._request = request
        try:
            checks.check_request(self._model, self._pipe, self._scheduler, self.table, inputs)
            checks.check_processors(self._processors)
            note = (lambda *_, **__: None) if self._writer is None else partial(self._writer.event, request.name)
            self._held = Held(self._model, self._pipe, self._scheduler, self.table, self._processors, self._loads, note)
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
        plan = None if moment.step_index is None else self._plans.get((str(moment.branch), moment.step_index))
        if plan is None or moment.branch not in request.branches or request.strays(plan, inputs):
            return self._unplanned_call(moment, "unknown_step")
        held = self._held
        assert held is not None
        if request.withheld is None:
            try:
                held.check(moment.step_index)
            except RequestError as error:
                if self.on_error == "raise":
                    self._ended(error)
                    raise
                self._give_up(request, error)
        return request.call(plan, inputs, held.weights(moment.step_index))

    def _unplanned_call(self, moment: Moment, reason: str) -> Call:
        key = moment.branch or UNKNOWN, reason
        if key not in self._strays:
            self._strays[key] = unplanned_call(self.table, *key)
        return Call(self._strays[key], Store(()), (), reason)

    def _give_up(self, request: Request, error: Exception) -> None:
        """Finish the request without the cache."""
        request.give_up(error)
        if self._writer is not None:
            self._writer.event(request.name, "uncached", error=request.error)

    def _log(self, request: Request, moment: Moment, call: Call) -> None:
        if self._writer is None:
            return
        plan, planned = call.plan, call.plan.step >= 0
        decisions = plan.folded
        if call.changes:
            decisions = fold(call.changes.get(position, told) for position, told in enumerate(plan.decisions))
        self._writer.step(
            request.name,
            step=plan.step if planned else None,
            index=plan.index if planned else None,
            branch=moment.branch,
            sigma=self.table.sigmas[plan.step] if planned else None,
            decisions=decisions,
            bytes_held=request.store.bytes,
        )

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
        self._request, self._held, self._past = None, None, request.key
        summary = request.summary(outcome)
        request.close()
        self._done.append(summary)
        if self._writer is not None:
            self._writer.seal(request.name, outcome=outcome, bytes_peak=summary.total.bytes_peak, error=summary.error)
