"""How figures and foreign texts are put into words. A figure that was not measured is a dash, never a zero."""

from __future__ import annotations

from functools import partial
from typing import Protocol

from refkv_policy.compiler import human_bytes
from refkv_policy.evidence import Figure, Interval, Item
from refkv_policy.plan import wording

NONE = "–"
SPACE = "\N{NO-BREAK SPACE}"
"""Between a number and its unit."""
LONGEST = 4000
"""Characters of one text that are shown; the rest is counted."""


def visible(text: str) -> str:
    """A foreign text as `wording.visible` shows it; of a very long one the beginning, and how much is left out."""
    rest = len(text) - LONGEST
    return f"{wording.visible(text[:LONGEST])} … ({rest} more characters)" if rest > 0 else wording.visible(text)


class Say(Protocol):
    """How a kind of values is written, to so many significant digits."""

    def __call__(self, value: float, digits: int = 3) -> str:
        """The text."""


def number(value: float, digits: int = 3) -> str:
    """Three significant digits, without an exponent where that stays short: `0.0021`, `1.24`, `36`."""
    if value == 0:
        return "0"
    try:
        text = f"{value:.{digits}g}"
    except OverflowError:  # an integer that no log of ours holds
        return "beyond 1e308"
    return f"{value:,.0f}" if "e" in text and 1e3 <= abs(value) < 1e7 else text


def percent(value: float, digits: int = 3) -> str:
    """A share in percent: `8 %`, `0.21 %`."""
    return f"{number(100 * value, digits)}{SPACE}%"


def times(value: float, digits: int = 3) -> str:
    """A speed-up: `1.24×`."""
    return f"{value:.{digits - 1}f}×" if value < 100 else f"{number(value, digits)}×"


def seconds(value: float, digits: int = 3) -> str:
    """`12.3 ms` below a second, else `4.1 s`."""
    return f"{number(1000 * value, digits)}{SPACE}ms" if abs(value) < 1 else f"{number(value, digits)}{SPACE}s"


def flops(count: float) -> str:
    """`4 TFLOP`, in decimal units."""
    for size, unit in ((1e18, "EFLOP"), (1e15, "PFLOP"), (1e12, "TFLOP"), (1e9, "GFLOP"), (1e6, "MFLOP")):
        if count >= size:
            return f"{number(count / size)}{SPACE}{unit}"
    return f"{number(count)}{SPACE}FLOP"


def size(value: float, digits: int = 3) -> str:
    """Bytes: `18.0 KiB`; to more digits than three, all of them: `18,433 B`."""
    return human_bytes(round(value)).replace(" ", SPACE) if digits <= 3 else f"{round(value):,}{SPACE}B"


def decay(value: float, digits: int = 3) -> str:
    """Points lost a second: `0.12 /s`."""
    return f"{number(value, digits)}{SPACE}/s"


def apart(say: Say, limit: float, *values: float) -> Say:
    """`say` to as many digits as let every value that is not the limit read otherwise than it, three at least.

    So a figure on the wrong side of its limit never reads as if it were on it.
    """
    for digits in range(3, 18):
        said = partial(say, digits=digits)
        if all(value == limit or said(value) != said(limit) for value in values):
            break
    return said


def figure(value: Figure | None, say: Say = number) -> str:
    """`0.0021 (0.001 to 0.003)`: the value and its interval, where it has one."""
    if value is None:
        return NONE
    return f"{say(value.value)}{between(value.interval, say)}"


def between(interval: Interval | None, say: Say = number) -> str:
    """` (0.001 to 0.003)`, or nothing."""
    return "" if interval is None else f" ({say(interval.low)} to {say(interval.high)})"


ITEM_SAYS: dict[str, Say] = {
    "mean_drop": percent,
    "worst_frame_drop": percent,
    "speedup": percent,
    "subjective": percent,
    "memory": size,
    "second_half_decay": decay,
}
"""How the gate's own items are measured; every other one is a plain number."""


def item_says(item: Item) -> Say:
    """How the values of a gate item are written."""
    return ITEM_SAYS.get(item.name, number)


def count(number_of: int, what: str, plural: str | None = None) -> str:
    """`1 item`, `3 items`."""
    return f"{number_of:,} {what if number_of == 1 else plural or what + 's'}"


def listed(names: list[str], most: int = 6, last: str = "and") -> str:
    """`a, b and c`; of very many the first and how many more."""
    if len(names) > most:
        return f"{', '.join(names[:most])} {last} {len(names) - most} more"
    return f" {last} ".join(filter(None, (", ".join(names[:-1]), *names[-1:])))
