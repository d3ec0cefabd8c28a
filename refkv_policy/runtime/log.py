"""What a session writes to its audit log, and the calls that it only counts; from any thread."""

from __future__ import annotations

from collections.abc import Mapping
from threading import Lock
from typing import Any

from torch import nn

from refkv_policy.audit import AuditWriter, fold
from refkv_policy.compiler.table import HookTable
from refkv_policy.runtime.call import Call, Inputs
from refkv_policy.runtime.header import Headers
from refkv_policy.runtime.lora import Loads
from refkv_policy.runtime.request import Request
from refkv_policy.runtime.summary import RequestSummary


class Log:
    """Writes to `writer`, where there is one. unplanned: how many calls belonged to no request."""

    def __init__(
        self, writer: AuditWriter | None, model: nn.Module, table: HookTable, given: Mapping[str, Any], loads: Loads
    ) -> None:
        self.unplanned = 0
        self._writer, self._table = writer, table
        self._headers = None if writer is None else Headers(model, table, given, loads)
        self._lock = Lock()

    def begin(self, request: Request, inputs: Inputs, guidance: float | None) -> None:
        """The header of a request."""
        if self._writer is None or self._headers is None:
            return
        about = self._headers.of(inputs, request.branches, guidance)
        with self._lock:
            self._writer.begin(request.name, about, self._table)

    def step(self, request: Request, branch: str | None, call: Call) -> None:
        """One call of a request that has run."""
        if self._writer is None:
            return
        plan, planned = call.plan, call.plan.step >= 0
        decisions = plan.folded
        if call.changes:
            decisions = fold(call.changes.get(position, told) for position, told in enumerate(plan.decisions))
        with self._lock:
            self._writer.step(
                request.name,
                step=plan.step if planned else None,
                index=plan.index if planned else None,
                branch=branch,
                sigma=self._table.sigmas[plan.step] if planned else None,
                decisions=decisions,
                bytes_held=request.store.bytes,
            )

    def event(self, request: Request, name: str, **fields: Any) -> None:
        """Something that happened to a request."""
        if self._writer is not None:
            with self._lock:
                self._writer.event(request.name, name, **fields)

    def seal(self, summary: RequestSummary) -> None:
        """How a request ended."""
        if self._writer is not None:
            total = summary.total
            with self._lock:
                self._writer.seal(
                    summary.request, outcome=summary.outcome, bytes_peak=total.bytes_peak, error=summary.error
                )

    def note_unplanned(self, branch: str | None, write: bool) -> bool:
        """Count a call that belonged to no request, and write it down where asked to. Returns whether it is the first."""
        with self._lock:
            self.unplanned += 1
            if write and self._writer is not None:
                self._writer.event(None, "unplanned_call", branch=branch)
            return self.unplanned == 1
