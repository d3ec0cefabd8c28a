"""The evidence that a plan names: where it may lie, and what of it is an error, a warning or a note."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from refkv_policy.evidence import Evidence, check_evidence, examine, locate, repository_root, write_evidence
from refkv_policy.plan import RULES, Plan, parse_plan
from refkv_policy.resources import resource
from tests.evidence import sample
from tests.plans import ACKNOWLEDGED


@pytest.fixture
def repository(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty repository, and the working directory."""
    for name in (".git", "plans", "evidence"):
        (tmp_path / name).mkdir()
    monkeypatch.chdir(tmp_path)
    return tmp_path


def plan_in(repository: Path, evidence: str = "evidence/x.json", purpose: str = "reference", interval: int = 2) -> Plan:
    """The sample's plan, naming evidence, in a file of the repository."""
    named = ACKNOWLEDGED.replace(
        "reason: needed", f"evidence: {json.dumps(evidence, ensure_ascii=False)}, reason: needed"
    )
    text = sample.plan(interval, rest=named).document.text.replace("name: test\n", f"name: test\npurpose: {purpose}\n")
    plan, diagnostics = parse_plan(text, os.path.join("plans", "x.yaml"))
    assert plan is not None, diagnostics
    return plan


def told(plan: Plan) -> list[tuple[str, str]]:
    """Codes and severities of what is told of a plan's evidence."""
    return [(d.code, d.severity) for d in check_evidence(plan, today=sample.TODAY)]


def write(repository: Path, **measured: float | None) -> Path:
    """Evidence of the sample's plan, in its place."""
    path = repository / "evidence" / "x.json"
    write_evidence(path, sample.evidence(sample.scope(gate=sample.items(**measured))))
    return path


def test_a_plan_that_names_none_is_told_nothing(repository: Path) -> None:
    """Nothing is read or compiled, and every scope is missing."""
    plan = sample.plan()
    assert check_evidence(plan, today=sample.TODAY) == ()
    assert set(examine(plan, today=sample.TODAY).statuses.values()) == {"missing"}


def test_fitting_green_evidence_is_silent(repository: Path) -> None:
    """The claim stands, for either purpose."""
    write(repository)
    for purpose in ("reference", "recommended"):
        found = examine(plan_in(repository, purpose=purpose), today=sample.TODAY)
        assert found.diagnostics == ()
        assert set(found.statuses.values()) == {"green"}


@pytest.mark.parametrize("purpose", ["reference", "recommended"])
def test_what_fails_and_what_is_left_to_guardrails(repository: Path, purpose: str) -> None:
    """Stale and edited are always errors; red is one, and missing a warning, where it is recommended, else notes."""
    plan = plan_in(repository, purpose=purpose)
    assert told(plan) == [("RKV516", "warning" if purpose == "recommended" else "note")]
    write(repository, subjective=None)
    assert told(plan) == [("RKV519", "note")]
    write(repository, speedup=0.0, mean_drop=None)
    assert told(plan) == [("RKV518", "error" if purpose == "recommended" else "note")]
    (red,) = check_evidence(plan, today=sample.TODAY)
    assert ("write `purpose: reference`" in red.help) is (purpose == "recommended"), (
        "no plan is told what it says already"
    )
    path = write(repository)
    assert told(plan_in(repository, purpose=purpose, interval=3)) == [("RKV517", "error")]
    path.write_text(path.read_text().replace('"hits": 60', '"hits": 61'))
    assert told(plan) == [("RKV513", "error")]
    assert set(examine(plan, today=sample.TODAY).statuses.values()) == {"edited"}
    path.write_text(path.read_text()[:-20])
    assert told(plan) == [("RKV511", "error")]
    assert set(examine(plan, today=sample.TODAY).statuses.values()) == {"missing"}


def test_messages_name_file_scope_and_items(repository: Path) -> None:
    """At the acknowledgement's `evidence:`, with what to do; an edit is told of the file itself."""
    path = write(repository, speedup=0.0, fewer_steps=1.0)
    plan = plan_in(repository)
    (red,) = check_evidence(plan, today=sample.TODAY)
    scope = "wan2.1-vace-mini at 12 steps and guidance 5"
    assert red.message == f"the evidence evidence/x.json is red for {scope}: speedup, fewer_steps"
    assert red.file == plan.document.file
    assert red.span == plan.document.span(("acknowledgements", 0, "evidence"))
    (stale,) = check_evidence(plan_in(repository, interval=3), today=sample.TODAY)
    assert stale.message.endswith(f"is stale for {scope}: the plan compiles to another table")
    assert stale.help == f"measure anew: `refkv gate {plan.document.file} --out evidence/x.json`"
    path.write_text(path.read_text().replace('"hits": 60', '"hits": 61'))
    (edited,) = check_evidence(plan, today=sample.TODAY)
    assert edited.file == os.path.join("evidence", "x.json")
    assert edited.code == "RKV513"


