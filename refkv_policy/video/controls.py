"""Controls: what of the input clip the model is shown."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import numpy.typing as npt

from refkv_policy.video.clip import Frames, VideoError

LUMA = np.array([0.299, 0.587, 0.114], np.float32)
"""Weights of R, G and B in luma (ITU-R BT.601)."""


def grey(frames: Frames) -> Frames:
    """The luma of each pixel in all three channels."""
    return _channels(np.floor(_luma(frames) + 0.5))


def edges(frames: Frames) -> Frames:
    """White lines on black where brightness changes: the Sobel magnitude of the luma less 40, times 1.5.

    A fixed scale, so that lines do not flicker; the one the embedded model was trained with.
    """
    luma = _luma(frames)
    return _channels(np.clip((np.hypot(_sobel(luma, axis=2), _sobel(luma, axis=1)) - 40) * 1.5, 0, 255))


def as_is(frames: Frames) -> Frames:
    """The clip itself, for one that is a control already."""
    return frames


def blank(frames: Frames, masks: Frames) -> Frames:
    """The clip with middle grey where the mask is white: what a VACE model expects where it is to paint freely."""
    return np.where(masks > 127, np.uint8(128), frames)


CONTROLS: dict[str, Callable[[Frames], Frames]] = {"grey": grey, "edges": edges, "as-is": as_is}


def control(frames: Frames, kind: str) -> Frames:
    """The control of that kind: uint8, the shape of `frames`. Raises VideoError for a kind that does not exist."""
    if kind not in CONTROLS:
        raise VideoError(f"there is no control {kind!r}; choose one of {', '.join(CONTROLS)}")
    return CONTROLS[kind](frames)


def _luma(frames: Frames) -> npt.NDArray[np.float32]:
    return np.asarray(frames.astype(np.float32) @ LUMA, np.float32)


def _channels(values: npt.NDArray[np.float32]) -> Frames:
    return np.repeat(values.astype(np.uint8)[..., None], 3, axis=-1)


def _sobel(luma: npt.NDArray[np.float32], axis: int) -> npt.NDArray[np.float32]:
    """The Sobel derivative along `axis` (1 height, 2 width) of each frame."""
    low, _, high = _neighbours(luma, axis)
    low, middle, high = _neighbours(high - low, 3 - axis)
    return low + 2 * middle + high


def _neighbours(
    values: npt.NDArray[np.float32], axis: int
) -> tuple[npt.NDArray[np.float32], npt.NDArray[np.float32], npt.NDArray[np.float32]]:
    widths = [(0, 0)] * values.ndim
    widths[axis] = (1, 1)
    padded = np.moveaxis(np.pad(values, widths, mode="edge"), axis, 0)
    low, middle, high = (np.moveaxis(part, 0, axis) for part in (padded[:-2], padded[1:-1], padded[2:]))
    return low, middle, high
