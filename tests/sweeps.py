"""Sweeps for tests: tiny random models on tiny clips, and results made up without any model.

Random weights show mechanics only: nothing here says anything about quality.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from refkv_policy.canonical import sha256
from refkv_policy.compiler import compile_plan
from refkv_policy.compiler.predict import Workload
from refkv_policy.plan import Plan
from refkv_policy.profiles import Profile, load_profile
from refkv_policy.quality.sweep import Entry, Sweep, make_entries
from refkv_policy.quality.tasks import MANY_STEPS, UNCACHED, Conditions, Source, Store, Task
from refkv_policy.quality.variants import Variant, Vary, make_variants
from refkv_policy.video import read_clip, write_clip
from tests.plans import one_rule, parsed

SIZE, FRAMES, STEPS, GUIDANCE = 16, 5, 4, 5.0
DIGEST = "sha256:" + "a" * 64


def plan(model: str = "any", steps: int = STEPS, budget: str = "1MiB") -> Plan:
    """A plan of one lossy rule."""
    text = one_rule("tiny", models=model, steps=steps, interval=2).replace("guidance: 5.0", "guidance: [5.0, 1.0]")
    return parsed(text.replace("{interval: 2}", f"{{interval: 2}}\n    store: {{budget: {budget}}}"), "tiny.yaml")


def conditions(profile: Profile, **changes: Any) -> Conditions:
    """What the runs of a test share."""
    made = Conditions(
        profile=profile.name, weights=DIGEST, width=SIZE, height=SIZE, frames=FRAMES, guidance=GUIDANCE, control="grey",
        negative_prompt="", text_tokens=8, sampler="unipc", flow_shift=3.0, dtype="float32", device="cpu, 1 thread",
        features=(), versions={"refkv": "0"},
    )  # fmt: skip
    return replace(made, **changes)


def clip(folder: Path, name: str, seed: int = 0) -> Source:
    """A clip of noise that slowly changes, written as a file."""
    rng = np.random.default_rng(seed)
    base = rng.integers(0, 200, (1, 24, 24, 3))
    frames = (base + rng.integers(0, 30, (FRAMES, 24, 24, 3))).astype(np.uint8)
    path = folder / f"{name}.mp4"
    write_clip(path, frames, 16)
    digest = sha256(read_clip(path, FRAMES, (SIZE, SIZE)).frames.tobytes())
    return Source(path.name, str(path), "a red ball", digest, 16.0)


def sweep(
    clips: Sequence[Source],
    *,
    of: Plan | None = None,
    profile: Profile | None = None,
    seeds: int = 1,
    repeats: int = 2,
    varies: Sequence[Vary] = (),
    baselines: int = 2,
    plan_alone: bool = False,
    **changes: Any,
) -> Sweep:
    """A sweep of a plan on a profile, the embedded model's at 12 steps unless said."""
    profile = profile or load_profile("wan2.1-vace-mini")
    chosen = of or plan("wan2.1-vace-mini", 12)
    steps = chosen.run.steps[0]
    table = compile_plan(chosen, profile, steps)
    variants: tuple[Variant, ...] = make_variants(chosen, profile, steps, 0, varies)
    shared = conditions(profile, **changes)
    branches = ("cond", "uncond") if shared.guidance > 1 else ("cond",)
    entries = make_entries(
        chosen,
        profile,
        table,
        variants,
        Workload(profile.tokens(SIZE, SIZE, FRAMES), 8),
        "float32",
        branches,
        baselines=baselines,
    )
    return Sweep(
        plan=chosen, profile=profile, table=table, guidance=shared.guidance, conditions=shared, clips=tuple(clips),
        seeds=tuple(range(seeds)), repeats=repeats, entries=entries,
        faults=tuple(v for v in variants if v.table is None), plan_alone=plan_alone,
    )  # fmt: skip


def made_up(names: Sequence[str] = ("a.mp4", "b.mp4"), fps: float = 16.0) -> tuple[Source, ...]:
    """Clips that have no file."""
    return tuple(Source(name, f"/nowhere/{name}", "", sha256(name), fps) for name in names)


