"""What plans compile to: rows, the chain, combinations, digests and the table's own round trip."""

from __future__ import annotations

from pathlib import Path

import pytest

from refkv_policy.compiler import (
    HookTable,
    Workload,
    bytes_bound,
    bytes_needed,
    check_plan,
    compile_all,
    compile_plan,
    predict,
)
from refkv_policy.plan import Plan, PlanError, load_plan
from refkv_policy.profiles import Profile, load_profile
from tests.plans import ACKNOWLEDGED, hints, plan_of

PLANS = sorted((Path(__file__).parents[2] / "plans").glob("wan21_*.yaml"))
MINI = "wan2.1-vace-mini"


def table_of(caches: str, **over: object) -> HookTable:
    """The embedded model's table at 12 steps."""
    return compile_plan(plan_of(caches, **over), MINI, 12)  # type: ignore[arg-type]


def row(table: HookTable, site: str) -> str:
    """A row that both branches share."""
    found = table.by_site[site]
    assert found.cond == found.uncond
    return found.cond


def codes(plan: Plan) -> list[str]:
    """The codes of a plan's faults."""
    return [d.code for d in check_plan(plan)]


@pytest.mark.parametrize("path", PLANS, ids=lambda p: p.stem)
def test_every_shipped_plan_compiles_on_every_model_it_lists(path: Path) -> None:
    """No diagnostics, one table a model and step count, and each row obeys the grammar of actions."""
    plan = load_plan(path)
    assert check_plan(plan) == ()
    tables = compile_all(plan)
    assert set(tables) == {(m, s) for m in plan.models for s in plan.run.steps}
    assert {"wan2.1-vace-1.3b", "wan2.1-vace-14b", MINI} <= set(plan.models)
    for table in tables.values():
        assert HookTable.from_dict(table.to_dict()) == table
        for entry, branch, step, action in table.cells():
            assert action in "C.RF-"
            if action in "RF":
                assert "C" in entry.actions(branch)[:step]


@pytest.mark.parametrize("path", PLANS, ids=lambda p: p.stem)
def test_shipped_plans_keep_to_their_budgets_and_none_is_above_need(path: Path) -> None:
    """At every shape, by the prediction and by the bound that spares it; the largest model needs nearly all of a budget."""
    plan = load_plan(path)
    most: dict[str, int] = {}
    for (name, _), table in compile_all(plan).items():
        profile = load_profile(name)
        for shape in plan.run.shapes:
            work = Workload(profile.tokens(shape.width, shape.height, shape.frames), profile.text_tokens)
            need = bytes_needed(table, profile, work, "bfloat16")
            assert need == predict(table, profile, work, "bfloat16").bytes_rule
            bound = bytes_bound(table, profile, work, "bfloat16")
            for rule, held in need.items():
                assert held <= bound[rule]
                most[rule] = max(held, most.get(rule, 0))
    for rule in plan.caches:
        if rule.method == "step_schedule":
            assert (rule.store.budget, most[rule.name]) == (None, 0)
        else:
            assert rule.store.budget is not None
            assert 0.9 <= most[rule.name] / rule.store.budget <= 1


def test_an_interval_on_the_deep_hints_spares_their_blocks() -> None:
    """Hints 3 to 5 are computed every fourth step, and VACE blocks 3 to 5 run on those steps only."""
    table = table_of(hints("'hint[deep]'", "interval: 4"))
    assert [row(table, f"hint[{j}]") for j in range(6)] == ["." * 12] * 3 + ["CRRRCRRRCRRR"] * 3
    assert [row(table, f"vace[{j}]") for j in range(6)] == ["." * 12] * 3 + [".---.---.---"] * 3
    assert row(table, "main[11]") == "." * 12


def test_an_interval_of_one_is_refused() -> None:
    """K = 1 computes everything: a rule that saves nothing is an error."""
    plan = plan_of(hints("'hint[all]'", "interval: 1"))
    with pytest.raises(PlanError, match="RKV305"):
        compile_plan(plan, MINI, 12)
    assert [(d.code, d.severity) for d in check_plan(plan)] == [("RKV305", "error")]


