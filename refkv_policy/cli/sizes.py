"""Sizes and frame counts as they are asked for on the command line, and what the model makes of them."""

from __future__ import annotations

import re
from dataclasses import replace
from typing import TYPE_CHECKING

from refkv_policy.cli.group import Failure

if TYPE_CHECKING:
    from refkv_policy.plan import Shape
    from refkv_policy.profiles import Profile

_SIZE = re.compile(r"(\d{1,5})[x×](\d{1,5})")


def parse_size(text: str) -> tuple[int, int]:
    """Width and height in pixels. Raises Failure."""
    match = _SIZE.fullmatch(text.strip())
    if not match or not int(match[1]) or not int(match[2]):
        raise Failure(f"--size {text} is not WIDTHxHEIGHT, such as 832x480")
    return int(match[1]), int(match[2])


def fit_shape(profile: Profile, asked: Shape) -> tuple[Shape, tuple[str, ...]]:
    """What the model makes of the shape that is asked for: frames are rounded down, with a note; sizes are not.

    Raises Failure, with the nearest size that would do.
    """
    temporal, spatial = profile.vae_scale
    grid = (spatial * profile.patch[2], spatial * profile.patch[1])
    if asked.width % grid[0] or asked.height % grid[1]:
        near = "x".join(str(max(round(v / g), 1) * g) for v, g in zip((asked.width, asked.height), grid, strict=True))
        raise Failure(
            f"--size {asked.width}x{asked.height} is not a multiple of {grid[0]}x{grid[1]}; the nearest is {near}"
        )
    frames = (asked.frames - 1) // temporal * temporal + 1
    if frames == asked.frames:
        return asked, ()
    note = f"{frames} frame{'s' * (frames > 1)} instead of {asked.frames}: the model takes {temporal}n+1"
    return replace(asked, frames=frames), (note,)
