"""Metrics of a clip against its reference, against values worked out by hand."""

from __future__ import annotations

import json
from math import inf, log10

import numpy as np
import pytest

from refkv_policy.quality.metrics import (
    MeasureError,
    Video,
    compare,
    cosine,
    feature_figures,
    flicker,
    largest_difference,
    luma_correlation,
    motion,
    pixel_difference,
    psnr,
    relative_l2,
    second_half_decay,
    ssim,
)


def grey(*levels: float, side: int = 16) -> Video:
    """One frame of a single grey for each level."""
    return np.tile(np.float32(levels)[:, None, None, None], (1, side, side, 3))


def noise(frames: int = 4, side: int = 16, seed: int = 0) -> Video:
    """Seeded values in [0.2, 0.8]."""
    return np.random.default_rng(seed).uniform(0.2, 0.8, (frames, side, side, 3)).astype(np.float32)


def drifting(frames: int = 16, side: int = 32) -> Video:
    """A sine grating that moves an eighth of its wavelength a frame."""
    phase = np.arange(side)[None, :] / side * 4 * np.pi - np.arange(frames)[:, None] * np.pi / 4
    return np.broadcast_to((0.5 + 0.4 * np.sin(phase))[:, None, :, None], (frames, side, side, 3)).astype(np.float32)


class Means:
    """A feature model whose vector is the frame's mean of red, green and blue."""

    name, provenance, digest, stand_in = "means", "mean of each channel", "sha256:0", True

    def embed(self, frames: Video) -> np.ndarray:
        """(frames, 3)."""
        return frames.mean(axis=(1, 2))


def test_psnr_of_a_known_offset() -> None:
    """An offset of 0.1 is 20 dB, one of 0.01 is 40 dB; the mean is that of the squared error, not of decibels."""
    reference = grey(0.5, 0.5)
    figure = psnr(grey(0.6, 0.51), reference)
    assert figure.per_frame == pytest.approx((20, 40), abs=1e-4)
    assert (figure.worst, figure.worst_frame) == (figure.per_frame[0], 0)
    assert figure.mean == pytest.approx(-10 * log10((0.01 + 0.0001) / 2), abs=1e-4)


def test_psnr_of_equal_frames_is_infinite() -> None:
    """Equal frames have an infinite PSNR, and leave the mean finite unless every frame is equal."""
    reference = grey(0.5, 0.5)
    assert psnr(reference, reference).mean == inf
    figure = psnr(grey(0.5, 0.6), reference)
    assert figure.per_frame[0] == inf
    assert figure.mean == pytest.approx(-10 * log10(0.005), abs=1e-4)
    assert figure.worst_frame == 1


def test_ssim_of_the_same_clip_is_one() -> None:
    """A clip has an SSIM of 1 with itself in each frame."""
    assert ssim(noise(), noise()).per_frame == pytest.approx((1, 1, 1, 1), abs=1e-9)


def test_ssim_of_flat_frames() -> None:
    """Without variance only the luminance term is left: (2ab + C1) / (a² + b² + C1), with C1 = 0.01²."""
    expected = (2 * 0.25 * 0.75 + 1e-4) / (0.25**2 + 0.75**2 + 1e-4)
    assert ssim(grey(0.25), grey(0.75)).mean == pytest.approx(expected, abs=1e-6)


def test_ssim_of_one_window() -> None:
    """A frame of 11 x 11 pixels is one Gaussian window: Wang et al.'s formula written out gives the same value."""
    a, b = noise(1, 11, seed=1), noise(1, 11, seed=2)
    taps = np.exp(-(np.arange(-5, 6) ** 2) / (2 * 1.5**2))
    w = np.outer(taps, taps) / taps.sum() ** 2
    channels = []
    for c in range(3):
        x, y = a[0, ..., c].astype(float), b[0, ..., c].astype(float)
        mx, my = (w * x).sum(), (w * y).sum()
        vx, vy, xy = (w * x * x).sum() - mx**2, (w * y * y).sum() - my**2, (w * x * y).sum() - mx * my
        channels.append((2 * mx * my + 1e-4) * (2 * xy + 9e-4) / ((mx**2 + my**2 + 1e-4) * (vx + vy + 9e-4)))
    assert ssim(a, b).mean == pytest.approx(np.mean(channels), abs=1e-6)


