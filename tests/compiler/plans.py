"""Plans written for tests: a small text around the rules that a test is about."""

from __future__ import annotations

from refkv_policy.plan import Plan, parse_plan

ACKNOWLEDGED = """acknowledgements:
  - {risk: lossy-hint-cache, by: tests, date: 2026-01-01, reason: needed by a test}
"""


def plan_of(
    caches: str,
    *,
    models: str = "[wan2.1-vace-mini]",
    steps: str = "[12]",
    guidance: str = "5.0",
    shift: float = 3.0,
    rest: str = ACKNOWLEDGED,
) -> Plan:
    """A plan whose `caches:` are the given block-style text, indented by two."""
    text = (
        f"version: 1\nkind: plan\nname: test\nmodels: {models}\nrun:\n  steps: {steps}\n"
        f"  sampler: {{name: unipc, flow_shift: {shift}}}\n  guidance: {guidance}\n"
        f"  shapes: [{{size: 96x96, frames: 17}}]\ncaches:\n{caches}{rest}"
    )
    plan, diagnostics = parse_plan(text, "test.yaml")
    assert plan is not None, diagnostics
    return plan


def hints(at: str, refresh: str, *, method: str = "hint_reuse", name: str = "hints", more: str = "") -> str:
    """One P1 rule."""
    return f"  - {{name: {name}, tier: P1, method: {method}, at: {at}, refresh: {{{refresh}}}{more}}}\n"
