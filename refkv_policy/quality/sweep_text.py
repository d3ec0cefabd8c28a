"""A sweep's findings as a table for a person and as JSON for a machine. No torch."""

from __future__ import annotations

from dataclasses import asdict
from typing import Any

from refkv_policy.compiler import human_bytes
from refkv_policy.evidence import Figure
from refkv_policy.plan.wording import counted, visible
from refkv_policy.quality.sweep_collect import Findings, Row
from refkv_policy.quality.tasks import MANY_STEPS, UNCACHED
from refkv_policy.quality.timing import SIDES, end_to_end, parts, timing_text
from refkv_policy.text import columns, fold, table

FORMAT_VERSION = 1


def sweep_text(findings: Findings) -> str:
    """The table, and below it the floors, the frontier, the elbow and what did not compile or failed."""
    sweep, metric = findings.sweep, findings.metric
    many = f"vs {3 * sweep.steps} steps"
    front = {row.entry.name for row in findings.frontier}
    best = findings.elbow
    # Two tables, so that each fits into 80 columns.
    judged = [["", "run", "x FLOPs", "x measured", "error", many]]
    counted = [["", "run", "calls", "hits", "misses", "worst frame", "peak memory"]]
    for row in findings.rows:
        mark = ("*" if row.entry.name in front else "") + ("^" if best is not None and row is best else "")
        judged.append([mark, row.entry.name, *(["failed", "", "", ""] if row.faults else _judged(findings, row))])
        if not row.faults:
            counted.append([mark, row.entry.name, *_counted(findings, row)])
    lines = [table(judged), "", table(counted), ""]
    lines.append(f"error: {metric.title}, {_over(findings)}; * frontier, ^ elbow of the cached runs")
    lines += _scale_lines(findings)
    lines += chosen_lines(findings)
    how = timing_text(findings.plan.pairs, findings.clock)
    lines.append(f"speed: {how if findings.timed else 'by FLOPs; not every run was timed'}")
    if findings.plan.pairs:
        lines += _parts_lines(findings.plan)
    lines += [visible(f"does not compile: {v.name}: {v.fault}") for v in sweep.faults]
    lines += [visible(f"failed: {row.entry.name}: {fault}") for row in findings.rows for fault in row.faults]
    return fold("\n".join(lines), columns())


def sweep_json(findings: Findings, folder: str) -> dict[str, Any]:
    """Everything the table says, and every error by clip and seed."""
    sweep = findings.sweep
    noise, solver, other = findings.scale(findings.metric)
    best, (_, chosen) = findings.elbow, findings.chosen()
    return {
        "format_version": FORMAT_VERSION,
        "plan": sweep.plan.name,
        "table": sweep.table.digest,
        "steps": sweep.steps,
        "guidance": sweep.guidance,
        "conditions": _plain(asdict(sweep.conditions)),
        "clips": [asdict(clip) for clip in sweep.clips],
        "seeds": list(sweep.seeds),
        "timed_pairs": sweep.repeats,
        "clock": findings.clock,
        "metric": findings.metric.name,
        "metric_title": findings.metric.title,
        "noise_floor": _figure(noise),
        "solver_floor": _figure(solver),
        "other_seed": _figure(other),
        "rows": [_row(findings, row) for row in findings.rows],
        "frontier": [row.entry.name for row in findings.frontier],
        "elbow": None if best is None else best.entry.name,
        "redline": findings.redline,
        "chosen": None if chosen is None else chosen.entry.name,
        "does_not_compile": [{"varied": dict(v.varied), "fault": v.fault} for v in sweep.faults],
        "results": folder,
    }


def chosen_lines(findings: Findings) -> list[str]:
    """The K that the RFC picks, where K was varied."""
    rows, chosen = findings.chosen()
    if len(rows) < 2 or findings.redline is None:
        return []
    what = f"largest K whose whole interval stays within {findings.redline:.4f}"
    return [f"{what}: {'none' if chosen is None else chosen.entry.name}"]


