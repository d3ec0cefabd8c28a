"""JSON Schema errors as diagnostics: one fault, one diagnostic, at the exact key or value.

The texts draw on the schema's own `title`, `description` and `examples`, so a method's or a guardrail's schema gets
messages as good as the plan's. Integers are integers: `4.0` and `true` are not.
"""

from __future__ import annotations

import functools
import json
import re
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from refkv_policy.plan import rules
from refkv_policy.plan.diagnostic import Diagnostic, Span
from refkv_policy.plan.document import Document
from refkv_policy.plan.fits import fits
from refkv_policy.plan.model import Path
from refkv_policy.plan.source import lines
from refkv_policy.plan.wording import LONGEST_NAME, counted, cut, described, did_you_mean, listed, nearest, quoted
from refkv_policy.plan.yaml_scalars import resolve
from refkv_policy.resources import resource

Schema = Mapping[str, Any]
Fault = tuple[Path, Diagnostic]

_TYPES = {
    "string": "a text",
    "integer": "a whole number",
    "number": "a number",
    "array": "a list",
    "object": "a mapping",
    "boolean": "`true` or `false`",
    "null": "empty",
}
# Of several faults of one value the first of these is told; the others follow from it.
_ORDER = ("type", "const", "enum", "minLength", "maxLength", "pattern", "minItems", "maxItems", "uniqueItems")
_OF_MAPPINGS = ("additionalProperties", "required", "oneOf", "dependentRequired")
_PLAIN = re.compile(r"[A-Za-z0-9_./](?:[A-Za-z0-9_./ -]*[A-Za-z0-9_./])?")


def check_schema(document: Document, schema: Schema, path: Path = (), root: str = "the plan") -> tuple[Diagnostic, ...]:
    """What of the value at `path` does not fit a JSON Schema (2020-12), in the order of the text.

    `root` names the value at `path` in messages.
    """
    return tuple(d for _, d in schema_faults(document, schema, path, root))


@functools.cache
def plan_schema() -> Schema:
    """The published schema of plans, version 1."""
    schema: Schema = json.loads(resource("schemas/plan.v1.schema.json").read_text(encoding="utf-8"))
    return schema


def schema_faults(
    document: Document, schema: Schema, path: Path, root: str, unclear: Iterable[Path] = ()
) -> list[Fault]:
    """`check_schema`, each diagnostic with the path it is about. Nothing is said about values at `unclear` paths."""
    value = document.value
    for step in path:
        value = value[step]
    if fits(value, schema):
        return []
    grouped: dict[Path, list[Any]] = {}
    for error in _validator_class()(schema).iter_errors(value):
        grouped.setdefault((*path, *error.absolute_path), []).append(error)
    teller = _Teller(document, schema, root, len(path), frozenset(unclear))
    found = [fault for place, group in grouped.items() for fault in teller.faults(place, group)]
    return sorted(found, key=lambda fault: (fault[1].span or Span.point(1, 1), fault[1].code))


@functools.cache
def _validator_class() -> Any:
    from jsonschema import Draft202012Validator, ValidationError, validators  # here, since it is slow to import

    def is_integer(_: Any, value: object) -> bool:
        return isinstance(value, int) and not isinstance(value, bool)

    def pattern(_: Any, wanted: str, value: object, __: Any) -> Iterator[Any]:
        # Python's `$` lets a final newline pass, JSON Schema's does not
        if isinstance(value, str) and (not re.search(wanted, value) or (wanted.endswith("$") and value.endswith("\n"))):
            yield ValidationError(f"{value!r} does not match {wanted!r}")

    checker = Draft202012Validator.TYPE_CHECKER.redefine("integer", is_integer)
    extend: Any = validators.extend
    return extend(Draft202012Validator, {"pattern": pattern}, type_checker=checker)


def example_of(schema: Schema) -> str:
    """The schema's first example as a person would write it in YAML, or `…`."""
    return flow(schema["examples"][0]) if schema.get("examples") else "…"


def flow(value: Any) -> str:
    """A value in YAML's flow style."""
    if isinstance(value, Mapping):
        return "{" + ", ".join(f"{k}: {flow(v)}" for k, v in value.items()) + "}"
    if isinstance(value, (list, tuple)):
        return "[" + ", ".join(map(flow, value)) + "]"
    if isinstance(value, str) and _PLAIN.fullmatch(value) and resolve(value) == value:
        return value
    return json.dumps(value, ensure_ascii=False)


