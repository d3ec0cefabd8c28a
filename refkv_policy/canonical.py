"""The one JSON text of a value and its SHA-256: what plans, tables, profiles, evidence and audit lines are bound by."""

from __future__ import annotations

import hashlib
import json
from typing import Any

_ENCODER = json.JSONEncoder(sort_keys=True, separators=(",", ":"), ensure_ascii=True, allow_nan=False)


def canonical_json(value: Any) -> str:
    """Keys sorted, no spaces, ASCII. Raises ValueError or TypeError for what JSON has no exact text for (NaN, an object)."""
    return _ENCODER.encode(value)


def sha256(text: str | bytes) -> str:
    """`sha256:…` of bytes, or of a text's UTF-8."""
    return "sha256:" + hashlib.sha256(text.encode() if isinstance(text, str) else text).hexdigest()


def json_digest(value: Any) -> str:
    """`sha256:…` of a value's canonical JSON: layout and the order of keys do not count. Raises as `canonical_json`."""
    return sha256(canonical_json(value))
