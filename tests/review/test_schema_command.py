"""`refkv schema`."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest
import yaml
from jsonschema import Draft202012Validator

from refkv_policy import methods
from tests.review.conftest import ROOT

FILES = sorted((ROOT / "schemas").glob("*.schema.json"))


def test_kinds_are_listed(refkv: Callable) -> None:
    """Without a kind, every published schema is listed with its version and title; --json likewise."""
    result = refkv("schema")
    assert result.exit_code == 0
    assert len(result.stdout.splitlines()) == len(FILES)
    entries = json.loads(refkv("schema", "--json").stdout)["schemas"]
    assert {e["file"] for e in entries} == {p.name for p in FILES}
    assert any((e["kind"], e["version"], e["id"]) == ("plan", 1, "urn:refkv:schema:plan:1") for e in entries)


@pytest.mark.parametrize("path", FILES, ids=lambda p: p.name)
def test_a_schema_is_printed_as_published(refkv: Callable, path: object) -> None:
    """Byte for byte, so that a copy in a repository can be compared; and it is a JSON Schema."""
    kind = path.name.split(".")[0]  # type: ignore[attr-defined]
    result = refkv("schema", kind)
    assert result.stdout == path.read_text(encoding="utf-8")  # type: ignore[attr-defined]
    Draft202012Validator.check_schema(json.loads(result.stdout))


@pytest.mark.parametrize("name", methods.names())
def test_a_methods_parameters(refkv: Callable, name: str) -> None:
    """--method prints the schema that a rule's `params` are checked against."""
    value = json.loads(refkv("schema", "--method", name).stdout)
    assert value == json.loads(json.dumps(methods.get(name).params_schema))


def test_mistyped_names_are_corrected(refkv: Callable) -> None:
    """An unknown kind or method is exit status 2, with the nearest name."""
    result = refkv("schema", "paln")
    assert result.exit_code == 2
    assert "did you mean 'plan'?" in result.stderr
    assert "did you mean 'hint_reuse'?" in refkv("schema", "--method", "hint_reus").stderr
    assert refkv("schema", "plan", "--method", "hint_reuse").exit_code == 2


EDITED = [*sorted((ROOT / "plans").glob("*.yaml")), *sorted((ROOT / "refkv_policy" / "profiles").glob("*.yaml"))]


@pytest.mark.parametrize("path", EDITED, ids=lambda p: p.name)
def test_shipped_files_name_their_schema_to_editors(path: Path) -> None:
    """The first line is a modeline that leads to the published schema of the document's own kind and version."""
    first, text = path.read_text(encoding="utf-8").split("\n", 1)
    schema = path.parent / first.removeprefix("# yaml-language-server: $schema=")
    value = json.loads(schema.read_text(encoding="utf-8"))
    head = yaml.safe_load(text)
    assert value["$id"] == f"urn:refkv:schema:{head['kind']}:{head['version']}"
    Draft202012Validator(value).validate(json.loads(json.dumps(head, default=str)))
