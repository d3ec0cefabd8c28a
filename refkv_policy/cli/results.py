"""The results of a run: its folder, the two runs, the comparison, and the summary of what was measured."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

import refkv_policy as refkv
from refkv_policy.canonical import sha256
from refkv_policy.cli.execute import Difference, Generated, difference, generate
from refkv_policy.cli.group import FALLS_SHORT, FINE
from refkv_policy.cli.job import Job
from refkv_policy.cli.outputs import cannot_write, set_aside
from refkv_policy.cli.progress import progress
from refkv_policy.cli.summary import prediction_json, site_lines
from refkv_policy.compiler import human_bytes
from refkv_policy.compiler.lock import check_lock, write_lock
from refkv_policy.plan.wording import visible
from refkv_policy.video import side_by_side, write_clip

if TYPE_CHECKING:
    from diffusers import WanVACEPipeline

    from refkv_policy.runtime.summary import Summary

OUTPUT, COMPARE, LOG = "output.mp4", "compare.mp4", "audit.jsonl"

UNEVEN, STARVED = 0.15, 0.85
"""Processor time a second of two runs on a CPU that may be compared: how far apart at most, and how much at least."""


class Results:
    """Owns the folder of one run and what was measured in it."""

    def __init__(self, job: Job, dtype: str, device: str) -> None:
        self.job, self.dtype, self.device = job, dtype, device
        self.predicted = job.predict(dtype)
        self.files: list[Path] = []
        self.planned: Generated | None = None
        self.uncached: Generated | None = None
        self.summary: Summary | None = None
        self.head: str | None = None

    @classmethod
    def open(cls, job: Job, dtype: str, device: str) -> Results:
        """Put earlier results out of the way and write the lock. The folder is there. Raises Failure."""
        results = cls(job, dtype, device)
        lock = job.out / f"{job.plan_path.stem}.lock"
        try:
            other = lock.exists() and check_lock(job.plan, lock) is not None
            set_aside(job.out, (LOG, OUTPUT, COMPARE, *([lock.name] if other else [])))
            write_lock(job.plan, lock)
        except OSError as error:
            raise cannot_write(job.out, error) from error
        results.files.append(lock)
        return results

    def warm_up(self, pipe: WanVACEPipeline) -> None:
        """One uncached step, so that neither of the timed runs pays for what only the first call does."""
        generate(pipe, self.job, lambda: None, steps=1)

    def run_planned(self, pipe: WanVACEPipeline) -> None:
        """Run under the plan; leaves the audit log, also when interrupted, and the output."""
        steps, log = len(self.job.table.evaluated), self.job.out / LOG
        self.files.append(log)
        with refkv.attach(pipe, self.job.table, audit=log, header=self._header()) as session:

            def counts() -> str:
                return f"hits {session.summary.hits} misses {session.summary.misses}"

            with progress("planned", steps, counts) as step:
                self.planned = generate(pipe, self.job, step)
        self.summary = session.summary
        self._write(OUTPUT, self.planned.pixels)

    def _header(self) -> dict[str, Any]:
        """What only this command knows of the request, for its log."""
        assert self.job.inputs is not None
        clip = self.job.inputs.clip
        return {
            "seed": self.job.seed,
            "guidance": self.job.guidance,
            "clip": {"name": Path(clip.source).name, "frames": sha256(clip.frames.tobytes())},
        }

    def run_uncached(self, pipe: WanVACEPipeline) -> None:
        """The same request without the plan; leaves the comparison."""
        assert self.planned is not None and self.job.inputs is not None
        with progress("uncached", self.job.table.steps) as step:
            self.uncached = generate(pipe, self.job, step)
        panels = [("input", self.job.inputs.clip.frames), ("uncached", self.uncached.pixels)]
        self._write(COMPARE, side_by_side([*panels, (f"planned: {self.job.plan.name}", self.planned.pixels)]))

    def _write(self, name: str, frames: Any) -> None:
        assert self.job.inputs is not None
        write_clip(self.job.out / name, frames, self.job.inputs.clip.fps)
        self.files.append(self.job.out / name)

    @property
    def outcome(self) -> str:
        """How the request ended."""
        assert self.summary is not None
        return self.summary.requests[-1].outcome if self.summary.requests else "incomplete"

    @property
    def status(self) -> int:
        """The exit status: a run that served less than its table fell short of the plan."""
        return FINE if self.outcome == "finished" else FALLS_SHORT

    @property
    def difference(self) -> Difference | None:
        """Planned against uncached pixels, where both ran."""
        return difference(self.planned, self.uncached) if self.planned and self.uncached else None

    def sites(self) -> dict[str, dict[str, tuple[int, int]]]:
        """(hits, misses) by site and branch, as they were counted while running."""
        assert self.summary is not None
        return {
            site: {branch: (t.hits, t.misses) for branch, t in by_branch.items()}
            for site, by_branch in self.summary.sites.items()
            if site in self.predicted.sites
        }

    def text(self) -> str:
        """The summary for a person."""
        assert self.planned is not None and self.summary is not None
        predicted, measured = self.predicted, self.summary
        counts = (predicted.tally.hits, predicted.tally.misses)
        lines = ["", f"{self.outcome}, {measured.departures} departures", *self._latency()]
        if (gap := self.difference) is not None:
            lines.append(
                f"pixel difference from uncached: mean {gap.mean:.3%}, worst frame {gap.worst_frame:.3%}, "
                f"largest of one value {gap.largest:.1%}"
            )
        lines.append(
            f"hits {measured.hits} of {counts[0]} predicted, misses {measured.misses} of {counts[1]}; "
            f"peak cache {human_bytes(measured.bytes_peak)} of {human_bytes(predicted.bytes_peak)} predicted"
        )
        expected = {s: {b: (t.hits, t.misses) for b, t in by.items()} for s, by in predicted.sites.items()}
        lines += site_lines(self.sites().items())
        if self.sites() != expected:
            lines += ["predicted were:", *site_lines(expected.items())]
        lines += [f"  departed ({reason}): {count}" for reason, count in measured.reasons.items()]
        lines += ["", *(visible(str(path)) for path in self.files)]
        return "\n".join(lines)

    def _latency(self) -> list[str]:
        """How long both runs took. A ratio of one run each is no property of the plan, and is not told as one."""
        assert self.planned is not None
        planned, uncached = self.planned, self.uncached
        whole = f"whole call {planned.total_seconds:.2f} s"
        if uncached is None:
            return [f"denoising: planned {planned.denoise_seconds:.2f} s; {whole}"]
        lines = [
            f"denoising: planned {planned.denoise_seconds:.2f} s, uncached {uncached.denoise_seconds:.2f} s; {whole}"
        ]
        if self.device != "cpu":
            lines.append(f"  one run each: {uncached.denoise_seconds / planned.denoise_seconds:.2f}x")
        elif _busy(planned, uncached):
            lines.append("  the machine was busy meanwhile: the two times are not comparable")
        else:
            # What else runs on the machine takes wall-clock time from either run, and processor time from neither.
            lines.append(f"  one run each, in processor time: {uncached.denoise_cpu / planned.denoise_cpu:.2f}x")
        bound = f"predicted by FLOPs: {self.predicted.speedup:.2f}x at most"
        return [*lines, f"  {bound}; `refkv gate {visible(str(self.job.plan_path))}` measures it, over pairs of runs"]

    def json(self) -> dict[str, Any]:
        """The summary for a machine."""
        assert self.planned is not None and self.summary is not None and self.job.inputs is not None
        gap = self.difference
        return {
            **prediction_json(self.job, self.predicted, self.dtype),
            "clip": self.job.inputs.clip.source,
            "fps": self.job.inputs.clip.fps,
            "device": self.device,
            "outcome": self.outcome,
            "measured": {
                "hits": self.summary.hits,
                "misses": self.summary.misses,
                "departures": dict(self.summary.reasons),
                "bytes_peak": self.summary.bytes_peak,
                "sites": {
                    site: {branch: {"hits": hits, "misses": misses} for branch, (hits, misses) in by.items()}
                    for site, by in self.sites().items()
                },
                **_run_json(self.planned),
            },
            "uncached": None if self.uncached is None else _run_json(self.uncached),
            "difference": None if gap is None else asdict(gap),
            "files": [str(path) for path in self.files],
        }


def _run_json(run: Generated) -> dict[str, Any]:
    return {
        "denoise_seconds": run.denoise_seconds,
        "total_seconds": run.total_seconds,
        "denoise_cpu_seconds": run.denoise_cpu,
        "cpu_seconds": run.cpu_seconds,
        "memory_peak": run.memory,
    }


def _busy(*runs: Generated) -> bool:
    """Whether something else took the machine away from a run, so that its seconds say little."""
    shares = [run.denoise_cpu / run.denoise_seconds for run in runs]
    return min(shares) < STARVED or max(shares) / min(shares) - 1 > UNEVEN
