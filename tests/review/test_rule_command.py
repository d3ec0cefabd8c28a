"""`refkv rule`, and the page of rules in the docs."""

from __future__ import annotations

import importlib.util
import json
import sys
from collections.abc import Callable
from pathlib import Path
from types import ModuleType

import pytest

from refkv_policy.cli.catalogue import advice, all_rules, summary
from refkv_policy.plan import Rule
from refkv_policy.plan.wording import inert
from tests.review.conftest import ROOT


def test_the_list_names_every_rule_once(refkv: Callable) -> None:
    """Without a name, every rule is listed under its family, warnings and notes marked."""
    result = refkv("rule")
    assert result.exit_code == 0
    for code, rule in all_rules().items():
        lines = [line for line in result.stdout.splitlines() if line.startswith(f"  {code} {rule.name}")]
        assert len(lines) == 1
        assert (f"({rule.severity})" in lines[0]) is (rule.severity != "error")


@pytest.mark.parametrize("name", ["RKV302", "rkv302", "302", "saves-no-block"])
def test_a_rule_is_explained(refkv: Callable, name: str) -> None:
    """By code or name: the reason, both examples, and what is said about the wrong one."""
    result = refkv("rule", name)
    assert result.exit_code == 0
    text = " ".join(result.stdout.split())
    assert text.startswith("RKV302 saves-no-block (error; composition and tiers) VACE blocks form a chain")
    assert 'wrong caches: - name: shallow-hints tier: P1 method: hint_reuse at: "hint[shallow]"' in text
    assert "says: rule 'shallow-hints' reuses hint[0] but saves no block: vace[0] runs anyway at step 1" in text
    assert "help: cache a suffix of the hints" in text
    assert 'right caches: - name: deep-hints tier: P1 method: hint_reuse at: "hint[deep]"' in text


@pytest.mark.parametrize("code", all_rules())
def test_every_rule_can_be_explained(refkv: Callable, code: str) -> None:
    """No rule's texts or example break the command, and nothing it prints can steer a terminal."""
    result = refkv("rule", code)
    assert result.exit_code == 0, result.output
    assert all(c.isprintable() or c == "\n" for c in result.stdout)
    assert all(word in result.stdout for word in ("\nwrong\n", "\nright\n", "  says: "))


def test_json(refkv: Callable) -> None:
    """--json gives every rule's texts; of a single rule its example and what is said about it as well."""
    listed = json.loads(refkv("rule", "--json").stdout)
    assert listed["format_version"] == 1
    assert [entry["code"] for entry in listed["rules"]] == list(all_rules())
    (one,) = json.loads(refkv("rule", "unknown-key", "--json").stdout)["rules"]
    assert one["code"] == "RKV101"
    assert one["message"] == all_rules()["RKV101"].message
    assert "windw" in one["example"]["wrong"]
    assert one["wrong_says"]["help"].startswith("did you mean `window`?")


def test_a_mistyped_name_is_corrected(refkv: Callable) -> None:
    """An unknown rule is exit status 2, with the nearest name; an unknown code is not guessed at."""
    result = refkv("rule", "lock-stail")
    assert result.exit_code == 2
    assert result.stderr == "refkv: there is no rule lock-stail; did you mean 'lock-stale'? `refkv rule` lists them\n"
    assert refkv("rule", "RKV999").stderr == "refkv: there is no rule RKV999. `refkv rule` lists them\n"


def rule_of(message: str, help: str = "do it", why: str = "Because it is so. More.") -> Rule:
    """A rule with these texts."""
    return Rule("RKV000", "x", "error", message, help, why)


@pytest.mark.parametrize(
    ("message", "shown"),
    [
        ("the plan lists {model!r}, not `{other}`", "the plan lists …, not …"),
        ("run `refkv compile {plan}` and see {limit:g}", "run `refkv compile …` and see …"),
        ("write `params: {{chain: stale}}` in {place}", "write `params: {chain: stale}` in …"),
        ("{problem}", "Because it is so"),
    ],
)
def test_templates_are_shown_without_their_fields(message: str, shown: str) -> None:
    """What differs from case to case is drawn as `…`; where little else is left, the reason stands for it."""
    assert summary(rule_of(message)) == shown


def test_a_mend_that_is_nothing_but_fields_is_left_out() -> None:
    """Such a help tells nothing until the fault is known."""
    assert advice(rule_of("a", help="{advice}")) == ""


def test_invisible_characters_are_drawn() -> None:
    """An example of a forbidden character shows it."""
    assert inert("a\u202eb\tc\n") == "a⟨U+202E⟩b⟨U+0009⟩c\n"


@pytest.fixture(scope="module")
def generator() -> ModuleType:
    """bench/rules_page.py, imported."""
    spec = importlib.util.spec_from_file_location("rules_page", ROOT / "bench" / "rules_page.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_the_page_is_what_the_generator_prints(generator: ModuleType) -> None:
    """docs/rules.md is up to date with the catalogue; otherwise run `python bench/rules_page.py > docs/rules.md`."""
    assert generator.PAGE.read_text(encoding="utf-8") == generator.page()


def test_the_generator_can_check(
    generator: ModuleType, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """With --check it prints no page, exits with 1 for another page or none, and says what to run."""
    monkeypatch.setattr(sys, "argv", ["rules_page.py", "--check"])
    assert generator.main() == 0
    monkeypatch.setattr(generator, "PAGE", tmp_path / "rules.md")
    assert generator.main() == 1
    printed = capsys.readouterr()
    assert printed.out == ""
    assert "run python bench/rules_page.py > docs/rules.md" in printed.err


def test_the_page_links_to_its_own_headings() -> None:
    """Every link of the page's tables leads to a heading of the page."""
    text = (ROOT / "docs" / "rules.md").read_text(encoding="utf-8")
    headings = {line[4:].lower().replace(" ", "-") for line in text.splitlines() if line.startswith("### ")}
    links = [part.split(")")[0] for part in text.split("](#")[1:]]
    assert len(links) == len(all_rules())
    assert set(links) == headings