class _Teller:
    """Turns the errors of one path into faults."""

    def __init__(self, document: Document, schema: Schema, root: str, above: int, unclear: frozenset[Path]) -> None:
        self.document, self.schema, self.root, self.above, self.unclear = document, schema, root, above, unclear

    def place(self, path: Path) -> str:
        if len(path) <= self.above:
            return self.root
        if isinstance(path[-1], str):
            return f"`{path[-1]}`"
        return f"this entry of {self.place(path[:-1])}"

    def faults(self, path: Path, group: list[Any]) -> Iterator[Fault]:
        of_mapping = [e for e in group if e.validator in _OF_MAPPINGS and isinstance(e.instance, dict)]
        of_value = [e for e in group if e not in of_mapping]
        if of_mapping:
            yield from self.of_mapping(path, of_mapping)
        if of_value and path not in self.unclear:
            rank = {name: n for n, name in enumerate(_ORDER)}
            error = min(of_value, key=lambda e: rank.get(e.validator, len(rank)))
            yield path, self.of_value(path, error)

    def of_mapping(self, path: Path, group: list[Any]) -> Iterator[Fault]:
        value, schema = group[0].instance, group[0].schema
        known = schema.get("properties", {})
        kinds = {error.validator: error for error in group}
        meant: set[str | None] = set()
        unknown = [key for key in value if key not in known] if "additionalProperties" in kinds else []
        for key in unknown:
            foreign = rules.ELSEWHERE.get(key.lower().replace("-", "_"))
            guess = None if foreign else nearest(key, [k for k in known if k not in value] or known)
            meant.add(guess)
            span = self.document.span((*path, key), key=True)
            advice = self.advice_on_key(key, guess, known)
            shown = quoted(cut(key, LONGEST_NAME))[1:-1]
            yield (*path, key), self.tell(rules.UNKNOWN_KEY, span, key=shown, place=self.place(path), advice=advice)
        if path in self.unclear:
            return
        if "required" in kinds:
            for key in schema["required"]:
                if key not in value and key not in meant:
                    example = f"`{key}: {example_of(known.get(key, {}))}`"
                    where = self.heading(path, value)
                    yield path, self.tell(rules.MISSING_KEY, where, place=self.place(path), key=key, example=example)
        if ("oneOf" in kinds or "dependentRequired" in kinds) and not unknown:
            error = kinds.get("oneOf") or kinds["dependentRequired"]
            if path and path[-1] == "refresh":
                yield path, self.tell(rules.REFRESH_FORM, self.heading(path, value), fault=_refresh_fault(value))
            else:
                yield path, self.unmatched(path, error)

    def of_value(self, path: Path, error: Any) -> Diagnostic:
        value, schema, wanted = error.instance, error.schema, error.validator_value
        span, place = self.document.span(path), self.place(path)
        given = described(value)
        match error.validator:
            case "type":
                names = [wanted] if isinstance(wanted, str) else wanted
                types = " or ".join(_TYPES.get(name, name) for name in names)
                advice = self.advice_on_type(path, names, value, schema)
                return self.tell(rules.WRONG_TYPE, span, place=place, wanted=types, given=given, advice=advice)
            case "enum" | "const":
                choices = wanted if error.validator == "enum" else [wanted]
                words = [choice for choice in choices if isinstance(choice, str)]
                suggestion = did_you_mean(value, words) if isinstance(value, str) else ""
                fields = {"place": place, "given": given, "suggestion": suggestion}
                return self.tell(rules.NOT_A_CHOICE, span, **fields, choices=listed(map(flow, choices)))
            case "pattern":
                title = schema.get("title", f"of the form {wanted}")
                examples = " or ".join(flow(e) for e in schema.get("examples", ()))
                advice = f"write for example {examples}" if examples else f"write a text that matches {wanted}"
                return self.tell(rules.WRONG_FORM, span, given=quoted(value), wanted=title, advice=advice)
            case "minLength" | "maxLength":
                fault = f"{len(value)} characters long" if value else "empty"
                limit = "at least" if error.validator == "minLength" else "at most"
                advice = f"write {limit} {counted(wanted, 'character')}"
                return self.tell(rules.SHORT_TEXT, span, place=place, fault=fault, advice=advice)
            case "minimum" | "maximum" | "exclusiveMinimum" | "exclusiveMaximum" | "multipleOf":
                return self.tell(rules.OUT_OF_RANGE, span, place=place, given=value, bound=_bound(schema, error))
            case "minItems" | "maxItems":
                bound = f"at {'least' if error.validator == 'minItems' else 'most'} {wanted}"
                count = f"{len(value)} entr{'y' if len(value) == 1 else 'ies'}" if value else "no entries"
                advice = f"write for example {example_of(schema)}"
                return self.tell(rules.LIST_LENGTH, span, place=place, given=count, bound=bound, advice=advice)
            case "uniqueItems":
                index = next(n for n, item in enumerate(value) if any(_same(item, other) for other in value[:n]))
                where, shown = self.document.span((*path, index)), cut(flow(value[index]))
                return self.tell(rules.REPEATED_VALUE, where, value=f"`{shown}`", place=place)
            case _:
                return self.unmatched(path, error)

    def advice_on_key(self, key: str, guess: str | None, known: Schema) -> str:
        if (tool := rules.ELSEWHERE.get(key.lower().replace("-", "_"))) is not None:
            example = example_of(plan_schema()["properties"]["caches"])[1:-1]
            return f"that is a setting of {tool}; a plan names sites and when they are computed: `caches:` with `- {example}`"
        if guess is not None:
            return f"did you mean `{guess}`? the keys here are {listed(known, 'and')}"
        homes = sorted(set(_homes(self.schema, key, self.root)))
        if homes:
            return f"`{key}` belongs in {' or '.join(homes)}; the keys here are {listed(known, 'and')}"
        return f"delete it; the keys here are {listed(known, 'and')}" if known else "delete it; there are no keys here"

    def advice_on_type(self, path: Path, names: list[str], value: Any, schema: Schema) -> str:
        example = example_of(schema)
        source = self.source(path)
        if value is None:
            return f"write a value, such as `{example}`"
        if isinstance(value, (list, dict)) and path and path[-1] in rules.NOT_A_LIST:
            return rules.NOT_A_LIST[str(path[-1])]
        if isinstance(value, dict) and "array" in names and example.startswith("[{"):
            return f"write a list, each entry after a dash: `- {example[1:-1]}`"
        if "string" in names and isinstance(value, (int, float)) and source:
            return f'put it in quotes: "{source}"'
        if isinstance(value, float) and value.is_integer() and abs(value) < 1e15 and "integer" in names:
            return f"write {int(value)}"
        number = {"integer": r"-?[0-9]+", "number": r"-?[0-9]+(\.[0-9]+)?"}
        if isinstance(value, str) and any(re.fullmatch(number[n], value) for n in names if n in number):
            return f"write it without quotes: {value}"
        if isinstance(value, str) and "boolean" in names:
            return "write `true` or `false`; other words are texts in YAML 1.2"
        if "array" in names and source and fits(value, schema.get("items", {})):
            return f"write a list: [{source}]"
        return f"write for example `{example}`" if example != "…" else "write " + " or ".join(_TYPES[n] for n in names)

    def source(self, path: Path) -> str:
        """The text of a short scalar on one line; empty for anything else."""
        span = self.document.span(path)
        if path not in self.document.values or span.line != span.end_line or span.end_column - span.column > 40:
            return ""
        text = lines(self.document.text)[span.line - 1][span.column - 1 : span.end_column - 1]
        return "" if text[:1] in ("[", "{", '"', "'") else text

    def heading(self, path: Path, value: Mapping[str, Any]) -> Span:
        """Where to point for something a mapping lacks: at its key, or at the first key in it."""
        if path and path in self.document.keys:
            return self.document.keys[path]
        return self.document.span((*path, next(iter(value))), key=True) if value else self.document.span(path)

    def unmatched(self, path: Path, error: Any) -> Diagnostic:
        reason = cut(str(error.message).replace("\n", " "), 120)
        return self.tell(rules.NOT_MATCHING, self.document.span(path), place=self.place(path), reason=reason)

    def tell(self, rule: Any, span: Span, **fields: object) -> Diagnostic:
        found: Diagnostic = rule.at(self.document.file, span, **fields)
        return found


