"""How values, names and alternatives are shown in messages, and foreign texts without their power over a reader's screen."""

from __future__ import annotations

import json
import re
import unicodedata
from collections.abc import Iterable
from typing import Any

LONGEST_SHOWN = 60
LONGEST_NAME = 64

_HIDDEN = frozenset({"Cc", "Cf", "Cs", "Co", "Cn", "Zl", "Zp"})
"""Unicode categories of characters that cannot be seen, or change how their neighbours are seen."""
_EMPTY = re.compile("[\u034f\u115f\u1160\u17b4\u17b5\u180b-\u180f\u3164\ufe00-\ufe0f\uffa0\U000e0100-\U000e01ef]")
"""Letters and marks that leave no trace either: what Default_Ignorable_Code_Point [UAX #44] has in other categories."""
_BREAKS = dict.fromkeys(map(ord, "\t\n\r"), " ")
_COMMAND = re.compile(r"(##\w*)(?=\[)")
"""What is a command to a CI runner wherever it stands: `##[error]`, `##vso[`, `##teamcity[`."""
_FIRST = re.compile(r"^(\s*):(?=:)", re.MULTILINE)
"""What is one at the start of a line, behind spaces too [actions/runner, ActionCommand.TryParseV2]: `::error::`."""


def visible(text: str) -> str:
    """A foreign text on one line, as it can be trusted to look: `⟨U+202E⟩` for what cannot be seen, or turns what stands by.

    Tabs and line breaks become spaces, so that no text makes lines of its own; nor can any be a command to a CI runner.
    """
    return inert(text.translate(_BREAKS))


def inert(text: str) -> str:
    """The same for a text put together of lines: those (LF) stay."""
    if not (text.isascii() and text.replace("\n", "").isprintable()):
        text = "".join(map(_seen, text))
    if "::" in text:
        text = _FIRST.sub(r"\1: ", text)
    return _COMMAND.sub(r"\1 ", text) if "##" in text else text


def _seen(character: str) -> str:
    hidden = character != "\n" and (unicodedata.category(character) in _HIDDEN or _EMPTY.match(character))
    return f"⟨U+{ord(character):04X}⟩" if hidden else character


def json_text(value: Any) -> str:
    """JSON as it is printed: ASCII, and without what a CI runner takes for a command."""
    return json.dumps(value, indent=2).replace("##", "#\\u0023")


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


def nearest(name: str, names: Iterable[str], alike: float = 0.6) -> str | None:
    """The name that a mistyped one most likely stands for, or None. alike: how much at least, up to 1."""
    if len(name) > LONGEST_NAME:
        return None
    import difflib  # here, since only a faulty plan needs it

    known = {n.lower(): n for n in names}
    found = difflib.get_close_matches(name.lower().strip(), list(known), n=1, cutoff=alike)
    return known[found[0]] if found else None


def counted(number: int, noun: str) -> str:
    """`1 clip`, `2 clips`."""
    return f"{number} {noun}" if number == 1 else f"{number} {noun}s"


def did_you_mean(name: str, names: Iterable[str]) -> str:
    """`did you mean `x`? ` with a trailing space, or the empty text."""
    found = nearest(name, names)
    return f"did you mean `{found}`? " if found else ""
