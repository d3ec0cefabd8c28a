"""`--format sarif` against the official schema and the promises that code-scanning services rely on."""

from __future__ import annotations

import functools
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any
from urllib.parse import unquote

import pytest
from jsonschema import Draft7Validator, FormatChecker

from refkv_policy import __version__
from refkv_policy.cli.catalogue import all_rules
from refkv_policy.cli.render import render
from refkv_policy.cli.sarif import FINGERPRINT, help_markdown, region, repository_root, sarif
from refkv_policy.plan import Diagnostic, Span, read_plan
from tests.review.conftest import PLAN

HERE = Span(3, 1, 3, 5)
CASES = sorted((Path(__file__).resolve().parents[1] / "cases" / "invalid").glob("*.yaml"))


@functools.cache
def validator() -> Draft7Validator:
    """Of the schema that OASIS publishes."""
    path = Path(__file__).parent / "sarif" / "sarif-schema-2.1.0.json"
    return Draft7Validator(json.loads(path.read_text(encoding="utf-8")), format_checker=FormatChecker())


def diagnostic(code: str = "RKV101", span: Span | None = HERE, file: str = "p.yaml", **more: Any) -> Diagnostic:
    """A diagnostic."""
    fields: dict[str, Any] = {"severity": "error", "message": "`naam` is unknown", "help": "write `name`", **more}
    return Diagnostic(code=code, span=span, file=file, **fields)


def run_of(
    diagnostics: list[Diagnostic], sources: dict[str, str] | None = None, root: Path | None = None
) -> dict[str, Any]:
    """The one run of a valid log."""
    value = json.loads(sarif(diagnostics, sources or {}, root))
    validator().validate(value)
    assert value["version"] == "2.1.0"
    (run,) = value["runs"]
    assert isinstance(run, dict)
    return run


def test_the_schema_can_refuse() -> None:
    """The vendored schema is a schema, and is not one that lets everything pass."""
    Draft7Validator.check_schema(validator().schema)
    value = json.loads(sarif([diagnostic()], {}))
    value["runs"][0]["results"][0]["level"] = "fatal"
    assert not validator().is_valid(value)


def test_every_case_gives_a_valid_log() -> None:
    """The diagnostics of all broken plans together fit the schema, one result each, each with its rule."""
    found, sources = [], {}
    for path in CASES:
        _, faults = read_plan(path)
        found += faults
        sources[str(path)] = path.read_bytes().decode()
    run = run_of(found, sources)
    assert len(run["results"]) == len(found) > 100
    rules = run["tool"]["driver"]["rules"]
    for result in run["results"]:
        assert rules[result["ruleIndex"]]["id"] == result["ruleId"]
        place = result["locations"][0]["physicalLocation"]
        lines = sources[str(repository_root(Path.cwd()) / unquote(place["artifactLocation"]["uri"]))].split("\n")
        here = place["region"]
        assert here["startLine"] == here["endLine"]
        assert 1 <= here["startColumn"] <= here["endColumn"] <= len(lines[here["startLine"] - 1]) + 1


def test_rules_carry_their_texts() -> None:
    """The driver names refkv and its version; every rule that is told has id, name, descriptions, help and level."""
    run = run_of(
        [diagnostic("RKV310", severity="warning"), diagnostic("RKV101"), diagnostic("RKV101", Span(9, 1, 9, 2))]
    )
    driver = run["tool"]["driver"]
    assert (driver["name"], driver["semanticVersion"]) == ("refkv", __version__)
    assert [rule["id"] for rule in driver["rules"]] == ["RKV101", "RKV310"]
    first, second = driver["rules"]
    assert first["name"] == "unknown-key"
    assert first["shortDescription"]["text"].endswith(".")
    assert first["fullDescription"]["text"] == first["help"]["text"] == all_rules()["RKV101"].why
    assert "**Wrong**\n\n```yaml\ncaches:" in first["help"]["markdown"]
    assert first["defaultConfiguration"] == {"level": "error"}
    assert second["defaultConfiguration"] == {"level": "warning"}
    assert run["columnKind"] == "unicodeCodePoints"


@pytest.mark.parametrize("code", all_rules())
def test_every_rule_fits_the_schema(code: str) -> None:
    """Whatever rule is told, its entry fits the schema and its help shows both sides of its example."""
    run_of([diagnostic(code, severity=all_rules()[code].severity)])
    text = help_markdown(all_rules()[code])
    assert "**Wrong**" in text
    assert "**Right**" in text


def test_a_code_without_a_rule_is_still_told() -> None:
    """A third party's code that no catalogue lists has an entry with its id alone."""
    assert run_of([diagnostic("XYZ001")])["tool"]["driver"]["rules"] == [{"id": "XYZ001"}]


def test_no_faults_are_an_empty_run() -> None:
    """A run that found nothing says so: results is an empty list, not absent."""
    run = run_of([])
    assert run["results"] == []
    assert run["tool"]["driver"]["rules"] == []


@pytest.mark.parametrize(
    ("span", "line", "columns"),
    [
        (Span(3, 1, 3, 5), "naam: x", (1, 5)),
        (Span(3, 5, 7, 2), "run: {  ", (5, 7)),
        (Span(3, 5, 7, 2), None, (5, None)),
        (Span(3, 7, 3, 8), "steps:", (7, 7)),
        (Span(3, 1, 3, 2), "", (1, 1)),
    ],
)
def test_regions_are_on_one_line(span: Span, line: str | None, columns: tuple[int, int | None]) -> None:
    """A span over lines is clipped to its first, a span past the end of the line to its end; columns count from 1."""
    found = region(span, line)
    assert (found["startLine"], found["endLine"]) == (3, 3)
    assert (found["startColumn"], found.get("endColumn")) == columns


