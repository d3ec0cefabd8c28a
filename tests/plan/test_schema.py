"""The published schema, and JSON Schema errors as diagnostics for schemas of any origin."""

from __future__ import annotations

import copy
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from jsonschema import Draft202012Validator

from refkv_policy import resources
from refkv_policy.plan import check_schema, load_document, parse_plan, read_document
from refkv_policy.plan.schema import flow, plan_schema

CASES = Path(__file__).resolve().parents[1] / "cases"


def subschemas(schema: dict[str, Any], name: str = "plan") -> Iterator[tuple[str, dict[str, Any]]]:
    """A schema and all schemas of properties and items in it."""
    yield name, schema
    for key, inner in schema.get("properties", {}).items():
        yield from subschemas(inner, f"{name}.{key}")
    if "items" in schema:
        yield from subschemas(schema["items"], f"{name}[]")


def test_the_schema_is_a_schema() -> None:
    """The published file is valid JSON Schema 2020-12."""
    Draft202012Validator.check_schema(plan_schema())


@pytest.mark.parametrize(
    ("name", "schema"), [*subschemas(dict(plan_schema()))][1:], ids=lambda v: v if isinstance(v, str) else ""
)
def test_every_key_is_explained_to_editors(name: str, schema: dict[str, Any]) -> None:
    """Each key has a title, a description and examples, and the examples (and the default) fit it."""
    assert schema["title"]
    assert schema["description"].endswith(".")
    assert schema["examples"]
    for example in [*schema["examples"], *([schema["default"]] if "default" in schema else [])]:
        Draft202012Validator(schema).validate(example)


def test_every_mapping_but_params_is_closed() -> None:
    """Unknown keys are refused everywhere except among a method's own parameters."""
    open_ones = [
        n for n, s in subschemas(dict(plan_schema())) if s["type"] == "object" and "additionalProperties" not in s
    ]
    assert open_ones == ["plan.caches[].params"]


@pytest.mark.parametrize("path", sorted((CASES / "valid").glob("*.yaml")), ids=lambda path: path.stem)
def test_valid_cases_fit_the_published_schema_alone(path: Path) -> None:
    """An editor that knows only the schema accepts every valid case."""
    document, _ = read_document(path)
    assert document is not None
    Draft202012Validator(plan_schema()).validate(document.value)


def test_whatever_jsonschema_refuses_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    """Deleting or replacing any one value of a plan is refused here whenever jsonschema refuses it."""
    value = json.loads(json.dumps(read_document(CASES / "valid" / "full.yaml")[0].value))  # type: ignore[union-attr]
    validator = Draft202012Validator(plan_schema())
    refused = 0
    for path in list(paths(value)):
        for other in (None, True, 0, -1, 4.5, "", "x", [], [1], {}, {"x": 1}, ...):
            mutant = copy.deepcopy(value)
            at = mutant
            for step in path[:-1]:
                at = at[step]
            if other is ...:
                del at[path[-1]]
            else:
                at[path[-1]] = other
            if not validator.is_valid(mutant):
                refused += 1
                plan, diagnostics = parse_plan(json.dumps(mutant, indent=1))
                assert plan is None, (path, other)
                assert diagnostics
    assert refused > 300


