"""What the page shows of an audit log: whether it holds, how its requests ended, and what they decided."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from refkv_policy.audit import RequestLog
from refkv_policy.audit.summary import summary
from refkv_policy.compiler.table import HookTable
from refkv_policy.report.charts import Chart
from refkv_policy.report.inputs import LogFile
from refkv_policy.report.memory import memory_chart
from refkv_policy.report.sitemap import Departures, SiteMap, departures, run_maps
from refkv_policy.report.verdict import Standing, log_standing
from refkv_policy.report.words import NONE, number, percent, size

MOST_GROUPS, MOST_REQUESTS, MOST_SITES = 8, 200, 200
"""Different maps, requests and site ranges of one log that are shown."""
DEEPEST = 6
"""Levels of a nested value that are written out."""


@dataclass(frozen=True, slots=True)
class Group:
    """Requests of one log that decided alike, shown by the first of them."""

    key: str
    names: tuple[str, ...]
    plan: str
    table: str
    maps: tuple[SiteMap, ...]
    departures: tuple[Departures, ...]
    departures_more: int
    memory: Chart | None
    facts: tuple[tuple[str, str], ...]
    rules: tuple[tuple[str, ...], ...]


@dataclass(frozen=True, slots=True)
class LogView:
    """One log. requests: a row each; sites: hits and misses by request and site range."""

    key: str
    file: str
    sha256: str
    head: str
    standing: Standing
    problems: tuple[str, ...]
    notes: tuple[str, ...]
    requests: tuple[tuple[str, ...], ...]
    requests_more: int
    errors: tuple[tuple[str, str], ...]
    events: tuple[tuple[str, str], ...]
    sites: tuple[tuple[str, ...], ...]
    groups: tuple[Group, ...]
    groups_more: int


HEADER = (
    "started", "device", "dtype", "guidance", "seed", "sampler", "flow_shift", "steps", "branches", "clip", "shapes",
)  # fmt: skip
"""What of a request's header is shown, beside its digests and versions."""
REQUEST_COLUMNS = ("request", "outcome", "steps run", "hits", "misses", "hit rate", "departures", "peak memory")
SITE_COLUMNS = ("request", "site (each)", "hits", "misses")
RULE_COLUMNS = ("rule", "tier", "method", "risk", "parameters")


def log_views(files: Sequence[LogFile]) -> tuple[LogView, ...]:
    """Every log that was given."""
    return tuple(_view(f"l{n}", file) for n, file in enumerate(files))


def _view(key: str, file: LogFile) -> LogView:
    log, found = file.log, file.found
    told = summary(log)["requests"][:MOST_REQUESTS]
    groups, more = _groups(key, log.requests)
    events = [*log.events, *(e for request in log.requests for e in request.events)]
    return LogView(
        key=key,
        file=file.name,
        sha256=file.sha256,
        head=found.head or NONE,
        standing=log_standing(found),
        problems=tuple(map(str, found.problems)),
        notes=found.notes,
        requests=tuple(map(_request, told)),
        requests_more=max(len(log.requests) - MOST_REQUESTS, 0),
        errors=tuple((e["request"], str(e["error"])) for e in told if e["error"] is not None),
        events=tuple((str(e.get("event")), _plain(e.get("fields"))) for e in events[:MOST_REQUESTS]),
        sites=tuple(
            (e["request"], site, f"{c['hits']:,}", f"{c['misses']:,}") for e in told for site, c in e["sites"].items()
        )[:MOST_SITES],
        groups=groups,
        groups_more=more,
    )


def _request(entry: Mapping[str, Any]) -> tuple[str, ...]:
    rate = entry["hit_rate"]
    gone = ", ".join(f"{n:,} {reason}" for reason, n in sorted(entry["departures"].items()))
    return (
        entry["request"],
        entry["outcome"],
        f"{entry['steps_run']} of {entry['steps']}",
        f"{entry['hits']:,}",
        f"{entry['misses']:,}",
        NONE if rate is None else percent(rate),
        gone or "none",
        size(min(entry["bytes_peak"], 1 << 60)),
    )


def _groups(key: str, requests: Sequence[RequestLog]) -> tuple[tuple[Group, ...], int]:
    alike: list[tuple[tuple[SiteMap, ...], str, list[RequestLog]]] = []
    left_out = 0
    for request in requests:
        maps, digest = run_maps(request), request.header.table.digest
        same = next((group for group in alike if group[1] == digest and group[0] == maps), None)
        if same is not None:
            same[2].append(request)
        elif len(alike) < MOST_GROUPS:
            alike.append((maps, digest, [request]))
        else:
            left_out += 1
    return tuple(_group(f"{key}-{n}", maps, members) for n, (maps, _, members) in enumerate(alike)), left_out


def _group(key: str, maps: tuple[SiteMap, ...], members: Sequence[RequestLog]) -> Group:
    first = members[0]
    gone, more = departures(first)
    table = first.header.table
    return Group(
        key,
        tuple(r.header.request for r in members),
        table.plan,
        table.digest,
        maps,
        gone,
        more,
        memory_chart(first, key),
        tuple(_facts(first)),
        tuple(_rules(table)),
    )


def _facts(request: RequestLog) -> Iterator[tuple[str, str]]:
    """The header, as far as it tells what ran on what."""
    record = request.header.record
    yield "session", request.header.session
    for name in HEADER:
        if record.get(name) is not None:
            yield name.replace("_", " "), _plain(record[name])
    for group in ("digests", "versions"):
        given = record.get(group)
        if isinstance(given, Mapping):
            for name, value in given.items():
                yield f"{group[:-1]} of {name}", _plain(value)
    accepted = record.get("acknowledgements")
    for each in accepted if isinstance(accepted, list) else ():
        yield "acknowledged", _plain(each)
    ended = (request.seal or {}).get("ended")
    if ended is not None:
        yield "ended", _plain(ended)


def _rules(table: HookTable) -> Iterator[tuple[str, ...]]:
    for rule in table.rules:
        yield (
            str(rule.name),
            str(rule.tier),
            str(rule.method),
            ", ".join(rule.risks) or "none",
            _plain(dict(rule.params)) or "none",
        )


def _plain(value: Any, depth: int = 0) -> str:
    """A JSON value in a line: `name: bunny, frames: sha256:…`."""
    if depth > DEEPEST:
        return "…"
    if isinstance(value, Mapping):
        return ", ".join(f"{key}: {_plain(inner, depth + 1)}" for key, inner in value.items())
    if isinstance(value, (list, tuple)):
        sizes = value and all(type(v) is int for v in value)
        return ("×" if sizes else ", ").join(_plain(inner, depth + 1) for inner in value)
    if isinstance(value, float):
        return number(value)
    return "" if value is None else str(value)
