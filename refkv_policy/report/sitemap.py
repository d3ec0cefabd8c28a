"""The step × site map of what was decided: from an audit log as it ran, or from a table as it is planned."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from refkv_policy.audit import Decision, RequestLog
from refkv_policy.audit.fold import fold_names
from refkv_policy.compiler.picture import compact
from refkv_policy.compiler.table import BRANCHES, ONLINE, HookTable
from refkv_policy.plan.wording import counted
from refkv_policy.report.words import number

ACTIONS = {
    "C": "computed and kept",
    ".": "computed",
    "R": "reused",
    "F": "forecast",
    "?": "decided online",
    "-": "not reached",
}
LEFT_OUT, ABSENT = "x", " "
"""Stand for a step that the sampler leaves out, and for one that did not run."""
SEEN = {"-": "·", LEFT_OUT: "", ABSENT: "", ".": "•"}
"""Characters shown in place of an action's own, where that would be hard to see in a cell."""
WIDEST = 200
"""Steps that are drawn."""


class Paint(NamedTuple):
    """Ground and ink of a cell, on a light page and on a dark one."""

    light: str
    light_ink: str
    dark: str
    dark_ink: str


PAINTS = {
    "C": Paint("#1c4f79", "#ffffff", "#8cc4ee", "#0f1b26"),
    ".": Paint("#bcd6ea", "#1b3a52", "#2d4d68", "#cfe4f5"),
    "R": Paint("#cdebd4", "#0f4d26", "#1f5a35", "#d7f5df"),
    "F": Paint("#e3d8f6", "#42267a", "#4f3b7c", "#eee5ff"),
    "?": Paint("#fbe3b8", "#5f3d00", "#6b4a10", "#ffe7bd"),
}
"""Of the actions; a site that is not reached has the page's own."""


def seen(action: str) -> str:
    """The character that stands for an action in a cell."""
    return SEEN.get(action, action)


def class_of(action: str) -> str:
    """The class of an action's cells in the page."""
    return "a" + {".": "dot", "-": "none", "?": "ask", LEFT_OUT: "out", ABSENT: "no"}.get(action, action)


@dataclass(frozen=True, slots=True)
class Square:
    """One cell. departed: not obeyed as compiled. note: reason, age and signal, in words."""

    action: str
    planned: str
    departed: bool = False
    note: str = ""

    @property
    def shown(self) -> str:
        """The character in the cell."""
        return seen(self.action)

    @property
    def style(self) -> str:
        """Its class in the page."""
        return f"{class_of(self.action)} gone" if self.departed else class_of(self.action)

    @property
    def words(self) -> str:
        """What happened, in words."""
        told = {LEFT_OUT: "left out by the sampler", ABSENT: "did not run"}.get(self.action) or ACTIONS[self.action]
        if self.departed:
            told += f", planned {ACTIONS[self.planned]}"
        return f"{told}{self.note}"


@dataclass(frozen=True, slots=True)
class SiteMap:
    """Lines of (site or range, cells), one cell a nominal step. branches: which it holds for. counts: by action."""

    branches: str
    steps: tuple[int, ...]
    sigmas: tuple[str, ...]
    lines: tuple[tuple[str, tuple[Square, ...]], ...]
    counts: tuple[tuple[str, str, int], ...]
    departed: int
    cut: int = 0


class Departures(NamedTuple):
    """Cells that departed alike: what, why, where and when."""

    reason: str
    planned: str
    done: str
    sites: str
    steps: str
    branch: str
    cells: str


def run_maps(request: RequestLog) -> tuple[SiteMap, ...]:
    """What a request decided: one map where both branches decided alike, else one a branch."""
    table = request.header.table
    ran = [b for b in BRANCHES if b in request.header.branches or any(x.branch == b for x in request.steps)]
    return _merged(table, {branch: _ran(request, branch) for branch in ran})


