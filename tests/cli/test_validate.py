"""`refkv validate`: what is found, how it is told, what it exits with, and what it imports."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]


def test_shipped_plans_are_sound(refkv: Callable) -> None:
    """Every plan in the repository validates, found by its folder; what is told is what their evidence is worth."""
    result = refkv("validate", "--format", "json", ROOT / "plans")
    assert result.exit_code == 0, result.output
    told = {d["code"]: d["severity"] for d in json.loads(result.stdout)["diagnostics"]}
    assert told.items() <= {"RKV516": "note", "RKV518": "note", "RKV519": "note"}.items()
    assert "sound" in refkv("validate", ROOT / "plans").stderr


@pytest.mark.parametrize("form", ["text", "concise", "json", "github"])
def test_each_format_names_place_and_code(refkv: Callable, plan_file: Path, form: str) -> None:
    """A mistyped key is told with its file, line, column and code in every format; the exit status is 1."""
    plan_file.write_text(plan_file.read_text().replace("    method:", "    metod:"))
    result = refkv("validate", "--format", form, plan_file)
    assert result.exit_code == 1
    line = next(i for i, text in enumerate(plan_file.read_text().splitlines(), 1) if "metod" in text)
    if form == "json":
        found = json.loads(result.stdout)["diagnostics"]
        starts = [d["range"]["start"] for d in found if "metod" in d["message"]]
        assert {"line": line, "column": 5} in starts
    elif form == "github":
        assert f"file={plan_file}," in result.stdout.replace("%3A", ":")
        assert f"line={line}," in result.stdout
        assert result.stdout.startswith("::error ")
    else:
        assert f"{plan_file}:{line}:5: error RKV" in result.stdout
        assert ("^^^^^" in result.stdout) is (form == "text")


def test_errors_are_told_first_and_notes_can_be_left_out(refkv: Callable, tmp_path: Path) -> None:
    """--severity and --quiet leave out what is less severe, in every format; the exit status counts everything."""
    folder = tmp_path / "plans"
    folder.mkdir()
    text = (ROOT / "plans" / "wan21_p1_k4.yaml").read_text()
    (folder / "a.yaml").write_text(text)
    (folder / "b.yaml").write_text(text)
    (folder / "c.yaml").write_text(text.replace("interval: 4", "interval: 1"))

    def found(*options: str) -> tuple[int, list[str]]:
        result = refkv("validate", "--format", "json", *options, folder)
        return result.exit_code, [d["severity"] for d in json.loads(result.stdout)["diagnostics"]]

    status, everything = found()
    assert (status, everything[0], set(everything)) == (1, "error", {"error", "note"})
    assert everything == sorted(everything, key=["error", "warning", "note"].index)
    assert found("--severity", "warning") == found("--quiet") == found("--severity", "error") == (1, ["error"])
    (folder / "c.yaml").unlink()
    assert found("-q") == (0, [])


def test_what_was_not_asked_for_is_told_only_where_it_is_an_error(refkv: Callable, plan_file: Path) -> None:
    """A warning about guardrails is told to whoever validates their folder, not to whoever validates one plan."""
    rails = plan_file.parent / "guardrails.yaml"
    rails.write_text("version: 1\nkind: guardrails\nrefresh: 4\n")
    assert "guardrails.yaml" in refkv("validate", plan_file).stdout, "an error: they cannot be applied"
    rails.write_text(
        "version: 1\nkind: guardrails\nacknowledgements:\n  parties:\n    - {risk: lossy-hints-cache, by: [tests]}\n"
    )
    one, folder = refkv("validate", plan_file), refkv("validate", plan_file.parent)
    assert (one.exit_code, "guardrails.yaml" in one.stdout) == (0, False), one.output
    assert (folder.exit_code, "guardrails.yaml" in folder.stdout) == (0, True), folder.output


def test_semantics_are_checked(refkv: Callable, plan_file: Path) -> None:
    """A plan that the schema accepts but that saves no block on its model is unsound."""
    plan_file.write_text(plan_file.read_text().replace("hint[deep]", "hint[0-2]"))
    result = refkv("validate", plan_file)
    assert result.exit_code == 1
    assert "RKV302" in result.stdout


def test_standard_input(refkv: Callable, plan_file: Path) -> None:
    """`-` reads a plan from the standard input, and bytes that are no UTF-8 are one diagnostic."""
    assert refkv("validate", "-", input=plan_file.read_text()).exit_code == 0
    result = refkv("validate", "-", input=b"\xff\xfe\x00")
    assert result.exit_code == 1
    assert result.stdout.startswith("<stdin>:1:1: error RKV006")


def test_folders_and_globs(refkv: Callable, plan_file: Path, tmp_path: Path) -> None:
    """A folder stands for the plans below it, not for YAML of another kind or hidden folders; a glob for its matches."""
    (plan_file.parent / "rules.yaml").write_text("version: 1\nkind: guardrails\n")
    (plan_file.parent / ".git").mkdir()
    (plan_file.parent / ".git" / "x.yaml").write_text("kind: plan\n")
    assert "1 plan: sound" in refkv("validate", "plans").stderr
    assert "1 plan: sound" in refkv("validate").stderr, "without an argument, the folder plans/"
    assert "1 plan: sound" in refkv("validate", "**/tiny.yaml").stderr
    empty = tmp_path / "none"
    empty.mkdir()
    assert refkv("validate", "none").exit_code == 2
    assert refkv("validate", "*.toml").exit_code == 2


def test_a_file_that_is_not_there(refkv: Callable, plan_file: Path) -> None:
    """A missing file is a diagnostic and exit status 2; the other files are checked all the same."""
    plan_file.write_text("kind: plan\n")
    result = refkv("validate", "--format", "concise", "missing.yaml", plan_file)
    assert result.exit_code == 2
    assert "missing.yaml: error RKV001" in result.stdout
    assert str(plan_file) in result.stdout


def test_imports_neither_torch_nor_diffusers_nor_rich() -> None:
    """A validation whose output is no terminal imports no heavy library and not rich."""
    code = (
        "import sys\n"
        "sys.argv = ['refkv', 'validate', 'plans']\n"
        "from refkv_policy.cli import main\n"
        "try:\n    main()\nexcept SystemExit as stop:\n    assert not stop.code, stop.code\n"
        "heavy = {'torch', 'diffusers', 'transformers', 'numpy', 'av', 'PIL', 'rich'} & set(sys.modules)\n"
        "print(sorted(heavy))\n"
    )
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=True)
    assert done.stdout.splitlines()[-1] == "[]"