def test_what_no_later_step_reads_is_not_kept() -> None:
    """A fresh hint at the last step of the run or of the window is computed and dropped: `.`, not `C`."""
    table = table_of(hints("'hint[all]'", "interval: 3", more=", window: '2..8'"))
    assert row(table, "hint[0]") == ".CRRCRRCR..."


def test_a_forecast_reuses_until_two_fresh_hints_exist() -> None:
    """The first cells between refreshes are `R`, then `F`; both branches share every cell."""
    table = table_of(hints("'hint[all]'", "steps: '0,4,8'", method="hint_forecast"))
    assert row(table, "hint[5]") == "CRRRCFFFCFFF"
    assert table.rules[0].history == 2


def test_text_is_projected_where_its_block_first_runs() -> None:
    """K/V of an unreached VACE block is not asked for, and a block that runs once keeps nothing."""
    caches = hints("'hint[deep]'", "steps: '0'") + (
        "  - {name: text, tier: P0, method: text_kv, at: ['main[all].text_kv', 'vace[all].text_kv']}\n"
    )
    table = table_of(caches)
    assert row(table, "main[0].text_kv") == "C" + "R" * 11
    assert row(table, "vace[0].text_kv") == "C" + "R" * 11
    assert row(table, "vace[5].text_kv") == "." + "-" * 11


def test_all_four_methods_combine() -> None:
    """On a thinned schedule every other rule counts the steps that are run, and none acts on those left out."""
    caches = (
        "  - {name: thin, tier: S, method: step_schedule, at: step, refresh: {steps: '0,3-11'}}\n"
        "  - {name: text, tier: P0, method: text_kv, at: ['main[all].text_kv', 'vace[all].text_kv']}\n"
        + hints("'hint[0-2]'", "interval: 2", name="shallow")
        + hints("'hint[deep]'", "interval: 4", name="deep", method="hint_forecast", more=", params: {cap: 9}")
    )
    rest = ACKNOWLEDGED + "  - {risk: fewer-steps, by: tests, date: 2026-01-01, reason: needed by a test}\n"
    table = table_of(caches, rest=rest)
    assert table.evaluated == (0, *range(3, 12))
    assert table.left_out == (1, 2)
    assert row(table, "step") == ".--........."
    assert row(table, "hint[0]") == "C--RCRCRCRCR"
    assert row(table, "hint[5]") == "C--RRRCFFFCF"
    assert row(table, "vace[1]") == ".---.-.-.-.-"
    assert row(table, "vace[4]") == ".-----.---.-"
    assert row(table, "main[3].text_kv") == "C--RRRRRRRRR"
    assert row(table, "vace[4].text_kv") == "C-----R---R-"


def test_a_prefix_of_the_chain_is_refused_and_a_stale_chain_is_counted() -> None:
    """Reusing shallow hints saves nothing, and says why; with `chain: stale` their blocks are spared and c₁ restarts it."""
    prefix = plan_of(hints("'hint[0-1]'", "interval: 3"))
    (fault,) = check_plan(prefix)
    assert fault.code == "RKV302"
    assert "vace[0] runs anyway at step 1 for hint[2]" in fault.message
    with pytest.raises(PlanError):
        compile_plan(prefix, MINI, 12)
    rest = ACKNOWLEDGED + "  - {risk: stale-chain, by: tests, date: 2026-01-01, reason: needed by a test}\n"
    table = table_of(hints("'hint[0-1]'", "interval: 3", more=", params: {chain: stale}"), rest=rest)
    assert row(table, "vace[0]") == ".--" * 4
    assert row(table, "vace[1]") == "CRR" * 4
    assert row(table, "vace[2]") == "." * 12
    assert table.by_site["vace[1]"].rule == 0


def test_a_branch_that_a_rule_leaves_alone_is_computed() -> None:
    """`branches: cond` reuses on the conditional branch only."""
    table = table_of(hints("'hint[all]'", "interval: 2", more=", branches: cond"))
    assert table.by_site["hint[0]"].cond == "CRCRCRCRCRCR"
    assert table.by_site["hint[0]"].uncond == "." * 12
    assert table.by_site["vace[0]"].uncond == "." * 12


