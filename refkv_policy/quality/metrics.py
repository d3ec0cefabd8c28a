"""How far a clip is from a reference made from the same seed and input: the plan's output against the uncached run's.

A video is float32 (frames, height, width, 3), RGB in [0, 1], at least 11 pixels high and wide; both have one shape.
Sums are taken in float64. A clip that cannot be measured raises MeasureError. Needs no torch.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from math import isfinite
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt
from skimage.color import rgb2gray
from skimage.metrics import peak_signal_noise_ratio, structural_similarity

from refkv_policy.plan.diagnostic import RefkvError

Video = npt.NDArray[np.float32]
Values = npt.NDArray[np.float64]

SMALLEST = 11
"""Pixels: the side of SSIM's window."""
STILL = (0.5 / 255) ** 2
"""A mean squared change between frames below this is less than 8 bits show: the clip stands still."""
DECAY_SECONDS = 5.0
"""The shortest clip of which a decay is stated (RFC §5.3: long videos, over 5 s)."""


class MeasureError(RefkvError):
    """Clips, features or weights that a metric cannot be taken of; says why and what to do."""


class FeatureModel(Protocol):
    """A network that turns each frame into one vector.

    name: as printed beside every figure. provenance: weights, preprocessing and the layer read, in words. digest:
    `sha256:…` of weights and preprocessing. stand_in: True for a model that is not the one RFC §5.3 asks for, whose
    figures its thresholds do not apply to.
    """

    name: str
    provenance: str
    digest: str
    stand_in: bool

    def embed(self, frames: Video) -> npt.NDArray[np.float32]:
        """(frames, d) float32; a row depends on its own frame only."""


@dataclass(frozen=True, slots=True)
class Figure:
    """One metric of a clip: frame by frame (or by pair of neighbours), in all, and at the frame farthest off."""

    per_frame: tuple[float, ...]
    mean: float
    worst: float
    worst_frame: int


@dataclass(frozen=True, slots=True)
class Motion:
    """How much a clip moves, and whether as its reference does.

    candidate, reference: mean squared change from each frame to the next. ratio: candidate's total over the
    reference's; 0 for a frozen clip, 1 for the same amount. match: 1 − ‖Δv − Δr‖² / (‖Δv‖² + ‖Δr‖²) over all changes
    Δ: 1 only for the same motion, 0 for a frozen clip, low for a shuffled one whatever its ratio (Lin's concordance
    coefficient, Biometrics 1989, of values with mean 0). Both are None where the reference stands still.
    """

    candidate: tuple[float, ...]
    reference: tuple[float, ...]
    ratio: float | None
    match: float | None


@dataclass(frozen=True, slots=True)
class Decay:
    """slope: percentage points of drop gained a second, over the second half; None when not measured, and why."""

    slope: float | None
    seconds: float | None
    not_measured: str | None = None


@dataclass(frozen=True, slots=True)
class FeatureFigures:
    """What one feature model says. similarity: cosine, by frame. drop: 100 · (1 − similarity), in percent."""

    model: str
    stand_in: bool
    provenance: str
    digest: str
    similarity: Figure
    drop: Figure
    decay: Decay


@dataclass(frozen=True, slots=True)
class Comparison:
    """Every metric of one clip against its reference.

    psnr: dB, infinite for equal frames. ssim and luma: at most 1. pixel, largest and flicker: shares of full scale.
    flicker is None for a clip of one frame, latent_l2 when no latents were given.
    """

    frames: int
    fps: float | None
    psnr: Figure
    ssim: Figure
    pixel: Figure
    largest: Figure
    luma: Figure
    flicker: Figure | None
    motion: Motion
    latent_l2: float | None
    features: tuple[FeatureFigures, ...]

    def to_json(self) -> dict[str, Any]:
        """The fields by name, for strict JSON: an infinite PSNR, of equal frames, becomes null."""
        return {key: _jsonable(value) for key, value in asdict(self).items()}


def compare(
    candidate: Video,
    reference: Video,
    feature_models: Sequence[FeatureModel] = (),
    *,
    fps: float | None = None,
    latents: tuple[npt.ArrayLike, npt.ArrayLike] | None = None,
) -> Comparison:
    """All metrics. fps: for the decay, not measured without. latents: candidate's and reference's, of any one shape."""
    _check(candidate, reference)
    return Comparison(
        frames=len(candidate),
        fps=fps,
        psnr=psnr(candidate, reference),
        ssim=ssim(candidate, reference),
        pixel=pixel_difference(candidate, reference),
        largest=largest_difference(candidate, reference),
        luma=luma_correlation(candidate, reference),
        flicker=flicker(candidate, reference) if len(candidate) > 1 else None,
        motion=motion(candidate, reference),
        latent_l2=relative_l2(*latents) if latents is not None else None,
        features=tuple(feature_figures(model, candidate, reference, fps) for model in feature_models),
    )


