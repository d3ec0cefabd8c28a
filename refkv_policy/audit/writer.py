"""Writing the audit log: one line a step, whole or not at all, chained to the line before."""

from __future__ import annotations

import os
import secrets
import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Any

from refkv_policy.audit.decision import Decision
from refkv_policy.audit.fold import Folded, fold
from refkv_policy.audit.header import now, request_record
from refkv_policy.audit.record import GENESIS, OUTCOMES, AuditError, chained, checked, quoted
from refkv_policy.audit.totals import Totals
from refkv_policy.compiler.table import HookTable
from refkv_policy.plan.diagnostic import RefkvWarning


def outcome_of(error: BaseException) -> str:
    """The outcome of a request that an exception ended: `failed`, or `cancelled` by what is no Exception.

    Those are KeyboardInterrupt, SystemExit, GeneratorExit and asyncio's CancelledError.
    """
    return "failed" if isinstance(error, Exception) else "cancelled"


def free_path(path: str | os.PathLike[str]) -> Path:
    """`path`, or where that exists the first of `name-2.jsonl`, `name-3.jsonl` … that does not."""
    base = Path(path)
    candidate, n = base, 1
    while os.path.lexists(candidate):
        n += 1
        candidate = base.with_name(f"{base.stem}-{n}{base.suffix}")
    return candidate


@dataclass(frozen=True, slots=True)
class _Request:
    """What is known of an open request: immutable, so that a line and its count become true together."""

    totals: Totals
    steps: int = 0
    bytes_peak: int = 0


class NullWriter:
    """The writer's interface without a file: it keeps each open request's totals and writes nothing.

    A context manager: leaving it seals what is still open (`incomplete`; `failed` or `cancelled` by an exception) and
    closes. Not for use from several threads at once.
    """

    head: str | None = None
    """The hash of the newest line; None where nothing is written."""

    def __init__(self, *, session: str | None = None) -> None:
        self.session = session or f"s-{secrets.token_hex(6)}"
        self._open: dict[str, _Request] = {}
        self._begun: set[str] = set()
        self._tables: set[str] = set()
        self._closed = False

    def begin(self, request: str, header: Mapping[str, Any], table: HookTable) -> None:
        """Open a request; see `header.request_record` for what `header` holds.

        Raises AuditError when the id was used before or a value of the header cannot be written as JSON.
        """
        self._settle()
        if self._closed or not isinstance(request, str) or request in self._begun:
            raise AuditError(f"request {quoted(request)} cannot begin: its id is not new, or the log is closed")
        record = checked(request_record(request, self.session, header, table))
        if table.digest not in self._tables:
            record["table"] = table.to_dict()
        state = _Request(Totals.none(table))
        self._append(record, lambda: self._enter(request, state, table.digest))

    def step(
        self,
        request: str,
        *,
        step: int | None,
        index: int | None,
        branch: str | None,
        sigma: float | None,
        decisions: Sequence[Decision] | Folded,
        bytes_held: int,
    ) -> None:
        """Log one step of one branch: every site's decision, in any order, and the bytes held after it.

        step: nominal; index: its ordinal among the evaluated steps. A call whose step or branch is not known gives None
        for what it does not know, and every site as computed (`.`) with the reason `unknown_step`. Raises AuditError,
        with nothing written, when the request is not open or a value cannot be written.
        """
        state = self._state(request)
        if type(bytes_held) is not int:
            raise AuditError(f"the bytes held after step {quoted(step)} are {quoted(bytes_held)}, not an integer")
        try:
            folded = decisions if isinstance(decisions, Folded) else fold(decisions)
        except (ValueError, TypeError, AttributeError) as error:
            raise AuditError(f"the decisions of step {quoted(step)} cannot be logged: {error}") from error
        record = {
            "kind": "step",
            "request": request,
            "step": step,
            "index": index,
            "branch": branch,
            "sigma": sigma,
            "decisions": folded.entries,
            "bytes_held": bytes_held,
        }
        totals = state.totals.plus(branch, folded.decisions)
        after = _Request(totals, state.steps + 1, max(state.bytes_peak, bytes_held))
        self._append(record, lambda: self._count(request, after))

    def event(self, request: str | None, name: str, **fields: Any) -> None:
        """Log something that happened between steps; `request` is None for the session as a whole."""
        if request is not None:
            self._state(request)
        self._append(checked({"kind": "event", "request": request, "event": name, "fields": fields}), lambda: None)

    def seal(self, request: str, *, outcome: str, bytes_peak: int, error: str | None = None) -> Totals:
        """End a request: `finished`, `failed`, `cancelled` or `incomplete`. Returns the totals of what was logged."""
        state = self._state(request)
        if type(bytes_peak) is not int:
            raise AuditError(f"the peak bytes of request {quoted(request)} are {quoted(bytes_peak)}, not an integer")
        if outcome not in OUTCOMES:
            raise AuditError(f"{quoted(outcome)} is not an outcome; it is one of {', '.join(OUTCOMES)}")
        record = {
            "kind": "seal",
            "request": request,
            "outcome": outcome,
            "steps": state.steps,
            "totals": state.totals.to_dict(),
            "bytes_peak": bytes_peak,
            "error": error,
            "ended": now(),
        }
        self._append(record, lambda: self._leave(request))
        return state.totals

    def totals(self, request: str) -> Totals:
        """The totals so far of a request that is open."""
        return self._state(request).totals

    @property
    def open_requests(self) -> tuple[str, ...]:
        """The requests that have begun and are not sealed."""
        self._settle()
        return tuple(self._open)

    def close(self, *, outcome: str = "incomplete", error: str | None = None) -> None:
        """Seal what is still open with `outcome`, and close the log. A second call does nothing."""
        if self._closed:
            return
        for request in self.open_requests:
            self.seal(request, outcome=outcome, bytes_peak=self._open[request].bytes_peak, error=error)
        self._append({"kind": "close", "session": self.session, "requests": len(self._begun)}, self._shut)

    def __enter__(self) -> NullWriter:
        return self

    def __exit__(self, kind: object, error: BaseException | None, trace: TracebackType | None) -> None:
        if error is None:
            self.close()
        else:
            self.close(outcome=outcome_of(error), error=f"{type(error).__name__}: {error}")

    def _state(self, request: str) -> _Request:
        self._settle()
        if request not in self._open:
            raise AuditError(f"request {quoted(request)} is not open: begin it first, and log nothing after its seal")
        return self._open[request]

    # What follows a written line. Each may be run twice, for the line may be found written after an interrupt.
    def _enter(self, request: str, state: _Request, table: str) -> None:
        self._begun.add(request)
        self._tables.add(table)
        self._open[request] = state

    def _count(self, request: str, state: _Request) -> None:
        self._open[request] = state

    def _leave(self, request: str) -> None:
        self._open.pop(request, None)

    def _shut(self) -> None:
        self._closed = True

    def _settle(self) -> None:
        """Make memory agree with the file."""

    def _append(self, record: Mapping[str, Any], after: Callable[[], None]) -> None:
        after()