def test_pixel_difference_by_frame() -> None:
    """Mean and largest absolute difference are found frame by frame, with the worst frame named."""
    reference = grey(0.5, 0.5, 0.5)
    candidate = reference.copy()
    candidate[1] += np.float32(0.1)
    candidate[2, 0, 0, 0] = 1.0
    figure = pixel_difference(candidate, reference)
    assert figure.per_frame == pytest.approx((0, 0.1, 0.5 / (16 * 16 * 3)), abs=1e-6)
    assert figure.mean == pytest.approx((0.1 + 0.5 / 768) / 3, abs=1e-6)
    assert figure.worst_frame == 1
    largest = largest_difference(candidate, reference)
    assert largest.per_frame == pytest.approx((0, 0.1, 0.5), abs=1e-6)
    assert (largest.per_frame[0], largest.worst_frame) == (0.0, 2)


def test_luma_correlation_sees_structure() -> None:
    """Brightness and contrast do not count, an inverted frame gives -1, unrelated noise about 0."""
    reference = noise()
    assert luma_correlation(reference * np.float32(0.5) + np.float32(0.1), reference).worst == pytest.approx(
        1, abs=1e-5
    )
    assert luma_correlation(1 - reference, reference).mean == pytest.approx(-1, abs=1e-5)
    assert abs(luma_correlation(noise(seed=9), reference).mean) < 0.1


def test_luma_weighs_channels() -> None:
    """With red and green opposed and independent patterns, the correlation is that of their BT.709 weighted sums."""
    a, b = noise(1, seed=1), noise(1, seed=2)
    weights = np.array([0.2125, 0.7154, 0.0721])
    expected = np.corrcoef((a[0] @ weights).ravel(), (b[0] @ weights).ravel())[0, 1]
    assert luma_correlation(a, b).mean == pytest.approx(expected, abs=1e-6)


def test_luma_of_a_flat_frame() -> None:
    """A flat frame correlates with a flat one only."""
    flat = grey(0.3, 0.3, 0.3, 0.3)
    assert luma_correlation(flat, grey(0.7, 0.7, 0.7, 0.7)).per_frame == (1, 1, 1, 1)
    assert luma_correlation(flat, noise()).per_frame == (0, 0, 0, 0)


def test_flicker_of_an_alternating_clip() -> None:
    """An error of ±0.1 that alternates flickers by 0.2 between all neighbours, over a moving reference as well."""
    sign = np.float32([0.1, -0.1, 0.1, -0.1])[:, None, None, None]
    for reference in (grey(0.5, 0.5, 0.5, 0.5), noise()):
        assert flicker(reference + sign, reference).per_frame == pytest.approx((0.2, 0.2, 0.2), abs=1e-6)


def test_flicker_ignores_what_stays() -> None:
    """A constant error does not flicker, and one jump flickers once, by its height."""
    reference = noise()
    assert flicker(reference + np.float32(0.1), reference).mean == pytest.approx(0, abs=1e-6)
    jump = reference.copy()
    jump[2:] += np.float32(0.1)
    figure = flicker(jump, reference)
    assert figure.per_frame == pytest.approx((0, 0.1, 0), abs=1e-6)
    assert figure.worst_frame == 1


def test_motion_by_hand() -> None:
    """Steps of 0.1 against steps of 0.2: a quarter of the energy, and 2 · 0.1 · 0.2 / (0.1² + 0.2²) of a match."""
    result = motion(grey(0.1, 0.2, 0.3), grey(0.1, 0.3, 0.5))
    assert result.candidate == pytest.approx((0.01, 0.01), abs=1e-6)
    assert result.reference == pytest.approx((0.04, 0.04), abs=1e-6)
    assert result.ratio == pytest.approx(0.25, abs=1e-5)
    assert result.match == pytest.approx(0.8, abs=1e-5)