def paths(value: Any, path: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    """The path of every value within a value."""
    for key, inner in value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ():
        yield (*path, key)
        yield from paths(inner, (*path, key))


PARAMS: dict[str, Any] = {
    "type": "object",
    "additionalProperties": False,
    "properties": {
        "cap": {"title": "the cap", "type": "number", "exclusiveMinimum": 1, "examples": [2.0]},
        "chain": {"type": "string", "enum": ["exact", "stale"]},
        "on": {"type": "boolean"},
        "order": {"type": "integer", "multipleOf": 2},
        "either": {"anyOf": [{"type": "integer"}, {"type": "array"}]},
        "few": {"type": "array", "maxItems": 2},
        "bare": {"type": "string", "pattern": "^a+$"},
        "map": {"type": "object", "minProperties": 1},
        "one": {"oneOf": [{"required": ["a"]}, {"required": ["b"]}]},
    },
}


@pytest.mark.parametrize(
    ("params", "code", "at", "says"),
    [
        ("{capp: 2}", "RKV101", "capp", "did you mean `cap`?"),
        ("{zzz: 2}", "RKV101", "zzz", "`zzz` is not a key of hint_forecast's params"),
        ("{cap: 1}", "RKV106", "1", "`cap` is 1, and must be more than 1"),
        ("{cap: true}", "RKV103", "true", "`cap` must be a number"),
        ("{chain: stail}", "RKV104", "stail", "did you mean `stale`?"),
        ("{on: yes}", "RKV103", "yes", "write `true` or `false`"),
        ("{order: 3}", "RKV106", "3", "a multiple of 2"),
        ("{either: x}", "RKV117", "x", "does not fit its schema"),
        ("{few: [1, 2, 3]}", "RKV110", "[1, 2, 3]", "at most 2"),
        ("{bare: b}", "RKV105", "b", "a text that matches ^a+$"),
        ("{map: {}}", "RKV117", "{}", "`map` does not fit"),
        ("{one: 4}", "RKV117", "4", "`one` does not fit"),
        ("{one: {}}", "RKV117", "{}", "`one` does not fit"),
        ("[]", "RKV103", "[]", "hint_forecast's params must be a mapping"),
    ],
)
def test_a_methods_schema_gets_the_same_care(params: str, code: str, at: str, says: str) -> None:
    """A second schema, checked at a path of the plan, gives exact spans and good texts, whatever keywords it uses."""
    text = f"caches:\n  - params: {params}\n"
    document, _ = load_document(text, "p.yaml")
    assert document is not None
    (found,) = check_schema(document, PARAMS, ("caches", 0, "params"), "hint_forecast's params")
    assert found.span is not None
    assert (found.code, text.splitlines()[1][found.span.column - 1 : found.span.end_column - 1]) == (code, at)
    assert says in f"{found.message}; {found.help}"


def test_a_fitting_value_gives_nothing() -> None:
    """Parameters that fit give no diagnostic."""
    document, _ = load_document("params: {cap: 2, chain: stale, on: true, order: 4, either: [], one: {a: 1}}", "p.yaml")
    assert document is not None
    assert check_schema(document, PARAMS, ("params",)) == ()


@pytest.mark.parametrize(
    ("value", "text"),
    [
        ({"size": "832x480", "frames": 81}, "{size: 832x480, frames: 81}"),
        (["a", True, None, 2.5], "[a, true, null, 2.5]"),
        ("true", '"true"'),
        ("1e3", '"1e3"'),
        ("2026-11-29", "2026-11-29"),
        ("a: b", '"a: b"'),
    ],
)
def test_examples_are_written_as_yaml(value: Any, text: str) -> None:
    """An example in a help can be pasted: read as YAML it is the value again."""
    assert flow(value) == text
    document, _ = load_document(text, "f.yaml")
    assert document is not None
    assert document.value == value


def test_resources_are_found_in_a_wheel_first(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A shipped file is looked for inside the package, then beside it; a missing one is named with both places."""
    package = tmp_path / "refkv_policy"
    (tmp_path / "schemas").mkdir()
    (tmp_path / "schemas" / "a.json").write_text("checkout")
    monkeypatch.setattr(resources, "PACKAGE", package)
    assert resources.resource("schemas/a.json").read_text() == "checkout"
    (package / "_data" / "schemas").mkdir(parents=True)
    (package / "_data" / "schemas" / "a.json").write_text("wheel")
    assert resources.resource("schemas/a.json").read_text() == "wheel"
    with pytest.raises(FileNotFoundError, match=r"lacks schemas/b\.json"):
        resources.resource("schemas/b.json")
