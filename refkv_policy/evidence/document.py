"""The JSON document and its digest: evidence → plain value and back. Nothing is judged here."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import fields, is_dataclass
from typing import Any

from refkv_policy.canonical import canonical_json, sha256
from refkv_policy.evidence.gate import Item
from refkv_policy.evidence.model import Evidence, MeasuredScope
from refkv_policy.plain import from_plain

VERSION, KIND = 1, "evidence"
EXACT = 2**53
"""Below this a whole number is the same as a JSON integer and as a double."""

Values = Mapping[str, Any]


def to_value(evidence: Evidence) -> dict[str, Any]:
    """The JSON document, its digest in it. Verdicts are worked out anew."""
    value = {
        "version": VERSION,
        "kind": KIND,
        "plan": evidence.plan,
        "verdict": evidence.verdict,
        "scopes": [_plain(scope) for scope in evidence.scopes],
    }
    return {**value, "digest": digest_of(value)}


def _plain(value: Any) -> Any:
    if is_dataclass(value) and not isinstance(value, type):
        plain = {field.name: _plain(getattr(value, field.name)) for field in fields(value)}
        return {**plain, "verdict": value.verdict} if isinstance(value, (Item, MeasuredScope)) else plain
    if isinstance(value, Mapping):
        return {key: _plain(inner) for key, inner in value.items()}
    if isinstance(value, (list, tuple)):
        return [_plain(inner) for inner in value]
    return value


def canonical(value: Any) -> str:
    """The one text of a JSON value: keys sorted, no spaces, ASCII, and 5.0 written as 5, its equal in JSON."""
    return canonical_json(_numbers(value))


def _numbers(value: Any) -> Any:
    if isinstance(value, float) and value.is_integer() and abs(value) < EXACT:
        return int(value)
    if isinstance(value, dict):
        return {key: _numbers(inner) for key, inner in value.items()}
    if isinstance(value, (list, tuple)):
        return [_numbers(inner) for inner in value]
    return value


def digest_of(value: Values) -> str:
    """`sha256:…` of a document without its own digest. Layout and the order of keys do not count."""
    return sha256(canonical({key: inner for key, inner in value.items() if key != "digest"}))


def sigmas_digest(sigmas: Iterable[float]) -> str:
    """`sha256:…` of a list of sigmas, as the table of the nominal steps holds them."""
    return sha256(canonical(list(sigmas)))


def from_value(value: Values) -> Evidence:
    """The evidence of a document that fits the schema (any other may raise). Its stored verdicts are not looked at."""
    return from_plain(Evidence, {**value, "edited": digest_of(value) != value["digest"]})
