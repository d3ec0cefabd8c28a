"""Verifying an audit log: the chain of its lines, and the replay of its decisions against the table."""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

from refkv_policy.audit.header import disagreements
from refkv_policy.audit.read import Line, Problem, header_of, scan, step_line, subject
from refkv_policy.audit.record import quoted
from refkv_policy.audit.replay import Replay
from refkv_policy.compiler.table import HookTable

MANY = 200
"""Faults of one log that are listed."""
_CLOSE = {"kind", "session", "requests", "prev", "hash"}
Verdict = Literal["ok", "unsealed", "broken"]


@dataclass(frozen=True, slots=True)
class Verification:
    """What was found.

    ok: whole, sealed and lawful. unsealed: so as far as it goes, but it breaks off. broken: it is not.
    head: the hash of the last whole line; one recorded elsewhere guards against a rewrite of the whole file.
    requests: each request's outcome, `unsealed` where it has no seal. digests: of the tables the requests ran.
    decisions: how many were held against a table.
    """

    outcome: Verdict
    head: str | None
    lines: int
    decisions: int
    requests: Mapping[str, str]
    digests: Mapping[str, str]
    problems: tuple[Problem, ...] = ()
    notes: tuple[str, ...] = ()


def verify(
    path: str | os.PathLike[str],
    *,
    table: HookTable | None = None,
    table_digest: str | None = None,
    head: str | None = None,
) -> Verification:
    """Verify a log, in one pass and without holding it in memory.

    Finds any edit, drop, insertion, duplicate, swap or truncation, and any run that departed from its table otherwise
    than legally (`replay.Replay`). table or table_digest: what every request is to have run. head: the hash of the last
    line, as recorded elsewhere. Raises AuditError when the file cannot be read at all.
    """
    return verify_lines(scan(path), table.digest if table is not None else table_digest, head)


def verify_lines(lines: Iterable[Line], table_digest: str | None = None, head: str | None = None) -> Verification:
    """`verify` for lines that come from elsewhere than a file of their own."""
    state = _Verifier(table_digest)
    for line in lines:
        if line.half:
            state.half(line.number, line.problem or "")
            break
        state.lines = line.number
        state.head = line.head or state.head
        if line.problem is not None:
            state.problem(line.number, line.problem)
        if line.record is not None:
            state.take(line.record, line.number)
    state.end()
    if head is not None and head != state.head:
        state.problem(state.lines, f"the last line's hash is {state.head or 'none'}, and {quoted(head)} was recorded")
    verdict: Verdict = "broken" if state.problems else "ok" if state.closed and not state.notes_unsealed else "unsealed"
    return Verification(
        verdict,
        state.head,
        state.lines,
        state.decisions,
        state.outcomes,
        state.digests,
        tuple(state.problems),
        tuple(state.notes_unsealed + state.notes),
    )


@dataclass
class _Verifier:
    """What has been read so far."""

    expected: str | None
    lines: int = 0
    head: str | None = None
    closed: bool = False
    session: str | None = None
    decisions: int = 0
    open: dict[str, Replay] = field(default_factory=dict)
    outcomes: dict[str, str] = field(default_factory=dict)
    digests: dict[str, str] = field(default_factory=dict)
    tables: dict[str, HookTable] = field(default_factory=dict)
    problems: list[Problem] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    notes_unsealed: list[str] = field(default_factory=list)

    def problem(self, line: int, message: str) -> None:
        """Note a fault; of very many, the first."""
        if len(self.problems) < MANY:
            self.problems.append(Problem(line, message))
        elif len(self.problems) == MANY:
            self.problems.append(Problem(line, "there are more faults from here on; they are not listed"))

    def half(self, number: int, message: str) -> None:
        """Take a last line that breaks off: where a writer was killed, but not behind the close of a log."""
        if self.closed:
            self.problem(number, f"it comes after the log was closed; {message}")
        else:
            self.notes.append(f"line {number}: {message}")

    def take(self, record: dict[str, Any], number: int) -> None:
        """Take one line's record."""
        try:
            kind, request = subject(record)
            if self.closed:
                self.problem(number, "it comes after the log was closed")
            if kind == "event" and (type(record.get("event")), type(record.get("fields"))) != (str, dict):
                self.problem(number, "it is an event without a name or fields")
            if kind == "close":
                self._close(record, number)
            elif kind == "request":
                self._begin(record, number)
            elif request is not None:
                self._section(kind, request, record, number)
        except ValueError as error:
            self.problem(number, str(error))

    def end(self) -> None:
        """Take the end of the file."""
        for name, replay in self.open.items():
            self.notes_unsealed.append(f"request {quoted(name)} has no seal")
            for fault in replay.unsealed():
                self.problem(self.lines, fault)
            self._leave(name, replay)
        if not self.closed:
            self.notes_unsealed.append("the log was not closed" if self.lines else "the log holds no whole line")

    def _begin(self, record: dict[str, Any], number: int) -> None:
        name = record["request"]
        if name in self.outcomes:
            raise ValueError(f"request {quoted(name)} begins a second time")
        header = header_of(record, self.tables)
        self.open[name] = Replay(header)
        self.outcomes[name], self.digests[name] = "unsealed", header.table.digest
        self.session = self.session or header.session
        if header.session != self.session:
            self.problem(number, f"it is of session {quoted(header.session)}, and the log of {quoted(self.session)}")
        for fault in disagreements(record, header.table):
            self.problem(number, fault)
        if self.expected is not None and header.table.digest != self.expected:
            ran = header.table.digest
            self.problem(number, f"request {quoted(name)} ran the table {ran}, not {quoted(self.expected)}")

    def _section(self, kind: str, name: str, record: dict[str, Any], number: int) -> None:
        replay = self.open.get(name)
        if replay is None:
            why = "comes after the seal" if name in self.outcomes else f"is a {kind} line"
            raise ValueError(f"it {why} of request {quoted(name)}, which is not open here")
        if kind == "step":
            found = replay.step(step_line(record, number))
        elif kind == "seal":
            found = replay.seal(record)
            self.outcomes[name] = self.open.pop(name).outcome or ""
            self._leave(name, replay)
        else:
            found = []
        for fault in found:
            self.problem(number, fault)

    def _leave(self, name: str, replay: Replay) -> None:
        self.decisions += replay.decisions
        self.notes.extend(f"request {quoted(name)}: {note}" for note in replay.notes())

    def _close(self, record: dict[str, Any], number: int) -> None:
        self.closed = True
        if record.keys() != _CLOSE:
            self.problem(number, f"a close line holds {', '.join(sorted(_CLOSE))} and nothing else")
        count = record.get("requests")
        if type(count) is not int or count != len(self.outcomes):
            self.problem(number, f"the log was closed after {quoted(count)} requests, and holds {len(self.outcomes)}")
        said = record.get("session")
        if not isinstance(said, str) or said != (self.session or said):
            self.problem(number, f"the log of session {quoted(self.session)} was closed as {quoted(said)}")