def figure(value: float, worst: float | None = None) -> dict[str, Any]:
    """A figure of two frames as a comparison stores it."""
    return {"per_frame": [value, value], "mean": value, "worst": value if worst is None else worst, "worst_frame": 1}


def comparison(
    error: float, drop: float | None = None, stand_in: bool = False, slope: float | None = None
) -> dict[str, Any]:
    """A stored comparison. drop: percent, of a feature model; slope: of its decay."""
    model = {
        "model": "EfficientNet-Lite0 (stand-in)" if stand_in else "DINOv2-B/14",
        "stand_in": stand_in,
        "provenance": "made up",
        "digest": DIGEST,
        "similarity": figure(1 - (drop or 0) / 100),
        "drop": figure(drop or 0.0, 2 * (drop or 0.0)),
        "decay": {
            "slope": slope,
            "seconds": 6.0,
            "not_measured": None if slope is not None else "the clip lasts 1.06 s",
        },
    }
    return {
        "frames": 2, "fps": 16.0, "psnr": figure(30.0), "ssim": figure(0.9), "pixel": figure(error, 2 * error),
        "largest": figure(error), "luma": figure(0.99), "flicker": figure(error / 2),
        "motion": {"candidate": [], "reference": [], "ratio": 1.0, "match": 0.9}, "latent_l2": error,
        "features": [] if drop is None else [model],
    }  # fmt: skip


Errors = Callable[[Entry, str, int, str], float]
"""The error of an entry on a clip and seed against a reference."""


def fill(
    made: Sweep,
    folder: Path,
    errors: Errors,
    *,
    speeds: Mapping[str, Sequence[float]] | None = None,
    floor: float = 0.004,
    compare: Callable[[float], dict[str, Any]] = comparison,
    bytes_peak: int = 100,
) -> Store:
    """A store with a made-up result for every task of a sweep. speeds: of an entry's pairs, uncached over planned."""
    store = Store(folder).open()
    for source, seed in made.samples:
        store.write(made.uncached(source, seed), {"run": told(), "comparisons": {MANY_STEPS: compare(floor)}})
        store.write(made.noise(source, seed), {"run": told(), "comparisons": {UNCACHED: compare(0.0)}})
        store.write(made.other_seed(source, seed), {"comparisons": {"other_seed": compare(0.2)}})
        for entry in made.entries[1:]:
            found = {r: compare(errors(entry, source.name, seed, r)) for r in (UNCACHED, MANY_STEPS)}
            audit = {"log": f"audits/{entry.name}.jsonl", "head": DIGEST} if entry.family == "plan" else None
            told_of = told(audit=audit, bytes_peak=bytes_peak if entry.family == "plan" else 0)
            store.write(made.run(entry, source, seed), {"run": told_of, "comparisons": found})
    for entry in made.entries[1:]:
        tasks = made.pairs(entry)
        own = (speeds or {}).get(entry.name, [entry.speedup_flops] * len(tasks))
        for task, ratio in zip(tasks, own, strict=True):
            store.write(task, pair(task, ratio))
    return store


def told(**changes: Any) -> dict[str, Any]:
    """What a run tells of itself."""
    return {
        "calls": 24, "hits": 1, "misses": 2, "departures": {}, "bytes_peak": 0, "audit": None, "outcome": "finished",
        "memory": 1000, "memory_of": "host_resident", "denoiser_cpu": 1.0,
        "seconds": {"text": 0.1, "denoiser": 1.0, "vae": 0.5, "total": 1.7}, **changes,
    }  # fmt: skip


def pair(task: Task, ratio: float) -> dict[str, Any]:
    """A timed pair whose uncached denoising takes `ratio` seconds, and the planned one a second."""

    def side(denoiser: float) -> dict[str, Any]:
        seconds = {"text": 0.1, "denoiser": denoiser, "vae": 0.5, "io": 0.2, "total": denoiser + 0.8}
        return told(
            seconds=seconds, denoiser_cpu=2 * denoiser, audit={"log": f"audits/{task.key}.jsonl", "head": DIGEST}
        )

    return {"uncached": side(ratio), "planned": side(1.0), "order": ["uncached", "planned"], "turns": "step"}
