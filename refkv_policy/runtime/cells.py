"""The table as the executor reads it: for each branch and step one `CallPlan` of constants, made once at attach."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from functools import cache
from types import MappingProxyType
from typing import Any

from refkv_policy.audit import Decision, Folded, fold
from refkv_policy.compiler.table import (
    BRANCHES,
    COMPUTE,
    COMPUTE_KEEP,
    COMPUTED,
    FORECAST,
    ONLINE,
    SERVED,
    UNREACHED,
    HookTable,
    retained,
)
from refkv_policy.compiler.walk import probe_of
from refkv_policy.plan.selectors import Site
from refkv_policy.profiles.sites import CFG

UNKNOWN_STEP = -1
"""The step of a call whose step or branch is not known."""


@dataclass(frozen=True, slots=True)
class Cell:
    """One site at one step of one branch.

    position: the row's index in the table; -1 where the table has no such row. rank: the order in which values are
    given up for a budget: hints first, from the shallowest. retained: how many of the newest observations later cells
    still read. sources: the nominal steps whose observations a served cell reads, newest first. rule: an index into the
    table's rules, None where the default governs. history: how many observations a served cell reads at most.
    residual: what is kept is output − input. apart: without the hints added inside. inner: positions of the rows inside.
    """

    site: str
    position: int
    branch: str
    step: int
    action: str
    rank: int = 0
    retained: int = 0
    sources: tuple[int, ...] = ()
    sigma: float = 0.0
    rule: int | None = None
    history: int = 1
    residual: bool = False
    apart: bool = False
    inner: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True)
class Region:
    """Blocks `first` to `last` of a stack, run one after the other, or served together.

    cell: of the rule that governs them as one, where it has anything to do in this call. within: runs of block numbers, and
    regions between them. probes: rules whose signal is what these blocks add to the stream.
    """

    first: int
    last: int
    cell: Cell | None
    within: tuple[tuple[int, ...] | Region, ...]
    probes: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True)
class Looking:
    """A rule that decides online, in one call. online: whether it has `?` cells there. cell: under which its reference is kept.

    decides: whether it looks itself; otherwise it does as the branch that ran before it at this step did.
    """

    online: bool
    decides: bool
    cell: Cell


@dataclass(frozen=True, slots=True, eq=False)
class CallPlan:
    """The row of one branch and step.

    cells: by site, of every row. main: the main stack. parts: cells of attention and feed-forward outputs, where they have
    anything to do. cfg: of the call as a whole. looking: by rule, where it decides online. bare: none of these three.
    decisions: one for each row of the table, in its order, as they stand when nothing departs; folded: the same, for the
    log. hits, misses: positions of the counted rows that are served and computed. view: what the model family makes of it.
    """

    branch: str
    step: int
    index: int
    evaluated: tuple[int, ...]
    cells: Mapping[Site, Cell]
    main: Region
    parts: Mapping[Site, Cell]
    cfg: Cell | None
    looking: Mapping[int, Looking]
    bare: bool
    decisions: tuple[Decision, ...]
    folded: Folded
    hits: tuple[int, ...]
    misses: tuple[int, ...]
    view: Any = None


View = Callable[[CallPlan], Any]


def plan_calls(table: HookTable, view: View = lambda plan: None) -> Mapping[tuple[str, int], CallPlan]:
    """The `CallPlan` of every branch and ordinal of an evaluated step. view: makes the model family's own form of one."""
    inner = {
        row.at: tuple(n for n, other in enumerate(table.rows) if table.tree.encloses(row.at, other.at))
        for row in table.rows
    }
    calls = ((b, i) for b in BRANCHES for i in range(len(table.evaluated)))
    plans = {(b, i): _plan_call(table, b, i, inner) for b, i in calls}
    return MappingProxyType({key: replace(plan, view=view(plan)) for key, plan in plans.items()})


def unplanned_call(table: HookTable, branch: str, reason: str, view: View = lambda plan: None) -> CallPlan:
    """A call that has no place in the table: every site is computed and nothing kept, for `reason`."""
    cells = {row.at: Cell(row.site, i, branch, UNKNOWN_STEP, COMPUTE) for i, row in enumerate(table.rows)}
    decisions = tuple(Decision(row.site, COMPUTE, COMPUTE, reason) for row in table.rows)
    plan = _assemble(table, branch, UNKNOWN_STEP, UNKNOWN_STEP, cells, decisions, {})
    return replace(plan, view=view(plan))


