"""`refkv diff`: beside the cells, what evidence is worth and which guardrails are broken, on each side by its own files."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from click.testing import Result

from refkv_policy.compiler import compile_all
from refkv_policy.evidence import Bound, Evidence, sigmas_digest, write_evidence
from refkv_policy.plan import load_plan
from refkv_policy.profiles import load_profile
from tests.evidence import sample
from tests.review.conftest import PLAN

NAMED = PLAN.replace("reason: a test", "evidence: evidence/reviewed.json, reason: a test")
RAILS = "version: 1\nkind: guardrails\nrefresh:\n  - {largest_interval: 4}\n"
Git, Refkv = Callable[..., str], Callable[..., Result]


def measure(folder: Path, name: str = "reviewed") -> None:
    """Write green evidence of the plan as it is now."""
    plan = load_plan(folder / "plans" / f"{name}.yaml")
    scopes = []
    for (profile, steps), table in compile_all(plan).items():
        digests = (table.digest, sample.WEIGHTS, load_profile(profile).digest)
        bound = Bound(*digests, table.sampler, table.flow_shift, sigmas_digest(table.sigmas))
        scopes.append(replace(sample.scope(), profile=profile, steps=steps, bound=bound))
    (folder / "evidence").mkdir(exist_ok=True)
    write_evidence(folder / "evidence" / f"{name}.json", Evidence(plan.name, tuple(scopes)))


@pytest.fixture
def reviewed(repository: Path, git: Git, monkeypatch: pytest.MonkeyPatch, refkv: Refkv) -> Path:
    """The repository with green evidence and guardrails that the plan keeps, committed, and the place where refkv runs."""
    (repository / "plans" / "reviewed.yaml").write_text(NAMED)
    (repository / "guardrails.yaml").write_text(RAILS)
    measure(repository)
    git(repository, "add", "--all")
    git(repository, "commit", "--quiet", "--message", "measured")
    monkeypatch.chdir(repository)
    return repository


def since(refkv: Refkv, *arguments: str) -> dict[str, Any]:
    """The one plan of `refkv diff --base HEAD --format json`."""
    result = refkv("diff", "--base", "HEAD", "--format", "json", *arguments)
    assert result.exit_code == 0, result.output
    (plan,) = json.loads(result.stdout)["plans"]
    return plan


def test_evidence_goes_stale_with_the_table(refkv: Refkv, reviewed: Path) -> None:
    """A changed interval leaves the evidence behind; measuring again makes it green, and nothing stands about it."""
    (reviewed / "plans" / "reviewed.yaml").write_text(NAMED.replace("interval: 4", "interval: 3"))
    found = since(refkv)
    scope = {"profile": "wan2.1-vace-mini", "steps": 12, "guidance": 5.0}
    assert found["evidence"] == [{**scope, "before": "green", "after": "stale"}]
    assert "evidence stale at 1 operating point" in found["summary"]
    shown = refkv("diff", "--base", "HEAD").stdout
    assert "\n  green -> stale: wan2.1-vace-mini at 12 steps and guidance 5\n" in shown
    measure(reviewed)
    assert since(refkv)["evidence"] == []


def test_guardrails_are_broken_and_mended(refkv: Refkv, reviewed: Path, git: Git) -> None:
    """What the change breaks and what it mends are told apart, each with the guardrail's file on its own side."""
    plan = reviewed / "plans" / "reviewed.yaml"
    plan.write_text(NAMED.replace("interval: 4", "interval: 6"))
    measure(reviewed)
    rails = since(refkv)["guardrails"]
    (broken,) = rails["now_broken"]
    assert broken.startswith("RKV615 rule 'deep-hints' leaves hint[3] uncomputed")
    assert "guardrails.yaml:4 allows at most 4" in broken
    assert (rails["mended"], rails["still_broken"]) == ([], [])
    assert refkv("diff", "--base", "HEAD", "--detailed-exitcode").exit_code == 3
    git(reviewed, "commit", "--quiet", "--all", "--message", "broken")
    plan.write_text(NAMED)
    rails = since(refkv)["guardrails"]
    assert len(rails["mended"]) == 1
    assert "HEAD:guardrails.yaml:4 allows" in rails["mended"][0]
    assert rails["now_broken"] == []
    plan.write_text(NAMED.replace("interval: 4", "interval: 5"))
    assert len(since(refkv)["guardrails"]["still_broken"]) == 1


