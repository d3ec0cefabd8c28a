"""A small table, made by hand, and runs of it that tests bend out of shape."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import pytest

from refkv_policy.audit import AuditWriter, Decision
from refkv_policy.audit.record import GENESIS, chained
from refkv_policy.compiler.table import HookTable, Layout, Row, TableRule
from refkv_policy.plan.selectors import Site

MAIN, VACE_AT = 4, (0, 1, 3)
ROWS = (
    Row(Site("step"), "...-....", "...-...."),
    *(
        row
        for n in range(MAIN)
        for row in (
            Row(Site("main", n), "...-....", "...-...."),
            Row(Site("main", n, "text_kv"), "CRR-RRRR", "CRR-RRRR", 0),
        )
    ),
    Row(Site("vace", 0), "...-....", "...-...."),
    Row(Site("vace", 0, "text_kv"), "CRR-RRRR", "CRR-RRRR", 0),
    Row(Site("vace", 1), ".---.--.", ".---.--."),
    Row(Site("vace", 1, "text_kv"), "C---R--R", "C---R--R", 0),
    Row(Site("vace", 2), ".---.--.", ".---.--."),
    Row(Site("vace", 2, "text_kv"), "C---R--R", "C---R--R", 0),
    Row(Site("hint", 0), "...-....", "...-...."),
    Row(Site("hint", 1), "CRR-CRR.", "CRR-CRR.", 1),
    Row(Site("hint", 2), "CRR-CFF.", "CRR-CFF.", 2),
)
TABLE = HookTable(
    plan="hand-made",
    plan_digest="sha256:" + "a" * 64,
    profile="tiny",
    layout=Layout("wan-vace", MAIN, VACE_AT, 8, 16, 1, (1, 2, 2)),
    steps=8,
    evaluated=(0, 1, 2, 4, 5, 6, 7),
    sigmas=(1.0, 0.97, 0.93, 0.88, 0.8, 0.68, 0.5, 0.25),
    sampler="unipc",
    flow_shift=3.0,
    guidance=(5.0,),
    rules=(
        TableRule("text", "text_kv", "P0", (), 1),
        TableRule("reuse", "hint_reuse", "P1", ("lossy-hint-cache",), 1),
        TableRule("forecast", "hint_forecast", "P1", ("lossy-hint-cache",), 2),
    ),
    rows=ROWS,
)
TINY = replace(
    TABLE,
    layout=Layout("wan-vace", 1, (0,), 8, 16, 1, (1, 2, 2)),
    steps=2,
    evaluated=(0, 1),
    sigmas=(1.0, 0.5),
    rules=TABLE.rules[1:2],
    rows=(
        Row(Site("step"), "..", ".."),
        Row(Site("main", 0), "..", ".."),
        Row(Site("vace", 0), ".-", ".-"),
        Row(Site("hint", 0), "CR", "CR", 0),
    ),
)


@dataclass
class Call:
    """One step of one branch, as given to the writer."""

    step: int | None
    index: int | None
    branch: str | None
    sigma: float | None
    decisions: list[Decision]
    bytes_held: int

    def put(self, site: str, action: str, reason: str | None = None, age: int | None = None, **other: Any) -> None:
        """Let another thing have happened at a site."""
        at = next(n for n, d in enumerate(self.decisions) if d.site == site)
        self.decisions[at] = replace(self.decisions[at], action=action, reason=reason, age=age, **other)


@dataclass
class Run:
    """A request, call by call; `obeying` makes one that does what the table says."""

    table: HookTable
    calls: list[Call]
    branches: Sequence[str]
    outcome: str = "finished"
    bytes_peak: int = 1000
    header: dict[str, Any] = field(default_factory=dict)

    @classmethod
    def obeying(cls, table: HookTable = TABLE, branches: Sequence[str] = ("cond", "uncond")) -> Run:
        """Every cell as tabled, ages counted by hand."""
        calls, kept = [], {}
        for index, step in enumerate(table.evaluated):
            for branch in branches:
                decisions = []
                for row in table.rows:
                    action = (row.cond if branch == "cond" else row.uncond)[step]
                    age = index - kept[row.site, branch] if action in "RF" else None
                    if action == "C":
                        kept[row.site, branch] = index
                    decisions.append(Decision(row.site, action, action, None, age))
                calls.append(Call(step, index, branch, table.sigmas[step], decisions, 100 * (index + 1)))
        return cls(table, calls, branches)

    def at(self, step: int, branch: str = "cond") -> Call:
        """The call of a step and branch."""
        return next(c for c in self.calls if (c.step, c.branch) == (step, branch))

    def reached(self, steps: Iterable[int]) -> None:
        """The blocks that the table skips at these steps were computed, for the chain."""
        for call in self.calls:
            for d in list(call.decisions):
                if call.step in steps and d.site.startswith("vace") and d.action == "-":
                    call.put(d.site, ".", "chain")

    def write(self, writer: AuditWriter, request: str = "r1") -> None:
        """Log it."""
        writer.begin(request, {"branches": self.branches, "seed": 7, **self.header}, self.table)
        for call in self.calls:
            writer.step(request, **vars(call))
        writer.seal(request, outcome=self.outcome, bytes_peak=self.bytes_peak)


def rechained(records: Iterable[Mapping[str, Any]]) -> bytes:
    """A file of these records with every hash made anew: what somebody would do who rewrites a log."""
    prev, lines = GENESIS, []
    for record in records:
        line, prev = chained({k: v for k, v in record.items() if k not in ("hash", "prev")}, prev)
        lines.append(line)
    return b"".join(lines)


@dataclass(frozen=True)
class Tools:
    """What tests of this folder share."""

    table: HookTable = TABLE
    tiny: HookTable = TINY
    obeying: Callable[..., Run] = Run.obeying
    rechained: Callable[..., bytes] = rechained

    def write(self, path: Path, *runs: Run) -> Path:
        """A closed log of these requests, in a new file."""
        path.unlink(missing_ok=True)
        with AuditWriter(path, session="s-test") as writer:
            for n, run in enumerate(runs, 1):
                run.write(writer, f"r{n}")
        return path

    def records(self, path: Path) -> list[dict[str, Any]]:
        """The records of a file."""
        return [json.loads(line) for line in path.read_bytes().splitlines()]


@pytest.fixture(scope="session")
def tools() -> Tools:
    """Tables, runs and files."""
    return Tools()