def _plan_call(table: HookTable, branch: str, index: int, inner: Mapping[Site, tuple[int, ...]]) -> CallPlan:
    step, cells, decisions = table.evaluated[index], {}, []
    for position, row in enumerate(table.rows):
        actions, history = row.actions(branch), table.history(row)
        action = actions[step]
        sources = _sources(actions, step, history if action == FORECAST else 1) if action in SERVED else ()
        stateful = action in SERVED | {COMPUTE_KEEP, ONLINE}
        cells[row.at] = Cell(
            site=row.site,
            position=position,
            branch=branch,
            step=step,
            action=action,
            rank=position if table.tree[row.at].added else position + len(table.rows),
            retained=_retained(actions, step, history) if stateful else 0,
            sources=sources,
            sigma=table.sigmas[step],
            rule=row.rule,
            history=history,
            residual=table.keeps_residual(row),
            apart=row.at in table.hints_apart,
            inner=inner[row.at],
        )
        age = index - table.evaluated.index(sources[0]) if sources else None
        # A `?` is computed unless the run decides otherwise.
        decisions.append(Decision(row.site, COMPUTE if action == ONLINE else action, action, None, age))
    return _assemble(table, branch, step, index, cells, tuple(decisions), dict(_looking(table, branch, step, cells)))


def _assemble(
    table: HookTable,
    branch: str,
    step: int,
    index: int,
    cells: Mapping[Site, Cell],
    decisions: tuple[Decision, ...],
    looking: Mapping[int, Looking],
) -> CallPlan:
    counted = [(position, decisions[position]) for position, row in enumerate(table.rows) if row.counted]
    acting = {
        site: cell for site, cell in cells.items() if cell.rule is not None and cell.action not in COMPUTE + UNREACHED
    }
    # Kept K and V go in and out with the text; every other part is an output.
    parts = {s: c for s, c in acting.items() if s.part not in (None, "text_kv")}
    return CallPlan(
        branch=branch,
        step=step,
        index=index,
        evaluated=table.evaluated,
        cells=MappingProxyType(dict(cells)),
        main=_main(table, acting, looking),
        parts=MappingProxyType(parts),
        cfg=acting.get(CFG),
        looking=MappingProxyType(dict(looking)),
        bare=not parts and not looking and CFG not in acting,
        decisions=decisions,
        folded=fold(decisions),
        hits=tuple(position for position, d in counted if d.action in SERVED),
        misses=tuple(position for position, d in counted if d.action in COMPUTED and d.planned != ONLINE),
    )


def _main(table: HookTable, acting: Mapping[Site, Cell], looking: Mapping[int, Looking]) -> Region:
    """The main stack as regions: what acts as one, and what a rule looks at, each around its blocks."""
    count = table.layout.main_blocks
    found: dict[tuple[int, int], tuple[Cell | None, tuple[int, ...]]] = {(0, count - 1): (None, ())}
    for site, cell in acting.items():
        if table.tree[site].region and site != CFG:
            first = site.index or 0
            last = count - 1 if site.index is None else first if site.last is None else site.last
            found[first, last] = cell, ()
    for rule in looking:
        probe = probe_of(table, rule)
        assert probe is not None
        governed, probes = found.get((probe.first, probe.last), (None, ()))
        found[probe.first, probe.last] = governed, (*probes, rule)
    # The widest first: each region takes the place of its blocks in the narrowest one that holds them.
    ordered = sorted(found, key=lambda pair: (pair[0] - pair[1], pair[0]))

    def region(pair: tuple[int, int], inside: list[tuple[int, int]]) -> Region:
        within: list[tuple[int, ...] | Region] = []
        block, last = pair
        while block <= last:
            child = next((p for p in inside if p[0] == block), None)
            if child is None:
                end = min((first for first, _ in inside if first > block), default=last + 1)
                within.append(tuple(range(block, min(end, last + 1))))
                block = within[-1][-1] + 1  # type: ignore[index]  # the run just added
                continue
            if child[1] > last:
                raise ValueError(
                    f"main[{child[0]}..{child[1]}] and main[{pair[0]}..{last}] overlap, and neither holds the other"
                )
            narrower = [p for p in inside if p != child and child[0] <= p[0] and p[1] <= child[1]]
            within.append(region(child, narrower))
            block = child[1] + 1
        return Region(*pair, found[pair][0], tuple(within), found[pair][1])

    return region(ordered[0], ordered[1:])


def _looking(table: HookTable, branch: str, step: int, cells: Mapping[Site, Cell]) -> Iterator[tuple[int, Looking]]:
    """The rules that decide in this call, or keep what a later call compares with."""
    for n, rule in enumerate(table.rules):
        rows = [row for row in table.governed(n) if ONLINE in row.actions(branch)]
        if not rows:
            continue
        later = any(ONLINE in row.actions(branch)[step + 1 :] for row in rows)
        now = any(cells[row.at].action == ONLINE for row in rows)
        decides = rule.apart or branch == BRANCHES[0] or ONLINE not in rows[0].actions(BRANCHES[0])
        if now or (later and decides):
            reference = Cell(
                f"probe of {rule.name}", -1 - n, branch, step, COMPUTE_KEEP, len(table.rows) * 2, int(later), rule=n
            )
            yield n, Looking(now, decides, reference)


_retained = cache(retained)
"""Rows of one rule share their actions: each distinct string is worked out once."""


@cache
def _sources(actions: str, step: int, count: int) -> tuple[int, ...]:
    """The last `count` steps before `step` that the row keeps, newest first; as many as there are."""
    kept = [s for s in range(step) if actions[s] == COMPUTE_KEEP]
    return tuple(kept[-count:][::-1])
