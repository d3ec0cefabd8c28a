"""What the pipeline is given of clip, control and mask."""

from __future__ import annotations

from pathlib import Path

import numpy as np
from PIL import Image

from refkv_policy.cli.inputs import read_inputs
from refkv_policy.plan import Shape
from refkv_policy.video import control, shipped_clip


def test_mask_keeps_black_and_paints_white(tmp_path: Path) -> None:
    """Where the mask is black the clip itself is shown; where white, middle grey, or the control where one is asked for."""
    halves = np.zeros((32, 32, 3), np.uint8)
    halves[:, 16:] = 255
    Image.fromarray(halves).save(tmp_path / "mask.png")
    shape = Shape(32, 32, 5)
    plain = read_inputs(str(shipped_clip()), shape, kind=None, mask=None, references=())
    assert (plain.shown == control(plain.clip.frames, "grey")).all()
    assert "mask" not in plain.arguments()
    for kind in (None, "edges"):
        made = read_inputs(str(shipped_clip()), shape, kind=kind, mask=str(tmp_path / "mask.png"), references=())
        assert (made.shown[:, :, :16] == made.clip.frames[:, :, :16]).all()
        painted = 128 if kind is None else control(made.clip.frames, kind)[:, :, 16:]
        assert (made.shown[:, :, 16:] == painted).all()
        assert len(made.arguments()["mask"]) == 5