def test_columns_count_characters() -> None:
    """Columns are those of characters, not of bytes or UTF-16 units."""
    text = "version: 1\nkind: plan\nd: é😀 {\n"
    (result,) = run_of([diagnostic(span=Span(3, 7, 3, 8))], {"p.yaml": text})["results"]
    here = result["locations"][0]["physicalLocation"]["region"]
    assert text.splitlines()[2][here["startColumn"] - 1 : here["endColumn"] - 1] == "{"


def test_a_fault_of_a_whole_file_has_no_region() -> None:
    """A file that could not be read is a result at the file."""
    (result,) = run_of([diagnostic("RKV001", None)])["results"]
    assert "region" not in result["locations"][0]["physicalLocation"]


def test_paths_are_relative_to_the_repository(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """From a folder within the repository, paths still count from its root, percent-encoded, with forward slashes."""
    top = tmp_path / "repository"
    (top / ".git").mkdir(parents=True)
    inside = top / "serving" / "plans"
    inside.mkdir(parents=True)
    monkeypatch.chdir(inside)
    found = [
        diagnostic(file="50% é.yaml"),
        diagnostic(file=str(top / "other.yaml")),
        diagnostic(file="../../../out.yaml"),
    ]
    run = run_of(found)
    places = [r["locations"][0]["physicalLocation"]["artifactLocation"] for r in run["results"]]
    assert places[0] == {"uri": "serving/plans/50%25%20%C3%A9.yaml", "uriBaseId": "%SRCROOT%"}
    assert places[1] == {"uri": "other.yaml", "uriBaseId": "%SRCROOT%"}
    assert places[2] == {"uri": (tmp_path / "out.yaml").as_uri()}
    assert str(tmp_path) not in json.dumps(run["originalUriBaseIds"])
    assert run["originalUriBaseIds"].keys() == {"%SRCROOT%"}


def test_standard_input_has_an_address_that_is_one() -> None:
    """The name of the standard input is percent-encoded."""
    (result,) = run_of([diagnostic(file="<stdin>")])["results"]
    assert result["locations"][0]["physicalLocation"]["artifactLocation"] == {"uri": "%3Cstdin%3E"}


def fingerprints(text: str, *lines: int) -> list[str]:
    """Of one diagnostic a line."""
    found = [diagnostic(span=Span(line, 1, line, 2)) for line in lines]
    return [r["partialFingerprints"][FINGERPRINT] for r in run_of(found, {"p.yaml": text})["results"]]


def test_fingerprints_stay_when_lines_move() -> None:
    """Lines added above, and a change of indentation, leave a fingerprint as it was."""
    assert fingerprints("a\nx: 1\n", 2) == fingerprints("a\nb\n\n  x: 1\n", 4)


def test_fingerprints_tell_faults_apart() -> None:
    """Another text, and the same text a second time, have another fingerprint."""
    same = fingerprints("x: 1\nx: 1\nx: 2\n", 1, 2, 3)
    assert len(set(same)) == 3
    assert same[0].split(":")[0] == same[1].split(":")[0]
    codes = run_of([diagnostic("RKV101"), diagnostic("RKV102")], {"p.yaml": "a\nb\nc\n"})["results"]
    assert len({r["partialFingerprints"][FINGERPRINT] for r in codes}) == 2


def test_messages_are_literal() -> None:
    """Braces are doubled, since a SARIF message could have placeholders, and the help stands in the message."""
    (result,) = run_of([diagnostic(message="say `{0}`", help="write `params: {chain: stale}`")])["results"]
    assert result["message"]["text"] == "Say `{{0}}`. Help: write `params: {{chain: stale}}`"


def test_the_log_is_the_same_everywhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Two checkouts in different places give the same bytes."""
    logs = []
    for name in ("one", "two"):
        folder = tmp_path / name
        (folder / ".git").mkdir(parents=True)
        monkeypatch.chdir(folder)
        logs.append(sarif([diagnostic()], {"p.yaml": "a\nb\nnaam: x\n"}))
    assert logs[0] == logs[1]


def test_the_command_prints_it(refkv: Callable, tmp_path: Path) -> None:
    """`refkv validate --format sarif` prints a log and nothing else, and exits as with the other formats."""
    plan = tmp_path / "plans" / "p.yaml"
    plan.parent.mkdir()
    plan.write_text(PLAN)
    sound = refkv("validate", "--format", "sarif")
    assert (sound.exit_code, sound.stderr) == (0, "")
    assert json.loads(sound.stdout)["runs"][0]["results"] == []
    plan.write_text(PLAN.replace("hint[deep]", "hint[0]"))
    found = refkv("validate", "--format", "sarif")
    assert (found.exit_code, found.stderr) == (1, "")
    value = json.loads(found.stdout)
    validator().validate(value)
    (result,) = value["runs"][0]["results"]
    assert result["ruleId"] == "RKV302"
    assert result["locations"][0]["physicalLocation"]["artifactLocation"]["uri"] == "plans/p.yaml"


def test_render_has_the_format() -> None:
    """The renderer knows the format by its name."""
    assert json.loads(render([diagnostic()], "sarif"))["version"] == "2.1.0"
