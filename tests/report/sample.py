"""What reports are made of, small: evidence with a frontier, audit logs of whole runs, drift figures, tiny videos."""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from refkv_policy.audit import AuditWriter, Decision
from refkv_policy.compiler import HookTable, Row
from refkv_policy.evidence import (
    Evidence,
    Figure,
    Frontier,
    Interval,
    Item,
    MeasuredScope,
    Metric,
    Point,
    Sample,
    make_item,
)
from tests.evidence import sample as evidence_sample
from tests.plans import hints, plan_of

FRAMES = 17


def interval(low: float, high: float) -> Interval:
    """A bootstrap interval."""
    return Interval(low, high, 0.95, "bootstrap")


def near(value: float, share: float = 0.15) -> Figure:
    """A figure with an interval around it."""
    return Figure(value, interval(value * (1 - share), value * (1 + share)))


def metric(name: str, title: str, values: Sequence[float], **changes: Any) -> Metric:
    """A metric of two clips and two seeds with these values by frame."""
    mean, worst = float(np.mean(values)), (min if changes.get("better") == "higher" else max)(values)
    at = list(values).index(worst)
    given = {
        "provenance": "numpy 2.3", "stand_in": False, "better": "lower", "reference": "uncached", "noise": Figure(0.0),
        "solver": near(0.0043), "other_seed": Figure(0.21), "mean": near(mean), "worst": near(worst),
        "samples": tuple(Sample(clip, seed, mean, worst, at) for clip in ("bunny", "bikes") for seed in (0, 1)),
        **changes,
    }  # fmt: skip
    return Metric(name=name, title=title, per_frame=tuple(values), **given)


def metrics() -> tuple[Metric, ...]:
    """Four metrics: one beyond the solver floor at the end, one in decibels, a stand-in without floors, one within."""
    wave = [0.0012 + 0.0006 * math.sin(n) + 0.0005 * n for n in range(FRAMES)]
    decibels = [44 - 0.5 * n for n in range(FRAMES)]
    features = [0.999 - 0.0004 * n * n / 17 for n in range(FRAMES)]
    flicker = [0.0005 + 0.002 * (n % 5 == 3) for n in range(FRAMES)]
    return (
        metric("pixel_difference", "mean absolute difference of pixels, as a share of full scale", wave),
        metric(
            "psnr", "peak signal-to-noise ratio, in dB", decibels, better="higher", noise=Figure(60.0), solver=near(39.0),
            other_seed=Figure(14.0), provenance="scikit-image 0.26",
        ),
        metric(
            "efficientnet_lite0_similarity", "per-frame cosine similarity of features", features, stand_in=True,
            better="higher", noise=Figure(1.0), solver=None, other_seed=Figure(0.71), provenance="EfficientNet-Lite0",
        ),
        metric("temporal_flicker", "change from frame to frame beyond the reference's", flicker),
    )  # fmt: skip


def point(name: str, family: Any, speed: float, error: float, **changes: Any) -> Point:
    """A run of the frontier."""
    given = {
        "varied": {}, "table": None, "evaluations": round(60 / speed), "hits": 0, "misses": 0, "memory": 180 << 20,
        "speedup": near(speed, 0.02), "speedup_flops": speed * 1.02, "error": near(error) if error else Figure(0.0),
        "solver_error": near(math.hypot(error, 0.0043), 0.1), **changes,
    }  # fmt: skip
    return Point(name=name, family=family, **given)


def points() -> tuple[Point, ...]:
    """As the feasibility run found them: reuse loses to fewer steps, and those to re-spaced ones."""
    fewer = ((26, 1.15, 0.0025), (24, 1.25, 0.0027), (22, 1.36, 0.0038), (20, 1.5, 0.0044), (15, 2.0, 0.0062))
    respaced = ((26, 1.15, 0.00008), (23, 1.3, 0.0001), (20, 1.5, 0.00012), (15, 2.0, 0.0005), (12, 2.5, 0.0006))
    reuse = ((2, 1.21, 0.0048), (3, 1.29, 0.0124), (6, 1.4, 0.0326), (8, 1.42, 0.0334))
    made = [
        point("uncached", "uncached", 1.0, 0.0, speedup=Figure(1.0), speedup_flops=1.0),
        point("plan test", "plan", 1.33, 0.0064, hits=330, misses=126, memory=181 << 20),
    ]
    made += [point(f"interval={k}", "variant", s, e, varied={"refresh.interval": k}, hits=9) for k, s, e in reuse]
    made += [point(f"{n} steps", "fewer_steps", s, e, varied={"steps": n}) for n, s, e in fewer]
    for spacing, line, factor in (("sigma", respaced, 1), ("sqrt_sigma", respaced[1:4], 2)):
        for n, s, e in line:
            varied = {"spacing": spacing, "count": n}
            made.append(point(f"{n} of 30, {spacing}", "respaced_steps", s, factor * e, varied=varied))
    return tuple(made)


