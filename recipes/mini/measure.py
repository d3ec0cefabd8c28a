"""The measurements behind the model card: each takes the pipeline and returns plain numbers."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
from diffusers import WanVACEPipeline
from PIL import Image

from recipes.mini.controls import grey, luma
from recipes.mini.data import Clip
from recipes.mini.scenes import LUMA, object_mask, tone
from refkv_policy.mini.architecture import MAX_SEQUENCE_LENGTH, SIZE
from refkv_policy.mini.vocabulary import COLOURS

STEPS = 30
GUIDANCE = 3.0


@dataclass(frozen=True)
class Request:
    """One generation: control uint8 (T, H, W, 3), prompt, and what the pipeline is called with."""

    control: np.ndarray
    prompt: str
    seed: int = 0
    steps: int = STEPS
    guidance: float = GUIDANCE
    scale: float = 1.0


def generate(pipe: WanVACEPipeline, request: Request) -> np.ndarray:
    """The sampled clip: float32 (T, H, W, 3) in 0..1."""
    result = pipe(
        video=[Image.fromarray(f) for f in request.control],
        prompt=request.prompt,
        height=SIZE,
        width=SIZE,
        num_frames=len(request.control),
        num_inference_steps=request.steps,
        guidance_scale=request.guidance,
        conditioning_scale=request.scale,
        max_sequence_length=MAX_SEQUENCE_LENGTH,
        generator=torch.Generator().manual_seed(request.seed),
    )
    return np.asarray(result.frames[0], dtype=np.float32)


def grey_request(clip: Clip, seed: int = 0, **changes: Any) -> Request:
    """The clip's grey version as control and its caption as prompt."""
    return replace(Request(grey(clip.frames), clip.caption, seed), **changes)


def luma_correlation(video: np.ndarray, control: np.ndarray) -> float:
    """Pearson correlation of brightness over all pixels and frames of a clip with a control."""
    return float(np.corrcoef((video @ LUMA).ravel(), luma(control).ravel())[0, 1])


def nearest_colour(video: np.ndarray, clip: Clip) -> str:
    """The palette colour nearest to the object's mean colour, each palette colour taken at the object's brightness.

    Brightness comes from the control whatever the prompt says, so hue and saturation are what is compared.
    """
    assert clip.scene is not None
    thing = clip.scene.things[0]
    total, weight = np.zeros(3), 0.0
    for t in range(len(video)):
        inside = object_mask(thing, t, *video.shape[1:3]) > 0.99
        total += video[t][inside].sum(0)
        weight += float(inside.sum())
    mean = total / max(weight, 1.0)
    level = float(np.clip(mean @ LUMA, 0.1, 0.9))
    return min(COLOURS, key=lambda name: float(np.square(tone(name, level) - mean).sum()))


def swapped(caption: str, old: str, new: str) -> str:
    """The caption with the colour word replaced, all other words kept."""
    return " ".join(new if word == old else word for word in caption.split(" "))


def burnt(video: np.ndarray) -> float:
    """Share of channel values at either end of the range (below 2/255 or above 253/255)."""
    return float(((video < 2 / 255) | (video > 253 / 255)).mean())


class HintRecorder:
    """Keeps every VACE block's hint of every call to the transformer, through forward hooks."""

    def __init__(self, pipe: WanVACEPipeline) -> None:
        self.calls: list[list[torch.Tensor]] = []
        self._handles = []
        for i, block in enumerate(pipe.transformer.vace_blocks):
            self._handles.append(block.register_forward_hook(self._hook(i)))

    def _hook(self, layer: int) -> Any:
        def keep(module: Any, args: Any, output: tuple[torch.Tensor, torch.Tensor]) -> None:
            if layer == 0:
                self.calls.append([])
            self.calls[-1].append(output[0].detach().clone())

        return keep

    def close(self) -> None:
        """Remove the hooks."""
        for handle in self._handles:
            handle.remove()


def hint_drift(pipe: WanVACEPipeline, request: Request) -> np.ndarray:
    """‖hint(step) − hint(0)‖ / ‖hint(0)‖ of the conditional branch: float64 (steps, layers)."""
    recorder = HintRecorder(pipe)
    try:
        generate(pipe, request)
    finally:
        recorder.close()
    calls = recorder.calls[:: 2 if request.guidance > 1 else 1]
    first = calls[0]
    return np.array([[float((h - f).norm() / f.norm()) for h, f in zip(call, first, strict=True)] for call in calls])
