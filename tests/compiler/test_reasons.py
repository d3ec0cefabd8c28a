"""Why a site is what it is, in words, and rules in words: each claim of a phrase is true of the table."""

from __future__ import annotations

import pytest

from refkv_policy.compiler import compile_plan, profile_for
from refkv_policy.compiler.reasons import Reason, reasons
from refkv_policy.compiler.words import RuleWords, rules_in_words
from refkv_policy.plan import Plan
from tests.plans import ACKNOWLEDGED, hints, plan_of

MINI = "wan2.1-vace-mini"
TEXT = "  - {name: text, tier: P0, method: text_kv, at: ['main[all].text_kv', 'vace[all].text_kv']}\n"
STALE = ACKNOWLEDGED + "  - {risk: stale-chain, by: tests, date: 2026-01-01, reason: needed by a test}\n"


def told(plan: Plan) -> dict[str, Reason]:
    """The reasons of a plan at twelve steps, by their sites."""
    return {r.sites: r for r in reasons(plan, compile_plan(plan, MINI, 12), profile_for(plan, MINI))}


def words(plan: Plan) -> dict[str, RuleWords]:
    """The rules of a plan at twelve steps in words, by name."""
    return {r.name: r for r in rules_in_words(plan, compile_plan(plan, MINI, 12))}


def test_a_claimed_site_names_its_rule_and_the_selector_that_names_it() -> None:
    """Line and column are of the entry of `at`, not of the rule."""
    plan = plan_of(TEXT + hints("'hint[deep]'", "interval: 4"))
    found = told(plan)
    rows = plan.document.text.splitlines()
    for sites, selector in (("vace[0-2].text_kv", "'vace[all].text_kv'"), ("hint[3-5]", "'hint[deep]'")):
        reason = found[sites]
        assert reason.line is not None and reason.column is not None
        assert rows[reason.line - 1][reason.column - 1 :].startswith(selector)
    assert (found["hint[3-5]"].rule, found["hint[0-2]"].rule) == ("hints", None)


@pytest.mark.parametrize(
    ("caches", "site", "phrase"),
    [
        ("  []\n", "hint[0-5]", "no rule names it"),
        ("  []\n", "main[0-11].text_kv, vace[0-5].text_kv", "no rule names it: projected anew"),
        (hints("'hint[deep]'", "interval: 4"), "vace[0-2]", "no rule names its hint, so the chain runs it"),
        (hints("'hint[deep]'", "interval: 4"), "vace[3-5]", "not reached at 9 steps: its hint (rule hints) and every deeper"),
        (hints("'hint[deep]'", "interval: 4"), "hint[3-5]", "reused at the 9 others, at most 3 steps old"),
        (hints("'hint[deep]'", "interval: 4"), "step", "the sampler runs all 12"),
        (hints("'hint[all]'", "interval: 4", more=", window: '2..11'"), "hint[0-5]", "window 2..11 excludes steps 0-1"),
        (hints("'hint[all]'", "interval: 4", more=", window: '2..11'"), "hint[0-5]", "not kept at step 0: no later step"),
        (TEXT + hints("'hint[all]'", "interval: 4"), "vace[0-5].text_kv", "hidden by outer reuse at steps 1-3,5-7,9-11"),
        (hints("'hint[all]'", "interval: 3", more=", branches: uncond"), "hint[0-5]", "cond: the rule is for the uncond"),
        (hints("'hint[all]'", "interval: 3", method="hint_forecast"), "hint[0-5]", "only reused at steps 1-2"),
    ],
)  # fmt: skip
def test_reasons_name_what_decides(caches: str, site: str, phrase: str) -> None:
    """No rule, the chain, a window, outer reuse, a branch, a short history: each is told where it decides."""
    rest = ACKNOWLEDGED if "hint[" in caches else ""
    assert any(phrase in because for because in told(plan_of(caches, rest=rest))[site].because)


def test_a_stale_chain_is_told_block_by_block() -> None:
    """The block whose state is kept, those before it, and those that go on from it are what they are for other reasons."""
    plan = plan_of(hints("'hint[0-2]'", "interval: 4", more=", params: {chain: stale}"), rest=STALE)
    found = told(plan)
    assert any("deeper blocks go on from a kept state" in b for b in found["vace[0-1]"].because)
    assert any("its kept state stands in at steps 1-3,5-7,9-11" in b for b in found["vace[2]"].because)
    assert found["vace[3-5]"].because == ("no rule names its hint, so the chain runs it at every step that is run",)


@pytest.mark.parametrize(
    ("guidance", "phrase"), [("1.0", "only the cond branch runs"), ("[1.0, 5.0]", "at 1 only cond")]
)
def test_guidance_decides_the_branches(guidance: str, phrase: str) -> None:
    """Without guidance there is no unconditional call."""
    assert phrase in told(plan_of("  []\n", guidance=guidance, rest=""))["cfg"].because[0]


def test_every_site_is_explained_once() -> None:
    """The groups are the rows of the table, `cfg`, and the K/V that no rule names."""
    plan = plan_of("  - {name: text, tier: P0, method: text_kv, at: 'main[3-4].text_kv'}\n", rest="")
    assert list(told(plan)) == [
        "cfg", "step", "main[0-11]", "main[3-4].text_kv", "vace[0-5]", "hint[0-5]",
        "main[0-2,5-11].text_kv, vace[0-5].text_kv",
    ]  # fmt: skip


def test_a_rule_is_put_into_words() -> None:
    """Where, when fresh, what between, what is spared, and who accepts it."""
    found = words(plan_of(TEXT + hints("'hint[deep]'", "interval: 4", more=", window: '1..9'")))
    assert found["hints"].sites == "hint[3-5]"
    assert found["hints"].computed == (
        "at steps 0,4,8,10-11 (5 of 12): every 4 steps that are run, and always outside the window 1..9"
    )
    assert found["hints"].between == "reuse the newest fresh hint, at most 3 steps old"
    assert found["hints"].spares == "vace[3-5] at 7 of 12 steps"
    assert found["hints"].risks == (("lossy-hint-cache", "accepted by tests on 2026-01-01: needed by a test"),)
    # Blocks that the hints spare have their text reused at fewer steps.
    assert found["text"].spares == "main[0-11].text_kv, vace[0-5].text_kv at up to 11 of 12 steps"
    assert found["text"].risks == ()
