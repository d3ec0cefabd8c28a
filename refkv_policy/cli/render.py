"""Diagnostics as text for people, editors and CI. Each format is one function in one dict."""

from __future__ import annotations

import unicodedata
from collections.abc import Callable, Iterable, Mapping
from typing import Any

from refkv_policy.plan.catalogue import RULES
from refkv_policy.plan.diagnostic import Diagnostic, Span
from refkv_policy.plan.reader import in_order
from refkv_policy.plan.source import lines
from refkv_policy.plan.wording import json_text, visible
from refkv_policy.text import columns, fold

FORMAT_VERSION = 1
WIDTH = 100
"""Longest stretch of a source line that a snippet shows."""

Sources = Mapping[str, str]
Style = Callable[..., str]


def render(
    diagnostics: Iterable[Diagnostic], form: str = "text", sources: Sources | None = None, color: bool = False
) -> str:
    """The diagnostics in one of FORMATS, errors first, then by file and place, ending in a line break unless empty.

    sources: the text of each file, for snippets; a file that is not there gets none. Raises KeyError for a format that
    does not exist.
    """
    found = tuple(sorted(in_order(diagnostics), key=lambda d: tuple(_COLORS).index(d.severity)))
    return FORMATS[form](found, sources or {}, color)


def _text(diagnostics: tuple[Diagnostic, ...], sources: Sources, color: bool) -> str:
    style = _style(color)
    split = {file: lines(text.removeprefix("\ufeff")) for file, text in sources.items()}
    blocks = []
    for d in diagnostics:
        head = f"{style(_place(d), bold=True)}: {style(d.severity, fg=_COLORS[d.severity], bold=True)}"
        block = [_folded(f"{head} {style(d.code, bold=True)} {visible(d.message)}")]
        if d.span is not None and d.span.line <= len(split.get(d.file, ())):
            block += _snippet(split[d.file], d.span, style, _COLORS[d.severity])
        block.append(_folded(f"  {style('help:', fg='green', bold=True)} {visible(d.help)}"))
        blocks.append("\n".join(block) + "\n")
    return "\n".join(blocks)


def _concise(diagnostics: tuple[Diagnostic, ...], sources: Sources, color: bool) -> str:
    style = _style(color)
    return "".join(
        f"{_place(d)}: {style(d.severity, fg=_COLORS[d.severity])} {d.code} {visible(d.message)}\n" for d in diagnostics
    )


def _json(diagnostics: tuple[Diagnostic, ...], sources: Sources, color: bool) -> str:
    entries = [
        {
            "code": d.code,
            "name": RULES[d.code].name if d.code in RULES else None,
            "severity": d.severity,
            "message": d.message,
            "help": d.help,
            "file": d.file,
            "range": None if d.span is None else _range(d.span),
        }
        for d in diagnostics
    ]
    return json_text({"format_version": FORMAT_VERSION, "diagnostics": entries}) + "\n"


def _github(diagnostics: tuple[Diagnostic, ...], sources: Sources, color: bool) -> str:
    commands = {"error": "error", "warning": "warning", "note": "notice"}
    out = []
    for d in diagnostics:
        title = f"{d.code} {RULES[d.code].name}" if d.code in RULES else d.code
        fields: dict[str, object] = {"title": title, "file": visible(d.file)}
        if d.span is not None:
            fields |= {"line": d.span.line, "endLine": d.span.end_line}
            if d.span.line == d.span.end_line:  # columns of a span over several lines are refused
                fields |= {"col": d.span.column, "endColumn": d.span.end_column}
        properties = ",".join(f"{key}={_escaped(str(value), ':,')}" for key, value in fields.items())
        message = _escaped(f"{visible(d.message)}\nhelp: {visible(d.help)}")
        out.append(f"::{commands[d.severity]} {properties}::{message}\n")
    return "".join(out)


def _sarif(diagnostics: tuple[Diagnostic, ...], sources: Sources, color: bool) -> str:
    from refkv_policy.cli.sarif import sarif  # here, since it reads every rule and example

    return sarif(diagnostics, sources)


FORMATS: dict[str, Callable[[tuple[Diagnostic, ...], Sources, bool], str]] = {
    "text": _text,
    "concise": _concise,
    "json": _json,
    "github": _github,
    "sarif": _sarif,
}

_COLORS = {"error": "red", "warning": "yellow", "note": "cyan"}


def _style(color: bool) -> Style:
    if not color:
        return lambda text, **_: text
    import click  # here, since most calls need no colour

    return click.style


def _place(d: Diagnostic) -> str:
    file = visible(d.file)
    return file if d.span is None else f"{file}:{d.span.line}:{d.span.column}"


def _range(span: Span) -> dict[str, Any]:
    return {
        "start": {"line": span.line, "column": span.column},
        "end": {"line": span.end_line, "column": span.end_column},
    }


def _snippet(source: list[str], span: Span, style: Style, color: str) -> list[str]:
    """The line of a span with carets below it. Of a span over several lines, its first line."""
    line = source[span.line - 1]
    start = span.column - 1
    end = span.end_column - 1 if span.end_line == span.line else max(len(line.rstrip()), start + 1)
    width = min(WIDTH, max(20, (columns() or WIDTH + 20) - 20))  # beside the line's number and two ellipses
    crop = 0 if len(line) <= width else max(0, min(start - width // 4, len(line) - width))
    shown = line[crop : crop + width]
    start, end = start - crop, min(end - crop, width)
    before, under = visible(shown[:start]), visible(shown[start:end])
    left, right = "…" if crop else "", "…" if crop + width < len(line) else ""
    gutter, blank = f"{span.line} |", " " * len(str(span.line)) + " |"
    carets = style("^" * max(1, _width(under)), fg=color, bold=True)
    return [
        f"  {style(gutter, fg='blue')} {left}{visible(shown)}{right}",
        f"  {style(blank, fg='blue')} {' ' * (len(left) + _width(before))}{carets}",
    ]


def _folded(text: str) -> str:
    """The text broken between words where it is longer than the terminal is wide; colours take no columns there."""
    return fold(text, columns())


def _width(text: str) -> int:
    """Columns a terminal needs for it."""
    return sum(0 if unicodedata.combining(c) else 2 if unicodedata.east_asian_width(c) in "WF" else 1 for c in text)


def _escaped(text: str, more: str = "") -> str:
    """A value of a GitHub workflow command: `%`, CR and LF escaped, in a property `:` and `,` too."""
    for character in "%\r\n" + more:
        text = text.replace(character, f"%{ord(character):02X}")
    return text
