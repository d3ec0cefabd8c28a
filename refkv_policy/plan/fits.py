"""Whether a value fits a JSON Schema, yes or no: answered without importing jsonschema, which takes longer than the rest.

Only a value that does not fit needs the library, which then tells why. A keyword that is not known here counts as not
fitting, so the library always has the last word. Types are as strict as in `schema`: `4.0` and `true` are no integers.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from itertools import combinations
from typing import Any

Schema = Mapping[str, Any]


def fits(value: Any, schema: Schema | bool) -> bool:
    """Whether `value` fits; False also where this cannot tell."""
    if isinstance(schema, bool):
        return schema
    # Plain loops: a document of evidence has tens of thousands of values, and generators cost more than the checks.
    for keyword, wanted in schema.items():
        check = _CHECKS.get(keyword)
        if check is None:
            if keyword not in _ANNOTATIONS:
                return False
        elif not check(wanted, value, schema):
            return False
    return True


def _is_number(value: Any) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool)


_TYPES: dict[str, Callable[[Any], bool]] = {
    "string": lambda v: isinstance(v, str),
    "integer": lambda v: isinstance(v, int) and not isinstance(v, bool),
    "number": _is_number,
    "array": lambda v: isinstance(v, list),
    "object": lambda v: isinstance(v, dict),
    "boolean": lambda v: isinstance(v, bool),
    "null": lambda v: v is None,
}


def _type(wanted: str | Sequence[str], value: Any, _: Schema) -> bool:
    if isinstance(wanted, str):
        return _TYPES[wanted](value)
    return any(_TYPES[name](value) for name in wanted)


def _same(one: Any, other: Any) -> bool:
    return one == other and isinstance(one, bool) == isinstance(other, bool)


def _properties(wanted: Mapping[str, Schema], value: Any, _: Schema) -> bool:
    if isinstance(value, dict):
        for key, part in wanted.items():
            if key in value and not fits(value[key], part):
                return False
    return True


def _items(wanted: Schema | bool, value: Any, _: Schema) -> bool:
    if isinstance(value, list):
        for each in value:
            if not fits(each, wanted):
                return False
    return True


def _additional(wanted: Schema | bool, value: Any, schema: Schema) -> bool:
    if not isinstance(value, dict):
        return True
    known = schema.get("properties", {})
    return "patternProperties" not in schema and all(fits(v, wanted) for key, v in value.items() if key not in known)


def _dependent(wanted: Mapping[str, Sequence[str]], value: Any, _: Schema) -> bool:
    return not isinstance(value, dict) or all(set(needs) <= set(value) for key, needs in wanted.items() if key in value)


def _unique(wanted: bool, value: Any, _: Schema) -> bool:
    if not wanted or not isinstance(value, list):
        return True
    return not any(one == other for one, other in combinations(value, 2))


def _known(schema: Any) -> bool:
    """Whether every keyword in a schema is known here: under `oneOf`, "cannot tell" must not pass for "does not fit"."""
    if isinstance(schema, bool):
        return True
    inner = [*schema.get("properties", {}).values(), *schema.get("oneOf", ())]
    inner += [schema[key] for key in ("items", "additionalProperties") if key in schema]
    return set(schema) <= _ANNOTATIONS | set(_CHECKS) and all(map(_known, inner))


def _pattern(wanted: str, value: Any, _: Schema) -> bool:
    return not isinstance(value, str) or (re.search(wanted, value) is not None and not value.endswith("\n"))


_CHECKS: dict[str, Callable[[Any, Any, Schema], bool]] = {
    "type": _type,
    "const": lambda wanted, value, _: _same(wanted, value),
    "enum": lambda wanted, value, _: any(_same(w, value) for w in wanted),
    "properties": _properties,
    "additionalProperties": _additional,
    "required": lambda wanted, value, _: not isinstance(value, dict) or set(wanted) <= set(value),
    "dependentRequired": _dependent,
    "oneOf": lambda wanted, value, _: all(map(_known, wanted)) and sum(fits(value, part) for part in wanted) == 1,
    "items": _items,
    "minItems": lambda wanted, value, _: not isinstance(value, list) or len(value) >= wanted,
    "maxItems": lambda wanted, value, _: not isinstance(value, list) or len(value) <= wanted,
    "uniqueItems": _unique,
    "minLength": lambda wanted, value, _: not isinstance(value, str) or len(value) >= wanted,
    "maxLength": lambda wanted, value, _: not isinstance(value, str) or len(value) <= wanted,
    "pattern": _pattern,
    "minimum": lambda wanted, value, _: not _is_number(value) or value >= wanted,
    "maximum": lambda wanted, value, _: not _is_number(value) or value <= wanted,
    "exclusiveMinimum": lambda wanted, value, _: not _is_number(value) or value > wanted,
    "exclusiveMaximum": lambda wanted, value, _: not _is_number(value) or value < wanted,
}
_ANNOTATIONS = frozenset({"$schema", "$id", "$comment", "title", "description", "default", "examples", "deprecated"})
