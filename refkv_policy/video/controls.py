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
    return np.repeat(np.rint(_luma(frames)).astype(np.uint8)[..., None], 3, axis=-1)


def edges(frames: Frames) -> Frames:
    """White edges on black: the Sobel gradient's magnitude of the smoothed luma, its 99th percentile at full white.

    The scale is one for the whole clip, so that edges do not flicker, and a clip without any stays black.
    """
    luma = _smooth(_luma(frames))
    along, across = _sobel(luma, axis=2), _sobel(luma, axis=1)
    magnitude = np.hypot(along, across)
    full = max(float(np.percentile(magnitude, 99)), 8.0)
    return np.repeat(np.clip(magnitude * (255 / full), 0, 255).astype(np.uint8)[..., None], 3, axis=-1)


def as_is(frames: Frames) -> Frames:
    """The clip itself, for one that is a control already."""
    return frames


CONTROLS: dict[str, Callable[[Frames], Frames]] = {"grey": grey, "edges": edges, "as-is": as_is}


def control(frames: Frames, kind: str) -> Frames:
    """The control of that kind: uint8, the shape of `frames`. Raises VideoError for a kind that does not exist."""
    if kind not in CONTROLS:
        raise VideoError(f"there is no control {kind!r}; choose one of {', '.join(CONTROLS)}")
    return CONTROLS[kind](frames)


def _luma(frames: Frames) -> npt.NDArray[np.float32]:
    return np.asarray(frames.astype(np.float32) @ LUMA, np.float32)


def _smooth(luma: npt.NDArray[np.float32]) -> npt.NDArray[np.float32]:
    """A 3 × 3 binomial filter over height and width, edges repeated."""
    for axis in (1, 2):
        low, middle, high = _neighbours(luma, axis)
        luma = np.asarray((low + 2 * middle + high) / 4, np.float32)
    return luma


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
