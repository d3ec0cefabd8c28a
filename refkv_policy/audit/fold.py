"""Decisions folded for the log, and back: equal decisions at consecutive sites of a stack become one range."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

from refkv_policy.audit.decision import Decision
from refkv_policy.audit.record import quoted
from refkv_policy.compiler.table import ACTIONS, ONLINE
from refkv_policy.plan.selectors import Site, site_named

DONE = frozenset(ACTIONS) - {ONLINE}
"""What can have happened at a site: every action but `?`, which only a table holds."""
MAX_SITES = 4_000
"""Sites that one step line may name."""

_RANGE = re.compile(r"([a-z]+)\[(0|[1-9][0-9]{0,3})-(0|[1-9][0-9]{0,3})\]((?:\.[a-z][a-z0-9_]{0,31})?)")


@dataclass(frozen=True, slots=True)
class Folded:
    """A step's decisions, ready to be logged. `entries` are JSON-ready; `decisions` are in the order of `Site.order`."""

    entries: tuple[Mapping[str, Any], ...]
    decisions: tuple[Decision, ...]


def fold(decisions: Iterable[Decision]) -> Folded:
    """Fold a step's decisions; their order does not matter. Raises ValueError for a site or action that is none.

    The result may be kept and logged many times: what is static in a run need not be folded again.
    """
    ordered = sorted(((site_named(d.site), d) for d in decisions), key=_order_of)
    entries: list[dict[str, Any]] = []
    start = end = None
    same: tuple[Any, ...] = ()
    for at, d in ordered:
        told = (d.action, d.planned, d.reason, d.age, d.signal, d.threshold)
        if end is not None and told == same and _follows(end, at):
            end = at
            continue
        if start is not None and end is not None:
            entries.append(_entry(start, end, same))
        if d.action not in DONE or d.planned not in ACTIONS or len(d.action) != 1 or len(d.planned) != 1:
            raise ValueError(f"{d.site}: {quoted(d.action)} planned as {quoted(d.planned)} is no action")
        start, end, same = at, at, told
    if start is not None and end is not None:
        entries.append(_entry(start, end, same))
    return Folded(tuple(entries), tuple(d for _, d in ordered))


def expand(entries: Any) -> tuple[Decision, ...]:
    """The decisions of a step line's `decisions`. Raises ValueError, with a sentence, for anything that is not that."""
    if not isinstance(entries, list):
        raise ValueError("`decisions` is not a list")
    result: list[Decision] = []
    for entry in entries:
        if not isinstance(entry, dict):
            raise ValueError(f"the decision {quoted(entry)} is not an object")
        told = _told(entry)
        names = _names(entry.get("site"))
        if len(result) + len(names) > MAX_SITES:
            raise ValueError(f"it names more than {MAX_SITES} sites")
        result.extend(Decision(name, *told) for name in names)
    return tuple(result)


def fold_names(values: Sequence[tuple[str, Any]]) -> dict[str, Any]:
    """A mapping by site, its keys folded to ranges where consecutive sites hold equal values."""
    ordered = sorted(((site_named(site), value) for site, value in values), key=_order_of)
    result: dict[str, Any] = {}
    n = 0
    while n < len(ordered):
        start, value = ordered[n]
        end = start
        while n + 1 < len(ordered) and _follows(end, ordered[n + 1][0]) and ordered[n + 1][1] == value:
            n += 1
            end = ordered[n][0]
        result[_name(start, end)] = value
        n += 1
    return result


def _order_of(pair: tuple[Site, Any]) -> tuple[int, bool, str, int]:
    return pair[0].order


def _follows(end: Site, at: Site) -> bool:
    if end.index is None or at.index is None or end.last is not None or at.last is not None:
        return False
    return end.index == at.index - 1 and (end.stack, end.part) == (at.stack, at.part)


def _name(start: Site, end: Site) -> str:
    if start == end:
        return str(start)
    return f"{start.stack}[{start.index}-{end.index}]" + (f".{start.part}" if start.part else "")


def _entry(start: Site, end: Site, told: tuple[Any, ...]) -> dict[str, Any]:
    action, planned, reason, age, signal, threshold = told
    entry: dict[str, Any] = {"site": _name(start, end), "action": action}
    if planned != action:
        entry["planned"] = planned
    for key, value in (("reason", reason), ("age", age), ("signal", signal), ("threshold", threshold)):
        if value is not None:
            entry[key] = value
    return entry


@lru_cache(maxsize=1024)
def _expanded(text: str) -> tuple[str, ...]:
    """The sites of a name as `_name` writes it. Raises ValueError when it is not one."""
    match = _RANGE.fullmatch(text)
    try:
        if match is None:
            return (str(site_named(text)),)
        stack, first, last, part = match[1], int(match[2]), int(match[3]), match[4]
        site_named(f"{stack}[{first}]{part}")
    except ValueError:
        raise ValueError(f"{quoted(text)} is not a site") from None
    if last <= first:
        raise ValueError(f"{quoted(text)} is not a site: the range does not ascend")
    if last - first >= MAX_SITES:
        raise ValueError(f"{quoted(text)} names more than {MAX_SITES} sites")
    return tuple(f"{stack}[{n}]{part}" for n in range(first, last + 1))


def _names(site: Any) -> tuple[str, ...]:
    if not isinstance(site, str):
        raise ValueError(f"{quoted(site)} is not a site")
    return _expanded(site)


def _told(entry: dict[str, Any]) -> tuple[Any, ...]:
    """The fields of a decision but its site, checked, in the order of `Decision`."""
    action = entry.get("action")
    planned = entry.get("planned", action)
    if not isinstance(action, str) or action not in DONE:
        raise ValueError(f"{quoted(action)} is no action that can have happened")
    if not isinstance(planned, str) or planned not in DONE | {ONLINE}:
        raise ValueError(f"{quoted(planned)} is no action that can be planned")
    reason, age = entry.get("reason"), entry.get("age")
    if reason is not None and not isinstance(reason, str):
        raise ValueError(f"the reason {quoted(reason)} is not a text")
    if age is not None and type(age) is not int:
        raise ValueError(f"the age {quoted(age)} is not an integer")
    online = entry.get("signal"), entry.get("threshold")
    for value in online:
        if value is not None and type(value) not in (int, float):
            raise ValueError(f"the signal or threshold {quoted(value)} is not a number")
    return action, planned, reason, age, *online
