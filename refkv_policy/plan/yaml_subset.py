"""Plans are a strict subset of YAML 1.2. This module reads it, with the position of every key and value.

The value is built from the parser's events (libyaml's where PyYAML has it), not by PyYAML's constructors: aliases,
anchors, tags, merge keys, directives, several documents, duplicate keys and keys that are not words are each one
diagnostic at the place where they stand, and nothing is ever expanded.
"""

from __future__ import annotations

import errno
import os
import re
import unicodedata
from dataclasses import dataclass, field

import yaml

from refkv_policy.files import read_bounded
from refkv_policy.plan import rules
from refkv_policy.plan.diagnostic import Diagnostic, errors
from refkv_policy.plan.document import Document
from refkv_policy.plan.model import Path
from refkv_policy.plan.source import span_at
from refkv_policy.plan.yaml_errors import translated
from refkv_policy.plan.yaml_events import Builder, StopReadingError
from refkv_policy.repository import check_inside

_FORBIDDEN = re.compile(
    "[\x00-\x08\x0b\x0c\x0e-\x1f\x7f-\x9f\u2028\u2029\u202a-\u202e\u2066-\u2069\ufeff\ufffe\uffff\ud800-\udfff]"
)


def load_document(text: str, file: str) -> tuple[Document | None, tuple[Diagnostic, ...]]:
    """The document of a text, or None with every fault found. Never raises for any text."""
    composed = compose(text, file)
    return (None if errors(composed.diagnostics) else composed.document), composed.diagnostics


def read_document(path: str | os.PathLike[str]) -> tuple[Document | None, tuple[Diagnostic, ...]]:
    """The document of a file, or None with every fault found. A fault of the system is a diagnostic too."""
    text, diagnostics = read_text(path)
    return (None, diagnostics) if text is None else load_document(text, os.fspath(path))


def read_text(path: str | os.PathLike[str]) -> tuple[str | None, tuple[Diagnostic, ...]]:
    """The text of a file (UTF-8, a leading byte order mark dropped), or None and why it cannot be had."""
    file = os.fspath(path)
    try:
        check_inside(file)
        data = read_bounded(file, rules.MAX_BYTES)
    except FileNotFoundError:
        return None, (rules.MISSING_FILE.at(file, None),)
    except IsADirectoryError:
        return None, (rules.NOT_A_FILE.at(file, None),)
    except (OSError, ValueError) as error:
        if getattr(error, "errno", None) == errno.EFBIG:
            return None, (rules.TOO_LARGE.at(file, None),)
        if os.path.isdir(file):  # on Windows opening a directory is a PermissionError
            return None, (rules.NOT_A_FILE.at(file, None),)
        reason = (getattr(error, "strerror", None) or str(error)).lower()
        return None, (rules.UNREADABLE_FILE.at(file, None, reason=reason),)
    return decode(data, file)


def decode(data: bytes, file: str) -> tuple[str | None, tuple[Diagnostic, ...]]:
    """The text of UTF-8 bytes, a leading byte order mark dropped; or None and the first byte that does not fit."""
    if len(data) > rules.MAX_BYTES:
        return None, (rules.TOO_LARGE.at(file, None),)
    try:
        return data.decode("utf-8-sig"), ()
    except UnicodeDecodeError as error:
        # `start` counts from behind a byte order mark, since the codec drops that first
        body = data.removeprefix(b"\xef\xbb\xbf")
        before = body[: error.start].decode("utf-8")
        guess = "" if body[:2] not in (b"\xff\xfe", b"\xfe\xff") else " but looks like UTF-16"
        offset = error.start + len(data) - len(body)
        span = span_at(before + " ", len(before), len(before) + 1)
        return None, (rules.NOT_UTF8.at(file, span, guess=guess, byte=body[error.start], offset=offset),)


@dataclass
class Composed:
    """What could be made of a text. `document` is None where the text does not parse to its end.

    unclear: paths whose value is not known because of a fault already reported (an alias, say), and of mappings some
    of whose keys are not known; further faults there would be cascades.
    """

    document: Document | None = None
    diagnostics: tuple[Diagnostic, ...] = ()
    unclear: set[Path] = field(default_factory=set)


def compose(text: str, file: str) -> Composed:
    """Read a text as far as possible. Never raises for any text."""
    text = text.removeprefix("\ufeff")
    if len(text) > rules.MAX_BYTES or (not text.isascii() and len(text.encode("utf-8", "replace")) > rules.MAX_BYTES):
        return Composed(None, (rules.TOO_LARGE.at(file, None),))
    if found := _FORBIDDEN.search(text):
        character = found.group()
        name = f"U+{ord(character):04X}" + (f" ({n})" if (n := unicodedata.name(character, "").lower()) else "")
        return Composed(None, (rules.FORBIDDEN_CHARACTER.at(file, span_at(text, *found.span()), name=name),))
    builder = Builder(text, file)
    try:
        value, complete = builder.document()
    except StopReadingError:
        return Composed(None, tuple(builder.found))
    except (yaml.YAMLError, ValueError, OverflowError) as error:  # the last two: PyYAML, of an escape beyond Unicode
        return Composed(None, (*builder.found, translated(error, file, text)))
    document = Document(file, text, value, builder.keys, builder.values) if complete else None
    return Composed(document, tuple(builder.found), builder.unclear)
