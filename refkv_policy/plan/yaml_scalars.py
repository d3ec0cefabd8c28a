"""Plain scalars by the core schema of YAML 1.2 (section 10.3.2): `on`, `1:30` and dates are words, `012` is 12."""

from __future__ import annotations

import math
import re

from refkv_policy.plan import rules
from refkv_policy.plan.catalogue import Rule

Scalar = str | int | float | bool | None

_WORDS: dict[str, bool | None] = {
    **dict.fromkeys(("", "~", "null", "Null", "NULL")),
    **dict.fromkeys(("true", "True", "TRUE"), True),
    **dict.fromkeys(("false", "False", "FALSE"), False),
}
_INT = re.compile(r"[-+]?[0-9]+|0o[0-7]+|0x[0-9a-fA-F]+", re.ASCII)
_FLOAT = re.compile(r"[-+]?(?:\.[0-9]+|[0-9]+(?:\.[0-9]*)?)(?:[eE][-+]?[0-9]+)?", re.ASCII)
_NOT_FINITE = re.compile(r"[-+]?\.(?:inf|Inf|INF)|\.(?:nan|NaN|NAN)")


def resolve(text: str) -> Scalar | Rule:
    """The value of a plain scalar, or the rule it breaks (a number that is not finite, or too long to keep exactly)."""
    if text in _WORDS:
        return _WORDS[text]
    if text[0] not in "+-.0123456789":
        return text
    if _INT.fullmatch(text):
        digits = text.lstrip("+-")
        if len(digits) > rules.MAX_DIGITS:
            return rules.NUMBER_TOO_LONG
        return int(text, {"0o": 8, "0x": 16}.get(digits[:2], 10))
    if _NOT_FINITE.fullmatch(text):
        return rules.NOT_FINITE
    if _FLOAT.fullmatch(text):
        if len(text) > 4 * rules.MAX_DIGITS:
            return rules.NUMBER_TOO_LONG
        number = float(text)
        return number if math.isfinite(number) else rules.NOT_FINITE
    return text
