"""The evidence that ships with the plans: whole, fitting, and of the weights that ship."""

from __future__ import annotations

from pathlib import Path

import pytest

from refkv_policy.evidence import examine, read_evidence
from refkv_policy.plan import load_plan

ROOT = Path(__file__).resolve().parents[2]
FILES = sorted((ROOT / "evidence").glob("*.json"))
PROFILE = "wan2.1-vace-mini"


def test_every_shipped_plan_has_some() -> None:
    """One file a plan, by its name."""
    assert [f.stem for f in FILES] == sorted(p.stem for p in (ROOT / "plans").glob("wan21_*.yaml"))


@pytest.mark.parametrize("file", FILES, ids=lambda f: f.stem)
def test_it_fits_its_plan_and_is_whole(file: Path) -> None:
    """Neither edited nor of another table; measured where the plan has audits, beside both lines of fewer steps."""
    evidence, faults = read_evidence(file)
    assert evidence is not None and faults == () and not evidence.edited
    plan = load_plan(ROOT / "plans" / f"{file.stem}.yaml")
    named = any(entry.evidence for entry in plan.acknowledgements)
    statuses = examine(plan).statuses
    assert {(s.profile, s.steps, s.guidance) for s in evidence.scopes} == {
        (PROFILE, steps, 5.0) for steps in plan.run.steps
    }, "every scope of the embedded model"
    for scope in evidence.scopes:
        assert statuses[scope.scope] == (scope.verdict if named else "missing")
        assert {"fewer_steps", "respaced_steps", "plan"} <= {point.family for point in scope.levels.frontier.points}
        assert len(scope.audits) >= len(scope.setting.clips)
        items = {item.name: item for item in scope.gate}
        assert items["speedup"].interval is not None, "timed"
        assert items["memory"].measured is not None, "under a budget"


def test_it_is_of_the_weights_that_ship() -> None:
    """Whoever trains the embedded model anew has to measure anew."""
    pytest.importorskip("torch")
    from refkv_policy.mini import model_path
    from refkv_policy.runtime.weights import stored_digest

    weights = stored_digest(model_path() / "transformer")
    for file in FILES:
        evidence, _ = read_evidence(file)
        assert evidence is not None and {scope.bound.weights for scope in evidence.scopes} == {weights}


def test_references_of_the_schema_carry_words_only() -> None:
    """What the quick check puts in place of a reference may add a title, and no condition."""
    from refkv_policy.evidence.read import evidence_schema

    def siblings(part: object) -> set[str]:
        if isinstance(part, list):
            return set().union(*map(siblings, part), set())
        if not isinstance(part, dict):
            return set()
        own = set(part) - {"$ref"} if isinstance(part.get("$ref"), str) else set()
        return own.union(*map(siblings, part.values()), set())

    assert siblings(evidence_schema()) <= {"title", "description", "examples"}
