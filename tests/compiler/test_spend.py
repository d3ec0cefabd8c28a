"""Where FLOPs go: shares, what each rule spares, and ceilings, against sums of the cost formulas."""

from __future__ import annotations

import pytest

from refkv_policy.compiler import BRANCHES, HookTable, Workload, compile_plan, predict
from refkv_policy.compiler.spend import Spend, ceilings, spend
from refkv_policy.plan.selectors import Site
from refkv_policy.profiles import Profile, cost, load_profile
from tests.plans import ACKNOWLEDGED, hints, plan_of

PROFILES = {name: load_profile(name) for name in ("wan2.1-vace-1.3b", "wan2.1-vace-14b", "wan2.1-vace-mini")}
MINI = PROFILES["wan2.1-vace-mini"]
TEXT = "  - {name: text, tier: P0, method: text_kv, at: ['main[all].text_kv', 'vace[all].text_kv']}\n"
SCHEDULE = "  - {name: ten, tier: S, method: step_schedule, at: step, refresh: {steps: '0-9'}}\n"
REST = ACKNOWLEDGED + "  - {risk: fewer-steps, by: tests, date: 2026-01-01, reason: needed by a test}\n"


def spent(caches: str, profile: Profile = MINI, rest: str = ACKNOWLEDGED) -> tuple[HookTable, Spend, Workload]:
    """The table of rules at twelve steps, and where its FLOPs go at a small size."""
    table = compile_plan(plan_of(caches, models=f"[{profile.name}]", rest=rest), profile, 12)
    work = Workload(profile.tokens(96, 96, 17), profile.text_tokens)
    return table, spend(table, profile, work, BRANCHES), work


@pytest.mark.parametrize("profile", PROFILES.values(), ids=PROFILES)
def test_every_flop_is_counted_once(profile: Profile) -> None:
    """Parts add up to a forward, steps and parts to what is predicted, and what rules spare to the rest."""
    rules = SCHEDULE + TEXT + hints("'hint[all]'", "interval: 3")
    table, found, work = spent(rules, profile, REST)
    predicted = predict(table, profile, work, "bfloat16", BRANCHES)
    assert sum(part.uncached for part in found.components) == found.forward == cost.forward(profile, work)
    assert (found.planned, found.total) == (predicted.flops_planned, predicted.flops_uncached)
    assert sum(part.planned for part in found.components) == found.planned
    assert sum(found.spared.values()) == found.total - found.planned


def test_each_rule_is_credited_with_what_it_spares() -> None:
    """Two steps whole, six chains of ten, and the text's K/V in the blocks that do run: counted by hand."""
    rules = SCHEDULE + TEXT + hints("'hint[all]'", "interval: 3")
    _, found, work = spent(rules, rest=REST)
    costs = MINI.costs(work)
    # A chain is all of its blocks' sites, and embedding the control, which its first block is charged with.
    chain = sum(c.flops for site, c in costs.items() if site.stack == "vace")
    kv = costs[Site("main", 0, "text_kv")].flops
    # Of steps 0 to 9 hints are fresh at 0, 3, 6 and 9: six chains less; text is projected at the first of ten and of four.
    assert found.spared == {
        "ten": 2 * 2 * cost.forward(MINI, work),
        "hints": 2 * 6 * chain,
        "text": 2 * (12 * 9 + 6 * 3) * kv,
    }
    # A step's share: whole where all is fresh; with all hints fresh, without the text's K/V; between, without the chain too.
    forward = cost.forward(MINI, work)
    fresh, between = 1 - 18 * kv / forward, 1 - (chain + 12 * kv) / forward
    shares = [1.0, between, between, *(fresh, between, between) * 2, fresh, 0.0, 0.0]
    assert found.step_shares() == pytest.approx(shares)


@pytest.mark.parametrize(
    ("name", "tokens", "share"),
    [
        ("wan2.1-vace-1.3b", 7_800, 0.341),
        ("wan2.1-vace-1.3b", 32_760, 0.337),
        ("wan2.1-vace-14b", 7_800, 0.177),
        ("wan2.1-vace-14b", 75_600, 0.170),
    ],
)
def test_the_ceiling_of_hint_reuse_is_the_chains_share(name: str, tokens: int, share: float) -> None:
    """About a third of a step on the 1.3B and a sixth on the 14B: no interval can save more."""
    profile = PROFILES[name]
    table = compile_plan(plan_of(hints("'hint[all]'", "steps: '0'"), models=f"[{name}]"), profile, 12)
    work = Workload(tokens, 512)
    found = {c.tier: c for c in ceilings(table, spend(table, profile, work, BRANCHES), profile, work)}
    assert found["P1"].most == pytest.approx(share, abs=1e-3)
    # Computed once in twelve steps, hint reuse gets within a twelfth of it.
    assert found["P1"].spared == pytest.approx(found["P1"].most * 11 / 12)
    assert (found["P0"].spared, found["S"].most, found["S"].speedup) == (0, None, None)


def test_a_ceiling_is_a_speedup_too() -> None:
    """Sparing a share p leaves 1 − p."""
    table, found, work = spent(TEXT, rest="")
    p0 = next(c for c in ceilings(table, found, MINI, work) if c.tier == "P0")
    assert p0.most == pytest.approx(18 * MINI.costs(work)[Site("main", 0, "text_kv")].flops / cost.forward(MINI, work))
    assert p0.speedup == pytest.approx(1 / (1 - p0.most))