def psnr(candidate: Video, reference: Video) -> Figure:
    """Peak signal-to-noise ratio in dB (scikit-image), infinite for equal frames.

    The mean is that of the mean squared error over all frames, as ffmpeg's `psnr` filter averages: a mean of decibels
    would be infinite as soon as one frame is equal.
    """
    with np.errstate(divide="ignore"):
        figure = _by_frame(candidate, reference, lambda v, r: peak_signal_noise_ratio(r, v, data_range=1.0), min)
        error = np.mean([10 ** (-db / 10) for db in figure.per_frame])
        return replace(figure, mean=float(-10 * np.log10(error)))


def ssim(candidate: Video, reference: Video) -> Figure:
    """Structural similarity (scikit-image), set as in Wang et al., IEEE TIP 2004: Gaussian window, σ = 1.5."""
    settings = {"channel_axis": -1, "gaussian_weights": True, "sigma": 1.5, "use_sample_covariance": False}
    return _by_frame(candidate, reference, lambda v, r: structural_similarity(r, v, data_range=1.0, **settings), min)


def pixel_difference(candidate: Video, reference: Video) -> Figure:
    """Mean absolute difference of a frame's values, as a share of full scale."""
    return _by_frame(candidate, reference, lambda v, r: float(np.abs(v - r).mean()), max)


def largest_difference(candidate: Video, reference: Video) -> Figure:
    """Largest absolute difference of any value in a frame: exactly 0 where nothing changed."""
    return _by_frame(candidate, reference, lambda v, r: float(np.abs(v - r).max()), max)


def luma_correlation(candidate: Video, reference: Video) -> Figure:
    """Pearson correlation of the pixels' luma (ITU-R BT.709, scikit-image's `rgb2gray`) in each frame.

    It sees structure, not brightness or contrast. A frame of one luma has no structure: 1 where both are so, else 0.
    """

    def one(v: Values, r: Values) -> float:
        a, b = (luma - luma.mean() for luma in (rgb2gray(v), rgb2gray(r)))
        flat = [float(np.abs(x).max()) < 1e-6 for x in (a, b)]
        if any(flat):
            return 1.0 if all(flat) else 0.0
        return float(np.vdot(a, b) / np.sqrt(np.vdot(a, a) * np.vdot(b, b)))

    return _by_frame(candidate, reference, one, min)


def flicker(candidate: Video, reference: Video) -> Figure:
    """Mean |(v[t+1] − v[t]) − (r[t+1] − r[t])|, for each t: change over time that the reference does not have.

    A constant error costs nothing, one that alternates by ±a costs 2a. The difference of
    temporal derivatives is that of dtSSD (Erofeev et al., BMVC 2015), the mean absolute value that of VBench's
    temporal flickering (Huang et al., CVPR 2024). Raises MeasureError for a clip of one frame.
    """
    values = tuple(float(np.abs(dv - dr).mean()) for dv, dr in _changes(candidate, reference))
    if not values:
        raise MeasureError("flicker is a matter of two frames or more; this clip has one")
    return _figure(values, max)


def motion(candidate: Video, reference: Video) -> Motion:
    """The clips' motion, side by side: what keeps a frozen clip, often close by PSNR and by features, from passing."""
    ours, theirs, apart = [], [], []
    for dv, dr in _changes(candidate, reference):
        ours.append(float(np.mean(dv**2)))
        theirs.append(float(np.mean(dr**2)))
        apart.append(float(np.mean((dv - dr) ** 2)))
    if sum(theirs) <= STILL * len(theirs):
        return Motion(tuple(ours), tuple(theirs), None, None)
    ratio, match = sum(ours) / sum(theirs), 1 - sum(apart) / (sum(ours) + sum(theirs))
    return Motion(tuple(ours), tuple(theirs), ratio, match)


def relative_l2(candidate: npt.ArrayLike, reference: npt.ArrayLike) -> float:
    """‖candidate − reference‖ / ‖reference‖ over all values, of arrays of one shape. For latents, or any activation."""
    v, r = np.asarray(candidate, np.float64), np.asarray(reference, np.float64)
    if v.shape != r.shape:
        raise MeasureError(f"shapes {v.shape} and {r.shape} differ; compare what was made at one size and frame count")
    size = float(np.linalg.norm(r))
    if not isfinite(size) or size == 0:
        raise MeasureError("the reference is zero or not finite, so nothing is relative to it; check how it was made")
    return float(np.linalg.norm(v - r)) / size


