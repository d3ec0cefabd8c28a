"""The one JSON text that everything is bound by."""

from __future__ import annotations

import hashlib
import json
from typing import Any

import pytest

from refkv_policy.canonical import canonical_json, json_digest, sha256


@pytest.mark.parametrize(
    ("value", "text"),
    [
        ({"b": 1, "a": [1.0, None, True]}, '{"a":[1.0,null,true],"b":1}'),
        ("σ \x7f\n", '"\\u03c3 \\u007f\\n"'),
        ({"a": {"c": 0.1, "b": -0.0}}, '{"a":{"b":-0.0,"c":0.1}}'),
        ((), "[]"),
    ],
)
def test_the_text_is_sorted_compact_and_ascii(value: Any, text: str) -> None:
    """Keys sorted, no spaces, other characters escaped; the digest is SHA-256 of that text."""
    assert canonical_json(value) == text
    assert json_digest(value) == sha256(text) == "sha256:" + hashlib.sha256(text.encode()).hexdigest()
    assert canonical_json(json.loads(text)) == text


@pytest.mark.parametrize("value", [float("nan"), [float("inf")], {"a": -float("inf")}])
def test_what_has_no_exact_text_is_refused(value: Any) -> None:
    """Numbers that are not finite raise ValueError."""
    with pytest.raises(ValueError, match="not JSON compliant"):
        canonical_json(value)


@pytest.mark.parametrize("value", [{1, 2}, object(), {"a": b"x"}, {(1, 2): 3}])
def test_what_json_does_not_have_is_refused(value: Any) -> None:
    """A set, an object, bytes and a key that is no text raise TypeError."""
    with pytest.raises(TypeError):
        canonical_json(value)
