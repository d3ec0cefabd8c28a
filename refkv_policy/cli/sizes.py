"""`WIDTHxHEIGHT`, as it is written on the command line."""

from __future__ import annotations

import re

from refkv_policy.cli.group import Failure

_SIZE = re.compile(r"(\d{1,5})[x×](\d{1,5})")


def parse_size(text: str) -> tuple[int, int]:
    """Width and height in pixels. Raises Failure."""
    match = _SIZE.fullmatch(text.strip())
    if not match or not int(match[1]) or not int(match[2]):
        raise Failure(f"--size {text} is not WIDTHxHEIGHT, such as 832x480")
    return int(match[1]), int(match[2])


def fit_size(width: int, height: int, grid: tuple[int, int]) -> None:
    """Raises Failure, with the nearest size that would do, unless both are multiples of the grid's sides."""
    if width % grid[0] or height % grid[1]:
        near = "x".join(str(max(round(v / g), 1) * g) for v, g in zip((width, height), grid, strict=True))
        raise Failure(f"--size {width}x{height} is not a multiple of {grid[0]}x{grid[1]}; the nearest is {near}")
