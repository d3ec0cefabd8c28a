"""Plans written for tests: a small text around the rules that a test is about."""

from __future__ import annotations

from typing import Any

from refkv_policy.plan import Plan, parse_plan

ACKNOWLEDGED = """acknowledgements:
  - {risk: lossy-hint-cache, by: tests, date: 2026-01-01, reason: needed by a test}
"""


def plan_text(
    caches: str,
    *,
    models: str = "[wan2.1-vace-mini]",
    steps: str = "[12]",
    guidance: str = "5.0",
    shift: float = 3.0,
    sampler: str = "unipc",
    shape: str = "{size: 96x96, frames: 17}",
    rest: str = ACKNOWLEDGED,
) -> str:
    """The text of a plan whose `caches:` are the given block-style text, indented by two; or `[]`."""
    return (
        f"version: 1\nkind: plan\nname: test\nmodels: {models}\nrun:\n  steps: {steps}\n"
        f"  sampler: {{name: {sampler}, flow_shift: {shift}}}\n  guidance: {guidance}\n"
        f"  shapes: [{shape}]\ncaches:{' []' if caches == '[]' else ''}\n{'' if caches == '[]' else caches}{rest}"
    )


def plan_of(caches: str, **more: Any) -> Plan:
    """The plan of `plan_text`."""
    return parsed(plan_text(caches, **more))


def parsed(text: str, file: str = "test.yaml") -> Plan:
    """The plan of a text that must be sound."""
    plan, diagnostics = parse_plan(text, file)
    assert plan is not None, diagnostics
    return plan


def one_rule(
    name: str,
    *,
    steps: int,
    interval: int,
    models: str = "wan2.1-vace-mini",
    head: str = "",
    shape: str = "{size: 96x96, frames: 17}",
    reason: str = "a test",
) -> str:
    """The text of a plan as people write it, one key a line, of one lossy rule. head: lines below its name."""
    return f"""\
version: 1
kind: plan
name: {name}
{head}models: [{models}]
run:
  steps: [{steps}]
  sampler: {{name: unipc, flow_shift: 3.0}}
  guidance: 5.0
  shapes: [{shape}]
caches:
  - name: deep-hints
    tier: P1
    method: hint_reuse
    at: "hint[deep]"
    refresh: {{interval: {interval}}}
acknowledgements:
  - {{risk: lossy-hint-cache, by: tests, date: 2026-01-01, reason: {reason}}}
"""


def hints(at: str, refresh: str, *, method: str = "hint_reuse", name: str = "hints", more: str = "") -> str:
    """One P1 rule."""
    return f"  - {{name: {name}, tier: P1, method: {method}, at: {at}, refresh: {{{refresh}}}{more}}}\n"
