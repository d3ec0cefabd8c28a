"""`refkv validate` tells what a plan's evidence is worth, with guardrails or without."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from click.testing import CliRunner

from refkv_policy.cli import refkv
from refkv_policy.evidence import write_evidence
from tests.evidence import sample


@pytest.fixture
def evidence(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A repository with a plan that names evidence, which is not there yet; the working directory."""
    for name in (".git", "plans", "evidence"):
        (tmp_path / name).mkdir()
    _plan(tmp_path)
    monkeypatch.chdir(tmp_path)
    return tmp_path / "evidence" / "x.json"


def _plan(folder: Path, interval: int = 2, purpose: str = "reference") -> None:
    named = "{risk: lossy-hint-cache, by: tests, date: 2026-01-01, reason: a test, evidence: evidence/x.json}"
    text = sample.plan(interval, rest=f"acknowledgements:\n  - {named}\n").document.text
    (folder / "plans" / "x.yaml").write_text(text.replace("name: test\n", f"name: test\npurpose: {purpose}\n"))


def _told(*options: str) -> tuple[int, list[tuple[str, str, int | None]]]:
    result = CliRunner().invoke(refkv, ["validate", "--format", "json", *options, "plans"], prog_name="refkv")
    found = json.loads(result.stdout)["diagnostics"]
    return result.exit_code, [(d["code"], d["severity"], d["range"] and d["range"]["start"]["line"]) for d in found]


@pytest.mark.parametrize("rails", [(), ("--guardrails", "none")])
def test_each_status_is_told_at_its_line(evidence: Path, rails: tuple[str, ...]) -> None:
    """Missing: a note. Green: silence. Red: a note, under `purpose: recommended` an error. Stale, edited: errors."""
    line = next(
        n for n, text in enumerate(Path("plans/x.yaml").read_text().splitlines(), 1) if "evidence/x.json" in text
    )
    assert _told(*rails) == (0, [("RKV516", "note", line)])
    write_evidence(evidence, sample.evidence(sample.scope(gate=sample.items())))
    assert _told(*rails) == (0, [])
    write_evidence(evidence, sample.evidence(sample.scope(gate=sample.items(speedup=0.0))))
    assert _told(*rails) == (0, [("RKV518", "note", line)])
    _plan(evidence.parent.parent, purpose="recommended")
    assert _told(*rails) == (1, [("RKV518", "error", line)])
    _plan(evidence.parent.parent, interval=3)
    status, found = _told(*rails)
    assert (status, [(code, severity) for code, severity, _ in found]) == (1, [("RKV517", "error")])
    evidence.write_text(evidence.read_text().replace('"seeds"', '"seeds" '))
    _plan(evidence.parent.parent)
    assert _told(*rails)[0] == 0, "layout is no edit"
    evidence.write_text(evidence.read_text().replace("float32", "float16"))
    status, found = _told(*rails)
    assert (status, found[0]) == (1, ("RKV513", "error", None))


def test_a_recommended_plan_that_names_no_evidence(evidence: Path) -> None:
    """A warning at its acknowledgement; silence for a plan that is only shown for reference."""
    _plan(evidence.parent.parent, purpose="recommended")
    plan = Path("plans/x.yaml")
    plan.write_text(plan.read_text().replace(", evidence: evidence/x.json", ""))
    line = next(n for n, text in enumerate(plan.read_text().splitlines(), 1) if "lossy-hint-cache" in text)
    assert _told() == (0, [("RKV520", "warning", line)])
    shown = CliRunner().invoke(refkv, ["validate", "plans"], prog_name="refkv").stdout
    assert "no acknowledgement names evidence of what it costs" in shown
    assert "refkv gate plans/x.yaml --out evidence/" in shown
    plan.write_text(plan.read_text().replace("purpose: recommended", "purpose: reference"))
    assert _told() == (0, [])
