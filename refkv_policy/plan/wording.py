"""How values, names and alternatives are shown in messages."""

from __future__ import annotations

import json
from collections.abc import Iterable
from typing import Any

LONGEST_SHOWN = 60
LONGEST_NAME = 64


def cut(text: str, longest: int = LONGEST_SHOWN) -> str:
    """The text, its tail replaced by `…` beyond `longest` characters."""
    return text if len(text) <= longest else text[: longest - 1] + "…"


def quoted(text: str) -> str:
    """A text in double quotes on one line, control characters escaped, cut when long."""
    return cut(json.dumps(cut(text, 2 * LONGEST_SHOWN), ensure_ascii=False))


def described(value: Any) -> str:
    """What a YAML value is, as a phrase: `the number 4.0`, `the text "x"`, `a list`, `nothing`."""
    match value:
        case None:
            return "nothing"
        case bool():
            return "true" if value else "false"
        case int() | float():
            return f"the number {value}"
        case str():
            return f"the text {quoted(value)}"
        case list():
            return "a list"
        case _:
            return "a mapping"


def listed(names: Iterable[Any], word: str = "or") -> str:
    """Names as a phrase: `a`, `b` or `c`, each in backticks; `none` where there are none."""
    *most, last = [f"`{name}`" for name in names] or ["none"]
    return f"{', '.join(most)} {word} {last}" if most else last


def nearest(name: str, names: Iterable[str]) -> str | None:
    """The name that a mistyped one most likely stands for, or None."""
    if len(name) > LONGEST_NAME:
        return None
    import difflib  # here, since only a faulty plan needs it

    known = {n.lower(): n for n in names}
    found = difflib.get_close_matches(name.lower().strip(), list(known), n=1, cutoff=0.6)
    return known[found[0]] if found else None


def did_you_mean(name: str, names: Iterable[str]) -> str:
    """`did you mean `x`? ` with a trailing space, or the empty text."""
    found = nearest(name, names)
    return f"did you mean `{found}`? " if found else ""
