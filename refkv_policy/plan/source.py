"""Positions in source text. Line breaks are LF, CRLF and CR, as in YAML 1.2; columns count characters."""

from __future__ import annotations

import re

from refkv_policy.plan.diagnostic import Span
from refkv_policy.plan.document import Document
from refkv_policy.plan.model import Path

_BREAK = re.compile(r"\r\n|\r|\n")


def lines(text: str) -> list[str]:
    """The lines of a text, without their breaks."""
    return _BREAK.split(text)


def position(text: str, index: int) -> tuple[int, int]:
    """Line and column, from 1, of the character at `index`."""
    line, start = 1, 0
    for found in _BREAK.finditer(text, 0, index):
        line, start = line + 1, found.end()
    return line, index - start + 1


def span_at(text: str, start: int, end: int) -> Span:
    """The span of text[start:end], at least one character wide."""
    first, last = position(text, start), position(text, end)
    return Span(*first, *last) if last > first else Span.point(*first)


def text_span(document: Document, path: Path, start: int, end: int) -> Span:
    """The span of characters `start` to `end` of the string value at `path`.

    Exact for a plain or quoted scalar on one line without escapes; for any other, the span of the whole scalar.
    """
    whole = document.span(path)
    value: object = document.value
    for step in path:
        value = value[step]  # type: ignore[index]
    if not isinstance(value, str) or whole.line != whole.end_line or end <= start:
        return whole
    source = lines(document.text)[whole.line - 1][whole.column - 1 : whole.end_column - 1]
    if source == value:
        opening = 0
    elif source[:1] in "'\"" and source[1:-1] == value:
        opening = 1
    else:
        return whole
    column = whole.column + opening
    return Span(whole.line, column + start, whole.line, column + end)
