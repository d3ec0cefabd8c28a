"""Strict JSON: finite numbers that could be measured, no key twice, whole characters, a bounded size and depth."""

from __future__ import annotations

import json
import math
import re
from collections import Counter
from typing import Any

from refkv_policy.evidence import rules
from refkv_policy.plan.diagnostic import Diagnostic, Span
from refkv_policy.plan.document import Document
from refkv_policy.plan.model import Path
from refkv_policy.plan.wording import LONGEST_NAME, cut, quoted

SMALLEST, LARGEST = 1e-30, 1e30
"""Magnitudes of figures, zero apart: beyond them arithmetic on figures overflows, and nothing measured is so."""


class _Refused(ValueError):
    """What no evidence may hold: the problem and the advice."""


def load_json(text: str, file: str) -> tuple[Document | None, tuple[Diagnostic, ...]]:
    """The document of a JSON text, or None and its first fault. Never raises for any text.

    A machine wrote it, so its values carry no positions: `where` names a value by its path.
    """
    if len(text) > rules.MAX_BYTES or text.count(",") > rules.MAX_VALUES:
        return None, (rules.UNREADABLE.at(file, None, reason=rules.TOO_LARGE),)
    span = None
    try:
        value = json.loads(
            text, object_pairs_hook=_mapping, parse_int=_integer, parse_float=_number, parse_constant=_number
        )
        if _too_deep(value):
            raise RecursionError
        json.dumps(value, ensure_ascii=False).encode()
        return Document(file, text, value, {}, {}), ()
    except _Refused as error:
        problem, advice = error.args
    except json.JSONDecodeError as error:
        span = Span.point(error.lineno, error.colno)
        problem, advice = f"this is not JSON: {error.msg[:1].lower()}{error.msg[1:]}", _ANEW
    except RecursionError:
        problem, advice = f"the nesting is deeper than {rules.MAX_DEPTH} levels", _ANEW
    except UnicodeEncodeError:
        problem, advice = "a text holds half a character (a lone surrogate)", "write whole characters"
    return None, (rules.NOT_JSON.at(file, span, problem=problem, advice=advice),)


def where(path: Path) -> str:
    """A path as a person writes it: `scopes[0].setting.batch`."""
    steps = (f"[{s}]" if isinstance(s, int) else f".{s}" if _NAME.fullmatch(s) else f"[{quoted(s)}]" for s in path)
    return "".join(steps).removeprefix(".")


_NAME = re.compile(f"[A-Za-z0-9_]{{1,{LONGEST_NAME}}}")
_ANEW = "write the evidence anew with `refkv gate`"


def _mapping(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    value = dict(pairs)
    if len(value) < len(pairs):
        twice = Counter(name for name, _ in pairs).most_common(1)[0][0]
        raise _Refused(f"the key {quoted(twice)} stands twice in one mapping", "keep one of the two")
    return value


def _integer(digits: str) -> int:
    if len(digits) > rules.MAX_DIGITS:
        raise _Refused(f"the number {cut(digits)} has more than {rules.MAX_DIGITS} digits", "write a number of fewer")
    return int(digits)


def _number(digits: str) -> float:
    value = float(digits)
    if not math.isfinite(value):
        raise _Refused(f"the number {cut(digits)} is not finite", "a figure that was not measured is null")
    if value and not SMALLEST <= abs(value) <= LARGEST:
        advice = f"write a number of at least {SMALLEST:g} and at most {LARGEST:g}, or zero"
        raise _Refused(f"the number {cut(digits)} is no figure that anything here could measure", advice)
    return value


def _too_deep(value: Any) -> bool:
    level = [value]
    for _ in range(rules.MAX_DEPTH + 1):
        level = [each for each in level if isinstance(each, (dict, list))]
        if not level:
            return False
        level = [inner for each in level for inner in (each.values() if isinstance(each, dict) else each)]
    return True