def test_the_old_side_is_held_against_its_own_guardrails(refkv: Refkv, reviewed: Path) -> None:
    """Tightened guardrails that an unchanged plan breaks are told, and exit as a change that is not behaviour."""
    (reviewed / "guardrails.yaml").write_text("# first of all\n" + RAILS.replace("4", "3"))
    found = since(refkv)
    assert found["verdict"] == "unchanged"
    assert len(found["guardrails"]["now_broken"]) == 1
    assert found["guardrails"]["demands_changed"]
    result = refkv("diff", "--base", "HEAD", "--detailed-exitcode")
    assert result.exit_code == 4
    assert "guardrails ask for something else: HEAD:guardrails.yaml -> guardrails.yaml" in result.stdout


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (lambda folder: (folder / "guardrails.yaml").unlink(), "guardrails were removed: HEAD:guardrails.yaml"),
        (lambda folder: (folder / "guardrails.yaml").write_text("kind: guardrails\n"), "its guardrails are faulty"),
    ],
    ids=["removed", "faulty"],
)
def test_guardrails_do_not_go_in_silence(
    refkv: Refkv, reviewed: Path, git: Git, change: Callable[[Path], object], said: str
) -> None:
    """Guardrails that are removed or made unreadable show, though no plan changed."""
    second = (reviewed / "plans" / "reviewed.yaml").read_text().replace("name: reviewed", "name: second")
    (reviewed / "plans" / "second.yaml").write_text(second)
    git(reviewed, "add", "--all")
    git(reviewed, "commit", "--quiet", "--message", "a second plan")
    change(reviewed)
    shown = refkv("diff", "--base", "HEAD").stdout
    assert said in shown
    assert shown.count("removed") == said.count("removed")


def test_comments_in_guardrails_are_no_difference(refkv: Refkv, reviewed: Path) -> None:
    """Moved lines and comments change nothing that a plan is held against."""
    (reviewed / "guardrails.yaml").write_text("# reviewed each spring\n" + RAILS)
    result = refkv("diff", "--base", "HEAD", "--detailed-exitcode")
    assert (result.exit_code, result.stdout) == (0, "no plan changed\n")


def test_evidence_is_read_as_it_was(refkv: Refkv, reviewed: Path, git: Git) -> None:
    """Evidence edited since the revision was green there: the old side reads the old file."""
    file = reviewed / "evidence" / "reviewed.json"
    file.write_text(file.read_text().replace('"plan": "reviewed"', '"plan": "another"'))
    (entry,) = since(refkv)["evidence"]
    assert (entry["before"], entry["after"]) == ("green", "edited")
    file.unlink()
    (entry,) = since(refkv)["evidence"]
    assert (entry["before"], entry["after"]) == ("green", "missing")


def test_a_new_plan_is_held_against_guardrails(refkv: Refkv, reviewed: Path) -> None:
    """Of a plan that was not there, everything broken is new; guardrails that were there are not called a change."""
    (reviewed / "plans" / "reviewed.yaml").rename(reviewed / "plans" / "other.yaml")
    other = reviewed / "plans" / "other.yaml"
    other.write_text(PLAN.replace("interval: 4", "interval: 6"))
    result = refkv("diff", "--base", "HEAD")
    assert "2 plans: 1 new, 1 removed, guardrails newly broken in 1\n" in result.stdout
    assert "guardrails ask" not in result.stdout
    assert [line for line in result.stdout.splitlines() if line.startswith("wan2.1") and "->" in line] == []


def test_two_files_are_compared_where_they_lie(refkv: Refkv, reviewed: Path) -> None:
    """OLD and NEW have each their own evidence and nearest guardrails."""
    other = reviewed / "plans" / "stricter" / "reviewed.yaml"
    other.parent.mkdir()
    other.write_text(NAMED)
    (other.parent / "guardrails.yaml").write_text(RAILS.replace("4", "2"))
    result = refkv("diff", "plans/reviewed.yaml", other.relative_to(reviewed))
    assert "nothing changed; breaks 1 guardrail" in result.stdout
    assert "plans/stricter/guardrails.yaml:4 allows at most 2" in result.stdout