@pytest.mark.parametrize(
    ("caches", "code"),
    [
        (hints("'hint[9]'", "interval: 2"), "RKV210"),
        (hints("'hint[deap]'", "interval: 2"), "RKV210"),
        (hints("'main[0]'", "interval: 2"), "RKV211"),
        (hints("'hint[3-5]'", "interval: 2") + hints("'hint[5]'", "interval: 2", name="two"), "RKV212"),
        (hints("'hint[all]'", "interval: 2", method="hint_reus"), "RKV213"),
        (hints("'hint[all]'", "interval: 2", more=", window: '1..12'"), "RKV217"),
        (hints("'hint[all]'", "interval: 2").replace("P1", "P0"), "RKV301"),
        (hints("'hint[3-5]'", "interval: 2") + hints("'hint[0-2]'", "interval: 4", name="slow"), "RKV303"),
        (hints("'hint[all]'", "interval: 2", more=", window: '0'"), "RKV304"),
        ("  - {name: h, tier: P1, method: hint_reuse, at: 'hint[all]'}\n", "RKV306"),
        (hints("'hint[all]'", "spacing: sigma, count: 13"), "RKV307"),
        (hints("'hint[all]'", "steps: '0'", method="hint_forecast"), "RKV309"),
    ],
)
def test_an_unsound_plan_is_refused_once_with_its_code(caches: str, code: str) -> None:
    """One mistake gives one diagnostic (unknown methods and the like leave their acknowledgement unjudged)."""
    assert codes(plan_of(caches)) == [code]


def test_a_plan_is_not_applied_beyond_what_it_was_reviewed_for() -> None:
    """Another model or step count is refused at the place that lists them; `any` takes whatever resolves."""
    plan = plan_of(hints("'hint[all]'", "interval: 2"))
    with pytest.raises(PlanError, match=r"RKV219.*wan2\.1-vace-14b") as refused:
        compile_plan(plan, "wan2.1-vace-14b", 12)
    assert refused.value.diagnostics[0].span is not None
    with pytest.raises(PlanError, match="RKV220"):
        compile_plan(plan, MINI, 13)
    free = plan_of(hints("'hint[all]'", "interval: 2"), models="[any]")
    odd = Profile(
        "odd", "odd", main_blocks=3, vace_at=(0, 2), heads=2, head_dim=8, ffn_dim=16, text_tokens=8, text_dim=8
    )
    assert compile_plan(free, odd, 12).layout.vace_at == (0, 2)
    assert compile_all(free) == {}


def test_the_digest_follows_behaviour_and_nothing_else() -> None:
    """Names, descriptions and acknowledgements leave it alone; a refresh, a shift, a budget or a cap changes it."""
    base = hints("'hint[all]'", "interval: 2")
    digest = table_of(base).digest
    assert table_of(hints("'hint[all]'", "interval: 2", name="other")).digest == digest
    assert table_of(base, rest=ACKNOWLEDGED.replace("tests", "others")).digest == digest
    changed = [
        table_of(hints("'hint[all]'", "interval: 3")),
        table_of(base, shift=5.0),
        table_of(base, guidance="4.0"),
        table_of(hints("'hint[all]'", "interval: 2", more=", store: {budget: 1GiB}")),
        table_of(hints("'hint[all]'", "interval: 2", more=", store: {dtype: bfloat16}")),
        table_of(hints("'hint[all]'", "interval: 2", method="hint_forecast")),
        table_of(hints("'hint[all]'", "interval: 2", method="hint_forecast", more=", params: {cap: 3}")),
    ]
    assert len({digest, *(t.digest for t in changed)}) == 1 + len(changed)


def test_a_rule_may_be_for_some_models_only() -> None:
    """On the others it leaves every cell computed."""
    plan = plan_of(
        hints("'hint[all]'", "interval: 2", more=f", models: [{MINI}]"), models=f"[{MINI}, wan2.1-vace-1.3b]"
    )
    assert "R" in compile_plan(plan, MINI, 12).by_site["hint[0]"].cond
    assert {a for *_, a in compile_plan(plan, "wan2.1-vace-1.3b", 12).cells()} == {"."}
