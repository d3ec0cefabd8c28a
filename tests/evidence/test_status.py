"""What evidence is worth: one status a scope, stale as soon as the plan compiles to something else."""

from __future__ import annotations

from dataclasses import replace

import pytest

from refkv_policy.compiler.table import HookTable
from refkv_policy.evidence import Evidence, Scope, of_weights, plan_scopes, profile_digests, status
from refkv_policy.plan import Plan
from tests.evidence import sample
from tests.plans import ACKNOWLEDGED

SCOPE = Scope(sample.PROFILE, 12, 5.0)


def of(plan: Plan, *documents: Evidence, **more: object) -> str:
    """The status of the sample's scope under a plan."""
    return status(plan, sample.tables(plan), documents, **more)[SCOPE]  # type: ignore[arg-type]


def test_without_evidence_every_scope_is_missing() -> None:
    """A plan's scopes are its models by its step counts by its guidances, and all are told."""
    plan = sample.plan(steps="[8, 12]", guidance="[3.0, 5.0]", models="[wan2.1-vace-mini, wan2.1-vace-14b]")
    tables = sample.tables(plan)
    found = status(plan, tables, [])
    assert set(found.values()) == {"missing"}
    names = ("wan2.1-vace-mini", "wan2.1-vace-14b")
    assert list(found) == [Scope(n, s, g) for n in names for s in (8, 12) for g in (3.0, 5.0)]
    assert plan_scopes(plan, tables) == tuple(found)


@pytest.mark.parametrize(
    ("measured", "expected"),
    [({}, "green"), ({"speedup": 0.0}, "red"), ({"subjective": None}, "incomplete")],
)
def test_fitting_evidence_has_its_own_verdict(measured: dict[str, float | None], expected: str) -> None:
    """Green, red or incomplete, as worked out from its items."""
    evidence = sample.evidence(sample.scope(gate=sample.items(**measured)))
    assert of(sample.plan(), evidence) == expected


@pytest.mark.parametrize(
    "plan",
    [
        sample.plan(3),
        sample.plan(shift=5.0),
        sample.plan(guidance="[3.0, 5.0]"),
    ],
    ids=["interval", "shift", "guidance"],
)
def test_a_plan_that_compiles_to_another_table_makes_it_stale(plan: Plan) -> None:
    """Each behavioural change of the plan ends the claim, whatever the verdict was."""
    red = sample.evidence(sample.scope(gate=sample.items(speedup=0.0)))
    assert of(plan, sample.evidence()) == "stale"
    assert of(plan, red) == "stale"


def test_naming_evidence_and_renaming_the_plan_change_nothing() -> None:
    """Acknowledgements, names and comments are no behaviour."""
    named = ACKNOWLEDGED.replace("reason: needed by a test", "reason: other words, evidence: evidence/x.json")
    assert of(sample.plan(rest=named), sample.evidence()) == "green"
    assert of(sample.plan(rest=ACKNOWLEDGED + "# more\n"), replace(sample.evidence(), plan="other")) == "green"


def test_another_profile_sampler_or_sigma_list_makes_it_stale() -> None:
    """Even where the table's digest was made to fit."""
    plan = sample.plan()
    scope = sample.scope()
    for change in ({"profile": sample.WEIGHTS}, {"sampler": "euler"}, {"flow_shift": 8.0}, {"sigmas": sample.HEAD}):
        assert of(plan, sample.evidence(replace(scope, bound=replace(scope.bound, **change)))) == "stale"


def test_edited_evidence_is_edited_whatever_it_says() -> None:
    """It comes before stale and before any verdict."""
    edited = replace(sample.evidence(), edited=True)
    assert of(sample.plan(), edited) == "edited"
    assert of(sample.plan(3), edited) == "edited"


def test_evidence_of_other_scopes_says_nothing() -> None:
    """Another step count, guidance or profile is another scope."""
    scope = sample.scope()
    for change in ({"steps": 8}, {"guidance": 3.0}, {"profile": "wan2.1-vace-14b"}):
        assert of(sample.plan(), sample.evidence(replace(scope, **change))) == "missing"


def test_of_several_documents_the_worst_counts() -> None:
    """Two acknowledgements may name two files; a green one does not cover up a red one, and silence adds nothing."""
    green, red = sample.evidence(), sample.evidence(sample.scope(gate=sample.items(speedup=0.0)))
    edited = replace(green, edited=True)
    elsewhere = sample.evidence(replace(sample.scope(), steps=8))
    assert of(sample.plan(), elsewhere, green) == "green"
    assert of(sample.plan(), green, red) == "red"
    assert of(sample.plan(), red, edited, green) == "edited"


def test_other_weights_make_it_stale_when_running() -> None:
    """Weights are known only with the model at hand; not known, they contradict nothing."""
    evidence = sample.evidence()
    assert of(sample.plan(), evidence, weights={sample.PROFILE: sample.WEIGHTS}) == "green"
    assert of(sample.plan(), evidence, weights={sample.PROFILE: sample.HEAD}) == "stale"
    assert of(sample.plan(), evidence, weights={"another": sample.HEAD}) == "green"
    assert of_weights(evidence.scopes[0], sample.WEIGHTS)
    assert not of_weights(evidence.scopes[0], sample.HEAD)
    assert of_weights(evidence.scopes[0], None)


def test_profiles_are_the_plans_own_and_the_shipped_ones() -> None:
    """A table of a profile that nobody knows is held against its digest alone."""
    plan = sample.plan()
    (table,) = sample.tables(plan).values()
    assert profile_digests(plan, {}) == {}
    unknown: dict[tuple[str, int], HookTable] = {("custom", 12): replace(table, profile="custom")}
    assert "custom" not in profile_digests(plan, unknown)
    scope = replace(
        sample.scope(), profile="custom", bound=replace(sample.scope().bound, table=unknown["custom", 12].digest)
    )
    assert status(plan, unknown, [sample.evidence(scope)]) == {Scope("custom", 12, 5.0): "green"}
