"""What a scope cost, planned and uncached: the survey's first three levels and the memory, row by row."""

from __future__ import annotations

from collections.abc import Iterator

from refkv_policy.evidence import MeasuredScope
from refkv_policy.report.words import NONE, figure, flops, percent, seconds, size, times

Row = tuple[str, str, str, str]
"""What, planned, uncached, and the difference."""


def cost_rows(entry: MeasuredScope) -> Iterator[Row]:
    """Calls, cells, departures, FLOPs, times and memory; what was not measured says so."""
    counts, levels = entry.levels.counts, entry.levels
    served = counts.hits + counts.misses
    rate = f"{percent(counts.hits / served)} hits" if served else "nothing cached"
    yield "Calls of the transformer", f"{entry.evaluations.planned:,}", f"{entry.evaluations.uncached:,}", ""
    yield "Cells served, computed", f"{counts.hits:,}, {counts.misses:,}", NONE, rate
    departed = ", ".join(f"{n:,} {reason}" for reason, n in counts.departures.items() if n)
    yield "Departures", departed or "none", NONE, ""
    yield (
        "FLOPs of a request",
        flops(counts.flops_planned),
        flops(counts.flops_uncached),
        f"{percent(counts.saved)} saved",
    )
    step = levels.step_latency
    if step is None:
        yield "A denoising step", NONE, NONE, "not measured"
    else:
        yield (
            "A denoising step",
            figure(step.planned, seconds),
            figure(step.uncached, seconds),
            figure(step.speedup, times),
        )
    whole = levels.end_to_end
    if whole is None:
        yield "A whole request", NONE, NONE, "not measured"
    else:
        for name, label in (("text", "text"), ("denoiser", "denoiser"), ("vae", "VAE"), ("io", "reading and writing")):
            planned, uncached = getattr(whole.planned, name), getattr(whole.uncached, name)
            yield (
                f"A request: {label}",
                seconds(planned),
                seconds(uncached),
                times(uncached / planned) if planned > 0 else "",
            )
        yield (
            "A whole request",
            seconds(whole.planned.total),
            seconds(whole.uncached.total),
            figure(whole.speedup, times),
        )
    memory = entry.memory
    if memory is None:
        yield "Peak memory", NONE, NONE, "not measured"
    else:
        what = memory.what.replace("_", " ")
        yield f"Peak memory, {what}", size(memory.planned), size(memory.uncached), ""
        budget = "no budget" if memory.budget is None else f"budget {size(memory.budget)}"
        yield "Of it the cache", size(memory.cache), NONE, f"predicted {size(memory.cache_predicted)}, {budget}"
