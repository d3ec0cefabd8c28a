"""`refkv audit`: verify a log against its table, show what happened, sum it up."""

from __future__ import annotations

from typing import Any

import click

from refkv_policy.audit import Log, RequestLog, Verification, read_log
from refkv_policy.audit import verify as verify_log
from refkv_policy.audit.record import quoted
from refkv_policy.audit.show import LEGEND, render_map, render_step, selected, shown
from refkv_policy.audit.summary import render_summary
from refkv_policy.audit.summary import summary as summary_of
from refkv_policy.cli.group import FALLS_SHORT, FINE, Failure, did_you_mean, echo, echo_json, say
from refkv_policy.compiler.table import BRANCHES, HookTable
from refkv_policy.plan.wording import visible

_LOG = click.argument("log", type=click.Path())
_JSON = click.option("--json", "as_json", is_flag=True, help="Print JSON.")


@click.group()
def audit() -> None:
    """Verify, show and sum up audit logs."""


@audit.command()
@_LOG
@click.option("--table-digest", metavar="sha256:…", help="The table that every request is to have run.")
@click.option("--head", metavar="sha256:…", help="The hash of the last line, as recorded when the log was written.")
@_JSON
def verify(log: str, table_digest: str | None, head: str | None, as_json: bool) -> int:
    """Check that LOG is whole and unedited, and that its run obeyed its table.

    Exits with 0 when it did, 1 when the log is broken or unsealed, 2 when it cannot be read. A rewrite of the whole
    file shows only against a recorded --head.
    """
    return report(verify_log(log, table_digest=table_digest, head=head), as_json)


def verify_against(log: str, expected_table: HookTable | None, *, as_json: bool = False) -> int:
    """Verify a log against the table that its requests are to have run, print the result and return the exit status."""
    return report(verify_log(log, table=expected_table), as_json)


def report(found: Verification, as_json: bool) -> int:
    """Print what was verified; returns the exit status."""
    if as_json:
        _print_json(
            {
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
        )
    else:
        for line in (*found.problems, *(f"note: {note}" for note in found.notes)):
            echo(visible(str(line)))
        requests = ", ".join(f"{quoted(name)} {outcome}" for name, outcome in found.requests.items()) or "none"
        echo(f"{found.outcome}: {found.lines} lines, {found.decisions} decisions; requests: {requests}")
        echo(f"head {found.head or 'none'}")
    return FINE if found.outcome == "ok" else FALLS_SHORT


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
@_LOG
@_JSON
def summary(log: str, as_json: bool) -> int:
    """Sum up LOG: outcome, steps, hits, misses, departures and peak bytes of each request."""
    read = read_log(log)
    if as_json:
        _print_json(summary_of(read))
    else:
        echo(render_summary(read))
    return _status(read)


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
