"""Training data: the same for ever, honest captions, and nothing of the test set in it."""

from __future__ import annotations

import numpy as np
import pytest

from recipes.mini import controls, data, measure, scenes
from refkv_policy.mini.vocabulary import COLOURS, HELD_OUT_PAIRS


def test_the_same_seed_gives_the_same_clip() -> None:
    """A clip depends on its seed alone."""
    for seed in range(6):
        one, two = data.training_clip(seed, 5, 32), data.training_clip(seed, 5, 32)
        assert one.caption == two.caption
        assert np.array_equal(one.frames, two.frames)


def test_no_training_scene_shows_a_held_out_pair() -> None:
    """Random scenes without a wished-for pair avoid every held-out one."""
    for seed in range(400):
        scene = scenes.random_scene(np.random.default_rng(seed))
        assert not {(thing.shape, thing.colour) for thing in scene.things} & HELD_OUT_PAIRS


def test_training_footage_ends_before_the_held_out_frames(monkeypatch: pytest.MonkeyPatch) -> None:
    """Footage whose pixels are their frame's number tells which frames a clip was cut from."""
    lengths = {"bigbuckbunny": data.BUNNY_FRAMES, "bikes": 250}
    numbered = {
        name: np.broadcast_to(np.arange(n, dtype=np.uint8)[:, None, None, None], (n, 16, 24, 3))
        for name, n in lengths.items()
    }
    monkeypatch.setattr(data, "video", lambda name: numbered[name])
    first, last = data.BIKES_CUTS[data.BIKES_HELD_OUT], data.BIKES_CUTS[data.BIKES_HELD_OUT + 1]
    for seed in range(150):
        clip = data.training_clip(seed, 9, 16, synthetic=0.0)
        if clip.source == "bigbuckbunny":
            assert clip.frames.max() < data.BUNNY_TRAIN_END
        elif clip.source.startswith("bikes"):
            assert clip.frames.max() < first or clip.frames.min() >= last
        else:
            assert clip.source not in data.HELD_OUT_PHOTOGRAPHS


def test_held_out_captions_are_of_held_out_pairs() -> None:
    """The synthetic test clips show and name the held-out pairs."""
    for clip in data.held_out_scenes(8, 1, 32):
        assert clip.scene is not None
        thing = clip.scene.things[0]
        assert (thing.shape, thing.colour) in HELD_OUT_PAIRS
        assert f"{thing.colour} {thing.shape}" in clip.caption


@pytest.mark.parametrize("colour", COLOURS)
def test_a_caption_names_the_colour_that_is_seen(colour: str) -> None:
    """The measure used on samples finds the caption's colour in the rendered clip itself."""
    for seed in range(12):
        scene = scenes.random_scene(np.random.default_rng(seed), pair=("circle", colour))
        clip = data.Clip(scenes.render(scene, 3, 64, 64), scene.caption, "scene", scene)
        assert measure.nearest_colour(clip.frames / 255.0, clip) == colour
        assert colour in clip.caption.split()
        assert f"{scene.background} background" in clip.caption


def test_brightness_is_kept_by_tone_whatever_the_colour() -> None:
    """Luma is what was asked for, to rounding, for each palette colour."""
    for colour in COLOURS:
        for level in (0.2, 0.5, 0.8):
            assert float(scenes.tone(colour, level) @ scenes.LUMA) == pytest.approx(level, abs=1e-5)


def test_grey_control_is_the_luma_in_three_equal_channels() -> None:
    """The grey control is Rec. 601 luma, rounded."""
    clip = data.training_clip(1, 2, 32)
    control = controls.grey(clip.frames)
    assert np.array_equal(control[..., 0], control[..., 2])
    assert np.abs(control[..., 0] - controls.luma(clip.frames)).max() <= 0.51


def test_swapping_a_colour_word_leaves_other_words() -> None:
    """Only whole words equal to the old colour change."""
    assert measure.swapped("a red circle on a blue background", "red", "cyan") == "a cyan circle on a blue background"
