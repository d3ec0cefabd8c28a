"""What the audit log costs: `python bench/audit.py`.

Goals: a step of 225 decisions is logged in at most 1 ms (median); a log is verified, chain and replay, at 50,000
decisions a second or more. Three kinds of step: as the runtime logs it when nothing departs (folded once, at attach),
folded anew, and the worst there is (every decision online with a signal of its own, so that nothing folds). CPU time is
printed beside the clock's, since on a busy machine only that says what the log costs.
"""

from __future__ import annotations

import statistics
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from refkv_policy.audit import AuditWriter, Decision, Folded, fold, verify
from refkv_policy.compiler.table import HookTable, Layout, Row, TableRule
from refkv_policy.plan.selectors import Site

MAIN, VACE, STEPS, BRANCHES, REQUESTS = 30, 15, 50, ("cond", "uncond"), 4
PARTS = (None, "self", "cross", "ffn", "text_kv")
KINDS = ("folded once", "folded anew", "nothing folds")


@dataclass(frozen=True)
class Step:
    """One call as given to the writer."""

    step: int
    branch: str
    decisions: Sequence[Decision] | Folded


def make_table(online: bool) -> HookTable:
    """225 sites of a 30-block model with 15 hints: text kept, the hints from 8 on refreshed every fourth step."""
    every, text = "." * STEPS, "C" + "R" * (STEPS - 1)
    hint = "".join("C" if n % 4 == 0 else "R" for n in range(STEPS - 2)) + ".."
    block = "".join("-" if c == "R" else "." for c in hint)
    deep_text = "".join("-" if c == "R" else "C" if n == 0 else "R" for n, c in enumerate(hint))
    rows = []
    for stack, count, deep in (("main", MAIN, MAIN), ("vace", VACE, 8)):
        for n in range(count):
            for part in PARTS[: 5 if stack == "main" else 4]:
                kept = part == "text_kv" or (part == "ffn" and stack == "vace")
                name = "text_kv" if kept else part
                actions = (text if n < deep else deep_text) if kept else every if n < deep else block
                rows.append(Row(Site(stack, n, name), actions, actions, 0 if kept else None))
    for n in range(VACE):
        actions = hint if n >= 8 else every
        rows.append(Row(Site("hint", n), actions, actions, 1 if n >= 8 else None))
    if online:
        rows = [Row(r.at, "?" * STEPS, "?" * STEPS, 0) for r in rows]
    rules = (TableRule("text", "text_kv", "P0", (), 1), TableRule("hints", "hint_reuse", "P1", ("lossy",), 1))
    sigmas = tuple(1 - n / STEPS for n in range(STEPS))
    layout = Layout("wan-vace", MAIN, tuple(range(0, MAIN, 2)), 1536, 8960, 12, (1, 2, 2))
    return HookTable(
        "bench",
        "sha256:0",
        "bench",
        layout,
        STEPS,
        tuple(range(STEPS)),
        sigmas,
        "unipc",
        3.0,
        (5.0,),
        rules,
        tuple(rows),
    )


def make_steps(table: HookTable, kind: str) -> list[Step]:
    """The calls of one request that obeys the table."""
    kept: dict[tuple[str, str], int] = {}
    steps = []
    for step in table.evaluated:
        for branch in BRANCHES:
            decisions = []
            for n, row in enumerate(table.rows):
                planned = row.actions(branch)[step]
                action = planned if planned != "?" else "C" if step % 4 == 0 else "R"
                age = step - kept[row.site, branch] if action == "R" else None
                if action == "C":
                    kept[row.site, branch] = step
                online = (n / 1000 + step / 7, 0.1) if planned == "?" else (None, None)
                decisions.append(Decision(row.site, action, planned, None, age, *online))
            steps.append(Step(step, branch, fold(decisions) if kind == "folded once" else decisions))
    return steps


def log(path: Path, table: HookTable, steps: Sequence[Step]) -> list[float]:
    """Log some requests; the seconds that each step took."""
    took = []
    with AuditWriter(path) as writer:
        for n in range(REQUESTS):
            writer.begin(f"r{n}", {"branches": list(BRANCHES)}, table)
            for call in steps:
                start = time.perf_counter()
                writer.step(
                    f"r{n}",
                    step=call.step,
                    index=call.step,
                    branch=call.branch,
                    sigma=table.sigmas[call.step],
                    decisions=call.decisions,
                    bytes_held=0,
                )
                took.append(time.perf_counter() - start)
            writer.seal(f"r{n}", outcome="finished", bytes_peak=0)
    return took


def main() -> None:
    """Print one row a kind. Raises AssertionError when a log that was just written does not verify."""
    print("a step of 225 decisions   median ms   p95 ms   CPU ms   bytes   verified: decisions/s   by CPU time")
    for kind in KINDS:
        table = make_table(online=kind == "nothing folds")
        assert len(table.rows) == 225
        steps = make_steps(table, kind)
        with tempfile.TemporaryDirectory() as folder:
            path = Path(folder) / "run.jsonl"
            busy = time.process_time()
            took = log(path, table, steps)
            busy = (time.process_time() - busy) / len(took) * 1e3
            start, start_busy = time.perf_counter(), time.process_time()
            found = verify(path)
            rate = found.decisions / (time.perf_counter() - start)
            rate_busy = found.decisions / (time.process_time() - start_busy)
            assert found.outcome == "ok", found.problems
            size = path.stat().st_size // len(took)
        median, late = statistics.median(took) * 1e3, statistics.quantiles(took, n=20)[-1] * 1e3
        print(f"{kind:<23}   {median:9.3f}   {late:6.3f}   {busy:6.3f}   {size:5}   {rate:21,.0f}   {rate_busy:11,.0f}")


if __name__ == "__main__":
    main()
