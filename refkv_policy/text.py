"""Text for people at the width they read it at: lines broken between words, tables drawn by rich."""

from __future__ import annotations

import os
import re
import shutil
import sys
from collections.abc import Sequence
from typing import IO
from unicodedata import combining, east_asian_width

GAP = 2
COLOUR = re.compile(r"(\x1b\[[0-9;]*m)")


def columns(stream: IO[str] | None = None) -> int | None:
    """What COLUMNS says, or the width of the terminal that the stream (stdout) is; None where nothing need be broken."""
    if os.environ.get("COLUMNS", "").isdigit() and int(os.environ["COLUMNS"]) > 0:
        return int(os.environ["COLUMNS"])
    stream = sys.stdout if stream is None else stream
    return shutil.get_terminal_size().columns if stream.isatty() else None


def fold(text: str, width: int | None) -> str:
    """The text with every line that is longer than `width` broken between words, its rest two columns further in."""
    return text if width is None else "\n".join(_fold(line, width) for line in text.split("\n"))


def _fold(line: str, width: int) -> str:
    if _width(line) <= width:
        return line
    indent = " " * (len(line) - len(line.lstrip()))
    broken: list[str] = []
    at = 0
    for word in line.split(" "):
        at += 1 + _width(word)
        if at - 1 > width and broken and broken[-1].strip():
            broken.append(f"{indent}  {word}")
            at = len(indent) + 2 + _width(word) + 1
        elif broken:
            broken[-1] += f" {word}"
        else:
            broken.append(word)
    return "\n".join(broken)


def _width(text: str) -> int:
    """Columns a terminal shows it in: escape sequences of colours take none, wide characters two."""
    plain = COLOUR.sub("", text)
    return sum(0 if combining(c) else 2 if east_asian_width(c) in "WF" else 1 for c in plain)


def table(rows: Sequence[Sequence[str]], left: int = 2) -> str:
    """Columns under their heads, the first row: the first `left` to the left, numbers to the right. Cells are broken to fit."""
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    cells = [[row[i] for row in rows] for i in range(len(rows[0]))]
    widths = [max(map(len, column)) for column in cells]
    least = [max((len(word) for cell in column for word in cell.split()), default=0) for column in cells]
    room = (columns() or sum(widths) + GAP * len(widths)) - GAP * (len(widths) - 1)
    # rich narrows the widest column first, below its longest word; here the one with most to spare is narrowed.
    while sum(widths) > room and widths != least:
        widths[max(range(len(widths)), key=lambda i: widths[i] - least[i])] -= 1
    grid = Table(box=None, pad_edge=False, padding=(0, GAP, 0, 0), show_edge=False)
    for index, (head, width) in enumerate(zip(rows[0], widths, strict=True)):
        grid.add_column(Text(head), justify="left" if index < left else "right", width=width)
    for row in rows[1:]:
        grid.add_row(*map(Text, row))
    console = Console(width=sum(widths) + GAP * len(widths), color_system=None, force_terminal=False)
    with console.capture() as drawn:
        console.print(grid)
    return "\n".join(map(str.rstrip, drawn.get().rstrip("\n").split("\n")))
