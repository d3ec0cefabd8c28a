"""How far a command has come, on stderr: a live bar of denoising steps on a terminal, elsewhere a line every so often."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Protocol

from refkv_policy.cli.group import say

FIRST, EVERY = 5.0, 30.0
"""Seconds until the first line where there is no terminal, and between lines."""


class Step(Protocol):
    """Told of denoising steps that are done."""

    def __call__(self, done: int = 1) -> None:
        """So many more are."""


@contextmanager
def progress(label: str, steps: int, counts: Callable[[], str] = str) -> Iterator[Step]:
    """Gives the function to call after each step, or after several. counts() is the text behind the bar, or in the line."""
    if not sys.stderr.isatty():
        yield _lines(label, steps, counts)
        return
    from rich.console import Console
    from rich.progress import (
        BarColumn,
        MofNCompleteColumn,
        Progress,
        TextColumn,
        TimeElapsedColumn,
        TimeRemainingColumn,
    )

    columns = (
        TextColumn("{task.description}"),
        BarColumn(bar_width=30),
        MofNCompleteColumn(),
        TimeElapsedColumn(),
        TimeRemainingColumn(),
        TextColumn("{task.fields[counts]}", markup=False),
    )
    with Progress(*columns, console=Console(stderr=True), transient=False) as bar:
        task = bar.add_task(label, total=steps, counts="")
        yield lambda done=1: bar.update(task, advance=done, counts=counts())


def hint(text: str) -> None:
    """One line about what is being waited for, on a terminal only."""
    if sys.stderr.isatty():
        say(text)


def span(seconds: float) -> str:
    """`45 s`, `12 min`, `3 h 20 min`."""
    if seconds < 90:
        return f"{seconds:.0f} s"
    minutes = round(seconds / 60)
    return f"{minutes} min" if minutes < 90 else f"{minutes // 60} h {minutes % 60} min"


def _lines(label: str, steps: int, counts: Callable[[], str]) -> Step:
    began = time.monotonic()
    finished, due = 0, began + FIRST

    def step(done: int = 1) -> None:
        nonlocal finished, due
        finished += done
        now = time.monotonic()
        if now < due or not finished:
            return
        due = now + EVERY
        taken = now - began
        also = f" ({told})" if (told := counts()) else ""
        left = span(taken / finished * (steps - finished))
        say(f"{label}: {finished} of {steps} steps{also}, {span(taken)} so far, about {left} left")

    return step
