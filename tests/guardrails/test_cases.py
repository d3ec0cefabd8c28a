"""Runs every folder of cases/: `failing/` against its `# expect:` lines, `passing/` against silence.

A case is a `guardrails.yaml`, a `plan.yaml` (the one of cases/ where it has none) and, where evidence is judged, an
`evidence.json` of statuses and verdicts by "profile steps guidance".
"""

from __future__ import annotations

import datetime
import json
import re
from pathlib import Path
from typing import Any

import pytest

from refkv_policy.compiler import compile_all
from refkv_policy.guardrails import check_guardrails, read_guardrails
from refkv_policy.guardrails import rules as texts
from refkv_policy.plan import Diagnostic, Rule, errors, load_plan

CASES = Path(__file__).parent / "cases"
FAILING = sorted((CASES / "failing").iterdir())
PASSING = sorted((CASES / "passing").iterdir())
EXPECT = re.compile(r"# expect: (RKV\d{3}) (plan|guardrails) (\d+):(\d+)\n")
TODAY = datetime.date(2026, 12, 15)
NOT_A_CASE = {"RKV602": "two files in one folder, tested with finding"}

Place = tuple[str, str, int, int]


def by_scope(value: dict[str, Any]) -> dict[tuple[str, int, float], Any]:
    """Keys such as "wan2.1-vace-mini 12 5.0" as scopes."""
    parts = {key: key.split() for key in value}
    return {(model, int(steps), float(guidance)): value[key] for key, (model, steps, guidance) in parts.items()}


def diagnostics_of(case: Path) -> tuple[Diagnostic, ...]:
    """All that is told of a case, its plan being sound."""
    own = case / "plan.yaml"
    plan = load_plan(own if own.exists() else CASES / "plan.yaml")
    guardrails, faults = read_guardrails(case / "guardrails.yaml")
    if guardrails is None:
        return faults
    evidence = case / "evidence.json"
    measured = json.loads(evidence.read_text()) if evidence.exists() else None
    statuses = None if measured is None else by_scope(measured["statuses"])
    verdicts = None if measured is None else by_scope(measured["verdicts"])
    return (*faults, *check_guardrails(plan, compile_all(plan, TODAY), guardrails, statuses, verdicts=verdicts))


@pytest.mark.parametrize("case", FAILING, ids=lambda path: path.name)
def test_a_failing_case_gives_exactly_what_it_announces(case: Path) -> None:
    """Each gives the announced codes at the announced places of plan or guardrails, in one line each."""
    text = (case / "guardrails.yaml").read_text()
    wanted: list[Place] = [(code, file, int(line), int(column)) for code, file, line, column in EXPECT.findall(text)]
    assert wanted, f"{case.name} announces nothing"
    assert wanted[0][0] == case.name[:6]
    told = diagnostics_of(case)
    found = [(d.code, Path(d.file).stem, d.span.line, d.span.column) for d in told if d.span is not None]
    assert sorted(found) == sorted(wanted), "\n".join(map(str, told))
    for diagnostic in told:
        assert "\n" not in diagnostic.message + diagnostic.help
        if Path(diagnostic.file).stem == "plan":
            place = re.search(rf"{re.escape(str(case / 'guardrails.yaml'))}:(\d+)", diagnostic.message)
            assert place is not None, "the message does not name the guardrail"
            assert int(place[1]) > 2 + len(wanted)


@pytest.mark.parametrize("case", PASSING, ids=lambda path: path.name)
def test_a_passing_case_is_accepted_in_silence(case: Path) -> None:
    """Each is told nothing."""
    told = diagnostics_of(case)
    assert not told, "\n".join(map(str, told))


def test_every_rule_has_a_failing_and_a_passing_case() -> None:
    """The codes that the folders' names begin with are those of the catalogue."""
    own = {rule.code for rule in vars(texts).values() if isinstance(rule, Rule)}
    assert own - {path.name[:6] for path in FAILING} == set(NOT_A_CASE)
    assert own - {path.name[:6] for path in PASSING} == set(NOT_A_CASE)


def test_the_shared_plan_is_sound() -> None:
    """What fails in a case is the guardrail, not the plan."""
    assert not errors(diagnostics_of(CASES / "passing" / "RKV601_nothing_asked"))
