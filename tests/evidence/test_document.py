"""The document: written and read back, deterministic, and bound to its own text by its digest."""

from __future__ import annotations

import hashlib
import json
import os
import random
import stat
from collections.abc import Iterator
from dataclasses import fields, is_dataclass, replace
from pathlib import Path
from typing import Any

import pytest

from refkv_policy.evidence import (
    Counts,
    Evidence,
    Figure,
    digest_of,
    evidence_schema,
    evidence_text,
    make_scope,
    parse_evidence,
    read_evidence,
    sigmas_digest,
    to_value,
    with_scope,
    write_evidence,
)
from refkv_policy.plan import PlanError
from refkv_policy.profiles import load_profile
from tests.evidence import sample


def leaves(value: Any, path: tuple[str | int, ...] = ()) -> Iterator[tuple[str | int, ...]]:
    """Every path to a value that is no container."""
    if isinstance(value, (dict, list)):
        for key, inner in value.items() if isinstance(value, dict) else enumerate(value):
            yield from leaves(inner, (*path, key))
    else:
        yield path


def test_what_is_written_is_read_back(tmp_path: Path) -> None:
    """Reading a written file gives an equal evidence, no diagnostic, and the digest that writing returned."""
    path = tmp_path / "x.json"
    digest = write_evidence(path, sample.evidence())
    assert read_evidence(path) == (sample.evidence(), ())
    assert json.loads(path.read_text())["digest"] == digest == digest_of(json.loads(path.read_text()))
    assert stat.S_IMODE(path.stat().st_mode) == 0o644
    assert os.listdir(tmp_path) == ["x.json"]


def test_the_text_is_deterministic_and_ascii() -> None:
    """Two makings give the same bytes: keys sorted, one space of indentation, a newline at the end."""
    text = evidence_text(sample.evidence())
    assert text == evidence_text(sample.evidence())
    assert text.isascii()
    assert text == json.dumps(json.loads(text), sort_keys=True, indent=1) + "\n"


def test_a_scope_is_bound_to_its_table_and_profile() -> None:
    """Digests, sampler and sigmas are those of the compiled table and of the profile."""
    plan = sample.plan()
    (table,) = sample.tables(plan).values()
    scope = sample.scope(plan)
    assert scope.scope == ("wan2.1-vace-mini", 12, 5.0)
    assert scope.bound.table == table.digest
    assert scope.bound.profile == load_profile("wan2.1-vace-mini").digest
    assert (scope.bound.sampler, scope.bound.flow_shift) == ("unipc", 3.0)
    assert scope.bound.sigmas == sigmas_digest(table.sigmas) != sigmas_digest(table.sigmas[:-1])
    assert {"refkv", "torch", "diffusers", "python", "platform"} <= set(scope.setting.versions)
    assert scope.created == "2026-12-01T12:00:00+00:00"


def test_a_scope_is_refused_for_another_profile_or_guidance() -> None:
    """What the table is not of, or not reviewed for, cannot be claimed to be measured of it."""
    (table,) = sample.tables(sample.plan()).values()
    scope = sample.scope()
    rest = {name: getattr(scope, name) for name in ("model", "command", "setting", "evaluations", "levels", "audits")}
    with pytest.raises(ValueError, match=r"not of wan2\.1-vace-14b"):
        make_scope(table, load_profile("wan2.1-vace-14b"), guidance=5.0, weights=sample.WEIGHTS, **rest)
    with pytest.raises(ValueError, match="guidance"):
        make_scope(table, load_profile("wan2.1-vace-mini"), guidance=3.0, weights=sample.WEIGHTS, **rest)


def test_the_digest_can_be_worked_out_without_refkv() -> None:
    """As the documentation says: SHA-256 of the sorted, compact JSON of the rest, whole numbers without a fraction."""

    def number(digits: str) -> float | int:
        return int(float(digits)) if float(digits).is_integer() else float(digits)

    rest = json.loads(sample.text(), parse_float=number)
    stored = rest.pop("digest")
    text = json.dumps(rest, sort_keys=True, separators=(",", ":"))
    assert stored == "sha256:" + hashlib.sha256(text.encode()).hexdigest()


