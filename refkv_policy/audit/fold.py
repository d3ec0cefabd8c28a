"""Decisions folded for the log, and back: equal decisions at consecutive sites of a stack become one range."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, NamedTuple

from refkv_policy.audit.decision import Decision
from refkv_policy.audit.record import quoted
from refkv_policy.compiler.table import ACTIONS, ONLINE

STACKS = ("step", "main", "vace", "hint", "cfg")
DONE = frozenset(ACTIONS) - {ONLINE}
"""What can have happened at a site: every action but `?`, which only a table holds."""
MAX_SITES = 4_000
"""Sites that one step line may name."""

_NUMBER = "(0|[1-9][0-9]{0,3})"
_SITES = re.compile(rf"({'|'.join(STACKS)})(?:\[{_NUMBER}(?:-{_NUMBER})?\])?(?:\.([a-z][a-z0-9_]{{0,31}}))?")


class Place(NamedTuple):
    """A site, taken apart; ordered by stack, part and index. `number` is -1 and `part` empty where there is none."""

    rank: int
    part: str
    number: int

    @property
    def stack(self) -> str:
        """`step`, `main`, `vace`, `hint` or `cfg`."""
        return STACKS[self.rank]


@lru_cache(maxsize=8192)
def place(site: str) -> Place:
    """The place of one site's name. Raises ValueError when it is not one."""
    first, last = _range(site)
    if first != last:
        raise ValueError(f"{quoted(site)} names several sites")
    return first


@dataclass(frozen=True, slots=True)
class Folded:
    """A step's decisions, ready to be logged. `entries` are JSON-ready; `decisions` are in the order of `Place`."""

    entries: tuple[Mapping[str, Any], ...]
    decisions: tuple[Decision, ...]


def fold(decisions: Iterable[Decision]) -> Folded:
    """Fold a step's decisions; their order does not matter. Raises ValueError for a site or action that is none.

    The result may be kept and logged many times: what is static in a run need not be folded again.
    """
    ordered = sorted(((place(d.site), d) for d in decisions), key=_place_of)
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
    ordered = sorted(((place(site), value) for site, value in values), key=_place_of)
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


def _place_of(pair: tuple[Place, Any]) -> Place:
    return pair[0]


def _follows(end: Place, at: Place) -> bool:
    return 0 <= end.number == at.number - 1 and end.rank == at.rank and end.part == at.part


def _name(start: Place, end: Place) -> str:
    text = start.stack
    if start.number >= 0:
        text += f"[{start.number}]" if start == end else f"[{start.number}-{end.number}]"
    return f"{text}.{start.part}" if start.part else text


def _entry(start: Place, end: Place, told: tuple[Any, ...]) -> dict[str, Any]:
    action, planned, reason, age, signal, threshold = told
    entry: dict[str, Any] = {"site": _name(start, end), "action": action}
    if planned != action:
        entry["planned"] = planned
    for key, value in (("reason", reason), ("age", age), ("signal", signal), ("threshold", threshold)):
        if value is not None:
            entry[key] = value
    return entry


@lru_cache(maxsize=8192)
def _range(text: str) -> tuple[Place, Place]:
    match = _SITES.fullmatch(text)
    if match is None:
        raise ValueError(f"{quoted(text)} is not a site")
    stack, first, last, part = match.groups()
    start = Place(STACKS.index(stack), part or "", -1 if first is None else int(first))
    end = start if last is None else start._replace(number=int(last))
    if last is not None and end.number <= start.number:
        raise ValueError(f"{quoted(text)} is not a site: the range does not ascend")
    return start, end


@lru_cache(maxsize=1024)
def _expanded(text: str) -> tuple[str, ...]:
    start, end = _range(text)
    if end.number - start.number >= MAX_SITES:
        raise ValueError(f"{quoted(text)} names more than {MAX_SITES} sites")
    places = (start._replace(number=n) for n in range(start.number, end.number + 1))
    return tuple(_name(p, p) for p in places)


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