def test_a_frozen_clip_does_not_move() -> None:
    """The reference's best single frame, held, has no motion and no match, whatever its other metrics say."""
    reference = drifting()
    result = motion(np.repeat(reference[:1], len(reference), axis=0), reference)
    assert (result.ratio, result.match) == (0, 0)
    same = motion(reference, reference)
    assert (same.ratio, same.match) == (1, 1)


def test_a_shuffled_clip_does_not_match() -> None:
    """Shuffled frames move more than the reference, so the ratio alone would pass them; the match does not."""
    reference = drifting()
    order = np.random.default_rng(0).permutation(len(reference))
    result = motion(reference[order], reference)
    assert result.ratio is not None
    assert result.ratio > 1.5
    assert result.match is not None
    assert result.match < 0.3


def test_motion_of_a_still_reference_is_not_stated() -> None:
    """Where the reference moves by less than 8 bits show, there is no ratio and no match."""
    reference = grey(0.5, 0.5, 0.5)
    reference[1] += np.float32(0.001)
    result = motion(drifting(3, 16), reference)
    assert (result.ratio, result.match) == (None, None)


def test_relative_l2_by_hand() -> None:
    """‖(0, 5) − (3, 4)‖ / ‖(3, 4)‖ is √10 / 5, in any shape."""
    assert relative_l2([0, 5], [3, 4]) == pytest.approx(10**0.5 / 5)
    assert relative_l2(np.zeros((1, 16, 2, 3)), np.ones((1, 16, 2, 3))) == 1


def test_relative_l2_needs_a_reference() -> None:
    """A reference of zeros, one that is not finite and one of another shape are refused in a sentence."""
    for bad in ([0.0, 0.0], [np.nan, 1.0], [1.0, 2.0, 3.0]):
        with pytest.raises(MeasureError):
            relative_l2([1.0, 1.0], bad)


def test_cosine_by_hand() -> None:
    """Parallel rows give 1, perpendicular 0, (1, 0) with (1, 1) gives √½."""
    values = cosine([[2, 0], [1, 0], [1, 0]], [[5, 0], [0, 3], [1, 1]])
    assert values == pytest.approx((1, 0, 0.5**0.5))


def test_cosine_needs_directions() -> None:
    """A zero row, a row that is not finite and rows of different frames are refused in a sentence."""
    for bad in ([[0.0, 0.0]], [[np.inf, 0.0]], [[1.0, 0.0], [1.0, 0.0]]):
        with pytest.raises(MeasureError):
            cosine([[1.0, 0.0]], bad)


def test_decay_is_the_slope_of_the_second_half() -> None:
    """A drop that climbs 0.7 points a second in the second half decays by 0.7, whatever the first half was."""
    fps = 8.0
    for first in (3.0, 90.0):
        drop = [first] * 40 + [3.0 + 0.7 * i / fps for i in range(40)]
        decay = second_half_decay(drop, fps)
        assert decay.slope == pytest.approx(0.7)
        assert (decay.seconds, decay.not_measured) == (10.0, None)


def test_decay_is_a_least_squares_slope() -> None:
    """Over late drops 0, 0, 3, 3 at one frame a second, Σ(t − 1.5)·y / Σ(t − 1.5)² is 6 / 5; improving is negative."""
    assert second_half_decay([9.0] * 4 + [0.0, 0.0, 3.0, 3.0], 1.0).slope == pytest.approx(1.2)
    assert second_half_decay([9.0] * 4 + [3.0, 3.0, 0.0, 0.0], 1.0).slope == pytest.approx(-1.2)


def test_decay_needs_five_seconds() -> None:
    """81 frames at Wan2.1's 16 a second are measured; 79, and a clip of unknown rate, are not, and say why."""
    assert second_half_decay([1.0] * 81, 16.0).slope == pytest.approx(0)
    short = second_half_decay([1.0] * 79, 16.0)
    assert (short.slope, short.seconds) == (None, 79 / 16)
    assert short.not_measured == "the clip lasts 4.94 s; decay is measured from 5 s on"
    assert second_half_decay([1.0] * 81, None).not_measured == "the frame rate is not known"
    with pytest.raises(MeasureError):
        second_half_decay([1.0] * 81, 0.0)


