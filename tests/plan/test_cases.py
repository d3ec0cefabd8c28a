"""Runs every file of tests/cases: `invalid/` against its `# expect: CODE LINE:COLUMN` lines, `valid/` against silence.

Cases of the compiler's codes lie in the same folders; they run where the compiler has `check_plan`. A valid case whose
first line begins with `# language only` is not shown to the compiler.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path

import pytest

from refkv_policy.plan import RULES, Diagnostic, Plan, parse_plan, read_plan
from refkv_policy.plan import rules as language

CASES = Path(__file__).resolve().parents[1] / "cases"
INVALID = sorted((CASES / "invalid").glob("*.yaml"))
VALID = sorted((CASES / "valid").glob("*.yaml"))
EXPECT = re.compile(r"# expect: (RKV\d{3}) (\d+):(\d+)\n")
OF_THE_LANGUAGE = re.compile(r"RKV(0\d\d|1\d\d|20\d)")


def compiler_check() -> Callable[[Plan], tuple[Diagnostic, ...]] | None:
    """The compiler's semantic checks, where they exist."""
    try:
        from refkv_policy.compiler import check_plan
    except ImportError:
        return None
    return check_plan


def expected(path: Path) -> list[tuple[str, int, int]]:
    """What the head of a case announces."""
    text = path.read_bytes().decode()
    found = []
    while match := EXPECT.match(text):
        found.append((match.group(1), int(match.group(2)), int(match.group(3))))
        text = text[match.end() :]
    return sorted(found, key=lambda e: (e[1], e[2], e[0]))


@pytest.mark.parametrize("path", INVALID, ids=lambda path: path.stem)
def test_invalid_plan_gives_exactly_the_expected_diagnostics(path: Path) -> None:
    """Each broken plan gives exactly the announced codes at the announced places, each with a help."""
    wanted = expected(path)
    assert wanted, f"{path.name} begins with no `# expect:` line"
    plan, diagnostics = read_plan(path)
    if plan is not None:  # the language finds no error, so the case is the compiler's
        check = compiler_check()
        if check is None:
            pytest.skip("a case of the compiler, which is not here")
        diagnostics += check(plan)
    found = [(d.code, d.span.line, d.span.column) for d in diagnostics if d.span is not None]
    assert sorted(found, key=lambda e: (e[1], e[2], e[0])) == wanted, "\n".join(map(str, diagnostics))
    assert all(d.help and d.message and "\n" not in d.message + d.help for d in diagnostics)
    assert all(d.span < type(d.span)(d.span.end_line, d.span.end_column, 0, 0) for d in diagnostics if d.span)


@pytest.mark.parametrize("path", VALID, ids=lambda path: path.stem)
def test_valid_plan_is_accepted_in_silence(path: Path) -> None:
    """Each sound plan is read without a diagnostic, and (unless it is about the language only) compiles without one."""
    plan, diagnostics = read_plan(path)
    check = compiler_check()
    if plan is not None and check is not None and not path.read_text(encoding="utf-8").startswith("# language only"):
        diagnostics += check(plan)
    assert not diagnostics, "\n".join(map(str, diagnostics))
    assert plan is not None


def test_the_folders_are_full() -> None:
    """A mistyped folder or glob cannot make this module pass by finding nothing."""
    of_the_language = [p for p in INVALID if all(OF_THE_LANGUAGE.fullmatch(code) for code, _, _ in expected(p))]
    assert len(of_the_language) >= 60
    assert len(VALID) >= 20


NOT_IN_A_CASE_FILE = {
    "RKV001": "a missing file",
    "RKV002": "a directory",
    "RKV003": "an unreadable file",
    "RKV005": "a megabyte",
    "RKV006": "another encoding",
    "RKV024": "twenty thousand values",
    "RKV117": "a method's own schema",
}
"""Rules whose failing example cannot be a small UTF-8 plan; tests/plan has them as plain tests."""


def test_every_rule_of_the_language_has_a_failing_case() -> None:
    """Each rule that the plan language registers is shown by at least one file in cases/invalid."""
    own = {rule.code for rule in vars(language).values() if type(rule).__name__ == "Rule"}
    shown = {code for path in INVALID for code, _, _ in expected(path)}
    assert own <= set(RULES)
    assert own - shown <= set(NOT_IN_A_CASE_FILE)


@pytest.mark.parametrize("path", [*VALID, *INVALID[::3]], ids=lambda path: f"{path.parent.name}-{path.stem}")
def test_line_breaks_do_not_move_a_diagnostic(path: Path) -> None:
    """The same plan with CRLF, with CR and with a byte order mark gives the same diagnostics at the same places."""
    text = path.read_bytes().decode()
    _, unix = parse_plan(text, "p.yaml")
    for other in (text.replace("\n", "\r\n"), text.replace("\n", "\r"), "\ufeff" + text):
        assert parse_plan(other, "p.yaml")[1] == unix
