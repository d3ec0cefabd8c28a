"""What a log tells of each request: how it ended, hits and misses, departures, bytes."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from refkv_policy.audit.fold import fold_names
from refkv_policy.audit.read import Log, RequestLog
from refkv_policy.audit.record import plain, quoted
from refkv_policy.audit.totals import Totals
from refkv_policy.compiler import human_bytes

COLUMNS = ("request", "outcome", "steps", "hits", "misses", "hit rate", "departures", "peak")


def totals_of(request: RequestLog) -> Totals:
    """The totals of a request's steps as they stand in the log, whatever its seal says."""
    totals = Totals.none(request.header.table)
    for line in request.steps:
        totals = totals.plus(line.branch, line.decisions)
    return totals


def summary(log: Log) -> dict[str, Any]:
    """JSON-ready: for each request its outcome, steps, totals and peak bytes; and what is wrong with the log.

    bytes_peak is the seal's; without one, the most that a logged step held.
    """
    return {
        "closed": log.closed,
        "head": log.head,
        "requests": [_request(request) for request in log.requests],
        "problems": [str(p) for p in log.problems],
    }


def render_summary(log: Log) -> str:
    """The same for a person: a table of requests, then hits and misses by site."""
    entries = [_request(request) for request in log.requests]
    rows = [
        (
            plain(e["request"]),
            e["outcome"],
            f"{e['steps_run']}/{e['steps']}",
            str(e["hits"]),
            str(e["misses"]),
            "-" if e["hit_rate"] is None else f"{e['hit_rate']:.1%}",
            ", ".join(f"{n} {plain(reason)}" for reason, n in sorted(e["departures"].items())) or "none",
            human_bytes(e["bytes_peak"]),
        )
        for e in entries
    ]
    blocks = [_columns([COLUMNS, *rows])]
    for e in entries:
        sites = [(site, str(c["hits"]), str(c["misses"])) for site, c in e["sites"].items()]
        if sites:
            blocks.append(f"{plain(e['request'])}\n" + _columns([("site (each)", "hits", "misses"), *sites]))
        if e["error"] is not None:
            blocks.append(f"{plain(e['request'])}: {quoted(e['error'])}")
    return "\n\n".join(blocks)


def _request(request: RequestLog) -> dict[str, Any]:
    totals, seal = totals_of(request), request.seal or {}
    held = max((line.bytes_held for line in request.steps), default=0)
    peak = seal.get("bytes_peak")
    sites = fold_names([(site, {"hits": c.served, "misses": c.computed}) for site, c in totals.by_site().items()])
    return {
        "request": request.header.request,
        "outcome": request.outcome,
        "error": seal.get("error"),
        "table": request.header.table.digest,
        "steps": len(request.header.table.evaluated),
        "steps_run": len({line.step for line in request.steps if line.step is not None}),
        "hits": totals.hits,
        "misses": totals.misses,
        "hit_rate": totals.hit_rate,
        "unserved": totals.unserved,
        "departures": dict(totals.departures),
        "bytes_peak": peak if type(peak) is int else held,
        "branches": {name: {"hits": c.served, "misses": c.computed} for name, c in totals.by_branch().items()},
        "sites": sites,
    }


def _columns(rows: Iterable[tuple[str, ...]]) -> str:
    """Rows under each other, columns wide enough; the first column to the left, numbers to the right."""
    table = list(rows)
    widths = [max(len(row[n]) for row in table) for n in range(len(table[0]))]
    right = [all(row[n][:1].isdigit() or row[n] == "-" for row in table[1:]) for n in range(len(widths))]
    lines = (
        "  ".join(cell.rjust(w) if r else cell.ljust(w) for cell, w, r in zip(row, widths, right, strict=True)).rstrip()
        for row in table
    )
    return "\n".join(lines)
