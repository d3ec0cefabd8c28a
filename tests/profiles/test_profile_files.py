"""Profile files: the published schema, what of one's own profile is refused, and where."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import MISSING, fields
from pathlib import Path
from typing import Any

import pytest
from jsonschema import Draft202012Validator

from refkv_policy.plan import read_document
from refkv_policy.profiles import FOLDER, Profile, ProfileError, load_profile, names, profile_schema

PLAIN = (FOLDER / "wan2.1-t2v-1.3b.yaml").read_text(encoding="utf-8")
MINI = (FOLDER / "wan2.1-vace-mini.yaml").read_text(encoding="utf-8")


def subschemas(schema: dict[str, Any], name: str = "profile") -> Iterator[tuple[str, dict[str, Any]]]:
    """A schema and all schemas of properties and items in it."""
    yield name, schema
    for key, inner in schema.get("properties", {}).items():
        yield from subschemas(inner, f"{name}.{key}")
    for key in ("items", "additionalProperties"):
        if isinstance(schema.get(key), dict):
            yield from subschemas(schema[key], f"{name}[]")


def refused(folder: Path, text: str) -> str:
    """Why a profile file is refused, its folder taken out."""
    (folder / "own.yaml").write_text(text, encoding="utf-8")
    with pytest.raises(ProfileError) as caught:
        load_profile("own.yaml", folder)
    return str(caught.value).replace(f"{folder}/", "")


@pytest.mark.parametrize("name", names())
def test_shipped_profiles_fit_the_schema(name: str) -> None:
    """Each is valid by jsonschema, and reads the same as a file of one's own, with all of its checks."""
    document, faults = read_document(FOLDER / f"{name}.yaml")
    assert document is not None
    assert not faults
    Draft202012Validator(profile_schema()).validate(document.value)
    assert load_profile(f"{name}.yaml", FOLDER) == load_profile(name)


def test_the_schema_has_the_profiles_fields() -> None:
    """Its keys are those of a Profile, required where that has no default, with the same defaults."""
    schema = profile_schema()
    Draft202012Validator.check_schema(schema)
    own = {field.name: field for field in fields(Profile)}
    assert set(schema["properties"]) - {"version", "kind"} == set(own)
    required = {name for name, f in own.items() if f.default is MISSING and f.default_factory is MISSING}
    assert set(schema["required"]) - {"version", "kind"} == required
    for name, part in schema["properties"].items():
        if name in own and name != "sets" and name not in required:
            assert json.loads(json.dumps(own[name].default)) == part["default"]


@pytest.mark.parametrize(
    ("name", "schema"), [*subschemas(dict(profile_schema()))][1:], ids=lambda v: v if isinstance(v, str) else ""
)
def test_every_key_is_explained_to_editors(name: str, schema: dict[str, Any]) -> None:
    """Each key has a title, a description that is a sentence, and examples that fit it."""
    assert schema["title"]
    assert schema["description"].endswith(".")
    for example in schema["examples"]:
        Draft202012Validator(schema).validate(example)


@pytest.mark.parametrize(
    ("old", "new", "said"),
    [
        ("heads: 4", "haeds: 4", "own.yaml:9:1: RKV101"),
        ("heads: 4", "heads: four", "own.yaml:9:8: RKV103"),
        ("heads: 4", "heads: 4.0", "own.yaml:9:8: RKV103"),
        ("heads: 4", "heads: 0", "own.yaml:9:8: RKV106"),
        ("heads: 4\n", "", "RKV102 the profile lacks the key `heads`"),
        ("patch: [1, 2, 2]", "patch: [1, 2]", "own.yaml:18:8: RKV1"),
        ("kind: profile", "kind: plan", "own.yaml is not a profile"),
        ("version: 1", "version: 2", "own.yaml is not a profile"),
        ("[0, 2, 4, 6, 8, 10]", "[0, 4, 2]", "own.yaml:8:10: `vace_at` must ascend from 0"),
        ("[0, 2, 4, 6, 8, 10]", "[2, 4]", "own.yaml:8:10: `vace_at` must ascend from 0"),
        ("[0, 2, 4, 6, 8, 10]", "[0, 12]", "stay below main_blocks (12)"),
        ('vace: {deep: "3-5"', 'vace: {deep: "3-6"', "own.yaml:22:16: "),
        ('vace: {deep: "3-5"', 'vace: {deep: "3:5"', "own.yaml:22:16: "),
        ("  vace: {", "  block: {", "own.yaml:22:3: RKV101"),
        ("heads: 4", "heads: [4", "RKV0"),
        (
            "family: wan-vace",
            "family: wan-vase",
            "own.yaml:6:9: no model family `wan-vase` is known; did you mean `wan-vace`?",
        ),
        (
            "family: wan-vace",
            "family: ltx",
            "own.yaml:6:9: no model family `ltx` is known; the families are `wan` and `wan-vace`",
        ),
        ("family: wan-vace", "family: wan", "own.yaml:8:10: `vace_at` is for models with hints"),
        ("[0, 2, 4, 6, 8, 10]", "[]", "own.yaml:8:10: `vace_at` must ascend from 0"),
        ("vace_at: [0, 2, 4, 6, 8, 10]\n", "", "`vace_at` must ascend from 0"),
    ],
)
def test_a_faulty_profile_is_refused_at_its_place(tmp_path: Path, old: str, new: str, said: str) -> None:
    """Each fault is a sentence with the profile's own line and column."""
    assert old in MINI
    assert said in refused(tmp_path, MINI.replace(old, new))


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("family: wan\n", "family: wan\nvace_at: []\n"),
        ("family: wan\n", "family: wan\nvace_in_channels: 0\n"),
        ("family: wan\n", "family: wan\nvace_at: []\nvace_in_channels: 96\n"),
    ],
)
def test_a_model_without_hints_may_say_so(tmp_path: Path, old: str, new: str) -> None:
    """An empty layer map and no control channels are what is left out."""
    (tmp_path / "own.yaml").write_text(PLAIN.replace(old, new, 1), encoding="utf-8")
    assert load_profile("own.yaml", tmp_path) == load_profile("wan2.1-t2v-1.3b")


@pytest.mark.parametrize("wrong", ["wan2.1-t2v-1.3B", "wan2.1-t2v-13b", "wan2.1-tv2-1.3b", "wan-2.1-t2v-1.3b"])
def test_a_mistyped_name_of_a_shipped_model_is_answered(wrong: str) -> None:
    """The nearest shipped profile is named."""
    with pytest.raises(ProfileError, match=r"did you mean `wan2\.1-t2v-1"):
        load_profile(wrong)
