"""Diagnostics: every fault of a plan, lock, log or evidence file is a value until the edge of the program."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Literal

Severity = Literal["error", "warning", "note"]


@dataclass(frozen=True, slots=True, order=True)
class Span:
    """A stretch of a text file. Lines and columns count characters from 1; the end is exclusive."""

    line: int
    column: int
    end_line: int
    end_column: int

    @classmethod
    def point(cls, line: int, column: int) -> Span:
        """The one-character span at a position."""
        return cls(line, column, line, column + 1)


@dataclass(frozen=True, slots=True)
class Diagnostic:
    """One fault: what is wrong, where, and what to do about it.

    `span` is None only for a fault of the whole file (missing, unreadable) or of something that has no text.
    """

    code: str
    severity: Severity
    message: str
    file: str
    span: Span | None
    help: str

    def __str__(self) -> str:
        place = self.file if self.span is None else f"{self.file}:{self.span.line}:{self.span.column}"
        return f"{place}: {self.code} {self.message}"


class RefkvError(Exception):
    """Base of every error that refkv raises on purpose; its text is a sentence for a person."""


class RefkvWarning(UserWarning):
    """A plan did not hold where an error would have broken a request: said by `warnings` and by the logger `refkv`."""


class PlanError(RefkvError):
    """A plan (or lock, or evidence) that falls short. Carries every diagnostic found, errors and warnings."""

    def __init__(self, diagnostics: Iterable[Diagnostic]) -> None:
        self.diagnostics: tuple[Diagnostic, ...] = tuple(diagnostics)
        super().__init__("\n".join(f"{d}\n  help: {d.help}" for d in self.diagnostics if d.severity == "error"))


def errors(diagnostics: Iterable[Diagnostic]) -> tuple[Diagnostic, ...]:
    """Those of error severity."""
    return tuple(d for d in diagnostics if d.severity == "error")
