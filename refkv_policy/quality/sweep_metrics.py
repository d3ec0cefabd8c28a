"""The metrics by name, as they are read out of a stored comparison (`Comparison.to_json`). Needs no torch."""

from __future__ import annotations

import importlib.metadata
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

Stored = Mapping[str, Any]
"""A comparison as a result file holds it."""


@dataclass(frozen=True, slots=True)
class Reading:
    """One metric of one run: the mean over its frames, the worst frame's, its index, by frame. None: it has no frames."""

    mean: float
    worst: float | None = None
    worst_frame: int | None = None
    per_frame: tuple[float, ...] = ()


@dataclass(frozen=True, slots=True)
class Measure:
    """A metric. read gives None where a clip has no such figure (a still clip has no motion; equal frames no PSNR).

    stand_in: it stands in for the gate's own. model: the feature model's name, None for a metric without one.
    """

    name: str
    title: str
    provenance: str
    better: Literal["higher", "lower"]
    read: Callable[[Stored], Reading | None]
    stand_in: bool = False
    model: str | None = None


def measures(features: Sequence[Stored]) -> tuple[Measure, ...]:
    """Every metric of comparisons made with these feature models, as their `features` list describes them.

    Shares of full scale, of similarity (0.08 is 8 %) and of length; PSNR in dB.
    """
    images = f"scikit-image {_version('scikit-image')}"
    own = f"refkv {_version('refkv-policy')}, numpy {_version('numpy')}"
    found = [
        Measure("pixel_difference", "mean absolute difference of pixels", own, "lower", _framed("pixel")),
        Measure("latent_l2", "relative L2 distance of the denoised latents", own, "lower", _single("latent_l2")),
        Measure("flicker", "change over time that the reference does not have", own, "lower", _framed("flicker")),
        Measure("ssim", "structural similarity", images, "higher", _framed("ssim")),
        Measure("psnr", "peak signal-to-noise ratio, dB", images, "higher", _framed("psnr")),
        Measure("luma_correlation", "correlation of luma", images, "higher", _framed("luma")),
        Measure("motion_match", "concordance of motion; 0 for a frozen clip", own, "higher", _of("motion", "match")),
        Measure(
            "motion_ratio", "motion over the reference's; 0 for a frozen clip", own, "higher", _of("motion", "ratio")
        ),
    ]
    for index, model in enumerate(features):
        name, stand_in = str(model["model"]), bool(model["stand_in"])
        found.append(
            Measure(
                drop_name(name, stand_in), f"drop of {name} feature similarity", str(model["provenance"]), "lower",
                _drop(index), stand_in, name,
            )
        )  # fmt: skip
    return tuple(found)


def drop_name(model: str, stand_in: bool) -> str:
    """The metric's name of a feature model: `dinov2_b_14_drop`; a stand-in's says that it is one."""
    slug = re.sub(r"[^a-z0-9]+", "_", model.lower()).strip("_")
    return f"{slug}_drop" if not stand_in or "stand_in" in slug else f"{slug}_stand_in_drop"


def decay_of(comparison: Stored, index: int) -> tuple[float | None, str | None]:
    """Percentage points of drop gained a second over the second half, or None and why it was not measured."""
    decay = comparison["features"][index]["decay"]
    return decay["slope"], decay["not_measured"]


def _reading(figure: Stored | None, scale: float = 1.0) -> Reading | None:
    if figure is None or figure["mean"] is None or figure["worst"] is None:
        return None
    frames = () if None in figure["per_frame"] else tuple(scale * v for v in figure["per_frame"])
    return Reading(scale * figure["mean"], scale * figure["worst"], int(figure["worst_frame"]), frames)


def _framed(key: str) -> Callable[[Stored], Reading | None]:
    return lambda stored: _reading(stored[key])


def _single(key: str) -> Callable[[Stored], Reading | None]:
    return lambda stored: None if stored[key] is None else Reading(float(stored[key]))


def _of(key: str, inner: str) -> Callable[[Stored], Reading | None]:
    return lambda stored: None if stored[key][inner] is None else Reading(float(stored[key][inner]))


def _drop(index: int) -> Callable[[Stored], Reading | None]:
    """From percent to a share."""
    return lambda stored: _reading(stored["features"][index]["drop"], 0.01)


def _version(name: str) -> str:
    try:
        return importlib.metadata.version(name)
    except importlib.metadata.PackageNotFoundError:
        return "unknown"
