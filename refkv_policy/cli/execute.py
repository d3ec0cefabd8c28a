"""Running a job's pipeline, with and without the plan, and how far apart the two outputs are."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from refkv_policy.cli.job import Job
from refkv_policy.runtime.generate import Generated, OnStep, Request
from refkv_policy.runtime.generate import generate as run_request

if TYPE_CHECKING:
    from diffusers import WanVACEPipeline

__all__ = ["Difference", "Generated", "difference", "generate"]


def generate(pipe: WanVACEPipeline, job: Job, on_step: OnStep, *, steps: int | None = None) -> Generated:
    """Run the pipeline for a job. on_step is called after each denoising step; `steps` replaces the job's step count."""
    assert job.inputs is not None
    request = Request(
        prompt=job.prompt,
        negative_prompt=job.negative_prompt,
        width=job.shape.width,
        height=job.shape.height,
        frames=job.shape.frames,
        steps=steps or job.table.steps,
        guidance=job.guidance,
        seed=job.seed,
        text_tokens=job.text_tokens,
        inputs=job.inputs.arguments(),
    )
    return run_request(pipe, request, on_step)


@dataclass(frozen=True)
class Difference:
    """Planned against uncached pixels, as a share of the full range: mean over all, worst frame's mean, largest of one."""

    mean: float
    worst_frame: float
    largest: float


def difference(planned: Generated, uncached: Generated) -> Difference:
    """Absolute pixel difference of two runs of one job."""
    each = np.abs(planned.frames.astype(np.float64) - uncached.frames)
    return Difference(float(each.mean()), float(each.mean(axis=(1, 2, 3)).max()), float(each.max()))
