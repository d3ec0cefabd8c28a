"""Random legal combinations of rules: the executor against the slow interpreter, and predictions against what happened."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from hypothesis import HealthCheck, assume, given, settings
from hypothesis import strategies as st

from refkv_policy.compiler import BRANCHES, HookTable, Workload, compile_plan, predict
from refkv_policy.plan import PlanError, parse_plan
from refkv_policy.profiles import Profile
from refkv_policy.runtime import attach
from tests import tiny
from tests.interpreter import Interpreter

STEPS = 6
LAYERS = (5, (0, 1, 3))
MODEL = tiny.transformer(LAYERS)
PROFILE = Profile.from_transformer(MODEL, text_tokens=tiny.TEXT_LENGTH)
WORK = Workload(8, tiny.TEXT_LENGTH)


def numbers(most: int) -> st.SearchStrategy[str]:
    """A selector's numbers."""
    return st.lists(st.integers(0, most), min_size=1, max_size=3, unique=True).map(
        lambda n: ",".join(map(str, sorted(n)))
    )


def spans(most: int) -> st.SearchStrategy[str]:
    """A run of blocks taken together."""
    return st.tuples(st.integers(0, most), st.integers(0, most)).map(lambda p: f"{min(p)}..{max(p)}")


REFRESH = st.one_of(
    st.integers(2, 4).map(lambda n: f"{{interval: {n}}}"),
    st.sets(st.integers(1, STEPS - 1), min_size=1, max_size=3).map(
        lambda s: "{steps: '" + ",".join(map(str, [0, *sorted(s)])) + "'}"
    ),
    st.just("{spacing: sigma, count: 3}"),
)
BRANCH = st.sampled_from(["together", "together", "together", "cond", "uncond"])
HINTS = st.sampled_from(["with", "apart"])


@st.composite
def rules(draw: st.DrawFn) -> str:
    """The text of a plan's caches: one to four rules."""
    found = []
    for n in range(draw(st.integers(1, 4))):
        kind = draw(st.sampled_from(["region", "region", "hint", "part", "text", "cfg"]))
        branch = draw(BRANCH)
        refresh = draw(REFRESH)
        params: dict[str, Any] = {}
        if kind == "region":
            site = draw(
                st.one_of(st.just("main"), spans(4).map(lambda s: f"main[{s}]"), numbers(4).map(lambda s: f"main[{s}]"))
            )
            method, tier = draw(st.sampled_from(["residual_reuse", "residual_forecast", "taylor", "profilingdit"])), "S"
            if ".." in site or site == "main":
                params["hints"] = draw(HINTS)
            elif method == "profilingdit":
                method = "residual_reuse"
            if method == "taylor":
                params |= {"order": draw(st.integers(1, 2)), "cap": 100}
        elif kind == "hint":
            site = f"hint[{draw(numbers(2))}]"
            method, tier = draw(st.sampled_from(["hint_reuse", "hint_forecast"])), "P1"
            if draw(st.booleans()):
                params["chain"] = "stale"
        elif kind == "part":
            stack, most = draw(st.sampled_from([("main", 4), ("vace", 2)]))
            site = f"{stack}[{draw(numbers(most))}].{draw(st.sampled_from(['self', 'cross', 'ffn']))}"
            method, tier = "taylor", "S"
            params["cap"] = 100
        elif kind == "text":
            stack, most = draw(st.sampled_from([("main", 4), ("vace", 2)]))
            site, method, tier = f"{stack}[{draw(numbers(most))}].text_kv", "text_kv", "P0"
        else:
            site, method, tier, branch = (
                "cfg",
                draw(st.sampled_from(["cfg_reuse", "residual_forecast"])),
                "S",
                "together",
            )
        when = "" if method == "text_kv" else f", refresh: {refresh}"
        told = ", ".join(f"{k}: {v}" for k, v in params.items())
        found.append(
            f"  - {{name: r{n}, tier: {tier}, method: {method}, at: '{site}'{when}, branches: {branch}, params: {{{told}}}}}\n"
        )
    return "".join(found)


def table_of(caches: str) -> HookTable | None:
    """The table of a combination; None where the compiler refuses it."""
    accepted = "".join(
        f"  - {{risk: {risk}, by: tests, date: 2026-01-01, reason: a test}}\n" for risk in tiny.risks_of(caches)
    )
    text = (
        "version: 1\nkind: plan\nname: test\nmodels: [any]\nrun:\n"
        f"  steps: [{STEPS}]\n  sampler: {{name: unipc, flow_shift: 3.0}}\n  guidance: 5.0\n"
        f"  shapes: [{{size: 32x32, frames: 5}}]\ncaches:\n{caches}"
        + (f"acknowledgements:\n{accepted}" if accepted else "")
    )
    plan, found = parse_plan(text, "test.yaml")
    assert plan is not None, found
    try:
        return compile_plan(plan, PROFILE, STEPS)
    except PlanError:
        return None


@pytest.mark.slow
@settings(max_examples=300, deadline=None, suppress_health_check=list(HealthCheck))
@given(rules())
def test_a_table_does_what_its_cells_say_one_by_one(caches: str) -> None:
    """Every call's velocity, and what is served, computed and held, are those of the interpreter and of the prediction."""
    table = table_of(caches)
    assume(table is not None)
    assert table is not None
    reference = Interpreter(MODEL, table)
    with torch.no_grad(), attach(MODEL, table) as session:
        for step in range(STEPS):
            given_ = tiny.inputs(seed=step)
            # One prompt and one control a branch: what the request is made from does not change within it.
            fixed = tiny.inputs(seed=99)
            given_ |= {k: fixed[k] for k in ("encoder_hidden_states", "control_hidden_states")}
            for branch in BRANCHES:
                with session.step(step, branch=branch):
                    (out,) = MODEL(**given_)
                expected = reference.call(step, branch, given_)
                scale = float(expected.abs().max())
                assert float((out - expected).abs().max()) <= 2e-5 * scale, (step, branch)
                assert session.bytes_held >= 0
        summary = session.requests[0]
    assert summary.outcome == "finished"
    assert summary.total.departures == 0
    foretold = predict(table, PROFILE, WORK, "float32", BRANCHES)
    assert (foretold.tally.hits, foretold.tally.misses) == (summary.total.hits, summary.total.misses)
    assert foretold.bytes_peak == summary.total.bytes_peak
    counted = {row.site for row in table.rows if row.counted}
    assert sum(n for (site, _), n in reference.served.items() if site in counted) == summary.total.hits
    assert sum(n for (site, _), n in reference.done.items() if site in counted) == summary.total.misses


def test_enough_combinations_are_legal() -> None:
    """The property above is about hundreds of tables: at least a quarter of what is drawn compiles."""
    drawn: list[bool] = []

    @settings(max_examples=200, deadline=None, database=None, derandomize=True, suppress_health_check=list(HealthCheck))
    @given(rules())
    def draw(caches: str) -> None:
        drawn.append(table_of(caches) is not None)

    draw()
    assert sum(drawn) >= len(drawn) / 4
