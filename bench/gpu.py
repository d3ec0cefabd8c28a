"""Every shipped plan against uncached on the 1.3B's shape, with seeded random weights.

    python bench/gpu.py [--repeats 3] [--frames 17,81] [--plans plans/*.yaml]

With a CUDA device: bfloat16, 480x832, 17 and 81 frames: denoising latency, peak memory, hits. Elsewhere the same code
runs the embedded model's shape on the CPU, which shows that it works and measures nothing of interest. Random weights
have the real ones' cost and no quality: this is about time and memory only.
"""

from __future__ import annotations

import argparse
import statistics
import time
from pathlib import Path
from typing import Any

import torch
from denoise import Conditions, conditions, denoise, pipeline, transformer
from diffusers import WanVACEPipeline
from timing import table

from refkv_policy import attach, compile_plan, load_plan
from refkv_policy.compiler import HookTable, Workload, human_bytes, predict
from refkv_policy.profiles import Profile, load_profile

ROOT = Path(__file__).resolve().parents[1]


def request(pipe: WanVACEPipeline, given: Conditions, steps: int) -> tuple[float, int]:
    """Seconds of one denoising, and the most accelerator memory allocated meanwhile (0 on a CPU)."""
    cuda = given.latents.is_cuda
    if cuda:
        torch.cuda.synchronize()
        torch.cuda.reset_peak_memory_stats()
    start = time.perf_counter()
    for _ in denoise(pipe, given, steps):
        pass
    if cuda:
        torch.cuda.synchronize()
    return time.perf_counter() - start, torch.cuda.max_memory_allocated() if cuda else 0


def planned(pipe: WanVACEPipeline, given: Conditions, compiled: HookTable) -> tuple[float, int, Any]:
    """The same under a table, with the session's summary."""
    with attach(pipe, compiled) as session:
        seconds, memory = request(pipe, given, compiled.steps)
    return seconds, memory, session.summary


def compare(profile: Profile, size: tuple[int, int], frames: int, dtype: str, device: str, options: Any) -> None:
    """Print one table: a row a plan, repeats interleaved with the uncached run."""
    given = conditions(profile, size, frames, getattr(torch, dtype), device)
    pipe = pipeline(transformer(profile, getattr(torch, dtype), device))
    work = Workload(profile.tokens(*size, frames), profile.text_tokens)
    plans = [load_plan(path) for path in options.plans]
    tables = {Path(p.document.file).stem: compile_plan(p, profile.name, options.steps) for p in plans}
    for _ in denoise(pipe, given, 2):
        pass
    uncached, runs = [], {name: [] for name in tables}  # type: ignore[var-annotated]
    for _ in range(options.repeats):
        uncached.append(request(pipe, given, options.steps))
        for name, compiled in tables.items():
            runs[name].append(planned(pipe, given, compiled))
    base = statistics.median(s for s, _ in uncached)
    print(
        f"\n{profile.name} shape, random weights, {dtype}, {size[0]}x{size[1]}, {frames} frames ({work.tokens} tokens),"
    )
    print(f"{options.steps} steps, 2 branches, {device}, median of {options.repeats} interleaved")
    rows = [["uncached", f"{base:.2f}", "1.00", "1.00", human_bytes(max(m for _, m in uncached)), "", "", ""]]
    for name, compiled in tables.items():
        seconds = statistics.median(r[0] for r in runs[name])
        figures, summary = predict(compiled, profile, work, dtype), runs[name][-1][2]
        exact = (summary.hits, summary.misses, summary.bytes_peak) == (
            figures.tally.hits,
            figures.tally.misses,
            figures.bytes_peak,
        )
        rows.append(
            [
                name,
                f"{seconds:.2f}",
                f"{base / seconds:.2f}",
                f"{figures.speedup:.2f}",
                human_bytes(max(r[1] for r in runs[name])),
                human_bytes(summary.bytes_peak),
                f"{summary.hits}/{summary.hits + summary.misses}",
                "yes" if exact else "NO",
            ]
        )
    head = ["plan", "denoise s", "speed-up", "by FLOPs", "peak memory", "cache", "hits", "as predicted"]
    print(table(head, rows))


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--steps", type=int, default=30)
    parser.add_argument("--frames", default="17,81")
    parser.add_argument("--plans", type=Path, nargs="*", default=sorted((ROOT / "plans").glob("wan21_*.yaml")))
    options = parser.parse_args()
    if torch.cuda.is_available():
        print(f"torch {torch.__version__}, {torch.cuda.get_device_name()}")
        for frames in map(int, options.frames.split(",")):
            compare(load_profile("wan2.1-vace-1.3b"), (832, 480), frames, "bfloat16", "cuda", options)
        return
    reason = "this torch is built without CUDA" if not torch.version.cuda else "no CUDA device is visible"
    print(
        f"The GPU part did not run: {reason} (torch {torch.__version__}). A scaled-down shape runs on the CPU instead:"
    )
    torch.set_num_threads(1)
    options.repeats = 1
    compare(load_profile("wan2.1-vace-mini"), (48, 48), 5, "float32", "cpu", options)


if __name__ == "__main__":
    main()
