"""The rule catalogue's examples, found by discovery: each wrong one gives its rule's code, each right one silence."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable
from pathlib import Path

import pytest

from refkv_policy.cli.catalogue import FAMILIES, Example, all_rules, examples, family
from refkv_policy.compiler import check_plan, compile_plan
from refkv_policy.compiler.lock import check_lock, lock_text
from refkv_policy.plan import Diagnostic, PlanError, Rule, check_schema, load_document, load_plan, parse_plan, read_plan
from tests.review.conftest import PLAN

TESTS = Path(__file__).resolve().parents[1]
CASES = TESTS / "cases" / "invalid"
RUN = [pytest.param(code, entry, id=code) for code, entry in examples().items() if entry.form != "prose"]
RULES = [pytest.param(entry, id=code) for code, entry in all_rules().items()]

PAIRED: dict[str, tuple[str, ...]] = {}
"""Rules whose wrong example gives other codes too: none, as long as each fault can be had alone."""


def refused(call: Callable[[], object]) -> tuple[Diagnostic, ...]:
    """The diagnostics that a call is refused with."""
    with pytest.raises(PlanError) as error:
        call()
    return error.value.diagnostics


def plan_of(text: str, file: Path) -> object:
    """The plan of a sound text."""
    plan, faults = parse_plan(text, str(file))
    assert plan is not None, faults
    return plan


def bad_params(folder: Path) -> Iterable[Diagnostic]:
    """A method's own schema with a keyword that has no message of its own."""
    document, _ = load_document("cap: 2\n", "x.yaml")
    assert document is not None
    return check_schema(document, {"type": "object", "properties": {"cap": {"not": {"const": 2}}}})


def lock_faults(folder: Path, text: str | None) -> Iterable[Diagnostic]:
    """What is said about the lock of a plan that holds `text`, or is missing."""
    lock = folder / "p.lock"
    if text is not None:
        lock.write_text(text)
    fault = check_lock(plan_of(PLAN, folder / "p.yaml"), lock)  # type: ignore[arg-type]
    return () if fault is None else (fault,)


def content(folder: Path, data: bytes) -> Iterable[Diagnostic]:
    """What is said about a file of these bytes."""
    path = folder / "p.yaml"
    path.write_bytes(data)
    return read_plan(path)[1]


PROSE: dict[str, Callable[[Path], Iterable[Diagnostic]] | str] = {
    "RKV001": lambda folder: read_plan(folder / "missing.yaml")[1],
    "RKV002": lambda folder: read_plan(folder)[1],
    "RKV003": lambda folder: read_plan(folder / ("x" * 5000))[1],
    "RKV005": lambda folder: content(folder, b"#" * (1 << 21)),
    "RKV006": lambda folder: content(folder, "name: café\n".encode("latin-1")),
    "RKV024": lambda folder: content(folder, b"a: [" + b"1," * 30_000 + b"]\n"),
    "RKV117": bad_params,
    "RKV219": lambda folder: refused(lambda: compile_plan(plan_of(PLAN, folder / "p.yaml"), "wan2.1-vace-14b", 12)),  # type: ignore[arg-type]
    "RKV220": lambda folder: refused(lambda: compile_plan(plan_of(PLAN, folder / "p.yaml"), "wan2.1-vace-mini", 13)),  # type: ignore[arg-type]
    "RKV222": "cli",
    "RKV221": lambda folder: check_plan(load_plan(CASES / "compiler_profile_name_of_a_shipped_one.yaml")),
    "RKV315": lambda folder: check_plan(load_plan(CASES / "compiler_few_step_model.yaml")),
    "RKV510": "evidence",
    "RKV511": "evidence",
    "RKV512": "evidence",
    "RKV513": "evidence",
    "RKV514": "evidence",
    "RKV515": "evidence",
    "RKV516": "evidence",
    "RKV517": "evidence",
    "RKV518": "evidence",
    "RKV519": "evidence",
    "RKV520": "evidence",
    "RKV602": "guardrails",
    "RKV623": "guardrails",
    "RKV624": "guardrails",
    "RKV701": lambda folder: lock_faults(folder, None),
    "RKV702": lambda folder: lock_faults(folder, "# another lock\n"),
}
"""Rules whose example is told in words, since it needs bytes or a second file: how the fault is made, or the tests that do."""


