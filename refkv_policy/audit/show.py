"""The step × site map of a request as it really happened."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from refkv_policy.audit.fold import fold, fold_names
from refkv_policy.audit.read import RequestLog, StepLine
from refkv_policy.audit.record import quoted
from refkv_policy.compiler.table import ONLINE

DEPARTED, ABSENT = "!", " "
LEGEND = "C computed and kept  . computed  R reused  F forecast  - not reached  ! departed from the table"


def render_map(request: RequestLog, branch: str) -> str:
    """One line for each site (equal neighbours folded), one character for each nominal step; blank where none ran."""
    steps = request.header.table.steps
    cells: dict[str, list[str]] = {row.site: [ABSENT] * steps for row in request.header.table.rows}
    for line in request.steps:
        if line.branch == branch and line.step is not None and line.step < steps:
            for d in line.decisions:
                if d.site in cells:
                    obeyed = d.reason is None and d.planned in (d.action, ONLINE)
                    cells[d.site][line.step] = d.action if obeyed else DEPARTED
    named = fold_names([(site, "".join(actions)) for site, actions in cells.items()])
    width = max((len(name) for name in named), default=0)
    tens = "".join(str(n // 10 % 10) if n % 10 == 0 else " " for n in range(steps))
    units = "".join(str(n % 10) for n in range(steps))
    head = [f"{' ' * width}  {tens}".rstrip(), f"{' ' * width}  {units}"]
    return "\n".join(head + [f"{name:<{width}}  {actions}".rstrip() for name, actions in named.items()])


def render_step(line: StepLine) -> str:
    """Every decision of one line, sites folded, with age, reason, signal and threshold."""
    known = [f"{n} {'unknown' if v is None else v}" for n, v in (("step", line.step), ("branch", line.branch))]
    head = f"{', '.join(known)}: sigma {line.sigma}, {line.bytes_held} bytes held"
    return "\n".join([head, *(f"  {_entry(entry)}" for entry in fold(line.decisions).entries)])


def selected(request: RequestLog, branches: Iterable[str], step: int | None) -> tuple[StepLine, ...]:
    """The step lines of these branches (and those whose branch is not known), at one step where `step` is given."""
    wanted = {*branches, None}
    return tuple(x for x in request.steps if x.branch in wanted and (step is None or x.step == step))


def shown(request: RequestLog, lines: Iterable[StepLine]) -> dict[str, Any]:
    """JSON-ready: the request's id and outcome, and these step lines with their decisions."""
    return {
        "request": request.header.request,
        "outcome": request.outcome,
        "steps": [
            {
                "step": x.step,
                "index": x.index,
                "branch": x.branch,
                "sigma": x.sigma,
                "bytes_held": x.bytes_held,
                "decisions": [dict(entry) for entry in fold(x.decisions).entries],
            }
            for x in lines
        ],
    }


def _entry(entry: Any) -> str:
    told = f"{entry['site']}  {entry['action']}"
    if "planned" in entry:
        told += f"  planned {entry['planned']}"
    for name in ("reason", "age", "signal", "threshold"):
        if name in entry:
            value = entry[name]
            told += f"  {name} {value if not isinstance(value, str) or value.isidentifier() else quoted(value)}"
    return told