def test_layout_key_order_and_spelling_of_numbers_do_not_count() -> None:
    """The digest is of the value: shuffled keys, other white space and 5 for 5.0 leave it sound."""
    value = sample.value()

    def shuffled(inner: Any) -> Any:
        if isinstance(inner, dict):
            keys = list(inner)
            random.Random(1).shuffle(keys)
            return {key: shuffled(inner[key]) for key in keys}
        if isinstance(inner, list):
            return [shuffled(entry) for entry in inner]
        return int(inner) if isinstance(inner, float) and inner.is_integer() else inner

    other = shuffled(value)
    assert json.dumps(other) != json.dumps(value)
    for text in (json.dumps(other), json.dumps(other, indent=7), "\ufeff" + json.dumps(value) + "\r\n"):
        found, diagnostics = parse_evidence(text.removeprefix("\ufeff"))
        assert not diagnostics
        assert found == sample.evidence()


def changed(inner: Any) -> Any:
    """Another value of the same type."""
    match inner:
        case bool():
            return not inner
        case int() | float():
            return inner + 1
        case str():
            return inner + "x"
        case _:
            return 1


def test_every_single_edit_is_found() -> None:
    """Whatever single value is changed, the document is refused, or read as edited; it never passes."""
    paths = list(leaves(sample.value()))
    assert len(paths) > 200
    for path in paths:
        value = sample.value()
        at = value
        for key in path[:-1]:
            at = at[key]
        at[path[-1]] = changed(at[path[-1]])
        evidence, diagnostics = parse_evidence(json.dumps(value))
        assert diagnostics, path
        assert all(d.severity == "error" for d in diagnostics), path
        assert evidence is None or evidence.edited, path


def test_removed_and_swapped_parts_are_found() -> None:
    """A deleted item, a dropped clip and two exchanged samples are edits too."""
    for edit in (
        lambda scope: scope["gate"].pop(),
        lambda scope: scope["audits"].append(scope["audits"][0]),
        lambda scope: scope["metrics"][0]["samples"].reverse(),
    ):
        value = sample.value()
        edit(value["scopes"][0])
        evidence, diagnostics = parse_evidence(json.dumps(value))
        assert [d.code for d in diagnostics] == ["RKV513"]
        assert evidence is not None
        assert evidence.edited


def test_scopes_are_added_replaced_and_kept_in_order() -> None:
    """A scope measured again takes the place of what was known; others stay."""
    first = sample.scope()
    again = replace(first, model="others")
    more = replace(first, steps=4)
    evidence = with_scope(with_scope(with_scope(None, "test", first), "test", more), "test", again)
    assert evidence.scopes == (more, again)


def test_edited_evidence_is_not_written_anew() -> None:
    """Adding to a document that was edited would give the edit a sound digest, and is refused."""
    with pytest.raises(ValueError, match="changed after it was written"):
        with_scope(replace(sample.evidence(), edited=True), "test", sample.scope())


@pytest.mark.parametrize("number", [float("nan"), float("inf"), 10**40])
def test_what_could_not_be_read_back_is_not_written(number: float, tmp_path: Path) -> None:
    """Numbers that JSON cannot hold exactly are refused with a diagnostic, and the earlier file stays."""
    path = tmp_path / "x.json"
    write_evidence(path, sample.evidence())
    before = path.read_bytes()
    scope = sample.scope()
    counts = Counts(1, 2, {}, number, 5.0)
    broken = replace(scope, levels=replace(scope.levels, counts=counts))
    with pytest.raises(PlanError, match=r"not finite|more than 30 digits"):
        write_evidence(path, Evidence("test", (broken,)))
    assert path.read_bytes() == before
    assert os.listdir(tmp_path) == ["x.json"]


@pytest.mark.parametrize("number", [5e-324, 1e-31, 1e31, 1.7e308])
def test_what_nothing_could_measure_is_refused(number: float) -> None:
    """Figures of such magnitudes overflow in whatever is worked out of them; zero is a figure."""

    def put(value: dict[str, Any]) -> None:
        value["scopes"][0]["metrics"][0]["mean"]["value"] = number

    evidence, diagnostics = parse_evidence(sample.forged(sample.value(), put))
    assert evidence is None or not evidence.edited
    assert any("no figure that anything here could measure" in d.message for d in diagnostics), diagnostics


