"""Memory over steps, as an audit log tells it: the bytes that the cache held after each call."""

from __future__ import annotations

from refkv_policy.audit import RequestLog
from refkv_policy.report.charts import Chart, Floor, Mark, Series
from refkv_policy.report.words import size

LARGEST = 1 << 60
"""Bytes: what a log says beyond it is nonsense and is drawn as this."""
UNITS = ((1 << 30, "GiB"), (1 << 20, "MiB"), (1 << 10, "KiB"), (1, "bytes"))


def memory_chart(request: RequestLog, key: str) -> Chart | None:
    """Bytes held after each call, with the seal's peak and the rules' budget; None where nothing was ever held."""
    lines = [line for line in request.steps if line.step is not None]
    peak = request.seal.get("bytes_peak") if request.seal is not None else None
    budgets = [rule.budget for rule in request.header.table.rules if type(rule.budget) is int]
    held = [min(line.bytes_held, LARGEST) for line in lines]
    most = max(held, default=0)
    if not most:
        return None
    unit, name = next((u, n) for u, n in UNITS if most >= u)
    marks = tuple(
        Mark(line.step + (0.5 if line.branch == "uncond" else 0.0), bytes_held / unit)
        for line, bytes_held in zip(lines, held, strict=True)
        if line.step is not None
    )
    floors = []
    if type(peak) is int and 0 < peak < LARGEST:
        floors.append(Floor(f"peak {size(peak)}", peak / unit, "peak"))
    budget = min(sum(budgets), LARGEST) if budgets else None
    if budget is not None and budget <= 20 * most:
        floors.append(Floor(f"budget {size(budget)}", budget / unit, "budget"))
    beyond = (
        "" if budget is None or budget <= 20 * most else f" The budget, {size(budget)}, is far above what is drawn."
    )
    return Chart(
        f"memory-{key}",
        "Cache memory over steps",
        f"Bytes held after each call of the transformer.{beyond}",
        "step",
        f"held, {name}",
        (Series("held", "held", marks, stairs=True, dots=len(marks) == 1),),
        tuple(floors),
        steps=True,
        anchor=0.0,
        low=True,
    )
