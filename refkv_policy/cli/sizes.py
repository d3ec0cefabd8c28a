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
    notes = []
    for fault in profile.clip_faults(asked.width, asked.height, asked.frames):
        if fault.field == "size":
            raise Failure(
                f"--size {fault.given} cannot be made: the model takes {fault.takes}; the nearest is {fault.nearest[0]}"
            )
        frames = int(fault.nearest[0])
        plural = "s" * (frames > 1)
        notes.append(f"{frames} frame{plural} instead of {fault.given}: the model takes {fault.takes}")
        asked = replace(asked, frames=frames)
    return asked, tuple(notes)
