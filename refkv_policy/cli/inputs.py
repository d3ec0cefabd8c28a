"""What the pipeline is given: the clip, its control, masks and reference images, all at the request's size."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from PIL import Image

from refkv_policy.plan.model import Shape
from refkv_policy.video import Clip, control, read_clip, read_image, read_masks
from refkv_policy.video.clip import Frames


@dataclass(frozen=True)
class Inputs:
    """clip: the input as read. shown: what the model is shown, the control of it. masks: white is to be made."""

    clip: Clip
    shown: Frames
    masks: Frames | None
    references: tuple[Frames, ...]

    def arguments(self) -> dict[str, Any]:
        """The keyword arguments of `WanVACEPipeline.__call__`."""
        given: dict[str, Any] = {"video": [Image.fromarray(f) for f in self.shown]}
        if self.masks is not None:
            given["mask"] = [Image.fromarray(f) for f in self.masks]
        if self.references:
            given["reference_images"] = [Image.fromarray(f) for f in self.references]
        return given


def read_inputs(
    video: str,
    shape: Shape,
    *,
    kind: str,
    mask: str | None,
    references: Sequence[str],
    start: int = 0,
    stride: int = 1,
    factor: int = 4,
) -> Inputs:
    """Read and fit every input. Where a mask is given, the control stands in its white parts and the clip elsewhere.

    Raises VideoError.
    """
    size = (shape.width, shape.height)
    clip = read_clip(video, shape.frames, size, start=start, stride=stride, factor=factor)
    shown = control(clip.frames, kind)
    masks = None
    if mask is not None:
        masks = read_masks(mask, shape.frames, size, start=start, stride=stride)
        shown = np.where(masks > 0, shown, clip.frames)
    return Inputs(clip, shown, masks, tuple(read_image(r) for r in references))
