"""What the pipeline is given: the clip, its control, masks and reference images, all at the request's size."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from PIL import Image

from refkv_policy.plan.model import Shape
from refkv_policy.video import Clip, blank, control, read_clip, read_image, read_masks
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
    kind: str | None,
    mask: str | None,
    references: Sequence[str],
    start: int = 0,
    stride: int = 1,
    factor: int = 4,
) -> Inputs:
    """Read and fit every input.

    kind: of the control; grey where it is None. With a mask, the clip itself stands in its black parts, and in its
    white ones the control, or nothing (middle grey) where no kind is asked for. Raises VideoError.
    """
    size = (shape.width, shape.height)
    clip = read_clip(video, shape.frames, size, start=start, stride=stride, factor=factor)
    if mask is None:
        shown, masks = control(clip.frames, kind or "grey"), None
    else:
        masks = read_masks(mask, shape.frames, size, start=start, stride=stride)
        painted = control(clip.frames, kind) if kind else blank(clip.frames, masks)
        shown = np.where(masks > 127, painted, clip.frames)
    return Inputs(clip, shown, masks, tuple(read_image(r) for r in references))
