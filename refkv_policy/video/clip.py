"""What a clip is, and how a picture of any size and any frame count is made to fit the model's."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
from PIL import Image

from refkv_policy.plan.diagnostic import RefkvError

Frames = npt.NDArray[np.uint8]


class VideoError(RefkvError):
    """A video, image or mask that cannot be used; says which and what to do."""


@dataclass(frozen=True)
class Clip:
    """Frames ready for the model: uint8 (frames, height, width, 3), with the rate they play at.

    notes: one sentence for each change that was made to fit: cropping, rounding, turning, a guessed rate.
    """

    frames: Frames
    fps: float
    source: str
    notes: tuple[str, ...] = ()


def whole_frames(count: int, factor: int = 4) -> int:
    """The largest `factor`·n + 1 that is not above `count`: what a causal VAE of that temporal factor can hold.

    Raises VideoError below 1.
    """
    if count < 1:
        raise VideoError(f"{count} frames were asked for; ask for at least 1")
    return (count - 1) // factor * factor + 1


def cover(picture: Frames, size: tuple[int, int], pixel_aspect: float = 1.0) -> Frames:
    """`picture` (H, W, 3) scaled to cover `size` (width, height) and cropped to it in the centre.

    pixel_aspect is width over height of one pixel of the source.
    """
    height, width = picture.shape[:2]
    scale = max(size[0] / (width * pixel_aspect), size[1] / height)
    box_width, box_height = size[0] / (scale * pixel_aspect), size[1] / scale
    left, top = (width - box_width) / 2, (height - box_height) / 2
    box = (max(left, 0.0), max(top, 0.0), min(left + box_width, width), min(top + box_height, height))
    return np.asarray(Image.fromarray(picture).resize(size, Image.Resampling.BICUBIC, box=box))
