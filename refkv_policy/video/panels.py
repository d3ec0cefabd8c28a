"""Clips side by side with their names burnt in."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from PIL import Image, ImageDraw, ImageFont

from refkv_policy.video.clip import Frames, VideoError

STRIP, GAP, SHORTEST = 22, 4, 240
"""Pixels: height of the label strip, width of a gap, height below which panels are enlarged."""
BACKGROUND, INK = (18, 18, 18), (235, 235, 235)


def side_by_side(panels: Sequence[tuple[str, Frames]]) -> Frames:
    """One clip of labelled panels from left to right: uint8 (frames, H, W, 3).

    All panels have the same shape (frames, height, width, 3); small ones are enlarged by a whole factor, so that
    labels can be read and pixels stay pixels. Raises VideoError when shapes differ.
    """
    shapes = {frames.shape for _, frames in panels}
    if len(shapes) != 1:
        raise VideoError(f"panels of different shapes cannot stand side by side: {sorted(shapes)}")
    count, height, width, _ = shapes.pop()
    factor = max(1, -(-SHORTEST // height))
    height, width = height * factor, width * factor
    total = len(panels) * width + (len(panels) - 1) * GAP
    out = np.empty((count, height + STRIP, total, 3), np.uint8)
    out[:] = BACKGROUND
    out[:, :STRIP] = _labels([label for label, _ in panels], width, total)
    for i, (_, frames) in enumerate(panels):
        left = i * (width + GAP)
        out[:, STRIP:, left : left + width] = frames.repeat(factor, axis=1).repeat(factor, axis=2)
    return out


def _labels(texts: Sequence[str], width: int, total: int) -> Frames:
    strip = Image.new("RGB", (total, STRIP), BACKGROUND)
    draw = ImageDraw.Draw(strip)
    font = ImageFont.load_default(14)
    for i, text in enumerate(texts):
        while len(text) > 1 and draw.textlength(text, font=font) > width - 8:
            text = text[:-2] + "…"
        draw.text((i * (width + GAP) + 4, STRIP // 2), text, fill=INK, font=font, anchor="lm")
    return np.asarray(strip)
