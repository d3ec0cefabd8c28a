"""Reading an audit log: whatever the file holds, its faults are values."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import IO, Any

from refkv_policy.audit.decision import Decision
from refkv_policy.audit.fold import expand
from refkv_policy.audit.header import is_branches, table_of
from refkv_policy.audit.record import GENESIS, KINDS, MAX_LINE, OUTCOMES, SCHEMA, AuditError, parse, quoted
from refkv_policy.compiler.table import BRANCHES, HookTable
from refkv_policy.files import open_regular


@dataclass(frozen=True, slots=True, order=True)
class Problem:
    """One fault of a log, at a line counted from 1."""

    line: int
    message: str

    def __str__(self) -> str:
        return f"line {self.line}: {self.message}"


@dataclass(frozen=True, slots=True)
class Line:
    """One line of the file. `record` is None where none can be read; `half` is a last line that breaks off."""

    number: int
    record: dict[str, Any] | None
    head: str | None
    problem: str | None
    half: bool = False


def scan(path: str | os.PathLike[str]) -> Iterator[Line]:
    """The lines of the log at `path`, as `scan_file` gives them. Raises AuditError when it cannot be opened or read."""
    try:
        with open_regular(path) as file:
            yield from scan_file(file)
    except (OSError, ValueError) as error:
        reason = getattr(error, "strerror", None) or str(error)
        raise AuditError(f"the audit log {printable(path)} cannot be read: {reason}") from error


def scan_file(file: IO[bytes]) -> Iterator[Line]:
    """The lines of a log, each checked by itself and against the line before. Stops at a line longer than MAX_LINE."""
    prev: object = GENESIS
    number = 0
    while raw := file.readline(MAX_LINE + 1):
        number += 1
        if len(raw) > MAX_LINE:
            yield Line(number, None, None, f"it is longer than {MAX_LINE} bytes; it and what follows were not read")
            return
        if not raw.endswith(b"\n"):
            yield Line(number, None, None, f"it breaks off after {len(raw)} bytes: half a line", half=True)
            return
        record, problem = parse(raw[:-1])
        said = record.get("prev") if record is not None else None
        if problem is None and said != prev:
            before = f"line {number - 1}" if number > 1 else "the start of a log"
            problem = f"it does not follow {before}: a line was dropped, inserted, moved or edited here"
        if record is not None:
            prev = record.get("hash")
        yield Line(number, record, prev if isinstance(prev, str) and problem is None else None, problem)


def printable(path: str | os.PathLike[str]) -> str:
    """A path as text that any terminal takes."""
    return os.fsdecode(path).encode("utf-8", "backslashreplace").decode()


@dataclass(frozen=True, slots=True)
class StepLine:
    """One step of one branch, as logged, its decisions expanded to one a site."""

    line: int
    request: str
    step: int | None
    index: int | None
    branch: str | None
    sigma: float | None
    bytes_held: int
    decisions: tuple[Decision, ...]


def step_line(record: Mapping[str, Any], number: int) -> StepLine:
    """The step that a `step` record holds. Raises ValueError, with a sentence, for anything that is not one."""
    step, index, branch, sigma = (record.get(name) for name in ("step", "index", "branch", "sigma"))
    for name, value in (("step", step), ("index", index)):
        if value is not None and not _is_count(value):
            raise ValueError(f"its {name} is {quoted(value)}, not an integer")
    if branch is not None and branch not in BRANCHES:
        raise ValueError(f"its branch is {quoted(branch)}, not {' or '.join(BRANCHES)}")
    if sigma is not None and type(sigma) not in (int, float):
        raise ValueError(f"its sigma is {quoted(sigma)}, not a number")
    held: Any = record.get("bytes_held")
    if not _is_count(held):
        raise ValueError(f"its bytes held are {quoted(held)}, not a number of bytes")
    request = record["request"]
    return StepLine(number, request, step, index, branch, sigma, held, expand(record.get("decisions")))


@dataclass(frozen=True, slots=True)
class Header:
    """A request's header. `record` is the whole of it, as logged; the rest is what replay needs."""

    request: str
    session: str
    branches: tuple[str, ...]
    table: HookTable
    record: Mapping[str, Any] = field(repr=False)


