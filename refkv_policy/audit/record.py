"""One line of an audit log: canonical JSON, chained to the line before by its hash.

The text that is hashed is the canonical JSON of the record without `hash` (keys sorted, no spaces, ASCII, finite
numbers); the line is that text with `hash` put last. So a line has one spelling, and every changed byte shows.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from typing import Any

from refkv_policy.canonical import canonical_json, sha256
from refkv_policy.plan.diagnostic import RefkvError

SCHEMA = 1
GENESIS = "sha256:" + "0" * 64
"""`prev` of the first line."""
MAX_LINE = 16 * 2**20
"""Bytes of the longest line, its newline included; the largest real one (a header with a 14B table) is under 100 KB."""
KINDS = ("request", "step", "event", "seal", "close")
OUTCOMES = ("finished", "failed", "cancelled", "incomplete")

_HASH = re.compile(rb',"hash":"(sha256:[0-9a-f]{64})"\}')
_HASH_BYTES = len(',"hash":"sha256:"}') + 64


class AuditError(RefkvError):
    """The audit log cannot be written or read, or the writer is used out of order."""


def canonical(value: Any) -> str:
    """The one JSON text of a value. Raises AuditError for what JSON cannot hold exactly (NaN, an object, odd keys)."""
    try:
        return canonical_json(value)
    except (TypeError, ValueError, RecursionError) as error:
        raise AuditError(f"the audit log cannot hold this value: {error}") from error


def checked(record: Mapping[str, Any]) -> dict[str, Any]:
    """The record as it will be read back: a copy of plain JSON values. Raises AuditError as `canonical` does."""
    value: dict[str, Any] = json.loads(canonical(record))
    return value


def chained(record: Mapping[str, Any], prev: str) -> tuple[bytes, str]:
    """The whole line (with its newline) of a record that follows the line whose hash is `prev`, and its own hash."""
    body = canonical({**record, "prev": prev}).encode("ascii")
    own = sha256(body)
    line = body[:-1] + b',"hash":"' + own.encode("ascii") + b'"}\n'
    if len(line) > MAX_LINE:
        raise AuditError(f"a line of {len(line)} bytes is longer than the {MAX_LINE} an audit log allows")
    return line, own


def parse(line: bytes) -> tuple[dict[str, Any] | None, str | None]:
    """The record of a line (newline removed) and what is wrong with the line, either of which may be None.

    A line whose hash does not match is still returned as a record, so that one edit does not hide what comes after.
    """
    try:
        value = json.loads(line.decode("ascii"), parse_constant=_no_constant)
    except UnicodeDecodeError:
        return None, "it is not ASCII text; an audit log holds JSON Lines"
    except (ValueError, RecursionError) as error:
        return None, f"it is not JSON that an audit log may hold ({_first_line(error)})"
    if not isinstance(value, dict):
        return None, "it is not a JSON object"
    match = _HASH.fullmatch(line, max(0, len(line) - _HASH_BYTES))
    if match is None:
        return value, "it does not end in its own hash"
    body = line[:-_HASH_BYTES] + b"}"
    if sha256(body) != match[1].decode("ascii"):
        return value, "it was edited: its hash does not match what it holds"
    try:
        spelled = canonical({k: v for k, v in value.items() if k != "hash"}).encode("ascii")
    except AuditError as error:
        return value, str(error)
    return value, None if spelled == body else "it is not canonical JSON, so it can be read in more than one way"


def quoted(value: object) -> str:
    """A value from a log, for a message: JSON, ASCII without control characters, at most 80 of them."""
    try:
        text = canonical_json(value)
    except (TypeError, ValueError, RecursionError):
        text = f"<{type(value).__name__}>"
    text = text.replace("\x7f", "\\u007f")
    return text if len(text) <= 80 else text[:77] + "..."


def plain(text: str) -> str:
    """A text from a log as it is where it is a short printable ASCII one, else quoted."""
    return text if text.isascii() and text.isprintable() and len(text) <= 80 else quoted(text)


def _no_constant(name: str) -> None:
    raise ValueError(f"{name} is not a finite number")


def _first_line(error: BaseException) -> str:
    text = "it is nested too deeply" if isinstance(error, RecursionError) else str(error)
    return text.splitlines()[0][:120] if text else type(error).__name__
