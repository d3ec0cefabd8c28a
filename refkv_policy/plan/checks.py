"""What a plan must satisfy beyond its JSON Schema and before any model is known.

Models beside `any`, dates of the calendar, names used once, and the syntax of every selector. A
value that the schema already refused is passed over.
"""

from __future__ import annotations

import datetime
import re
from collections.abc import Callable, Collection, Iterator
from decimal import Decimal
from typing import Any

from refkv_policy.plan import rules
from refkv_policy.plan.diagnostic import Diagnostic, Span
from refkv_policy.plan.document import Document
from refkv_policy.plan.model import Path
from refkv_policy.plan.selectors import SelectorError, parse_sites, parse_steps, parse_window
from refkv_policy.plan.source import text_span
from refkv_policy.plan.wording import quoted

_UNITS = {"B": 1, "KiB": 1 << 10, "MiB": 1 << 20, "GiB": 1 << 30, "TiB": 1 << 40}
_AMOUNT = re.compile(r"([0-9.]+) ?([KMGT]?i?B)")
_SIZE = re.compile(r"([0-9]+)x([0-9]+)")


def bytes_of(amount: int | str) -> int | None:
    """The bytes of a budget such as `2GiB` or 1048576; None when that is not a whole number of them, at least one."""
    if isinstance(amount, int):
        return amount
    found = _AMOUNT.fullmatch(amount)
    if found is None:
        return None
    many = Decimal(found.group(1)) * _UNITS[found.group(2)]
    return int(many) if many == int(many) >= 1 else None


def size_of(text: str) -> tuple[int, int]:
    """Width and height of a size such as `832x480`. Raises ValueError for another text."""
    found = _SIZE.fullmatch(text)
    if found is None:
        raise ValueError(f"{text!r} is not a size")
    return int(found.group(1)), int(found.group(2))


def check_values(document: Document, faulty: Collection[Path]) -> list[Diagnostic]:
    """Every fault of these kinds, in the order of the text. `faulty`: paths the schema has already refused."""
    checks = _Checks(document, faulty)
    found = [*checks.models(), *checks.caches(), *checks.quantization(), *checks.acknowledgements()]
    return sorted(found, key=lambda d: (d.span or Span.point(1, 1), d.code))


class _Checks:
    """One document, with what the schema refused taken out."""

    def __init__(self, document: Document, faulty: Collection[Path]) -> None:
        self.document, self.faulty = document, faulty

    def get(self, path: Path, kind: type | tuple[type, ...]) -> Any:
        """The value at a path where it is sound and of that kind, else None."""
        value = self.document.value
        for depth, step in enumerate(path):
            if path[: depth + 1] in self.faulty:
                return None
            try:
                value = value[step]
            except (KeyError, IndexError, TypeError):
                return None
        return value if isinstance(value, kind) and not isinstance(value, bool) else None

    def items(self, path: Path, kind: type | tuple[type, ...]) -> Iterator[tuple[Path, Any]]:
        """The sound entries of that kind of the list at a path."""
        for index in range(len(self.get(path, list) or ())):
            value = self.get((*path, index), kind)
            if value is not None:
                yield (*path, index), value

    def tell(self, rule: Any, path: Path, **fields: object) -> Diagnostic:
        found: Diagnostic = rule.at(self.document.file, self.document.span(path), **fields)
        return found

    def models(self) -> Iterator[Diagnostic]:
        names = dict(self.items(("models",), str))
        if len(names) > 1:
            for path, name in names.items():
                if name == "any":
                    yield self.tell(rules.ANY_AMONG_OTHERS, path)

    def caches(self) -> Iterator[Diagnostic]:
        seen: dict[str, Path] = {}
        for path, _ in self.items(("caches",), dict):
            name = self.get((*path, "name"), str)
            if name is not None:
                first = seen.setdefault(name, (*path, "name"))
                if first != (*path, "name"):
                    line = self.document.span(first).line
                    yield self.tell(rules.REPEATED_NAME, (*path, "name"), name=name, line=line)
            yield from self.selectors((*path, "at"), parse_sites)
            yield from self.selectors((*path, "window"), parse_window)
            yield from self.selectors((*path, "refresh", "steps"), parse_steps)
            budget = self.get((*path, "store", "budget"), (int, str))
            if budget is not None and bytes_of(budget) is None:
                yield self.tell(rules.BUDGET_FRACTION, (*path, "store", "budget"), given=quoted(str(budget)))

    def quantization(self) -> Iterator[Diagnostic]:
        attention: Path = ("quantization", "attention")
        yield from self.selectors((*attention, "skip_steps"), parse_steps)
        yield from self.selectors((*attention, "skip_layers"), parse_sites)

    def acknowledgements(self) -> Iterator[Diagnostic]:
        for path, _ in self.items(("acknowledgements",), dict):
            for key in ("date", "expires"):
                text = self.get((*path, key), str)
                if text is not None:
                    try:
                        datetime.date.fromisoformat(text)
                    except ValueError:
                        yield self.tell(rules.INVALID_DATE, (*path, key), given=text)

    def selectors(self, path: Path, parse: Callable[[str], object]) -> Iterator[Diagnostic]:
        """Syntax errors of the selector at a path, or of each in the list there, inside the quoted text."""
        whole = self.get(path, str)
        for place, text in [(path, whole)] if whole is not None else list(self.items(path, str)):
            try:
                parse(text)
            except SelectorError as error:
                rule = error.rule or rules.SELECTOR_SYNTAX
                span = text_span(self.document, place, error.start, error.end)
                yield Diagnostic(rule.code, rule.severity, error.message, self.document.file, span, error.help)
