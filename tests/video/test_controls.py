"""Controls, masks, reference images and panels."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from PIL import Image
from scipy import ndimage

from refkv_policy.video import VideoError, blank, control, read_image, read_masks, side_by_side, write_clip


def noise(frames: int = 3, height: int = 20, width: int = 26) -> np.ndarray:
    """Seeded random pictures."""
    return np.random.default_rng(0).integers(0, 256, (frames, height, width, 3), np.uint8)


def test_grey_is_luma_in_all_channels() -> None:
    """Grey agrees with Pillow's own conversion to luma within a rounding, the same in each channel."""
    frames = noise()
    grey = control(frames, "grey")
    for made, frame in zip(grey, frames, strict=True):
        assert np.abs(made[..., 0].astype(int) - np.asarray(Image.fromarray(frame).convert("L"))).max() <= 1
    assert (grey == grey[..., :1]).all()


def test_edges_use_the_sobel_filter() -> None:
    """Edges are the Sobel magnitude by scipy's filter, less 40, times 1.5, within a rounding."""
    frames = noise()
    luma = frames.astype(np.float64) @ [0.299, 0.587, 0.114]
    drawn = control(frames, "edges")
    for made, picture in zip(drawn, luma, strict=True):
        magnitude = np.hypot(*(ndimage.sobel(picture, axis=axis, mode="nearest") for axis in (0, 1)))
        assert np.abs(made[..., 0] - np.clip((magnitude - 40) * 1.5, 0, 255)).max() <= 1.01


def test_the_embedded_model_was_trained_on_these_controls() -> None:
    """Grey, edges and the blanked part of a mask are those of the training data, bit for bit."""
    from recipes.mini import controls as trained

    frames = noise()
    masks = np.where(noise() > 127, np.uint8(255), np.uint8(0))
    assert (control(frames, "grey") == trained.grey(frames)).all()
    assert (control(frames, "edges") == trained.edges(frames)).all()
    assert (blank(frames, masks) == trained.blank(frames, masks)).all()


def test_edges_are_where_the_picture_changes() -> None:
    """A bright square gives bright edges at its border, black inside and outside; a flat clip stays black."""
    frames = np.zeros((1, 40, 40, 3), np.uint8)
    frames[:, 10:30, 10:30] = 255
    drawn = control(frames, "edges")[0, ..., 0]
    assert drawn[20, 9:11].min() > 200
    assert drawn[20, 13:27].max() == 0
    assert drawn[:7].max() == 0
    assert control(np.full((2, 8, 8, 3), 77, np.uint8), "edges").max() == 0


def test_as_is_and_unknown_kind() -> None:
    """`as-is` gives the very frames; an unknown kind names the ones there are."""
    frames = noise()
    assert control(frames, "as-is") is frames
    with pytest.raises(VideoError, match="grey, edges, as-is"):
        control(frames, "depth")


def test_mask_from_an_image_and_from_a_video(tmp_path: Path) -> None:
    """An image gives the same mask for every frame, a video its own; values are 0 or 255 only."""
    picture = np.zeros((32, 32, 3), np.uint8)
    picture[:, 16:] = 250
    Image.fromarray(picture).save(tmp_path / "m.png")
    masks = read_masks(tmp_path / "m.png", 5, (32, 32))
    assert masks.shape == (5, 32, 32, 3)
    assert set(np.unique(masks)) == {0, 255}
    assert (masks[:, :, :16] == 0).all()
    assert (masks[:, :, 16:] == 255).all()

    frames = np.zeros((5, 32, 32, 3), np.uint8)
    frames[2:] = 255
    write_clip(tmp_path / "m.mp4", frames, 25)
    assert [int(m.max()) for m in read_masks(tmp_path / "m.mp4", 5, (32, 32))] == [0, 0, 255, 255, 255]


def test_a_mask_that_marks_nothing_is_refused(tmp_path: Path) -> None:
    """A black mask would make nothing: refused with what to paint."""
    Image.new("RGB", (8, 8)).save(tmp_path / "m.png")
    with pytest.raises(VideoError, match="paint what to make in white"):
        read_masks(tmp_path / "m.png", 1, (8, 8))


def test_reference_images(tmp_path: Path) -> None:
    """Transparent parts become white, EXIF turns are applied, and what is no image is a sentence."""
    Image.new("RGBA", (4, 4), (255, 0, 0, 0)).save(tmp_path / "clear.png")
    assert (read_image(tmp_path / "clear.png") == 255).all()
    turned = Image.new("RGB", (8, 4))
    exif = Image.Exif()
    exif[0x0112] = 6
    turned.save(tmp_path / "turned.jpg", exif=exif)
    assert read_image(tmp_path / "turned.jpg").shape == (8, 4, 3)
    (tmp_path / "no.png").write_text("no")
    with pytest.raises(VideoError, match="not an image"):
        read_image(tmp_path / "no.png")
    with pytest.raises(VideoError, match="does not exist"):
        read_image(tmp_path / "none.png")


def test_panels_are_enlarged_by_whole_factors_and_labelled() -> None:
    """Pixels of every panel are found unblended in the result, under a strip that carries ink."""
    left, right = noise(2, 96, 96), noise(2, 96, 96)[::-1]
    out = side_by_side([("input", left), ("planned", right)])
    factor = 3
    assert out.shape == (2, 96 * factor + 22, 2 * 96 * factor + 4, 3)
    assert (out[:, 22::factor, : 96 * factor : factor] == left).all()
    assert (out[:, 22::factor, 96 * factor + 4 :: factor] == right).all()
    assert out[0, :22].max() > 200
    with pytest.raises(VideoError, match="different shapes"):
        side_by_side([("a", left), ("b", right[:1])])
