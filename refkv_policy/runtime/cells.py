"""The table as the executor reads it: for each branch and step one `CallPlan` of constants, made once at attach."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from types import MappingProxyType

from refkv_policy.audit import Decision, Folded, fold
from refkv_policy.compiler.table import (
    BRANCHES,
    COMPUTE,
    COMPUTE_KEEP,
    COMPUTED,
    FORECAST,
    SERVED,
    HookTable,
    Row,
    retained,
)

UNKNOWN_STEP = -1
"""The step of a call whose step or branch is not known."""


@dataclass(frozen=True, slots=True)
class Cell:
    """One site at one step of one branch.

    position: the row's index in the table; -1 where the table has no such row. rank: the order in which values are
    given up for a budget: hints first, from the shallowest. retained: how many of the newest observations later cells
    still read. sources: the nominal steps whose observations a served cell reads, newest first. rule: an index into the
    table's rules, None where the default governs.
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


@dataclass(frozen=True, slots=True, eq=False)
class CallPlan:
    """The row of one branch and step. Tuples are indexed by block or hint; a text cell is None where no rule governs it.

    decisions: one for each row of the table, in its order, as they stand when nothing departs; folded: the same, for the
    log. hits, misses: positions of the counted rows that are served and computed.
    """

    branch: str
    step: int
    index: int
    evaluated: tuple[int, ...]
    hint: tuple[Cell, ...]
    vace: tuple[Cell, ...]
    main_text: tuple[Cell | None, ...]
    vace_text: tuple[Cell | None, ...]
    decisions: tuple[Decision, ...]
    folded: Folded
    hits: tuple[int, ...]
    misses: tuple[int, ...]


def plan_calls(table: HookTable) -> Mapping[tuple[str, int], CallPlan]:
    """The `CallPlan` of every branch and ordinal of an evaluated step."""
    return MappingProxyType({(b, i): _plan_call(table, b, i) for b in BRANCHES for i in range(len(table.evaluated))})


def unplanned_call(table: HookTable, branch: str, reason: str) -> CallPlan:
    """A call that has no place in the table: every site is computed and nothing kept, for `reason`."""
    cells = {row.site: Cell(row.site, i, branch, UNKNOWN_STEP, COMPUTE) for i, row in enumerate(table.rows)}
    decisions = tuple(Decision(row.site, COMPUTE, COMPUTE, reason) for row in table.rows)
    return _assemble(table, branch, UNKNOWN_STEP, UNKNOWN_STEP, cells, decisions)


def history_of(table: HookTable, row: Row) -> int:
    """Observations a served cell of the row reads at most: its rule's `history`; 1 for the state of a stale chain."""
    return 1 if row.rule is None or (row.stack == "vace" and row.part is None) else table.rules[row.rule].history


def _plan_call(table: HookTable, branch: str, index: int) -> CallPlan:
    step, cells, decisions = table.evaluated[index], {}, []
    for position, row in enumerate(table.rows):
        actions, history = row.actions(branch), history_of(table, row)
        action = actions[step]
        sources = _sources(actions, step, history if action == FORECAST else 1) if action in SERVED else ()
        cells[row.site] = Cell(
            site=row.site,
            position=position,
            branch=branch,
            step=step,
            action=action,
            rank=position if row.stack == "hint" else position + len(table.rows),
            retained=_retained(actions, step, history) if action == COMPUTE_KEEP or action in SERVED else 0,
            sources=sources,
            sigma=table.sigmas[step],
            rule=row.rule,
        )
        age = index - table.evaluated.index(sources[0]) if sources else None
        decisions.append(Decision(row.site, action, action, None, age))
    return _assemble(table, branch, step, index, cells, tuple(decisions))


def _assemble(
    table: HookTable, branch: str, step: int, index: int, cells: Mapping[str, Cell], decisions: tuple[Decision, ...]
) -> CallPlan:
    hints, blocks = range(len(table.layout.vace_at)), range(table.layout.main_blocks)
    counted = [(position, decisions[position].action) for position, row in enumerate(table.rows) if row.counted]

    def cell(site: str) -> Cell:
        return cells.get(site) or Cell(site, -1, branch, step, COMPUTE)

    return CallPlan(
        branch=branch,
        step=step,
        index=index,
        evaluated=table.evaluated,
        hint=tuple(cell(f"hint[{j}]") for j in hints),
        vace=tuple(cell(f"vace[{j}]") for j in hints),
        main_text=tuple(cells.get(f"main[{i}].text_kv") for i in blocks),
        vace_text=tuple(cells.get(f"vace[{j}].text_kv") for j in hints),
        decisions=decisions,
        folded=fold(decisions),
        hits=tuple(position for position, action in counted if action in SERVED),
        misses=tuple(position for position, action in counted if action in COMPUTED),
    )


_retained = cache(retained)
"""Rows of one rule share their actions: each distinct string is worked out once."""


@cache
def _sources(actions: str, step: int, count: int) -> tuple[int, ...]:
    """The last `count` steps before `step` that the row keeps, newest first; as many as there are."""
    kept = [s for s in range(step) if actions[s] == COMPUTE_KEEP]
    return tuple(kept[-count:][::-1])
