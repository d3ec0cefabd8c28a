"""`refkv validate` under guardrails: found, named, or none; with evidence from a file; without torch."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from refkv_policy.evidence import write_evidence
from tests.evidence import sample
from tests.guardrails.test_cases import CASES

ROOT = Path(__file__).resolve().parents[2]
HEAD = "version: 1\nkind: guardrails\n"
NO_P1 = HEAD + "allow:\n  tiers: [P0]\n"


@pytest.fixture
def repository(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A repository with a plan in plans/, and the working directory."""
    for name in (".git", "plans", "evidence"):
        (tmp_path / name).mkdir()
    (tmp_path / "plans" / "x.yaml").write_text((CASES / "plan.yaml").read_text())
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.fixture
def validate() -> Callable[..., Result]:
    """Runs `refkv validate`."""

    def call(*arguments: str) -> Result:
        from refkv_policy.cli import refkv

        return CliRunner().invoke(refkv, ["validate", *arguments], prog_name="refkv")

    return call


def test_guardrails_are_found_and_overridden(repository: Path, validate: Callable[..., Result]) -> None:
    """Those of the repository hold, unless a file or `none` is named; a file that is not there is no work done."""
    assert validate("plans").exit_code == 0
    (repository / "guardrails.yaml").write_text(NO_P1)
    (repository / "lax.yaml").write_text(HEAD)
    result = validate("--format", "concise", "plans")
    assert result.exit_code == 1
    assert result.stdout.startswith(
        "plans/x.yaml:13:11: error RKV611 rule 'deep-hints' is of tier P1, and guardrails.yaml:4"
    )
    assert validate("--guardrails", "none", "plans").exit_code == 0
    assert validate("--guardrails", "lax.yaml", "plans").exit_code == 0
    assert validate("--guardrails", "missing.yaml", "plans").exit_code == 2
    (repository / "plans" / "guardrails.yaml").write_text(HEAD)
    assert validate("plans").exit_code == 0


def test_faults_of_the_guardrails_are_told_once(repository: Path, validate: Callable[..., Result]) -> None:
    """Many plans under faulty guardrails give one diagnostic, with its line shown; likewise two files in a folder."""
    for n in range(3):
        (repository / "plans" / f"y{n}.yaml").write_text((CASES / "plan.yaml").read_text())
    (repository / "guardrails.yaml").write_text(HEAD + "allow:\n  tiers: [P9]\n")
    result = validate("plans")
    assert result.exit_code == 1
    assert result.stdout.count("RKV104") == 1
    assert "4 |   tiers: [P9]" in result.stdout
    (repository / "guardrails.yaml").write_text(HEAD + "never_cached:\n  - sites: 'hint[9]'\n")
    assert validate("plans").stdout.count("RKV605") == 1
    (repository / ".refkv").mkdir()
    (repository / ".refkv" / "guardrails.yaml").write_text(HEAD)
    assert validate("plans").stdout.count("RKV602") == 1


def test_a_guardrails_file_that_is_named_is_checked_as_such(repository: Path, validate: Callable[..., Result]) -> None:
    """A glob that takes it in does not read it as a plan, and its faults are told once."""
    (repository / "plans" / "guardrails.yaml").write_text(HEAD)
    assert validate("plans/*.yaml").exit_code == 0
    (repository / "plans" / "guardrails.yaml").write_text(HEAD + "allow: {tier: [P0]}\n")
    result = validate("--format", "json", "plans/*.yaml")
    assert [d["code"] for d in json.loads(result.stdout)["diagnostics"]] == ["RKV101"]


def test_evidence_is_looked_at_and_judged_again(repository: Path, validate: Callable[..., Result]) -> None:
    """Missing evidence falls short; green evidence does until the repository's threshold is stricter; stale once told."""
    text = sample.plan(2, rest="acknowledgements:\n  - {risk: lossy-hint-cache, by: tests, date: 2026-01-01, "
                       "reason: a test, evidence: evidence/x.json}\n").document.text  # fmt: skip
    (repository / "plans" / "x.yaml").write_text(text)
    rails = repository / "guardrails.yaml"
    rails.write_text(HEAD + "evidence:\n  - {status: green, thresholds: {mean_drop: 0.08}}\n")

    def codes() -> list[str]:
        found = json.loads(validate("--format", "json", "plans").stdout)["diagnostics"]
        return [d["code"] for d in found if d["code"].startswith("RKV6")]

    assert codes() == ["RKV623"]
    scope = sample.scope(gate=sample.items(mean_drop=0.05))
    assert scope.verdict == "green"
    write_evidence(repository / "evidence" / "x.json", sample.evidence(scope))
    assert codes() == []
    rails.write_text(HEAD + "evidence:\n  - {status: green, thresholds: {mean_drop: 0.04}}\n")
    assert codes() == ["RKV624"]
    lax = replace(scope, gate=tuple(replace(i, threshold=0.2) if i.name == "mean_drop" else i for i in scope.gate))
    write_evidence(repository / "evidence" / "x.json", sample.evidence(lax))
    assert codes() == ["RKV624"]


def test_the_shipped_plans_keep_their_guardrails(validate: Callable[..., Result]) -> None:
    """Ours are found beside our plans, and hold."""
    result = validate(str(ROOT / "plans"))
    assert result.exit_code == 0, result.stdout
    broken = validate("--guardrails", str(CASES / "failing" / "RKV611_tier" / "guardrails.yaml"), str(ROOT / "plans"))
    assert broken.exit_code == 1


def test_no_torch_is_imported(repository: Path) -> None:
    """Validating under guardrails that ask for evidence needs the base install only."""
    (repository / "guardrails.yaml").write_text(HEAD + "evidence:\n  - {status: red, purpose: recommended}\n")
    code = (
        "import sys; from refkv_policy.cli import refkv\n"
        "try: refkv.main(['validate', 'plans'])\n"
        "except SystemExit as e: assert e.code == 0, e.code\n"
        "assert not {'torch', 'diffusers', 'numpy', 'rich'} & set(sys.modules)\n"
        "assert 'refkv_policy.guardrails' in sys.modules"
    )
    done = subprocess.run([sys.executable, "-c", code], cwd=repository, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
