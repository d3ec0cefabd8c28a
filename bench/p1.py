"""What hint reuse saves of the denoising time, against what its FLOPs say.

    python bench/p1.py [--steps 12] [--rounds 3] [--width 384]

A random-weight VACE with the 1.3B's proportions on one CPU thread, in that thread's CPU time, so that other work on the
machine does not count. Every variant has a model instance of its own on the same weights; all advance in turn, one step
at a time, in an order drawn anew for each step. Goal: at least 95 % of the predicted saving.
"""

from __future__ import annotations

import argparse
import random
import statistics
import time
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import replace

import torch
from denoise import Conditions, conditions, denoise, pipeline, transformer, twin
from diffusers import WanVACEPipeline
from timing import interval, table, verdict

from refkv_policy import attach, compile_plan
from refkv_policy.compiler import Workload, predict
from refkv_policy.plan import PlanError, parse_plan
from refkv_policy.profiles import Profile, load_profile

GOAL = 0.95
SIZE, FRAMES = (192, 128), 13
UNCACHED = "uncached"
PLAN = """\
version: 1
kind: plan
name: bench
purpose: reference
description: One variant of bench/p1.py.
models: [any]
run: {{steps: [{steps}], sampler: {{name: unipc, flow_shift: 3.0}}, guidance: 5.0, shapes: [{{size: 96x96, frames: 17}}]}}
caches:
  - {{name: hints, tier: P1, method: {method}, at: "{at}", refresh: {refresh}}}
acknowledgements:
  - {{risk: lossy-hint-cache, by: bench, date: 2026-11-30, reason: random weights have no quality to lose}}
"""


def variants(steps: int) -> dict[str, str]:
    """Plans by name: K = 2, 4 and once only, all hints and the deep half; and eleven of thirty spaced in sigma."""
    refreshes = {"K=2": "{interval: 2}", "K=4": "{interval: 4}", "K=inf": '{steps: "0"}'}
    plans = {}
    for where, at in (("all", "hint[all]"), ("deep", "hint[deep]")):
        for name, refresh in refreshes.items():
            plans[f"{name} {where}"] = PLAN.format(steps=steps, method="hint_reuse", at=at, refresh=refresh)
    spaced = f"{{spacing: sigma, count: {max(round(steps * 11 / 30), 2)}}}"
    plans["sigma11 all"] = PLAN.format(steps=steps, method="hint_forecast", at="hint[all]", refresh=spaced)
    return plans


def proportioned(width: int) -> Profile:
    """The 1.3B's proportions at another width: ten main blocks, five VACE blocks, feed-forward 5.83 times the width."""
    real = load_profile("wan2.1-vace-1.3b")
    return replace(
        real,
        name="bench",
        main_blocks=10,
        vace_at=(0, 2, 4, 6, 8),
        heads=4,
        head_dim=width // 4,
        ffn_dim=width * real.ffn_dim // real.dim,
        text_tokens=64,
        text_dim=256,
        sets={"hint": {"deep": "2-4"}},
    )


def measure(pipes: dict[str, WanVACEPipeline], given: Conditions, steps: int) -> dict[str, list[float]]:
    """CPU seconds of each step of one request of each pipeline, all advancing in turn."""
    loops = {name: denoise(pipe, given, steps) for name, pipe in pipes.items()}
    spent: dict[str, list[float]] = {name: [] for name in loops}
    order, draw = list(loops), random.Random(0)
    for _ in range(steps):
        draw.shuffle(order)
        for name in order:
            start = time.thread_time()
            next(loops[name])
            spent[name].append(time.thread_time() - start)
    for loop in loops.values():
        next(loop, None)
    return spent


def seconds(rounds: Sequence[dict[str, list[float]]], name: str) -> float:
    """CPU seconds of a request: the sum over steps of each step's median over rounds."""
    return sum(map(statistics.median, zip(*(r[name] for r in rounds), strict=True)))


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--steps", type=int, default=12)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--width", type=int, default=384, help="a multiple of 24")
    options = parser.parse_args()
    torch.set_num_threads(1)
    profile = proportioned(options.width)
    model = transformer(profile, torch.float32, "cpu")
    given = conditions(profile, SIZE, FRAMES, torch.float32, "cpu")
    work = Workload(profile.tokens(*SIZE, FRAMES), profile.text_tokens)
    pipes, predicted = {UNCACHED: pipeline(model)}, {}
    with ExitStack() as sessions:
        for name, text in variants(options.steps).items():
            plan, faults = parse_plan(text, name)
            if plan is None:
                raise PlanError(faults)
            compiled = compile_plan(plan, profile, options.steps)
            predicted[name] = predict(compiled, profile, work, "float32").saved
            pipes[name] = pipeline(twin(model))
            sessions.enter_context(attach(pipes[name], compiled))
        list(denoise(pipes[UNCACHED], given, 1))
        rounds = [measure(pipes, given, options.steps) for _ in range(options.rounds)]

    base = seconds(rounds, UNCACHED)
    print(
        f"width {profile.dim}, {profile.main_blocks}+{len(profile.vace_at)} blocks, {work.tokens} tokens, {options.steps} "
        f"steps, 2 branches, {options.rounds} rounds; uncached {base:.1f} s CPU a request, one thread"
    )
    rows, reached = [], []
    for name, share in predicted.items():
        middle = 1 - seconds(rounds, name) / base
        low, high = interval([1 - sum(r[name]) / sum(r[UNCACHED]) for r in rounds])
        reached.append(middle / share >= GOAL)
        rows.append([name, f"{share:.1%}", f"{middle:.1%}", f"{low:.1%} to {high:.1%}", f"{middle / share:.1%}"])
    print(table(["", "predicted", "measured", "95 %", "of prediction"], rows))
    print(verdict(all(reached), f"at least {GOAL:.0%} of the predicted saving"))


if __name__ == "__main__":
    main()
