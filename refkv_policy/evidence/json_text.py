"""Strict JSON with positions: finite numbers, no key twice, bounded size and depth; every fault is one diagnostic."""

from __future__ import annotations

import json
import math
import re
from bisect import bisect_right
from collections.abc import Callable, Iterator, Mapping
from functools import cache
from typing import Any

from refkv_policy.evidence import rules
from refkv_policy.plan.diagnostic import Diagnostic, Span
from refkv_policy.plan.document import Document
from refkv_policy.plan.model import Path
from refkv_policy.plan.source import span_at
from refkv_policy.plan.wording import cut, quoted

_TOKEN = re.compile(r'"(?:[^"\\]|\\.)*"|[{}\[\]:,]|[^ \t\r\n{}\[\]:,"]+')
_LINE = re.compile(r"\r\n|\r|\n")


def load_json(text: str, file: str) -> tuple[Document | None, tuple[Diagnostic, ...]]:
    """The document of a JSON text, or None and its first fault. Never raises for any text."""
    if len(text) > rules.MAX_BYTES or text.count(",") > rules.MAX_VALUES:
        return None, (rules.UNREADABLE.at(file, None, reason=rules.TOO_LARGE),)
    repeats: list[dict[str, Any]] = []

    def mapping(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
        value = dict(pairs)
        if len(value) < len(pairs):
            repeats.append(value)
        return value

    places = _places(text)
    try:
        value = json.loads(text, object_pairs_hook=mapping, parse_int=_integer)
        if repeats:
            return None, (_twice(file, *places()[2][0]),)
    except json.JSONDecodeError as error:
        return None, (_syntax(text, file, error),)
    except RecursionError:
        return None, (rules.NOT_JSON.at(file, None, **_TOO_DEEP),)
    document = Document(file, text, value, _Spans(lambda: places()[0]), _Spans(lambda: places()[1]))
    for path, texts in () if _sound(value) else _faults(value):
        span = None if texts is _TOO_DEEP else document.span(path)
        return None, (rules.NOT_JSON.at(file, span, **texts),)
    return document, ()


SMALLEST, LARGEST = 1e-30, 1e30
"""Magnitudes of figures, zero apart: beyond them arithmetic on figures overflows, and nothing measured is so."""
_TOO_DEEP = {"problem": f"the nesting is deeper than {rules.MAX_DEPTH} levels", "advice": "write the evidence anew"}
_NUMBER = {
    "problem": f"this number is not finite, or has more than {rules.MAX_DIGITS} digits",
    "advice": "write a finite number; a figure that was not measured is null",
}
_MAGNITUDE = {
    "problem": "this is no figure that anything here could measure",
    "advice": f"write a number of at least {SMALLEST:g} and at most {LARGEST:g}, or zero",
}
_HALF_CHARACTER = {"problem": "this text holds half a character (a lone surrogate)", "advice": "write whole characters"}


def _integer(digits: str) -> int | float:
    """An integer; not-a-number for one too long to keep exactly, which `_faults` then finds."""
    return int(digits) if len(digits) <= rules.MAX_DIGITS else math.nan


def _syntax(text: str, file: str, error: json.JSONDecodeError) -> Diagnostic:
    problem = f"this is not JSON: {error.msg[:1].lower()}{error.msg[1:]}"
    span = span_at(text, min(error.pos, len(text)), min(error.pos + 1, len(text)))
    return rules.NOT_JSON.at(file, span, problem=problem, advice="write the evidence anew with `refkv gate`")


def _twice(file: str, key: str, span: Span, line: int) -> Diagnostic:
    problem = f"the key {quoted(key)} stands here a second time; first on line {line}"
    return rules.NOT_JSON.at(file, span, problem=problem, advice="keep one of the two")


def _sound(value: Any) -> bool:
    """Whether `_faults` finds nothing: the same, level by level, without working out a path for every value."""
    level = [value]
    for depth in range(rules.MAX_DEPTH + 1):
        below: list[Any] = []
        for inner in level:
            kind = type(inner)
            if kind is str:
                if not _whole(inner):
                    return False
            elif kind is float:
                if inner and not SMALLEST <= abs(inner) <= LARGEST:  # not-a-number compares with nothing
                    return False
            elif kind is list or kind is dict:
                if depth >= rules.MAX_DEPTH or (kind is dict and not all(map(_whole, inner))):
                    return False
                below += inner if kind is list else inner.values()
        if not below:
            return True
        level = below
    return False


def _faults(value: Any) -> Iterator[tuple[Path, dict[str, str]]]:
    """What no evidence may hold, with the path to it; too deep a nesting before all else."""
    open_: list[tuple[Path, Any]] = [((), value)]
    found = []
    while open_:
        path, inner = open_.pop()
        if isinstance(inner, (dict, list)):
            if len(path) >= rules.MAX_DEPTH:
                yield path, _TOO_DEEP
                return
            entries = inner.items() if isinstance(inner, dict) else enumerate(inner)
            open_.extend(((*path, key), entry) for key, entry in entries)
            if isinstance(inner, dict) and not all(map(_whole, inner)):
                found.append((path, _HALF_CHARACTER))
        elif isinstance(inner, float):
            if not math.isfinite(inner):
                found.append((path, _NUMBER))
            elif inner and not SMALLEST <= abs(inner) <= LARGEST:
                found.append((path, _MAGNITUDE))
        elif isinstance(inner, str) and not _whole(inner):
            found.append((path, _HALF_CHARACTER))
    yield from reversed(found)


def _whole(text: str) -> bool:
    return text.isascii() or not any("\ud800" <= character <= "\udfff" for character in text)


class _Spans(Mapping[Path, Span]):
    """Spans that are worked out when first asked for: a sound document never asks."""

    def __init__(self, find: Callable[[], Mapping[Path, Span]]) -> None:
        self._find = find

    def __getitem__(self, path: Path) -> Span:
        return self._find()[path]

    def __iter__(self) -> Iterator[Path]:
        return iter(self._find())

    def __len__(self) -> int:
        return len(self._find())


Repeated = list[tuple[str, Span, int]]
"""Keys that stand a second time: the key, where, and the line of the first."""


def _places(text: str) -> Callable[[], tuple[dict[Path, Span], dict[Path, Span], Repeated]]:
    """Where keys and values of a well-formed JSON text stand, worked out at the first call."""

    @cache
    def find() -> tuple[dict[Path, Span], dict[Path, Span], Repeated]:
        tokens = _TOKEN.finditer(text)
        starts = [0, *(found.end() for found in _LINE.finditer(text))]
        keys: dict[Path, Span] = {}
        values: dict[Path, Span] = {}
        repeated: Repeated = []

        def point(index: int) -> tuple[int, int]:
            line = bisect_right(starts, index)
            return line, index - starts[line - 1] + 1

        def value(first: re.Match[str], path: Path) -> None:
            last = first
            if first.group() == "{":
                last = mapping(path)
            elif first.group() == "[":
                last = sequence(path)
            values[path] = Span(*point(first.start()), *point(last.end()))

        def mapping(path: Path) -> re.Match[str]:
            while (token := next(tokens)).group() != "}":
                if token.group() == ",":
                    continue
                key = json.loads(token.group())
                span = Span(*point(token.start()), *point(token.end()))
                if (*path, key) in keys:
                    repeated.append((cut(key), span, keys[(*path, key)].line))
                keys[(*path, key)] = span
                next(tokens)  # the colon
                value(next(tokens), (*path, key))
            return token

        def sequence(path: Path) -> re.Match[str]:
            count = 0
            while (token := next(tokens)).group() != "]":
                if token.group() != ",":
                    value(token, (*path, count))
                    count += 1
            return token

        value(next(tokens), ())
        return keys, values, repeated

    return find