def test_every_rule_has_an_example() -> None:
    """A rule without an example, and an example without a rule, are slips."""
    missing = set(all_rules()) - set(examples())
    assert not missing, f"add to the examples.yaml beside the rules.py that registers them: {sorted(missing)}"
    assert set(examples()) <= set(all_rules())


@pytest.mark.parametrize(("code", "example"), RUN)
def test_a_wrong_example_breaks_its_rule_only(code: str, example: Example) -> None:
    """The wrong example of a rule gives one diagnostic, of that rule."""
    found = example.findings("wrong")
    assert example.also == PAIRED.get(code, ())
    assert sorted(d.code for d in found) == sorted((code, *example.also)), "\n".join(map(str, found))


@pytest.mark.parametrize(("code", "example"), RUN)
def test_a_right_example_is_silent(code: str, example: Example) -> None:
    """The right example of a rule gives no diagnostic of any rule."""
    assert not example.findings("right")


@pytest.mark.parametrize(("code", "example"), RUN)
def test_the_two_sides_are_alike(code: str, example: Example) -> None:
    """The two sides of an example are short."""
    assert example.wrong != example.right
    assert max(example.wrong.count("\n"), example.right.count("\n")) <= 16
    assert max(map(len, (example.wrong + example.right).splitlines())) <= 120


def test_examples_in_words_are_the_listed_ones() -> None:
    """Only rules whose fault is no text are told in words; each side is one phrase."""
    told = {code: entry for code, entry in examples().items() if entry.form == "prose"}
    assert set(told) == set(PROSE)
    for entry in told.values():
        for side in (entry.wrong, entry.right):
            assert "\n" not in side
            assert not side.endswith(".")


@pytest.mark.parametrize(("code", "made"), PROSE.items(), ids=PROSE)
def test_faults_told_in_words_can_be_had(
    code: str, made: Callable[[Path], Iterable[Diagnostic]] | str, tmp_path: Path
) -> None:
    """Every rule that is told in words is really broken by what makes it, or by a test that names it."""
    if isinstance(made, str):
        files = [p for p in (TESTS / made).rglob("*") if p.suffix in (".py", ".yaml")]
        assert any(code in path.read_text(encoding="utf-8", errors="replace") for path in files)
    else:
        assert [d.code for d in made(tmp_path)] == [code]


def test_the_unchanged_lock_is_current(tmp_path: Path) -> None:
    """The lock that a plan compiles to is no fault."""
    assert not list(lock_faults(tmp_path, lock_text(plan_of(PLAN, tmp_path / "p.yaml"))))  # type: ignore[arg-type]


@pytest.mark.parametrize("rule", RULES)
def test_every_rule_belongs_to_a_family_and_says_why(rule: Rule) -> None:
    """Codes have the form and the family that the catalogue names; texts are one line, reasons are sentences."""
    assert re.fullmatch(r"RKV\d{3}", rule.code)
    assert family(rule.code) in FAMILIES.values()
    assert re.fullmatch(r"[a-z0-9]+(-[a-z0-9]+)*", rule.name)
    assert rule.why.endswith(".")
    assert not rule.message.endswith(".")
    assert "\n" not in rule.message + rule.help + rule.why


def test_every_rule_of_a_plan_has_a_failing_case() -> None:
    """Each rule that a plan file alone can break has a file in tests/cases/invalid that announces it."""
    announced = {
        code
        for path in CASES.glob("*.yaml")
        for code in re.findall(r"# expect: (RKV\d{3})", path.read_bytes().decode())
    }
    guarded = {code for code in all_rules() if code.startswith("RKV6")}
    assert set(all_rules()) - set(PROSE) - guarded <= announced