def _bound(schema: Schema, error: Any) -> str:
    if error.validator == "multipleOf":
        return f"a multiple of {error.validator_value}"
    return " and ".join(f"{word} {schema[key]}" for key, word in _BOUNDS.items() if key in schema)


_BOUNDS = {
    "minimum": "at least",
    "exclusiveMinimum": "more than",
    "maximum": "at most",
    "exclusiveMaximum": "less than",
}


def _refresh_fault(value: Mapping[str, Any]) -> str:
    forms = [key for key in ("interval", "steps", "spacing") if key in value]
    if len(forms) > 1:
        return f"mixes {' and '.join(f'`{key}`' for key in forms)}"
    if "spacing" in value and "count" not in value:
        return "has `spacing` without `count`"
    if "count" in value:
        return "has `count` without `spacing`"
    return "does not say when"


def _same(a: Any, b: Any) -> bool:
    """Equality as JSON Schema has it: `true` is not 1, and 4.0 is 4."""
    if isinstance(a, bool) or isinstance(b, bool):
        return a is b
    if isinstance(a, list) and isinstance(b, list):
        return len(a) == len(b) and all(map(_same, a, b))
    if isinstance(a, dict) and isinstance(b, dict):
        return a.keys() == b.keys() and all(_same(a[key], b[key]) for key in a)
    return bool(a == b)


def _homes(schema: Any, key: str, name: str) -> Iterator[str]:
    """The places of a schema that have a property of this name."""
    if not isinstance(schema, Mapping):
        return
    properties = schema.get("properties", {})
    if key in properties:
        yield name
    for child, inner in properties.items():
        yield from _homes(inner, key, f"`{child}`")
    if "items" in schema:
        yield from _homes(schema["items"], key, f"an entry of {name}")
