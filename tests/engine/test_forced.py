"""On inputs that do not change, what every method serves is what would have been computed."""

from __future__ import annotations

import pytest
import torch

from refkv_policy import methods
from refkv_policy.compiler import BRANCHES
from refkv_policy.runtime import attach
from tests import tiny

STEPS = 8
EVERY_OTHER = "refresh: {interval: 2}"
LISTED = "refresh: {steps: '0,1,4'}"
RULES = {
    "text_kv": [("P0", "'main[all].text_kv', 'vace[all].text_kv'", "", "")],
    "hint_reuse": [("P1", "'hint[all]'", EVERY_OTHER, ""), ("P1", "'hint[0-1]'", EVERY_OTHER, "chain: stale")],
    "hint_forecast": [("P1", "'hint[all]'", LISTED, "cap: 100")],
    "residual_reuse": [
        ("S", "main", EVERY_OTHER, ""),
        ("S", "main", EVERY_OTHER, "hints: apart"),
        ("S", "'main[1..3]'", EVERY_OTHER, ""),
        ("S", "'main[1..3]'", EVERY_OTHER, "hints: apart"),
        ("S", "'main[0-2]'", EVERY_OTHER, ""),
    ],
    "residual_forecast": [("S", "main", LISTED, "cap: 100"), ("S", "cfg", LISTED, "cap: 100")],
    "taylor": [
        ("S", "main", LISTED, "order: 2, cap: 100"),
        ("S", "'main[1..2,3..4]'", LISTED, "order: 1, cap: 100, variable: step"),
        ("S", "'main[all].self', 'main[all].cross', 'vace[all].ffn'", LISTED, "order: 2, cap: 100"),
        ("S", "cfg", LISTED, "order: 1, cap: 100"),
    ],
    "magcache": [
        ("S", "main", "", "delta: 1, k: 3, ratios: [1.0]"),
        ("S", "main", "", "delta: 1, ratios: [1.0], hints: apart"),
    ],
    "teacache": [
        ("S", "main", "", "delta: 1, polynomial: [1.0, 0.0], signals: [0.1, 0.1, 0.1, 0.1, 0.1, 0.1, 0.1, 0.1]")
    ],
    "profilingdit": [("S", "'main[0..1,3..4]'", EVERY_OTHER, "")],
    "dbcache": [("S", "'main[2..4]'", "", "delta: 0.1, k: 3"), ("S", "'main[1..3]'", "", "delta: 0.1, hints: apart")],
    "firstblock": [("S", "'main[1..4]'", "", "delta: 0.1")],
    "cfg_reuse": [("S", "cfg", EVERY_OTHER, "")],
}
"""By method: tier, sites, refresh and parameters that make it serve."""

CASES = [(name, *case) for name, cases in RULES.items() for case in cases]


def test_every_method_that_serves_is_here() -> None:
    """A method that is shipped is held to this, but the one that leaves out steps."""
    assert set(RULES) == {name for name in methods.names() if not methods.get(name).schedules}


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize(
    ("method", "tier", "at", "refresh", "params"), CASES, ids=[f"{c[0]}-{n}" for n, c in enumerate(CASES)]
)
def test_served_is_computed(method: str, tier: str, at: str, refresh: str, params: str, dtype: torch.dtype) -> None:
    """Served or not, each branch's velocity differs from the uncached model's by rounding alone: 1e-6 of it in float32."""
    model = tiny.transformer((5, (0, 1, 3)), dtype=dtype)
    when = f", {refresh}" if refresh else ""
    rule = f"  - {{name: r, tier: {tier}, method: {method}, at: [{at}]{when}, params: {{{params}}}}}\n"
    table = tiny.compiled(model, rule, steps=STEPS, guidance="5.0")
    given = tiny.inputs(seed=5, dtype=dtype)
    worst = 0.0
    text = given["encoder_hidden_states"]
    with torch.no_grad():
        plain = {b: model(**{**given, "encoder_hidden_states": text + n})[0] for n, b in enumerate(BRANCHES)}
        with attach(model, table) as session:
            for step in range(STEPS):
                for n, branch in enumerate(BRANCHES):
                    inputs = {**given, "encoder_hidden_states": text + n}
                    with session.step(step, branch=branch):
                        (out,) = model(**inputs)
                    worst = max(
                        worst, float((out - plain[branch]).float().abs().max() / plain[branch].float().abs().max())
                    )
    request = session.requests[0]
    assert request.total.hits > 0
    assert request.total.departures == 0
    assert request.outcome == "finished"
    assert worst <= (1e-6 if dtype == torch.float32 else 2e-2)
