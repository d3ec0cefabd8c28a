"""Masks and reference images. White is to be made by the model, black is to be kept."""

from __future__ import annotations

from pathlib import Path

import numpy as np
from PIL import Image, ImageOps, UnidentifiedImageError

from refkv_policy.video.clip import Frames, VideoError, cover
from refkv_policy.video.read import read_clip

THRESHOLD = 128


def read_image(path: str | Path) -> Frames:
    """A picture, upright, uint8 (H, W, 3); transparent parts become white. Raises VideoError."""
    file = Path(path)
    if not file.is_file():
        raise VideoError(f"{path} does not exist; give the path of an image file")
    try:
        with Image.open(file) as opened:
            picture = ImageOps.exif_transpose(opened)
            if picture.has_transparency_data:
                white = Image.new("RGBA", picture.size, "white")
                picture = Image.alpha_composite(white, picture.convert("RGBA"))
            return np.asarray(picture.convert("RGB"))
    except (UnidentifiedImageError, OSError, ValueError, Image.DecompressionBombError) as error:
        raise VideoError(f"{path} is not an image that can be read; give a PNG or JPEG file") from error


def read_masks(path: str | Path, frames: int, size: tuple[int, int], *, start: int = 0, stride: int = 1) -> Frames:
    """One mask a frame, from an image (the same for all) or a video: uint8 (frames, H, W, 3), each value 0 or 255.

    Fitted like the clip it belongs to. Raises VideoError, also for a mask that marks nothing at all.
    """
    try:
        masks = np.repeat(cover(read_image(path), size)[None], frames, axis=0)
    except VideoError:
        if not Path(path).is_file():
            raise
        masks = read_clip(path, frames, size, start=start, stride=stride).frames
    marked = masks.mean(axis=-1, keepdims=True) >= THRESHOLD
    if not marked.any():
        raise VideoError(f"the mask {path} is black everywhere, so nothing would be made; paint what to make in white")
    return np.repeat(marked.astype(np.uint8) * np.uint8(255), 3, axis=-1)
