"""A YAML document's value and positions, built from the parser's events. Nothing is ever expanded."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any, NoReturn

import yaml

from refkv_policy.plan import rules
from refkv_policy.plan.catalogue import Rule
from refkv_policy.plan.diagnostic import Diagnostic, Span
from refkv_policy.plan.model import Path
from refkv_policy.plan.source import span_at
from refkv_policy.plan.wording import described, quoted
from refkv_policy.plan.yaml_scalars import resolve

LOADER: Any = getattr(yaml, "CLoader", yaml.Loader)
"""libyaml's where PyYAML was built with it."""

_CONTROL = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\ud800-\udfff]")
_TAG = re.compile(r"!\S*")


class StopReadingError(Exception):
    """Nothing after this point can be read; the reason is among the diagnostics."""


class Builder:
    """Builds value and positions. Recursion is bounded by MAX_DEPTH, work by MAX_NODES.

    found: the faults so far. keys and values: the spans of a Document. unclear: paths whose value is not known because
    of a fault already found, and paths of mappings some of whose keys are not known.
    """

    def __init__(self, text: str, file: str) -> None:
        self.text, self.file = text, file
        self.events: Iterator[Any] = yaml.parse(text, Loader=LOADER)
        self.keys: dict[Path, Span] = {}
        self.values: dict[Path, Span] = {}
        self.unclear: set[Path] = set()
        self.found: list[Diagnostic] = []
        self.nodes = 0

    def document(self) -> tuple[Any, bool]:
        """The value of the one document, and whether there was one.

        Raises StopReadingError beyond a limit and yaml.YAMLError where the text is not YAML.
        """
        next(self.events)
        start = next(self.events)
        if isinstance(start, yaml.StreamEndEvent):
            what = "comments" if self.text.strip() else "blank lines" if self.text else "an empty text"
            self.report(rules.EMPTY_FILE, Span.point(1, 1), what=what)
            return None, False
        if start.version or start.tags:
            self.report(rules.DIRECTIVE, self.word("%", start.start_mark.index))
        event = next(self.events)
        value, _ = self.node(event, (), 1)
        if _is_empty(event):
            self.values[()] = _span(start.start_mark, start.end_mark)
        next(self.events)
        after = next(self.events)
        if not isinstance(after, yaml.StreamEndEvent):
            begin = after.start_mark.index
            self.report(rules.SEVERAL_DOCUMENTS, span_at(self.text, begin, min(begin + 3, len(self.text))))
        return value, True

    def node(self, event: Any, path: Path | None, depth: int) -> tuple[Any, Any]:
        """The value of the node that `event` begins, and the mark where it ends. A path of None is not recorded."""
        start, end = event.start_mark, event.end_mark
        self.count(event)
        value: Any = None
        if isinstance(event, yaml.AliasEvent):
            self.report(rules.ALIAS, _span(start, end), text=f"`*{event.anchor}`")
            self.doubt(path)
        else:
            self.properties(event, path)
            if isinstance(event, yaml.ScalarEvent):
                value = self.scalar(event, path)
            elif depth > rules.MAX_DEPTH:
                self.stop(rules.TOO_DEEP, event)
            elif isinstance(event, yaml.MappingStartEvent):
                value, end = self.mapping(event, path, depth)
            else:
                value, end = self.sequence(event, path, depth)
        if path is not None:
            self.values[path] = _span(start, end)
        return value, end

    def scalar(self, event: Any, path: Path | None) -> Any:
        """The value of a scalar; None for one whose fault is reported."""
        if not event.implicit[0]:  # quoted or block: always a text
            if bad := _CONTROL.search(event.value):
                span = _span(event.start_mark, event.end_mark)
                self.report(rules.FORBIDDEN_CHARACTER, span, name=f"U+{ord(bad.group()):04X}")
                self.doubt(path)
            return event.value
        value = resolve(event.value)
        if isinstance(value, Rule):
            self.report(value, _span(event.start_mark, event.end_mark), text=_shown(event.value))
            self.doubt(path)
            return None
        return value

    def sequence(self, opening: Any, path: Path | None, depth: int) -> tuple[list[Any], Any]:
        """The items of a list, and the mark where it ends."""
        items: list[Any] = []
        end = opening.end_mark
        while not isinstance(event := next(self.events), yaml.SequenceEndEvent):
            inner = None if path is None else (*path, len(items))
            value, end = self.node(event, inner, depth + 1)
            if inner is not None and _is_empty(event):
                dash = self.text.rfind("-", 0, event.start_mark.index)
                self.values[inner] = span_at(self.text, max(dash, 0), dash + 1)
            items.append(value)
        return items, _closing(event, end)

    def mapping(self, opening: Any, path: Path | None, depth: int) -> tuple[dict[str, Any], Any]:
        """The entries of a mapping, and the mark where it ends. Of a key that stands twice the first counts."""
        entries: dict[str, Any] = {}
        lines: dict[str, int] = {}
        end = opening.end_mark
        while not isinstance(event := next(self.events), yaml.MappingEndEvent):
            key, span = self.key(event), _span(event.start_mark, event.end_mark)
            if key == "<<" and event.implicit[0]:
                self.report(rules.MERGE_KEY, span)
                self.doubt(path)
                end = self.skip(next(self.events))
                continue
            known = key is not None and key not in entries
            if key is None:
                self.doubt(path)
            elif not known:
                self.report(rules.DUPLICATE_KEY, span, key=f"`{_shown(key)}`", line=lines[key])
            inner = (*path, key) if path is not None and key is not None and known else None
            follows = next(self.events)
            value, end = self.node(follows, inner, depth + 1)
            if inner is not None:
                self.keys[inner] = span
                if _is_empty(follows):
                    self.values[inner] = span
            if key is not None and known:
                entries[key], lines[key] = value, span.line
        return entries, _closing(event, end)

    def key(self, event: Any) -> str | None:
        """The key that `event` is, or None after reporting that it is not a word."""
        span = _span(event.start_mark, event.end_mark)
        self.count(event)
        if isinstance(event, yaml.AliasEvent):
            self.report(rules.ALIAS, span, text=f"`*{event.anchor}`")
            return None
        self.properties(event, None)
        if not isinstance(event, yaml.ScalarEvent):
            given = "a list" if isinstance(event, yaml.SequenceStartEvent) else "a mapping"
            span = _span(event.start_mark, self.skip(event))
            advice = "write a word before the colon; check brackets and braces"
            self.report(rules.KEY_NOT_TEXT, span, given=given, advice=advice)
            return None
        value = resolve(event.value) if event.implicit[0] else event.value
        if isinstance(value, str):
            return value
        given, advice = "empty", "write a word before the colon"
        if event.value:
            given = f"`{_shown(event.value)}`" if value is None or isinstance(value, Rule) else described(value)
            advice = f"if the word is meant, put it in quotes: '{_shown(event.value)}'"
        self.report(rules.KEY_NOT_TEXT, span, given=given, advice=advice)
        return None

    def properties(self, event: Any, path: Path | None) -> None:
        """Report a node's anchor and tag."""
        if event.anchor is not None:
            self.report(rules.ANCHOR, self.word("&", event.start_mark.index), text=f"`&{event.anchor}`")
        if event.tag is not None:
            span = self.word("!", event.start_mark.index)
            tag = _TAG.search(self.text, event.start_mark.index)
            self.report(rules.TAG, span, text=f"`{_shown(tag.group() if tag else event.tag)}`")
            self.doubt(path)

    def skip(self, event: Any) -> Any:
        """Pass over the node that `event` begins; the mark where it ends."""
        depth = 0
        while True:
            self.count(event)
            depth += isinstance(event, yaml.CollectionStartEvent) - isinstance(event, yaml.CollectionEndEvent)
            if depth == 0:
                return event.end_mark
            event = next(self.events)

    def report(self, rule: Rule, span: Span, **fields: object) -> None:
        """Note a fault."""
        self.found.append(rule.at(self.file, span, **fields))

    def count(self, event: Any) -> None:
        """Count a node, and stop beyond the limit."""
        self.nodes += 1
        if self.nodes > rules.MAX_NODES:
            self.stop(rules.TOO_MANY_NODES, event)

    def stop(self, rule: Rule, event: Any) -> NoReturn:
        """Report a limit and give up."""
        self.report(rule, Span.point(event.start_mark.line + 1, event.start_mark.column + 1))
        raise StopReadingError

    def doubt(self, path: Path | None) -> None:
        """Say nothing more about the value at a path."""
        if path is not None:
            self.unclear.add(path)

    def word(self, sign: str, begin: int) -> Span:
        """The span of the word (of a directive: the line) that begins with `sign` at or after `begin`."""
        found = re.compile(r"%[^\r\n]*" if sign == "%" else re.escape(sign) + r"[^\s,\[\]{}]*").search(self.text, begin)
        start, end = found.span() if found else (begin, begin + 1)
        return span_at(self.text, start, end)


def _shown(text: str) -> str:
    """A text as it can stand in a message, without quotes."""
    return quoted(text).strip('"')


def _span(start: Any, end: Any) -> Span:
    if (end.line, end.column) <= (start.line, start.column):
        return Span.point(start.line + 1, start.column + 1)
    return Span(start.line + 1, start.column + 1, end.line + 1, end.column + 1)


def _is_empty(event: Any) -> bool:
    """Whether the node has no text at all, as in `key:` without a value."""
    start, end = event.start_mark, event.end_mark
    return isinstance(event, yaml.ScalarEvent) and bool(start.index == end.index)


def _closing(event: Any, last: Any) -> Any:
    """Where a collection ends: at its bracket, or in block style, whose end has no width, with its last node."""
    return event.end_mark if event.end_mark.index > event.start_mark.index else last
