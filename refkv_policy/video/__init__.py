"""Video in and out: clips read at the model's size, controls and masks made from them, results written whole.

Needs numpy, PyAV and Pillow; no torch. Every frame array is uint8 RGB of shape (frames, height, width, 3).
"""

from __future__ import annotations

from refkv_policy.video.clip import Clip, VideoError, cover, whole_frames
from refkv_policy.video.controls import CONTROLS, blank, control
from refkv_policy.video.masks import read_image, read_masks
from refkv_policy.video.panels import side_by_side
from refkv_policy.video.read import read_clip
from refkv_policy.video.shipped import SHIPPED_CREDIT, SHIPPED_PROMPT, shipped_clip
from refkv_policy.video.write import write_clip

__all__ = [
    "CONTROLS",
    "SHIPPED_CREDIT",
    "SHIPPED_PROMPT",
    "Clip",
    "VideoError",
    "blank",
    "control",
    "cover",
    "read_clip",
    "read_image",
    "read_masks",
    "shipped_clip",
    "side_by_side",
    "whole_frames",
    "write_clip",
]