def test_scopes_are_told_together(repository: Path) -> None:
    """One diagnostic a status, however many scopes; long lists are counted."""
    write(repository)
    plan = plan_in(repository)
    text = plan.document.text.replace("steps: [12]", "steps: [8, 10, 12, 14, 16, 20]")
    more, _ = parse_plan(text, plan.document.file)
    assert more is not None
    (missing,) = check_evidence(more, today=sample.TODAY)
    assert missing.message == (
        "the evidence evidence/x.json says nothing of wan2.1-vace-mini at 8 steps and guidance 5, "
        "wan2.1-vace-mini at 10 steps and guidance 5, wan2.1-vace-mini at 14 steps and guidance 5 and 2 more"
    )


def test_a_file_that_several_acknowledgements_name_is_told_once(repository: Path) -> None:
    """One fault, one diagnostic."""
    plan = plan_in(repository)
    text = plan.document.text + plan.document.text.rpartition("acknowledgements:\n")[2]
    twice, _ = parse_plan(text, plan.document.file)
    assert twice is not None
    assert len(twice.acknowledgements) == 2
    assert told(twice) == [("RKV516", "note")]


def test_an_unsound_plan_is_told_of_its_evidence_only_what_is_certain(repository: Path) -> None:
    """It compiles to nothing, so nothing is stale; a missing file is missing all the same."""
    plan = plan_in(repository)
    text = plan.document.text.replace("tier: P1", "tier: P0")
    unsound, _ = parse_plan(text, plan.document.file)
    assert unsound is not None
    assert told(unsound) == [("RKV516", "note")]
    write(repository, speedup=0.0)
    assert told(unsound) == []
    assert examine(unsound, today=sample.TODAY).statuses == {}


@pytest.mark.parametrize(
    ("path", "words"),
    [
        ("/etc/passwd", "is not relative to the repository"),
        ("C:/evidence.json", "is not relative to the repository"),
        ("~/evidence.json", "is not relative to the repository"),
        ("../evidence/x.json", "goes up with `..`"),
        ("evidence/../../x.json", "goes up with `..`"),
        ("evidence\\x.json", "has a backslash"),
        ("out/x.json", "leads out of the repository through a link"),
    ],
)
def test_evidence_lies_in_the_repository(
    repository: Path, path: str, words: str, tmp_path_factory: pytest.TempPathFactory
) -> None:
    """Whatever the path, nothing outside is opened."""
    outside = tmp_path_factory.mktemp("outside")
    (outside / "x.json").write_text(sample.text())
    (repository / "out").symlink_to(outside)
    (found,) = check_evidence(plan_in(repository, path), today=sample.TODAY)
    assert (found.code, found.severity) == ("RKV515", "error")
    assert words in found.message


@pytest.mark.parametrize(
    "path", ["evidence", ".", "evidence/", "evidence/x.json/y", "x" * 5000, "loop.json", "ü 💥.json"]
)
def test_odd_paths_are_told(repository: Path, path: str) -> None:
    """A directory, a file taken for a folder, a name too long, a link to itself: a diagnostic, never a traceback."""
    write(repository)
    (repository / "loop.json").symlink_to("loop.json")
    (found,) = check_evidence(plan_in(repository, path), today=sample.TODAY)
    assert found.code in ("RKV510", "RKV516")


def test_a_path_with_a_null_byte_is_no_path(tmp_path: Path) -> None:
    """The plan language lets none in; whoever calls with one is told."""
    assert locate(tmp_path, "a\0b")[0] is None


def test_the_root_is_the_folder_that_holds_git(tmp_path: Path) -> None:
    """Upward from the plan: a folder, or the file that a worktree has."""
    (tmp_path / "a" / "plans" / "team").mkdir(parents=True)
    assert repository_root(str(tmp_path / "a" / "plans" / "team" / "x.yaml")) == tmp_path / "a" / "plans" / "team"
    assert repository_root(str(tmp_path / "a" / "plans" / "x.yaml")) == tmp_path / "a"
    (tmp_path / "a" / ".git").write_text("gitdir: elsewhere\n")
    assert repository_root(str(tmp_path / "a" / "plans" / "team" / "x.yaml")) == tmp_path / "a"


def test_shipped_plans_find_the_evidence_shipped_beside_them() -> None:
    """Wherever refkv is installed, even inside another repository."""
    plans = resource("plans")
    assert repository_root(str(plans / "wan21_p1_k4.yaml")) == plans.parent


def test_every_rule_says_why() -> None:
    """The evidence family of the catalogue is complete, and explains itself."""
    codes = [code for code in RULES if "RKV510" <= code <= "RKV519"]
    assert len(codes) == 10
    for code in codes:
        assert RULES[code].why.endswith(".")
        assert RULES[code].help
        assert not RULES[code].message.endswith(".")


def test_neither_torch_nor_numpy_is_loaded() -> None:
    """Reading and checking evidence works with the base install."""
    heavy = ("torch", "diffusers", "numpy", "rich", "click")
    code = f"import sys, refkv_policy.evidence; print([name for name in {heavy!r} if name in sys.modules])"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


def test_a_document_without_scopes_is_not_written(tmp_path: Path) -> None:
    """Evidence of nothing is none."""
    from refkv_policy.plan import PlanError

    with pytest.raises(PlanError, match="scopes"):
        write_evidence(tmp_path / "x.json", Evidence("test", ()))
