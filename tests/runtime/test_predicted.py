"""FLOPs, hits and bytes that are predicted are those that torch and the session count, on both families, for static plans."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.utils.flop_counter import FlopCounterMode

from refkv_policy.compiler import BRANCHES, HookTable, Workload, predict
from refkv_policy.profiles import Profile
from refkv_policy.profiles.cost import forward
from refkv_policy.runtime import Session, attach
from tests import tiny

TEXT = '  - {name: text, tier: P0, method: text_kv, at: "main[all].text_kv"}\n'
PLANS = {
    "nothing": "[]",
    "text": TEXT,
    "main": "  - {name: r, tier: S, method: residual_reuse, at: main, refresh: {interval: 3}}\n",
    "main, in cond": "  - {name: r, tier: S, method: residual_reuse, at: main, refresh: {interval: 2}, branches: cond}\n",
    "span": "  - {name: r, tier: S, method: residual_reuse, at: 'main[1..2]', refresh: {interval: 3}}\n",
    "forecast span": "  - {name: r, tier: S, method: residual_forecast, at: 'main[0..2]', refresh: {interval: 2}}\n",
    "spans, one in the other": (
        "  - {name: r, tier: S, method: residual_reuse, at: 'main[0..3]', refresh: {interval: 2}}\n"
        "  - {name: s, tier: S, method: residual_reuse, at: 'main[2..3]', refresh: {interval: 3}}\n"
    ),
    "blocks": "  - {name: r, tier: S, method: residual_reuse, at: 'main[0,2,4]', refresh: {interval: 2}}\n",
    "blocks and a span": (
        "  - {name: r, tier: S, method: residual_reuse, at: 'main[0]', refresh: {interval: 2}}\n"
        "  - {name: s, tier: S, method: taylor, at: 'main[2..4]', refresh: {interval: 3}, params: {order: 1}}\n"
    ),
    "parts": (
        "  - {name: r, tier: S, method: taylor, at: 'main[0-2].self', refresh: {interval: 2}, params: {order: 1}}\n"
        "  - {name: s, tier: S, method: taylor, at: 'main[all].ffn', refresh: {interval: 3}, params: {order: 2}}\n"
    ),
    "cross, with its text": (
        "  - {name: r, tier: S, method: taylor, at: 'main[all].cross', refresh: {interval: 2}, params: {order: 1}}\n"
        + TEXT
    ),
    "cfg": "  - {name: r, tier: S, method: cfg_reuse, at: cfg, refresh: {interval: 2}}\n",
    "cfg, with its text": "  - {name: r, tier: S, method: cfg_reuse, at: cfg, refresh: {interval: 3}}\n" + TEXT,
    "steps": "  - {name: r, tier: S, method: step_schedule, at: step, refresh: {steps: '0,2,5'}}\n" + TEXT,
    "all": (
        "  - {name: c, tier: S, method: cfg_reuse, at: cfg, refresh: {interval: 2}, branches: uncond}\n"
        "  - {name: m, tier: S, method: residual_reuse, at: 'main[1..4]', refresh: {interval: 2}, branches: cond}\n"
        "  - {name: p, tier: S, method: taylor, at: 'main[0].ffn', refresh: {interval: 3}, params: {order: 1}}\n" + TEXT
    ),
}
FAMILIES = {"plain": (5, ()), "vace": (5, (0, 1, 3))}
STEPS, BATCH = 6, 2


def ran(model: Any, table: HookTable, batch: int) -> tuple[int, Session]:
    """FLOPs that torch counts over the calls of one request, and the session that ran it."""
    fixed = tiny.inputs(seed=99, batch=batch, plain=not table.layout.vace_at)
    # torch's counter has no formula for the fused attention of a CPU, but counts its two products one by one.
    with (
        torch.no_grad(),
        sdpa_kernel(SDPBackend.MATH),
        attach(model, table) as session,
        FlopCounterMode(display=False) as counter,
    ):
        for step in table.evaluated:
            for n, branch in enumerate(BRANCHES):
                latents = tiny.noise(batch, 16, 2, 4, 4, seed=step)
                text = fixed["encoder_hidden_states"] + n
                with session.step(step, branch=branch):
                    model(**{**fixed, "hidden_states": latents, "encoder_hidden_states": text})
    return counter.get_total_flops(), session


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("caches", **tiny.settings(PLANS))
def test_what_is_predicted_is_what_is_counted(caches: str, family: str) -> None:
    """For rules at the stack, spans, blocks, parts, text, guidance and steps: FLOPs to the operation, hits, peak bytes."""
    model = tiny.transformer(FAMILIES[family])
    table = tiny.compiled(model, caches, steps=STEPS)
    profile = Profile.from_transformer(model, text_tokens=tiny.TEXT_LENGTH)
    work = Workload(8, tiny.TEXT_LENGTH, BATCH)
    flops, session = ran(model, table, BATCH)
    foretold, total = predict(table, profile, work, "float32", BRANCHES), session.requests[0].total
    assert flops == foretold.flops_planned
    assert (total.hits, total.misses) == (foretold.tally.hits, foretold.tally.misses)
    assert total.bytes_peak == foretold.bytes_peak
    assert session.requests[0].outcome == "finished"
    assert total.departures == 0
    uncached = STEPS * len(BRANCHES) * forward(profile, work)
    assert foretold.flops_uncached == uncached
    assert (flops < uncached) is (caches != "[]")
    assert (foretold.bytes_peak > 0) is (total.hits > 0)