WHY = {
    "mean_drop": "DINOv2 was not given", "worst_frame_drop": "DINOv2 was not given", "speedup": "five interleaved pairs",
    "pareto": "no variant is both", "second_half_decay": "the clips are shorter than 5 s",
    "subjective": "no ratings were imported", "fewer_steps": "at 1.33× fewer steps have an error of 0.0035",
    "respaced_steps": "at 1.33× re-spaced fewer steps have an error of 0.0001", "memory": "the store's own count",
}  # fmt: skip
MEASURED: dict[str, float | None] = {
    "mean_drop": None, "worst_frame_drop": None, "speedup": 0.24, "pareto": 0, "second_half_decay": None,
    "subjective": None, "fewer_steps": 0.0029, "respaced_steps": 0.0063, "memory": 1 << 20,
}  # fmt: skip


def items(**measured: float | None) -> tuple[Item, ...]:
    """The gate as it comes out here: no DINOv2, no raters, both step-reduction lines better than the plan."""
    made = []
    for name, value in {**MEASURED, **measured}.items():
        scattered = value and name in ("speedup", "fewer_steps", "respaced_steps")
        made.append(
            make_item(
                name,
                value,
                interval(value * 0.9, value * 1.1) if value and scattered else None,
                why=WHY[name],
                threshold=2 << 20 if name == "memory" else None,
                equal_within=0.001 if name.endswith("steps") else 0.0,
                judged_by="interval" if name == "speedup" else "value",
            )
        )
    return tuple(made)


def scope(plan: Any = None, **changes: Any) -> MeasuredScope:
    """A scope as a real sweep fills it; red, for its plan loses to fewer steps."""
    made = evidence_sample.scope(plan, gate=changes.pop("gate", items()))
    own = metrics()
    levels = replace(made.levels, frontier=Frontier("pixel_difference", points()))
    memory = replace(made.memory, budget=2 << 20) if made.memory is not None else None
    return replace(made, levels=levels, metrics=own, memory=memory, **changes)


def evidence(*scopes: MeasuredScope) -> Evidence:
    """A document; of the one red scope unless some are given."""
    return Evidence("test", scopes or (scope(),))


def plan(steps: str = "[12]") -> Any:
    """The plan that the evidence is of."""
    return plan_of(hints("'hint[all]'", "interval: 2"), steps=steps)


def deep_table() -> HookTable:
    """A table of thirty steps with text K/V and deep hints, as the shipped plans have them."""
    from refkv_policy.compiler import compile_plan

    text = "  - {name: text, tier: P0, method: text_kv, at: ['main[all].text_kv', 'vace[all].text_kv']}\n"
    rules = text + hints("'hint[deep]'", "interval: 4", method="hint_forecast", more=", store: {budget: 2MiB}")
    made = plan_of(rules, steps="[30]")
    return compile_plan(made, "wan2.1-vace-mini", 30)


def write_log(
    path: Path, table: HookTable, *, requests: int = 1, departing: bool = False, error: str | None = None
) -> str:
    """The log of runs that obey their table, or depart legally from it at two steps; gives its head."""
    with AuditWriter(path, session="s-test") as writer:
        for n in range(requests):
            _run(writer, f"request-{n + 1}", table, departing and n == 0, error)
    return writer.head


HEADER = {
    "branches": ["cond", "uncond"], "device": "cpu", "dtype": "float32", "seed": 7, "guidance": 5.0,
    "digests": {"profile": "sha256:" + "e" * 64, "weights": "sha256:" + "a" * 64},
    "versions": {"refkv": "0.1.0", "torch": "2.9.0"},
    "shapes": {"latent": [1, 16, 5, 12, 12], "tokens": 180, "batch": 1},
    "clip": {"name": "bigbuckbunny.mp4", "frames": "sha256:" + "c" * 64},
}  # fmt: skip


