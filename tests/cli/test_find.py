"""Which files of a folder are plans."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from refkv_policy.cli.find import find_plans, is_plan
from refkv_policy.cli.group import Failure

KINDS = [
    ("kind: plan\n", True),
    ("version: 1\n", True),
    ("kind: profile\n", False),
    ("kind: guardrails\n", False),
    ("kind: Deployment\n---\nkind: Service\n", False),
    ("kind: Plan\n", True),
    ("kind: plans\n", True),
    ('"kind": plan\ndescription: "\nkind: guardrails"\n', True),
    ('description: "\nkind: guardrails"\n', True),
]


@pytest.mark.parametrize(("text", "expected"), KINDS, ids=range(len(KINDS)))
def test_what_says_it_is_another_kind_is_passed_over(tmp_path: Path, text: str, expected: bool) -> None:
    """Another kind is one that the document says, not a slip and not a line within a text."""
    file = tmp_path / "x.yaml"
    file.write_text(text)
    assert is_plan(file) == expected


def test_a_mistyped_kind_is_told(refkv: Callable, plan_file: Path) -> None:
    """`kind: Plan` in a folder is an error at its line, and not one plan fewer."""
    plan_file.with_name("b.yaml").write_text(plan_file.read_text().replace("kind: plan", "kind: Plan"))
    result = refkv("validate", "plans")
    assert result.exit_code == 1
    assert "plans/b.yaml:2:7" in result.stdout
    assert result.stderr.startswith("2 plans: 1 unsound")


def test_links_are_followed(tmp_path: Path) -> None:
    """A linked folder's plans are found, a loop ends, and what is hidden stays so."""
    plans, other = tmp_path / "plans", tmp_path / "other"
    for place in (plans / "a.yaml", plans / ".hidden" / "b.yaml", plans / ".c.yaml", other / "d.yaml"):
        place.parent.mkdir(parents=True, exist_ok=True)
        place.write_text("kind: plan\n")
    (plans / "linked").symlink_to(other)
    (plans / "loop").symlink_to(plans)
    assert find_plans([str(plans)]) == (str(plans / "a.yaml"), str(plans / "linked" / "d.yaml"))


def test_a_link_that_leads_nowhere_is_no_silence(refkv: Callable, plan_file: Path) -> None:
    """In a folder it is read, which tells of it; named, it is told as what it is."""
    plan_file.with_name("gone.yaml").symlink_to("nowhere.yaml")
    result = refkv("validate", "plans")
    assert (result.exit_code, "plans/gone.yaml: error RKV001" in result.stdout) == (2, True)
    with pytest.raises(Failure, match=r"gone\.yaml is a link that leads to no file"):
        find_plans(["plans/gone.yaml"])
