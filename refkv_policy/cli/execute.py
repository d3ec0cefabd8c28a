"""Running the pipeline, with and without the plan, and timing its denoising."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt
import torch

from refkv_policy.cli.job import Job

if TYPE_CHECKING:
    from diffusers import WanVACEPipeline

OnStep = Callable[[], None]


@dataclass(frozen=True)
class Generated:
    """One run. frames: float32 (frames, H, W, 3) in 0..1. Seconds: of the denoising loop, and of the whole call.

    memory: peak bytes allocated on the accelerator, None on a CPU. cpu_seconds: processor time of the whole call.
    """

    frames: npt.NDArray[np.float32]
    denoise_seconds: float
    total_seconds: float
    cpu_seconds: float
    memory: int | None

    @property
    def pixels(self) -> npt.NDArray[np.uint8]:
        """The frames as they are written."""
        return np.rint(np.clip(np.nan_to_num(self.frames), 0, 1) * 255).astype(np.uint8)

    @property
    def share_of_machine(self) -> float:
        """Processor seconds a second: on a CPU, less than in another run means that something else was running."""
        return self.cpu_seconds / self.total_seconds


def generate(pipe: WanVACEPipeline, job: Job, on_step: OnStep, *, steps: int | None = None) -> Generated:
    """Run the pipeline for a job. on_step is called after each denoising step; `steps` replaces the job's step count."""
    assert job.inputs is not None
    device = pipe._execution_device
    if device.type == "cuda":
        torch.cuda.reset_peak_memory_stats(device)
    began, cpu = _now(device), time.process_time()
    with _loop_start(pipe, device) as loop:

        def end_of_step(*_: Any) -> dict[str, Any]:
            loop.last = _now(device)
            on_step()
            return {}

        frames = pipe(
            prompt=job.prompt,
            negative_prompt=job.negative_prompt,
            height=job.shape.height,
            width=job.shape.width,
            num_frames=job.shape.frames,
            num_inference_steps=steps or job.table.steps,
            guidance_scale=job.guidance,
            generator=torch.Generator("cpu").manual_seed(job.seed),
            max_sequence_length=job.text_tokens,
            output_type="np",
            callback_on_step_end=end_of_step,
            callback_on_step_end_tensor_inputs=[],
            **job.inputs.arguments(),
        ).frames[0]
    ended = _now(device)
    memory = torch.cuda.max_memory_allocated(device) if device.type == "cuda" else None
    spent = time.process_time() - cpu
    return Generated(np.asarray(frames, np.float32), loop.last - loop.first, ended - began, spent, memory)


@dataclass
class _Loop:
    first: float = 0.0
    last: float = 0.0


@contextmanager
def _loop_start(pipe: WanVACEPipeline, device: torch.device) -> Iterator[_Loop]:
    """Notes when the denoising loop begins: right after the pipeline has drawn its latents."""
    loop, prepare = _Loop(), pipe.prepare_latents

    def prepare_latents(*args: Any, **kwargs: Any) -> torch.Tensor:
        latents: torch.Tensor = prepare(*args, **kwargs)
        loop.first = loop.last = _now(device)
        return latents

    pipe.prepare_latents = prepare_latents
    try:
        yield loop
    finally:
        del pipe.prepare_latents


def _now(device: torch.device) -> float:
    """The time once everything queued on the device is done."""
    if device.type == "cuda":
        torch.cuda.synchronize(device)
    return time.perf_counter()


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