@pytest.mark.parametrize("metric", [None, "pixel_difference"])
@pytest.mark.parametrize("name", ["mean_drop", "worst_frame_drop", "second_half_decay"])
def test_items_on_features_are_measured_with_the_gates_own(name: str, metric: str | None) -> None:
    """Naming no metric, or another one, is no way around the rule that a stand-in gates nothing."""

    def put(value: dict[str, Any]) -> None:
        (item,) = [each for each in value["scopes"][0]["gate"] if each["name"] == name]
        assert item["measured"] is not None
        item["metric"] = metric

    _, diagnostics = parse_evidence(sample.forged(sample.value(), put))
    assert [f"the item {name} is measured with" in d.message for d in diagnostics] == [True], diagnostics


def test_a_document_that_contradicts_itself_is_not_written() -> None:
    """The writer is held to the reader's rules: here an interval the wrong way round."""
    scope = sample.scope()
    metric = replace(scope.metrics[0], mean=Figure(0.1, sample.interval(0.2, 0.1)))
    with pytest.raises(PlanError, match="low end"):
        evidence_text(Evidence("test", (replace(scope, metrics=(metric,)),)))


def test_a_failed_write_leaves_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """When the file cannot be put in its place, no half-written one stays beside it."""

    def refuse(*_: object) -> None:
        raise OSError("disk full")

    monkeypatch.setattr(os, "replace", refuse)
    with pytest.raises(OSError, match="disk full"):
        write_evidence(tmp_path / "x.json", sample.evidence())
    assert os.listdir(tmp_path) == []


def schema_at(schema: Any) -> Any:
    """A schema with its reference followed."""
    name = schema.get("$ref", "").rpartition("/")[2]
    return {**evidence_schema()["$defs"][name], **schema} if name else schema


def pairs(schema: Any, value: Any) -> Iterator[tuple[Any, Any]]:
    """Every object schema with a dataclass that it describes."""
    schema = schema_at(schema)
    if is_dataclass(value):
        yield schema, value
        for field in fields(value):
            yield from pairs(schema["properties"].get(field.name, {}), getattr(value, field.name))
    elif isinstance(value, tuple) and value:
        yield from pairs(schema["items"], value[0])


def test_schema_and_dataclasses_name_the_same_fields() -> None:
    """Neither the published schema nor the classes have a field that the other lacks, verdicts and head aside."""
    extra = {"Evidence": {"version", "kind", "verdict", "digest"}, "MeasuredScope": {"verdict"}, "Item": {"verdict"}}
    seen = set()
    for schema, value in pairs(evidence_schema(), sample.evidence()):
        name = type(value).__name__
        named = {field.name for field in fields(value)} - {"edited"}
        assert set(schema["properties"]) == named | extra.get(name, set()), name
        assert set(schema["required"]) == set(schema["properties"]), name
        seen.add(name)
    assert len(seen) >= 19


def test_the_schema_is_sound_and_explains_itself() -> None:
    """It fits its meta-schema; each of its parts has a title, a description and examples that fit it."""
    from jsonschema import Draft202012Validator

    schema = evidence_schema()
    Draft202012Validator.check_schema(schema)

    def parts(inner: Any, above: bool = False) -> Iterator[Any]:
        if isinstance(inner, dict):
            if "title" in inner and not above:
                yield inner
            for key, entry in inner.items():
                yield from parts(entry, key in ("properties", "$defs"))

    found = list(parts(schema))
    assert len(found) > 100
    for part in found:
        assert part.get("description"), part
        for example in part.get("examples", ()):
            Draft202012Validator({**part, "$defs": schema["$defs"]}).validate(example)


def test_values_of_the_wrong_kind_are_not_json() -> None:
    """An object that JSON does not have is a TypeError of the caller, not a file."""
    scope = replace(sample.scope(), model=Path("x"))  # type: ignore[arg-type]
    with pytest.raises(TypeError):
        to_value(Evidence("test", (scope,)))
