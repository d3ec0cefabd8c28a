"""Verdicts in words."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from refkv_policy.audit import verify
from refkv_policy.evidence import GATE
from refkv_policy.evidence.status import plan_scopes, profile_digests
from refkv_policy.report.verdict import PROMISES, Bindings, Standing, headline, log_standing, scope_standing
from tests.audit.conftest import TINY
from tests.evidence import sample as evidence_sample
from tests.report import sample


def _bindings(interval: int = 2) -> Bindings:
    plan = evidence_sample.plan(interval)
    tables = evidence_sample.tables(plan)
    return Bindings(tables, profile_digests(plan, tables), plan_scopes(plan, tables))


def test_red_names_what_falls_short_and_what_is_open() -> None:
    """The sentence names the red items, then those not measured."""
    found = scope_standing(sample.evidence(), sample.scope(), None)
    assert found.word == "red"
    assert found.why == (
        "2 items of 9 fall short: fewer_steps and respaced_steps; "
        "not measured: mean_drop, worst_frame_drop, second_half_decay and subjective"
    )


def test_green_incomplete_and_their_sentences() -> None:
    """Green says that every item keeps its threshold; incomplete, that nothing is red."""
    green = evidence_sample.scope()
    assert scope_standing(sample.evidence(green), green, None) == Standing(
        "green", f"every one of {len(GATE)} items keeps its threshold"
    )
    part = replace(green, gate=green.gate[1:])
    found = scope_standing(sample.evidence(part), part, None)
    assert (found.word, found.why) == ("incomplete", "nothing is red, and 1 item of 9 not measured: mean_drop")


def test_evidence_is_stale_only_against_its_plan() -> None:
    """Held against the plan it was measured of it stands; against another interval it is stale, and why is said."""
    green = evidence_sample.scope()
    document = sample.evidence(green)
    assert scope_standing(document, green, _bindings(2)).word == "green"
    stale = scope_standing(document, green, _bindings(3))
    assert stale.word == "stale"
    assert "another table" in stale.why
    other = replace(green, guidance=7.0)
    assert scope_standing(sample.evidence(other), other, _bindings(2)).word == "stale"


def test_an_edit_is_worse_than_anything() -> None:
    """An edited document says nothing any more, whatever its items say."""
    document = replace(sample.evidence(evidence_sample.scope()), edited=True)
    assert scope_standing(document, document.scopes[0], _bindings(2)).word == "edited"


def test_logs_are_ok_incomplete_unsealed_or_broken(tmp_path: Path) -> None:
    """A whole log is ok, a failed request makes it incomplete, a cut one unsealed, an edited one broken."""
    for name, error in (("ok", None), ("failed", "CUDA out of memory")):
        sample.write_log(tmp_path / f"{name}.jsonl", TINY, error=error)
    whole = (tmp_path / "ok.jsonl").read_bytes()
    (tmp_path / "cut.jsonl").write_bytes(whole[: len(whole) // 2])
    (tmp_path / "edited.jsonl").write_bytes(whole.replace(b'"device":"cpu"', b'"device":"gpu"', 1))
    words = [log_standing(verify(tmp_path / f"{n}.jsonl")).word for n in ("ok", "failed", "cut", "edited")]
    assert words == ["ok", "incomplete", "unsealed", "broken"]


@pytest.mark.parametrize(
    ("scopes", "logs", "word"),
    [
        (["green", "green"], [], "green"),
        (["green", "red", "incomplete"], ["ok"], "red"),
        (["red", "stale"], [], "stale"),
        (["green"], ["broken"], "broken"),
        (["green"], ["incomplete"], "green"),
        (["green"], ["unsealed"], "unsealed"),
        ([], ["ok", "unsealed"], "unsealed"),
        ([], ["ok"], "ok"),
        ([], [], "missing"),
    ],
)
def test_the_report_is_worth_its_worst_part(scopes: list[str], logs: list[str], word: str) -> None:
    """The worst scope decides; a log can spoil a verdict, and makes one only where there is no evidence."""
    found = headline([Standing(s, "because") for s in scopes], [Standing(s, "because") for s in logs])
    assert found.word == word


def test_the_headline_of_several_plans_gives_every_reason_its_count() -> None:
    """The reported page gave all red scopes the first one's reason; each reason now says of how many it holds."""
    a, b = "to save 10 % of the denoising time", "to look the same to raters"
    scopes = [Standing("red", "1 item", (a,)), Standing("red", "2 items", (a, b)), Standing("green", "all")]
    assert headline(scopes, []).why == f"2 of 3 scopes are red: not shown {a} or {b} (1 of 2)"
    assert headline(scopes[:1], []).why == f"not shown {a}"


@pytest.mark.parametrize(
    ("standings", "why"),
    [
        ([("stale", "other sigmas"), ("stale", "another table")], "2 of 2 scopes are stale: other sigmas and another table"),
        ([("stale", "another table"), ("stale", "another table")], "2 of 2 scopes are stale: another table"),
        ([("edited", "it was changed"), ("red", "slow")], "1 of 2 scopes is edited: it was changed"),
        ([("green", "every item")] * 3, "3 of 3 scopes are green: every item"),
    ],
)  # fmt: skip
def test_other_headlines_tell_every_different_reason(standings: list[tuple[str, str]], why: str) -> None:
    """Whatever the verdict, no scope's reason stands for another's."""
    assert headline([Standing(*each) for each in standings], []).why == why


def test_an_incomplete_scope_names_what_is_open_in_words() -> None:
    """Titles of what was not measured, not the names of gate items."""
    green = evidence_sample.scope()
    part = replace(green, gate=green.gate[1:])
    found = headline([scope_standing(sample.evidence(part), part, None)], [])
    assert found.why == "nothing is red, but not measured: mean drop of DINOv2 feature similarity"


def test_every_gate_item_has_a_promise() -> None:
    """A red item is told in words that need no table; a speed-up names its threshold."""
    assert set(PROMISES) == set(GATE)
    slow = replace(sample.scope(), gate=sample.items(speedup=0.01, fewer_steps=0.0, respaced_steps=0.0))
    assert scope_standing(sample.evidence(slow), slow, None).reasons == (
        "to save 10\N{NO-BREAK SPACE}% of the denoising time",
    )