def figure_text(figure: Figure | None, digits: str = ".4f") -> str:
    """`0.0043 (0.0030–0.0051)`; without brackets where there is no interval; a dash for none."""
    if figure is None:
        return "–"
    if figure.interval is None:
        return f"{figure.value:{digits}}"
    return f"{figure.value:{digits}} ({figure.interval.low:{digits}}–{figure.interval.high:{digits}})"


def _judged(findings: Findings, row: Row) -> list[str]:
    return [
        f"{row.entry.speedup_flops:.2f}",
        "–" if row.latency is None else figure_text(row.latency.speedup, ".2f"),
        figure_text(row.error(findings.metric)),
        figure_text(row.error(findings.metric, MANY_STEPS)),
    ]


def _counted(findings: Findings, row: Row) -> list[str]:
    readings = row.readings(findings.metric, UNCACHED) or []
    worst = max((r.worst for _, r in readings if r.worst is not None), default=None)
    return [
        *(str(row.run[key]) for key in ("calls", "hits", "misses")),
        "–" if worst is None else f"{worst:.4f}",
        "–" if row.memory is None else human_bytes(row.memory),
    ]


def _over(findings: Findings) -> str:
    sweep = findings.sweep
    spread = "95 % intervals over clips" if len(sweep.clips) > 1 else "one clip: no intervals"
    return f"mean over {counted(len(sweep.clips), 'clip')} and {counted(len(sweep.seeds), 'seed')}, {spread}"


def _scale_lines(findings: Findings) -> list[str]:
    noise, solver, other = findings.scale(findings.metric)
    steps = findings.sweep.steps
    return [
        f"noise floor (uncached, repeated): {figure_text(noise)}",
        f"solver floor (uncached at {steps} against {3 * steps} steps): {figure_text(solver)}",
        f"another seed: {figure_text(other)}",
    ]


def _parts_lines(row: Row) -> list[str]:
    lines = []
    for side in SIDES:
        seconds = parts(row.pairs, side)
        lines.append(
            f"{side}: text {seconds.text:.3f} s, denoiser {seconds.denoiser:.2f} s, VAE {seconds.vae:.2f} s, "
            f"I/O {seconds.io:.2f} s, total {seconds.total:.2f} s (medians, wall clock)"
        )
    return [*lines, f"end to end: {figure_text(end_to_end(row.pairs), '.2f')} x"]


def _row(findings: Findings, row: Row) -> dict[str, Any]:
    entry = row.entry
    about: dict[str, Any] = {
        "name": entry.name,
        "family": entry.family,
        "varied": dict(entry.varied),
        "table": entry.work.digest,
        "speedup_flops": entry.speedup_flops,
        "failed": list(row.faults),
    }
    if row.faults:
        return about
    timed = row.latency
    return {
        **about,
        **{key: row.run[key] for key in ("calls", "hits", "misses", "departures", "bytes_peak")},
        "memory": row.memory,
        "memory_of": row.run["memory_of"],
        "speedup": None if timed is None else _figure(timed.speedup),
        "denoiser_seconds": None if timed is None else _figure(timed.planned),
        "denoiser_seconds_uncached": None if timed is None else _figure(timed.uncached),
        "seconds": {side: asdict(parts(row.pairs, side)) for side in SIDES} if row.pairs else None,
        "error": _figure(row.error(findings.metric)),
        "solver_error": _figure(row.error(findings.metric, MANY_STEPS)),
        "metrics": {m.name: _figure(row.error(m)) for m in findings.measures},
        "samples": [{"clip": c, "seed": s, "error": e} for (c, s), e in row.errors(findings.metric).items()],
        "audits": [s.result["run"]["audit"] for s in row.samples if s.result["run"]["audit"]],
    }


def _figure(figure: Figure | None) -> dict[str, Any] | None:
    return None if figure is None else asdict(figure)


def _plain(value: dict[str, Any]) -> dict[str, Any]:
    return {key: dict(v) if hasattr(v, "items") else list(v) if isinstance(v, tuple) else v for key, v in value.items()}