def own_profile(reviewed: Path, git: Git) -> str:
    """Commits a profile of one's own, which the plan then names; gives its text."""
    from refkv_policy.profiles import FOLDER

    text = (FOLDER / "wan2.1-vace-mini.yaml").read_text().replace("wan2.1-vace-mini", "own")
    (reviewed / "own.yaml").write_text(text)
    plan = reviewed / "plans" / "reviewed.yaml"
    plan.write_text(PLAN.replace("[wan2.1-vace-mini]", "[../own.yaml]"))
    git(reviewed, "add", "--all")
    git(reviewed, "commit", "--quiet", "--message", "a profile of one's own")
    return text


def test_profiles_are_read_as_they_were(refkv: Refkv, reviewed: Path, git: Git) -> None:
    """A profile file that changed with the plan: each side compiles against its own."""
    text = own_profile(reviewed, git)
    changed = text.replace('deep: "3-5"', 'deep: "4-5"')
    assert changed != text
    (reviewed / "own.yaml").write_text(changed)
    (scope,) = since(refkv)["scopes"]
    assert [row["sites"] for row in scope["rows"]] == ["vace[3]", "hint[3]"]


def test_an_unsound_base_is_named_as_such(refkv: Refkv, reviewed: Path, git: Git) -> None:
    """Faults of the old side stand at their place in the revision, not in a temporary folder."""
    plan = reviewed / "plans" / "reviewed.yaml"
    plan.write_text(NAMED.replace("hint[deep]", "hint[0]"))
    git(reviewed, "commit", "--quiet", "--all", "--message", "unsound")
    plan.write_text(NAMED)
    result = refkv("diff", "--base", "HEAD")
    assert result.exit_code == 1
    assert "HEAD:plans/reviewed.yaml:14:9: RKV302" in result.stderr
    assert "refkv-" not in result.stderr


def test_a_renewed_acknowledgement_can_be_compared(refkv: Refkv, reviewed: Path, git: Git) -> None:
    """That an acknowledgement has expired since is no reason not to show what renews it."""
    plan = reviewed / "plans" / "reviewed.yaml"
    plan.write_text(PLAN.replace("reason:", "expires: 2026-01-02, reason:"))
    git(reviewed, "commit", "--quiet", "--all", "--message", "for a day")
    plan.write_text(PLAN.replace("reason:", "expires: 2999-01-02, reason:"))
    (entry,) = since(refkv)["acknowledgements"]
    assert "expires 2026-01-02" in entry["before"]
    assert "expires 2999-01-02" in entry["after"]


def test_the_markdown_folds_the_maps(refkv: Refkv, reviewed: Path) -> None:
    """A pull request's reader meets the verdict, figures and what to act on; every map is folded."""
    changed = NAMED.replace("interval: 4", "interval: 6").replace(
        ", frames: 17}", ", frames: 17}, {size: 64x64, frames: 17}"
    )
    (reviewed / "plans" / "reviewed.yaml").write_text(changed)
    page = refkv("diff", "--base", "HEAD", "--format", "markdown").stdout
    open_part = page.partition("<details>")[0].splitlines()
    assert open_part[0] == "### plans/reviewed.yaml"
    assert open_part[2].startswith(
        "**Behaviour changed in 1 of 1 tables; evidence stale at 1 operating point; breaks 1 guard"
    )
    assert [line.split(" | ")[2] for line in open_part if line.startswith("| wan2.1")] == ["96x96x17"]
    assert "- green → stale: wan2.1-vace-mini at 12 steps and guidance 5" in open_part
    assert "```" not in "\n".join(open_part)
    assert page.count("<details>") == page.count("</details>") == 2
    assert "| 64x64x17 |" in page


def test_a_plan_that_is_nowhere_is_no_silence(refkv: Refkv, reviewed: Path) -> None:
    """A name that is neither here nor in the revision is a slip, and not a plan that did not change."""
    for name in ("plans/reviwed.yaml", "nowhere"):
        result = refkv("diff", "--base", "HEAD", name)
        assert (result.exit_code, result.stdout) == (2, "")
        assert result.stderr.startswith(f"refkv: {name} is neither here nor in HEAD")


def test_profiles_are_found_whatever_git_colours(refkv: Refkv, reviewed: Path, git: Git) -> None:
    """A repository whose git always colours its output has the same old side."""
    own_profile(reviewed, git)
    git(reviewed, "config", "color.ui", "always")
    result = refkv("diff", "--base", "HEAD")
    assert (result.exit_code, result.stdout) == (0, "no plan changed\n"), result.stderr