def header_of(record: Mapping[str, Any], tables: dict[str, HookTable]) -> Header:
    """The header that a `request` record holds; its table is added to `tables`, or found there by its digest.

    Raises ValueError, with a sentence, for anything that is not one.
    """
    if record.get("schema") != SCHEMA:
        raise ValueError(f"its schema is {quoted(record.get('schema'))}; this refkv reads {SCHEMA}")
    if not isinstance(record.get("session"), str):
        raise ValueError("it names no session")
    if not is_branches(record.get("branches")):
        raise ValueError(f"its branches are {quoted(record.get('branches'))}, not one or both of {list(BRANCHES)}")
    if "table" in record:
        table = table_of(record["table"])
        tables.setdefault(table.digest, table)
    else:
        digests = record.get("digests")
        said = digests.get("table") if isinstance(digests, dict) else None
        if not isinstance(said, str) or said not in tables:
            raise ValueError(f"it holds no table, and no earlier header holds {quoted(said)}")
        table = tables[said]
    return Header(record["request"], record["session"], tuple(record["branches"]), table, record)


@dataclass(frozen=True, slots=True)
class RequestLog:
    """One request's section. `seal` is its seal's record, None when it was never sealed (or the log breaks off)."""

    header: Header
    steps: tuple[StepLine, ...]
    events: tuple[Mapping[str, Any], ...]
    seal: Mapping[str, Any] | None

    @property
    def outcome(self) -> str:
        """finished, failed, cancelled, incomplete; `unsealed` without a seal."""
        said = self.seal.get("outcome") if self.seal is not None else "unsealed"
        return said if isinstance(said, str) and said in (*OUTCOMES, "unsealed") else quoted(said)


@dataclass(frozen=True, slots=True)
class Log:
    """A log as far as it can be read. `head` is the hash of the last whole line; `closed` says the writer ended it.

    problems: what is wrong with single lines and with how they follow each other; `verify` finds more. An unsealed tail
    is no problem. `half` is the line that breaks off, if one does.
    """

    requests: tuple[RequestLog, ...]
    events: tuple[Mapping[str, Any], ...]
    lines: int
    head: str | None
    closed: bool
    problems: tuple[Problem, ...]
    half: Problem | None = None


def read_log(path: str | os.PathLike[str]) -> Log:
    """Read a log into memory, leaving out what cannot be read and saying so. Raises AuditError as `scan` does."""
    headers: dict[str, Header] = {}
    steps: dict[str, list[StepLine]] = {}
    events: dict[str | None, list[Mapping[str, Any]]] = {None: []}
    seals: dict[str, Mapping[str, Any]] = {}
    tables: dict[str, HookTable] = {}
    problems: list[Problem] = []
    lines, head, closed, half = 0, None, False, None
    for line in scan(path):
        if line.half:
            half = Problem(line.number, line.problem or "")
            break
        lines, head = line.number, line.head or head
        if line.problem is not None:
            problems.append(Problem(line.number, line.problem))
        if line.record is None:
            continue
        try:
            kind, request = subject(line.record)
            if kind == "close":
                closed = True
            elif kind == "event" and request is None:
                events[None].append(line.record)
            elif kind == "request" and request is not None and request not in headers:
                headers[request] = header_of(line.record, tables)
                steps[request], events[request] = [], []
            elif request is None or request not in headers or request in seals or kind == "request":
                raise ValueError(f"it is a {kind} line of {quoted(request)}, which is not open here")
            elif kind == "step":
                steps[request].append(step_line(line.record, line.number))
            elif kind == "event":
                events[request].append(line.record)
            else:
                seals[request] = line.record
        except ValueError as error:
            problems.append(Problem(line.number, str(error)))
    requests = (RequestLog(h, tuple(steps[r]), tuple(events[r]), seals.get(r)) for r, h in headers.items())
    return Log(tuple(requests), tuple(events[None]), lines, head, closed, tuple(problems), half)


def subject(record: Mapping[str, Any]) -> tuple[str, str | None]:
    """The kind of a record and the request it is about. Raises ValueError when either is not what it can be."""
    kind, request = record.get("kind"), record.get("request")
    if not isinstance(kind, str) or kind not in KINDS:
        raise ValueError(f"its kind is {quoted(kind)}; a line is one of {', '.join(KINDS)}")
    if not isinstance(request, str) and not (request is None and kind in ("event", "close")):
        raise ValueError(f"it is a {kind} line that names no request")
    return kind, request


def _is_count(value: Any) -> bool:
    return type(value) is int and value >= 0
