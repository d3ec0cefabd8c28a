"""Text for people at the width they read it at: lines broken between words, tables drawn by rich."""

from __future__ import annotations

import os
import shutil
import sys
import textwrap
from collections.abc import Sequence
from typing import IO


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
    if len(line) <= width:
        return line
    indent = " " * (len(line) - len(line.lstrip()))
    broken = textwrap.wrap(
        line.lstrip(), width, initial_indent=indent, subsequent_indent=f"{indent}  ", expand_tabs=False,
        replace_whitespace=False, break_long_words=False, break_on_hyphens=False,
    )  # fmt: skip
    return "\n".join(broken)


def table(rows: Sequence[Sequence[str]], left: int = 2) -> str:
    """Columns under their heads, the first row: the first `left` to the left, numbers to the right. Cells are broken to fit."""
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    # Where nothing need be broken the console is as wide as any table.
    console = Console(width=columns() or 10_000, color_system=None, force_terminal=False)
    grid = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0), show_edge=False)
    for index, head in enumerate(rows[0]):
        grid.add_column(Text(head), justify="left" if index < left else "right")
    for row in rows[1:]:
        grid.add_row(*map(Text, row))
    with console.capture() as drawn:
        console.print(grid)
    return "\n".join(map(str.rstrip, drawn.get().rstrip("\n").split("\n")))
