"""One request to a `WanVACEPipeline`, timed part by part. With a session attached it runs under the table, else uncached."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt
import torch

from refkv_policy.runtime.placement import Patches

if TYPE_CHECKING:
    from diffusers import WanVACEPipeline

OnStep = Callable[[], None]


@dataclass(frozen=True)
class Request:
    """What the pipeline is called with. steps: nominal. inputs: its `video`, `mask` and `reference_images` arguments."""

    prompt: str
    negative_prompt: str
    width: int
    height: int
    frames: int
    steps: int
    guidance: float
    seed: int
    text_tokens: int
    inputs: Mapping[str, Any]


@dataclass(frozen=True)
class Generated:
    """One run. frames: float32 (frames, H, W, 3) in 0..1. latents: float32 (16, T, h, w), as the denoising left them.

    Seconds: of the text encoder, the denoising loop, the VAE (encoding and decoding), the whole call.
    denoise_cpu, cpu_seconds: processor time of the loop, and of the whole call. calls: forwards of the transformer.
    memory: peak bytes allocated on the accelerator, None on a CPU.
    """

    frames: npt.NDArray[np.float32]
    latents: npt.NDArray[np.float32]
    text_seconds: float
    denoise_seconds: float
    vae_seconds: float
    total_seconds: float
    denoise_cpu: float
    cpu_seconds: float
    calls: int
    memory: int | None

    @property
    def pixels(self) -> npt.NDArray[np.uint8]:
        """The frames as they are written."""
        return np.rint(np.clip(np.nan_to_num(self.frames), 0, 1) * 255).astype(np.uint8)


def generate(
    pipe: WanVACEPipeline, request: Request, on_step: OnStep = lambda: None, pause: OnStep | None = None
) -> Generated:
    """Run the pipeline. on_step is called after each denoising step.

    The loop is timed from when the initial noise is drawn to the end of the last step, the device's queue drained at
    both; nothing is waited for in between. pause: called after each step but the last, the device's queue drained; the
    time it takes is not the run's.
    """
    device = pipe._execution_device
    if device.type == "cuda":
        torch.cuda.reset_peak_memory_stats(device)
    began, cpu = _now(device), time.process_time()
    with _watched(pipe, device) as watch:

        def end_of_step(pipe: WanVACEPipeline, index: int, _: Any, given: dict[str, Any]) -> dict[str, Any]:
            if index == pipe.num_timesteps - 1:
                watch.loop_ended, watch.cpu_ended = _now(device), time.process_time()
                watch.latents = given["latents"]
            elif pause is not None:
                since, cpu_since = _now(device), time.process_time()
                pause()
                watch.paused += time.perf_counter() - since
                watch.cpu_paused += time.process_time() - cpu_since
            on_step()
            return {}

        frames = pipe(
            prompt=request.prompt,
            negative_prompt=request.negative_prompt,
            height=request.height,
            width=request.width,
            num_frames=request.frames,
            num_inference_steps=request.steps,
            guidance_scale=request.guidance,
            generator=torch.Generator("cpu").manual_seed(request.seed),
            max_sequence_length=request.text_tokens,
            output_type="np",
            callback_on_step_end=end_of_step,
            callback_on_step_end_tensor_inputs=["latents"],
            **request.inputs,
        ).frames[0]
    ended, spent = _now(device), time.process_time() - cpu
    assert watch.latents is not None
    return Generated(
        frames=np.asarray(frames, np.float32),
        latents=watch.latents[0].float().cpu().numpy(),
        text_seconds=watch.text,
        denoise_seconds=watch.loop_ended - watch.loop_began - watch.paused,
        vae_seconds=watch.vae,
        total_seconds=ended - began - watch.paused,
        denoise_cpu=watch.cpu_ended - watch.cpu_began - watch.cpu_paused,
        cpu_seconds=spent - watch.cpu_paused,
        calls=watch.calls,
        memory=torch.cuda.max_memory_allocated(device) if device.type == "cuda" else None,
    )


@dataclass
class _Watch:
    text: float = 0.0
    vae: float = 0.0
    loop_began: float = 0.0
    loop_ended: float = 0.0
    cpu_began: float = 0.0
    cpu_ended: float = 0.0
    paused: float = 0.0
    cpu_paused: float = 0.0
    calls: int = 0
    latents: torch.Tensor | None = field(default=None, repr=False)


@contextmanager
def _watched(pipe: WanVACEPipeline, device: torch.device) -> Iterator[_Watch]:
    """Counts the transformer's calls and times text encoder, VAE and the loop's start, through wrapped methods."""
    watch, patches = _Watch(), Patches()

    def timed(method: Callable[..., Any], part: str) -> Callable[..., Any]:
        def call(*args: Any, **kwargs: Any) -> Any:
            began = _now(device)
            result = method(*args, **kwargs)
            setattr(watch, part, getattr(watch, part) + _now(device) - began)
            return result

        return call

    def prepare_latents(*args: Any, **kwargs: Any) -> Any:
        latents = drawn(*args, **kwargs)
        watch.loop_began, watch.cpu_began = _now(device), time.process_time()
        return latents

    def count(*_: Any) -> None:
        watch.calls += 1

    drawn = pipe.prepare_latents  # the last thing the pipeline does before its loop
    patches.set(pipe, "encode_prompt", timed(pipe.encode_prompt, "text"))
    patches.set(pipe.vae, "encode", timed(pipe.vae.encode, "vae"))
    patches.set(pipe.vae, "decode", timed(pipe.vae.decode, "vae"))
    patches.set(pipe, "prepare_latents", prepare_latents)
    counter = pipe.transformer.register_forward_pre_hook(count)
    try:
        yield watch
    finally:
        counter.remove()
        patches.undo()


def _now(device: torch.device) -> float:
    """The time once everything queued on the device is done."""
    if device.type == "cuda":
        torch.cuda.synchronize(device)
    return time.perf_counter()