def planned_maps(table: HookTable, branches: Sequence[str] = BRANCHES) -> tuple[SiteMap, ...]:
    """What a table plans, where there is no log."""
    by_branch = {
        branch: {
            row.site: [Square(a if s in evaluated else LEFT_OUT, a) for s, a in enumerate(row.actions(branch))]
            for row in table.rows
        }
        for branch in branches
        if (evaluated := frozenset(table.evaluated))
    }
    return _merged(table, by_branch)


Cells = Mapping[str, Sequence[Square]]


def _ran(request: RequestLog, branch: str) -> Cells:
    table = request.header.table
    left_out = frozenset(table.left_out)
    blank = [Square(LEFT_OUT if s in left_out else ABSENT, "-") for s in range(table.steps)]
    cells = {row.site: list(blank) for row in table.rows}
    for line in request.steps:
        if line.branch == branch and line.step is not None and line.step < table.steps:
            for d in line.decisions:
                if d.site in cells:
                    cells[d.site][line.step] = Square(d.action, d.planned, departed(d), _note(d))
    return cells


def departed(d: Decision) -> bool:
    """Whether a cell was not obeyed as compiled."""
    return d.reason is not None or d.planned not in (d.action, ONLINE)


def _note(d: Decision) -> str:
    told = "" if d.age is None else f", {counted(d.age, 'step')} old"
    if d.signal is not None and d.threshold is not None:
        told += f", signal {number(d.signal)} against {number(d.threshold)}"
    return told if d.reason is None else f"{told}, for {d.reason}"


def _merged(table: HookTable, by_branch: Mapping[str, Cells]) -> tuple[SiteMap, ...]:
    if len(by_branch) == 2 and by_branch["cond"] == by_branch["uncond"]:
        return (_map(table, "cond and uncond", by_branch["cond"], 2),)
    return tuple(_map(table, branch, cells, 1) for branch, cells in by_branch.items())


def _map(table: HookTable, branches: str, cells: Cells, times: int) -> SiteMap:
    counts: Counter[str] = Counter(s.action for row in cells.values() for s in row)
    known = [(a, ACTIONS[a], times * counts[a]) for a in ACTIONS if counts[a]]
    gone = times * sum(s.departed for row in cells.values() for s in row)
    lines = fold_names([(site, tuple(row[:WIDEST])) for site, row in cells.items()])
    shown = min(table.steps, WIDEST)
    return SiteMap(
        branches,
        tuple(range(shown)),
        tuple(number(sigma) for sigma in table.sigmas[:shown]),
        tuple(lines.items()),
        tuple(known),
        gone,
        table.steps - shown,
    )


def departures(request: RequestLog, most: int = 100) -> tuple[tuple[Departures, ...], int]:
    """Every departure of a request, alike ones together, and how many groups are left out beyond `most`."""
    by: dict[tuple[str, str, str, str], dict[str, list[int]]] = {}
    for branch, step, d in _gone(request):
        key = (d.reason or "no reason given", d.planned, d.action, branch)
        by.setdefault(key, {}).setdefault(d.site, []).append(step)
    groups = [
        Departures(
            reason, ACTIONS[planned], ACTIONS[done], sites,
            "unknown" if steps == (-1,) else compact(tuple(s for s in steps if s >= 0)),
            branch, f"{sum(len(at) for site, at in places.items() if tuple(at) == steps and site in sites_of):,}",
        )
        for (reason, planned, done, branch), places in by.items()
        for sites, steps, sites_of in _alike(places)
    ]  # fmt: skip
    return tuple(groups[:most]), max(len(groups) - most, 0)


def _gone(request: RequestLog) -> Iterator[tuple[str, int, Decision]]:
    for line in request.steps:
        for d in line.decisions:
            if departed(d):
                yield line.branch or "unknown", -1 if line.step is None else line.step, d


def _alike(places: Mapping[str, Sequence[int]]) -> Iterable[tuple[str, tuple[int, ...], frozenset[str]]]:
    """Site ranges that departed at the same steps."""
    by: dict[tuple[int, ...], list[str]] = {}
    for site, steps in places.items():
        by.setdefault(tuple(steps), []).append(site)
    for steps, sites in by.items():
        yield ", ".join(fold_names([(site, 0) for site in sites])), steps, frozenset(sites)