@dataclass(frozen=True, slots=True)
class _Pending:
    """A line handed to the system: where the file ends once it is there, its hash, and what it then makes true."""

    end: int
    head: str
    after: Callable[[], None]


class AuditWriter(NullWriter):
    """Writes the log of one session to `path`.

    Never overwrites or appends to a file that exists: raises AuditError (`free_path` finds another name). Each line is
    one unbuffered write; one that fails part-way is taken back, so that the log stays whole and the writer usable. An
    interrupt between a write and its bookkeeping is made good at the next call. Lines are handed to the operating
    system, not forced to disk: they outlive a killed process, not a power cut.
    """

    head: str

    def __init__(self, path: str | os.PathLike[str], *, session: str | None = None) -> None:
        super().__init__(session=session)
        self.path = Path(path)
        try:
            self._file = open(self.path, "xb", buffering=0)  # noqa: SIM115 - held for the session, closed by close()
        except FileExistsError:
            raise AuditError(f"the audit log {self.path} exists; name another file, or move that one away") from None
        except (OSError, ValueError) as error:
            raise AuditError(f"the audit log {self.path} cannot be made: {error}") from error
        self.head = GENESIS
        self._size, self._pid, self._left_out = 0, os.getpid(), False
        self._pending: _Pending | None = None

    def _shut(self) -> None:
        super()._shut()
        self._file.close()

    def _settle(self) -> None:
        pending = self._pending
        if pending is None or self._file.closed or self._pid != os.getpid():
            return
        if os.fstat(self._file.fileno()).st_size >= pending.end:
            self.head, self._size = pending.head, pending.end
            pending.after()
        else:
            self._file.truncate(self._size)
            self._file.seek(self._size)
        self._pending = None

    def _append(self, record: Mapping[str, Any], after: Callable[[], None]) -> None:
        if self._closed:
            raise AuditError(f"the audit log {self.path} is closed")
        if self._pid != os.getpid():  # a fork shares the file with its parent, whose log it is
            if not self._left_out and record["kind"] not in ("seal", "close"):
                self._left_out = True
                text = f"the audit log {self.path} is its parent's: what this forked process does is not logged"
                warnings.warn(text, RefkvWarning, stacklevel=3)
            super()._append(record, after)
            return
        self._settle()
        line, head = chained(record, self.head)
        self._pending = _Pending(self._size + len(line), head, after)
        rest = memoryview(line)
        try:
            while rest:
                rest = rest[self._file.write(rest) or 0 :]
        except OSError as error:
            self._settle()
            raise AuditError(f"the audit log {self.path} cannot be written: {error}") from error
        self._settle()