def test_feature_drop_is_in_percent() -> None:
    """Features (1, 0, 0) against (1, 1, 0) are √½ alike, a drop of 29.3 %; equal frames drop by 0."""
    candidate, reference = np.zeros((2, 2, 16, 16, 3), np.float32)
    candidate[..., 0], reference[..., 0] = 1, 1
    reference[1, ..., 1] = 1
    figures = feature_figures(Means(), candidate, reference, None)
    assert figures.drop.per_frame == pytest.approx((0, 100 * (1 - 0.5**0.5)), abs=1e-5)
    assert figures.drop.mean == pytest.approx(14.6447, abs=1e-3)
    assert (figures.drop.worst_frame, figures.similarity.worst) == (1, pytest.approx(0.5**0.5))
    assert (figures.model, figures.stand_in, figures.digest) == ("means", True, "sha256:0")


def test_compare_takes_every_metric() -> None:
    """A comparison holds what the single functions give, its decay in terms of the clip's own frame rate."""
    reference = noise(12)
    candidate = np.clip(reference + noise(12, seed=5) * np.float32(0.1), 0, 1)
    result = compare(candidate, reference, [Means()], fps=2.0, latents=([0.0, 5.0], [3.0, 4.0]))
    assert (result.frames, result.fps) == (12, 2.0)
    assert result.psnr == psnr(candidate, reference)
    assert result.ssim == ssim(candidate, reference)
    assert result.pixel == pixel_difference(candidate, reference)
    assert result.largest == largest_difference(candidate, reference)
    assert result.luma == luma_correlation(candidate, reference)
    assert result.flicker == flicker(candidate, reference)
    assert result.motion == motion(candidate, reference)
    assert result.latent_l2 == pytest.approx(10**0.5 / 5)
    assert result.features == (feature_figures(Means(), candidate, reference, 2.0),)
    assert result.features[0].decay.slope is not None


def test_compare_of_a_clip_with_itself() -> None:
    """The uncached run against itself is the perfect score everywhere, and goes into strict JSON."""
    result = compare(noise(), noise(), [Means()])
    assert (result.pixel.worst, result.largest.worst, result.features[0].drop.worst) == (0, 0, 0)
    assert (result.motion.ratio, result.motion.match, result.latent_l2) == (1, 1, None)
    document = json.loads(json.dumps(result.to_json(), allow_nan=False))
    assert document["psnr"]["per_frame"] == [None] * 4
    assert document["features"][0]["decay"]["not_measured"] == "the frame rate is not known"


def test_compare_of_one_frame() -> None:
    """A single picture has no flicker and no motion, and all other metrics."""
    result = compare(noise(1), noise(1, seed=2))
    assert (result.flicker, result.motion.ratio, result.motion.candidate) == (None, None, ())
    with pytest.raises(MeasureError):
        flicker(noise(1), noise(1))


def test_metrics_leave_the_clips_alone() -> None:
    """Neither clip is written to."""
    candidate, reference = noise(), noise(seed=3)
    for clip in (candidate, reference):
        clip.flags.writeable = False
    compare(candidate, reference, [Means()])


@pytest.mark.parametrize(
    ("clip", "says"),
    [
        ((noise() * 255).astype(np.uint8), "not uint8 (4, 16, 16, 3)"),
        (noise().astype(np.float64), "not float64"),
        (noise()[0], "not float32 (16, 16, 3)"),
        (noise().transpose(0, 3, 1, 2), "not float32 (4, 3, 16, 16)"),
        (noise().tolist(), "not list"),
        (noise() * 255, "divide by 255"),
        (noise() - 1, "outside [0, 1]"),
        (np.full_like(noise(), np.nan), "not finite"),
        (noise()[:0], "the least"),
        (noise(side=10), "the least"),
        (noise(3), "the shapes differ"),
    ],
)
def test_what_is_not_a_clip_is_refused(clip: Video, says: str) -> None:
    """Another dtype, layout, range, size or frame count is refused with what was found and what to do."""
    for function in (compare, psnr, flicker, motion):
        with pytest.raises(MeasureError) as error:
            function(clip, noise())
        assert says in str(error.value)
