"""What a run tells: the first line, the map and the predictions before it, and how figures are put into words."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from refkv_policy.cli.job import Job
from refkv_policy.compiler import Prediction, human_bytes
from refkv_policy.compiler.picture import render_map
from refkv_policy.plan.wording import visible


def title(job: Job, clip: str) -> str:
    """The first line of a run: model and clip, then what is done with them."""
    guidance = f"guidance {job.guidance:g}"
    what = f"{job.shape}, {job.table.steps} steps, {guidance}, seed {job.seed}"
    known = "" if job.profile.name in job.model.name else f" ({job.profile.name})"
    return f"{visible(job.model.name)}{known} on {visible(clip)}\nplan {job.plan.name} ({visible(str(job.plan_path))}): {what}"


def figures(prediction: Prediction) -> dict[str, Any]:
    """A prediction, JSON-ready."""
    return {
        "hits": prediction.tally.hits,
        "misses": prediction.tally.misses,
        "sites": {
            site: {branch: {"hits": t.hits, "misses": t.misses} for branch, t in branches.items()}
            for site, branches in prediction.sites.items()
        },
        "bytes_peak": prediction.bytes_peak,
        "bytes_rule": dict(prediction.bytes_rule),
        "flops_planned": prediction.flops_planned,
        "flops_uncached": prediction.flops_uncached,
        "flops_saved": prediction.saved,
        "over_budget": list(prediction.over_budget),
    }


def figures_text(label: str, prediction: Prediction) -> str:
    """A prediction in two lines, and one more for each rule that will not keep to its budget."""
    tally, peak = prediction.tally, human_bytes(prediction.bytes_peak)
    hits = f"hits {tally.hits}, misses {tally.misses} ({tally.rate:.1%} hits)"
    saved = f"denoising FLOPs saved {prediction.saved:.2%} ({prediction.speedup:.2f}x at most)"
    lines = [f"{label}:", f"  {hits}; peak cache {peak}; {saved}"]
    for name in prediction.over_budget:
        need = human_bytes(prediction.bytes_rule[name])
        lines.append(f"  rule {name} needs {need}, more than its budget: it will drop and compute, and say so")
    return "\n".join(lines)


def prediction_text(job: Job, prediction: Prediction, dtype: str) -> str:
    """The map of the table and what it predicts for this run."""
    branches = "cond and uncond" if len(job.branches) == 2 else "cond only"
    return f"\n{render_map(job.table, job.branches)}\n\n{figures_text(f'predicted ({dtype}, {branches})', prediction)}"


def prediction_json(job: Job, prediction: Prediction, dtype: str) -> dict[str, Any]:
    """What a dry run knows, JSON-ready."""
    return {
        "model": job.model.name,
        "profile": job.profile.name,
        "plan": job.plan.name,
        "plan_path": str(job.plan_path),
        "table_digest": job.table.digest,
        "size": f"{job.shape.width}x{job.shape.height}",
        "frames": job.shape.frames,
        "steps": job.table.steps,
        "evaluated": list(job.table.evaluated),
        "guidance": job.guidance,
        "branches": list(job.branches),
        "seed": job.seed,
        "dtype": dtype,
        "predicted": figures(prediction),
    }


def site_lines(rows: Iterable[tuple[str, Mapping[str, tuple[int, int]]]]) -> list[str]:
    """`hint[3-5]  cond 22 hits 8 misses · uncond …`: neighbours with equal counts on one line.

    rows: site names, in order, with (hits, misses) by branch.
    """
    folded: list[tuple[str, str, Mapping[str, tuple[int, int]]]] = []
    for site, counts in rows:
        if folded and folded[-1][2] == counts and _kind(folded[-1][1]) == _kind(site):
            folded[-1] = (folded[-1][0], site, counts)
        else:
            folded.append((site, site, counts))
    names = [_range(first, last) for first, last, _ in folded]
    width = max(map(len, names), default=0)
    lines = []
    for name, (_, _, counts) in zip(names, folded, strict=True):
        each = ", ".join(f"{branch} {hits} hits {misses} misses" for branch, (hits, misses) in counts.items())
        lines.append(f"  {name:<{width}}  {each}")
    return lines


def _kind(site: str) -> tuple[str, str]:
    head, _, rest = site.partition("[")
    return head, rest.partition("]")[2]


def _range(first: str, last: str) -> str:
    if first == last:
        return first
    return first.replace("]", "-" + last[last.index("[") + 1 : last.index("]")] + "]", 1)
