"""`refkv audit`: verify a log against its table, show what happened, sum it up."""

from __future__ import annotations

import re
from itertools import groupby
from typing import Any

import click

from refkv_policy.audit import AuditError, Log, RequestLog, Verification, read_log
from refkv_policy.audit import verify as verify_log
from refkv_policy.audit.record import quoted
from refkv_policy.audit.show import LEGEND, render_map, render_step, selected, shown
from refkv_policy.audit.summary import render_summary
from refkv_policy.audit.summary import summary as summary_of
from refkv_policy.cli.group import COULD_NOT, FALLS_SHORT, FINE, Failure, did_you_mean, echo, echo_json, say, tell
from refkv_policy.compiler.table import BRANCHES
from refkv_policy.plan.wording import visible

_LOG = click.argument("log", type=click.Path())
_LOGS = click.argument("logs", type=click.Path(), nargs=-1, required=True, metavar="LOG...")
_JSON = click.option("--json", "as_json", is_flag=True, help="Print JSON.")

SHOWN = 12
"""Kinds of faults of one log that are shown."""
_NUMBER = re.compile(r"[0-9]+")


@click.group()
def audit() -> None:
    """Verify, show and sum up audit logs."""


@audit.command()
@_LOGS
@click.option("--table-digest", metavar="sha256:…", help="The table that every request is to have run.")
@click.option("--head", metavar="sha256:…", help="The hash of the last line, as recorded when the log was written.")
@_JSON
def verify(logs: tuple[str, ...], table_digest: str | None, head: str | None, as_json: bool) -> int:
    """Check that each LOG is whole and unedited, and that its run obeyed its table.

    Exits with 0 when all did, 1 when one is broken or unsealed, 2 when one cannot be read. A rewrite of a whole file
    shows only against a recorded --head.
    """
    if head is not None and len(logs) > 1:
        raise Failure("--head is the hash of one log's last line; verify one log with it")
    status, found = FINE, []
    for log in logs:
        try:
            one = verify_log(log, table_digest=table_digest, head=head)
        except AuditError as error:
            status = tell(error, COULD_NOT)
            continue
        status = max(status, FINE if one.outcome == "ok" else FALLS_SHORT)
        found.append({"log": log, **_as_mapping(one)})
        if not as_json:
            _print(one, f"{visible(log)}: " if len(logs) > 1 else "")
    if as_json and found:
        _print_json(found[0] if len(logs) == 1 else {"format_version": 1, "logs": found})
    return status


def _as_mapping(found: Verification) -> dict[str, Any]:
    return {
        "outcome": found.outcome,
        "head": found.head,
        "lines": found.lines,
        "decisions": found.decisions,
        "requests": [
            {"request": name, "outcome": outcome, "table": found.digests[name]}
            for name, outcome in found.requests.items()
        ],
        "problems": [{"line": p.line, "message": p.message} for p in found.problems],
        "notes": list(found.notes),
    }


def _print(found: Verification, name: str) -> None:
    """The verdict first, then what is wrong: neighbouring lines with one fault together, and of very many the first."""
    requests = ", ".join(f"{quoted(name)} {outcome}" for name, outcome in found.requests.items()) or "none"
    echo(f"{name}{found.outcome}: {found.lines} lines, {found.decisions} decisions; requests: {requests}")
    groups = [list(group) for _, group in groupby(found.problems, key=lambda p: _NUMBER.sub("N", p.message))]
    for group in groups[:SHOWN]:
        first, last = group[0].line, group[-1].line
        more = f" (and likewise up to line {last})" if last > first else ""
        echo(visible(f"line {first}: {group[0].message}{more}"))
    if len(groups) > SHOWN:
        echo(f"and {len(groups) - SHOWN} faults more, which --json lists")
    for note in found.notes:
        echo(visible(f"note: {note}"))
    echo(f"head {found.head or 'none'}")


@audit.command()
@_LOG
@click.option("--request", "name", metavar="ID", help="This request only.")
@click.option("--branch", type=click.Choice(BRANCHES), help="This branch only.")
@click.option("--step", type=click.IntRange(0), help="Every decision of this step.")
@_JSON
def show(log: str, name: str | None, branch: str | None, step: int | None, as_json: bool) -> int:
    """Print the step × site map of LOG as it really happened."""
    read = read_log(log)
    branches = BRANCHES if branch is None else (branch,)
    requests = _requests(read, name)
    if as_json:
        _print_json([shown(r, selected(r, branches, step)) for r in requests])
        return _status(read)
    for request in requests:
        lines = selected(request, branches, step)
        for one in [b for b in branches if any(x.branch == b for x in lines)] if step is None else []:
            echo(f"{quoted(request.header.request)} {one}, {request.outcome}\n{render_map(request, one)}\n")
        for line in lines:
            if step is not None or line.step is None or line.branch is None:
                echo(f"{quoted(request.header.request)} {render_step(line)}\n")
        if step is not None and not lines:
            say(f"note: request {quoted(request.header.request)} logged no step {step}")
    if step is None and requests:
        echo(LEGEND)
    return _status(read)


@audit.command()
@_LOGS
@_JSON
def summary(logs: tuple[str, ...], as_json: bool) -> int:
    """Sum up each LOG: outcome, steps, hits, misses, departures and peak bytes of each request."""
    status, found = FINE, []
    for log in logs:
        try:
            read = read_log(log)
        except AuditError as error:
            status = tell(error, COULD_NOT)
            continue
        found.append({"log": log, **summary_of(read)})
        if not as_json:
            echo((f"{visible(log)}\n" if len(logs) > 1 else "") + render_summary(read))
        status = max(status, _status(read))
    if as_json and found:
        _print_json(found[0] if len(logs) == 1 else {"format_version": 1, "logs": found})
    return status


def _requests(log: Log, name: str | None) -> tuple[RequestLog, ...]:
    found = tuple(r for r in log.requests if name is None or r.header.request == name)
    if name is not None and not found:
        names = [r.header.request for r in log.requests]
        raise Failure(f"the log holds no request {quoted(name)}{did_you_mean(name, names)}")
    return found


def _status(log: Log) -> int:
    """Say on stderr what is wrong with the log, for what was printed may not be all; gives the exit status."""
    for problem in log.problems:
        say(f"problem: {problem}")
    if log.half is not None:
        say(f"note: {log.half}")
    if not log.closed:
        say("note: the log is unsealed: it was not closed")
    if not log.requests and not log.problems:
        say("note: the log holds no request")
    return FALLS_SHORT if log.problems else FINE


def _print_json(value: Any) -> None:
    echo_json(value)
