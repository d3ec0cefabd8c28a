"""What `refkv diff` says changed."""

from __future__ import annotations

import pytest

from refkv_policy.cli.diff_text import as_json, headline, markdown, text
from refkv_policy.compiler import compile_plan
from refkv_policy.compiler.diff import diff_plans
from refkv_policy.plan import Plan, parse_plan
from tests.plans import ACKNOWLEDGED, hints, plan_of

K4, K3 = hints("'hint[deep]'", "interval: 4"), hints("'hint[deep]'", "interval: 3")


def test_a_plan_and_itself_do_not_differ() -> None:
    """No scope, acknowledgement or text is named."""
    diff = diff_plans(plan_of(K4), plan_of(K4))
    assert diff.verdict == "unchanged"
    assert not (diff.changed or diff.acknowledgements or diff.metadata)


def test_changed_cells_are_shown_before_and_after() -> None:
    """Sites that changed alike share a line, with a mark under exactly the steps that differ."""
    diff = diff_plans(plan_of(K4), plan_of(K3))
    (scope,) = diff.changed
    assert [(r.sites, r.branch, r.before, r.after) for r in scope.rows] == [
        ("vace[3-5]", "both", ".---.---.---", ".--.--.--.--"),
        ("hint[3-5]", "both", "CRRRCRRRCRRR", "CRRCRRCRRCRR"),
    ]
    assert scope.rows[1].marks == "".join(
        "^" if a != b else " " for a, b in zip("CRRRCRRRCRRR", "CRRCRRCRRCRR", strict=True)
    )
    before, after = compile_plan(plan_of(K4), scope.profile, 12), compile_plan(plan_of(K3), scope.profile, 12)
    assert scope.digests == (before.digest, after.digest)
    ((_, old, new),) = scope.figures
    assert old is not None
    assert new is not None
    assert (old.tally.hits, new.tally.hits) == (2 * 3 * 9, 2 * 3 * 8)


def test_text_alone_is_not_behaviour() -> None:
    """A new party and a new name leave every table as it is, and are still told."""
    diff = diff_plans(
        plan_of(K4), plan_of(K4.replace("name: hints", "name: deep"), rest=ACKNOWLEDGED.replace("tests", "others"))
    )
    assert diff.verdict == "metadata"
    assert not diff.changed
    assert [c.name for c in diff.acknowledgements] == ["lossy-hint-cache"]
    assert any("name" in c.name for c in diff.metadata)


def test_a_new_risk_and_tier_are_in_the_headline() -> None:
    """What a reviewer has to know first stands first."""
    text_only = plan_of("  - {name: t, tier: P0, method: text_kv, at: 'main[all].text_kv'}\n", rest="")
    diff = diff_plans(text_only, plan_of(K4))
    assert "new risk lossy-hint-cache" in headline(diff)
    assert "P0 -> P1" in headline(diff)


def test_settings_count_as_behaviour_without_a_changed_cell() -> None:
    """A store's budget changes no cell and is shown as a fact."""
    diff = diff_plans(plan_of(K4), plan_of(hints("'hint[deep]'", "interval: 4", more=", store: {budget: 1GiB}")))
    (scope,) = diff.changed
    assert not scope.rows
    assert [(c.name, c.after) for c in scope.facts] == [("rule hints: store.budget", f"{2**30} bytes")]


def test_quantized_attention_is_told_whole() -> None:
    """Another backend or another native layer is a change of behaviour, though the dtype is the same."""
    section = "quantization: {attention: {dtype: fp8, platform: npu%s}}\n" + ACKNOWLEDGED
    diff = diff_plans(plan_of(K4, rest=section % ""), plan_of(K4, rest=section % ", skip_layers: 'main[0-1]'"))
    (scope,) = diff.changed
    ((name, before, after),) = [(c.name, c.before, c.after) for c in scope.facts]
    assert name == "attention"
    assert (before or "").startswith("fp8 on npu")
    assert after == f"{before}; native at main[0-1]"


@pytest.mark.parametrize("side", ["added", "removed"])
def test_a_plan_on_one_side_only(side: str) -> None:
    """A new or a removed plan is compared with nothing."""
    plan = plan_of(K4)
    diff = diff_plans(None, plan) if side == "added" else diff_plans(plan, None)
    assert diff.verdict == side
    assert all(s.verdict == side for s in diff.scopes)
    assert text("x", diff)
    assert as_json("x", diff)["verdict"] == side
    with pytest.raises(ValueError, match="no plan"):
        diff_plans(None, None)


def hostile() -> Plan:
    """A plan whose texts try to leave their place in Markdown."""
    body = ACKNOWLEDGED.replace("needed by a test", '"<img src=x onerror=1> | `a` [b](c)"')
    plan, diagnostics = parse_plan(plan_of(K4, rest=body).document.text, "x.yaml")
    assert plan is not None, diagnostics
    return plan


def test_markdown_shows_hostile_text_as_text() -> None:
    """HTML, tables, code and links in a plan's words stay words in a pull request."""
    shown = markdown("plans/<b>.yaml", diff_plans(plan_of(K4), hostile()))
    assert "<img" not in shown.replace("\\<img", "")
    assert "plans/\\<b\\>.yaml" in shown
    assert "[b](c)" not in shown
