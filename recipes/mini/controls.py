"""Control videos made from clips: grey, drawn edges, and a masked rectangle to be painted in. NumPy only."""

from __future__ import annotations

import numpy as np

from recipes.mini.scenes import LUMA

KINDS = ("grey", "edges", "inpaint")


def luma(frames: np.ndarray) -> np.ndarray:
    """Rec. 601 luma of uint8 (…, 3): float32 (…) in 0..255."""
    return frames.astype(np.float32) @ LUMA


def grey(frames: np.ndarray) -> np.ndarray:
    """The clip without its colours: uint8 (T, H, W, 3), three equal channels."""
    level = (luma(frames) + 0.5).astype(np.uint8)
    return np.repeat(level[..., None], 3, axis=-1)


def edges(frames: np.ndarray) -> np.ndarray:
    """Bright lines where brightness changes, on black (Sobel magnitude, soft threshold): uint8 (T, H, W, 3)."""
    y = np.pad(luma(frames), ((0, 0), (1, 1), (1, 1)), mode="edge")
    gx = y[:, :-2, 2:] + 2 * y[:, 1:-1, 2:] + y[:, 2:, 2:] - y[:, :-2, :-2] - 2 * y[:, 1:-1, :-2] - y[:, 2:, :-2]
    gy = y[:, 2:, :-2] + 2 * y[:, 2:, 1:-1] + y[:, 2:, 2:] - y[:, :-2, :-2] - 2 * y[:, :-2, 1:-1] - y[:, :-2, 2:]
    line = np.clip((np.hypot(gx, gy) - 40.0) * 1.5, 0, 255).astype(np.uint8)
    return np.repeat(line[..., None], 3, axis=-1)


def rectangle(rng: np.random.Generator, frames: int, height: int, width: int) -> np.ndarray:
    """A mask of one still rectangle, 255 where the model is to paint: uint8 (T, H, W, 3)."""
    h, w = (int(s * rng.uniform(0.4, 0.75)) for s in (height, width))
    y, x = (int(rng.integers(0, s - k + 1)) for s, k in ((height, h), (width, w)))
    mask = np.zeros((frames, height, width, 3), dtype=np.uint8)
    mask[:, y : y + h, x : x + w] = 255
    return mask


def blank(frames: np.ndarray, mask: np.ndarray) -> np.ndarray:
    """The clip with middle grey where the mask is set, as VACE expects what it is to paint: uint8 (T, H, W, 3)."""
    return np.where(mask > 127, np.uint8(128), frames)