def feature_figures(model: FeatureModel, candidate: Video, reference: Video, fps: float | None) -> FeatureFigures:
    """Feature similarity of each frame with the reference's frame, and how its drop grows with time."""
    _check(candidate, reference)
    similarity = cosine(model.embed(candidate), model.embed(reference))
    drop = tuple(100 * (1 - s) for s in similarity)
    return FeatureFigures(
        model.name,
        model.stand_in,
        model.provenance,
        model.digest,
        similarity=_figure(similarity, min),
        drop=_figure(drop, max),
        decay=second_half_decay(drop, fps),
    )


def cosine(candidate: npt.ArrayLike, reference: npt.ArrayLike) -> tuple[float, ...]:
    """Cosine of each row with the same row of the other, both (frames, d); exactly 1 for equal rows."""
    v, r = np.asarray(candidate, np.float64), np.asarray(reference, np.float64)
    if v.shape != r.shape or v.ndim != 2 or not len(v):
        raise MeasureError(f"features of shapes {v.shape} and {r.shape}: both must be (frames, d), of the same frames")
    lengths = np.sqrt((v * v).sum(axis=1) * (r * r).sum(axis=1))
    if not (np.isfinite(lengths) & (lengths > 0)).all():
        raise MeasureError("a frame's features are zero or not finite: no direction; check the feature model")
    return tuple(np.clip((v * r).sum(axis=1) / lengths, -1, 1).tolist())


def second_half_decay(drop: Sequence[float], fps: float | None) -> Decay:
    """Slope, by least squares, of the drop (percent, by frame) over the frames from half the duration on.

    RFC §5.3 and §7: no sharp decay in the second half of videos over 5 s, slope ≤ 0.5 per second. The RFC names no
    unit; percentage points of drop is the stricter reading of the two.
    """
    if fps is None:
        return Decay(None, None, "the frame rate is not known")
    if not (isfinite(fps) and fps > 0):
        raise MeasureError(f"a frame rate of {fps} is not possible; give frames a second")
    seconds = len(drop) / fps
    if seconds < DECAY_SECONDS:
        return Decay(None, seconds, f"the clip lasts {seconds:.2f} s; decay is measured from {DECAY_SECONDS:g} s on")
    start = (len(drop) + 1) // 2
    late = np.asarray(drop[start:], np.float64)
    if len(late) < 2:
        return Decay(None, seconds, f"{len(late)} frame in the second half; a slope needs two")
    return Decay(float(np.polyfit(np.arange(len(late)) / fps, late, 1)[0]), seconds)


def _check(candidate: Video, reference: Video) -> None:
    for name, clip in (("candidate", candidate), ("reference", reference)):
        if not isinstance(clip, np.ndarray) or clip.dtype != np.float32 or clip.ndim != 4 or clip.shape[-1] != 3:
            found = f"{clip.dtype} {clip.shape}" if isinstance(clip, np.ndarray) else type(clip).__name__
            raise MeasureError(f"the {name} must be float32 (frames, height, width, 3) in [0, 1], not {found}")
        if not len(clip) or min(clip.shape[1:3]) < SMALLEST:
            raise MeasureError(f"the {name} is {clip.shape}; one frame of {SMALLEST} x {SMALLEST} pixels is the least")
        if not (clip.min() >= 0 and clip.max() <= 1):
            raise MeasureError(f"the {name} has values outside [0, 1] or not finite; divide by 255, or clip, first")
    if candidate.shape != reference.shape:
        raise MeasureError(f"the shapes differ, {candidate.shape} and {reference.shape}; make both clips alike")


def _frames(candidate: Video, reference: Video) -> Iterator[tuple[Values, Values]]:
    """One frame of each at a time, in float64: a whole clip of large frames would not fit twice."""
    return ((v.astype(np.float64), r.astype(np.float64)) for v, r in zip(candidate, reference, strict=True))


def _changes(candidate: Video, reference: Video) -> Iterator[tuple[Values, Values]]:
    """From each frame to the next: (v[t+1] − v[t], r[t+1] − r[t])."""
    _check(candidate, reference)
    frames = _frames(candidate, reference)
    v, r = next(frames)
    for v1, r1 in frames:
        yield v1 - v, r1 - r
        v, r = v1, r1


def _by_frame(
    candidate: Video,
    reference: Video,
    metric: Callable[[Values, Values], float],
    worst: Callable[[tuple[float, ...]], float],
) -> Figure:
    _check(candidate, reference)
    return _figure(tuple(float(metric(v, r)) for v, r in _frames(candidate, reference)), worst)


def _figure(values: tuple[float, ...], worst: Callable[[tuple[float, ...]], float]) -> Figure:
    extreme = worst(values)
    return Figure(values, float(np.mean(values)), extreme, values.index(extreme))


def _jsonable(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _jsonable(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_jsonable(item) for item in value]
    return None if isinstance(value, float) and not isfinite(value) else value