def _run(writer: AuditWriter, name: str, table: HookTable, departing: bool, error: str | None) -> None:
    writer.begin(name, HEADER, table)
    kept: dict[tuple[str, str], int] = {}
    gone: set[tuple[str, str]] = set()
    peak = 0
    for index, step in enumerate(table.evaluated):
        for branch in ("cond", "uncond"):
            decisions = [_decide(row, branch, step, index, kept, gone, departing) for row in table.rows]
            held = int(180 * table.layout.dim * 4 * len(kept.keys() - gone) * (1 - 0.3 * (step > 25)))
            peak = max(peak, held)
            writer.step(
                name, step=step, index=index, branch=branch, sigma=table.sigmas[step], decisions=decisions, bytes_held=held
            )  # fmt: skip
    writer.seal(name, outcome="finished" if error is None else "failed", bytes_peak=peak, error=error)


def _decide(
    row: Row, branch: str, step: int, index: int, kept: dict[Any, int], gone: set[Any], departing: bool
) -> Decision:
    """Obeys the table; a departing run drops the hints of uncond at step 10 and computes them until they are fresh."""
    action, at = row.actions(branch)[step], (branch, row.site)
    departs = departing and branch == "uncond" and step in (10, 11)
    if action == "C":
        kept[at] = index
        gone.discard(at)
        return Decision(row.site, action, action)
    if departs and row.at.stack == "hint" and action in "RF":
        gone.add(at)
        return Decision(row.site, ".", action, "budget" if step == 10 else "no_state")
    if departs and row.at.kind == ("vace", None) and action == "-":
        return Decision(row.site, ".", action, "chain")
    return Decision(row.site, action, action, None, index - kept[at] if action in "RF" else None)


def drift_value(steps: int = 30, layers: int = 4) -> dict[str, Any]:
    """Drift figures that climb as the feasibility run found them, deeper hints more."""
    series = [
        _drift_curve(f"hint[{layer}]", branch, against, measure, steps, 0.55 + 0.1 * layer)
        for branch in ("cond", "uncond")
        for layer in range(layers)
        for measure in ("relative_l2", "cosine", "norm_ratio")
        for against in ("first", "previous", "fresh")
    ]
    return {
        "version": 1, "kind": "drift", "profile": "wan2.1-vace-mini", "steps": steps, "guidance": 5.0,
        "clips": [{"name": "bunny"}, {"name": "bikes"}], "seeds": [0, 1], "series": series,
        "suggestion": 'caches:\n  - name: deep-hints\n    at: "hint[2-3]"\n',
    }  # fmt: skip


def _drift_curve(site: str, branch: str, against: str, measure: str, steps: int, top: float) -> dict[str, Any]:
    share, power = (1.0, 2) if against == "first" else (0.3, 3)
    rise = [share * top * (step / steps) ** power for step in range(1, steps)]
    mean = [{"relative_l2": v, "cosine": 1 - v * v / 2, "norm_ratio": 1 + v / 5}[measure] for v in rise]
    ends = {"low": [v * 0.95 for v in mean], "high": [v * 1.05 for v in mean]}
    named = {"site": site, "branch": branch, "against": against, "measure": measure}
    return {**named, "steps": list(range(1, steps)), "mean": mean, **ends}


def write_drift(path: Path) -> None:
    """The same as a file."""
    path.write_text(json.dumps(drift_value()))


def numbered(width: int = 96, height: int = 64, frames: int = FRAMES, offset: int = 0) -> Any:
    """Frames whose left half tells their number: its grey is 10 times the frame, plus an offset."""
    clip = np.zeros((frames, height, width, 3), np.uint8)
    for n in range(frames):
        clip[n, :, : width // 2] = 10 * n + 20 + offset
        clip[n, :, width // 2 :, 0] = np.linspace(0, 255, width - width // 2, dtype=np.uint8)
        x = width // 2 + (2 * n) % (width // 2 - 12)
        clip[n, 20:32, x : x + 12] = (240, 200, 60)
    return clip


def write_videos(folder: Path, **shape: int) -> dict[str, Path]:
    """input.mp4, uncached.mp4 and planned.mp4; planned is a little brighter."""
    from refkv_policy.video import write_clip

    paths = {}
    for name, offset in (("input", 0), ("uncached", 2), ("planned", 5)):
        paths[name] = folder / f"{name}.mp4"
        write_clip(paths[name], numbered(offset=offset, **shape), 16)
    return paths
