"""On plain Wan, decisions and outputs are those of diffusers' own hooks at the same parameters."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import pytest
import torch
from diffusers import (
    FirstBlockCacheConfig,
    MagCacheConfig,
    TaylorSeerCacheConfig,
    WanTransformer3DModel,
)
from torch import Tensor

from refkv_policy.compiler import BRANCHES, HookTable, compile_plan
from refkv_policy.plan import parse_plan
from refkv_policy.runtime import attach
from tests import tiny

STEPS = 12
RATIOS = [1.0, 1.02, 1.01, 0.99, 1.0, 0.985, 0.99, 0.97, 0.98, 0.95, 0.93, 0.9]


@pytest.fixture(scope="module")
def model() -> WanTransformer3DModel:
    """A plain Wan transformer, 24 wide, every parameter random."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        made = WanTransformer3DModel(
            num_attention_heads=2, attention_head_dim=12, text_dim=tiny.TEXT_DIM, freq_dim=32, ffn_dim=32, num_layers=4,
            rope_max_seq_len=64,
        )  # fmt: skip
        with torch.no_grad():
            for parameter in made.parameters():
                parameter.add_(torch.randn_like(parameter) * 0.05)
    return made.eval()


def calls() -> list[tuple[int, str, dict[str, Any]]]:
    """The calls of a request whose latents and timesteps wander."""
    latents, found = tiny.noise(1, 16, 2, 4, 4, seed=1), []
    for step in range(STEPS):
        latents = latents + (0.05 if step % 4 else 0.5) * tiny.noise(1, 16, 2, 4, 4, seed=50 + step)
        for n, branch in enumerate(BRANCHES):
            found.append(
                (
                    step,
                    branch,
                    {
                        "hidden_states": latents,
                        "timestep": torch.tensor([1000 - 80 * step]),
                        "encoder_hidden_states": tiny.embeds(n),
                        "return_dict": False,
                    },
                )
            )
    return found


def theirs(model: WanTransformer3DModel, config: Any) -> tuple[list[Tensor], list[int]]:
    """Outputs under a cache of diffusers, and how many blocks ran in each call."""
    outputs, ran = [], []
    model.enable_cache(config)
    try:
        with torch.no_grad():
            for _, branch, inputs in calls():
                with model.cache_context(branch), tiny.counting(model, lambda name: name.endswith(".norm3")) as counts:
                    outputs.append(model(**inputs)[0])
                ran.append(len(counts.calls))
    finally:
        model.disable_cache()
    return outputs, ran


def ours(model: WanTransformer3DModel, table: HookTable) -> tuple[list[Tensor], list[int]]:
    """The same under a session."""
    outputs, ran = [], []
    with torch.no_grad(), attach(model, table) as session:
        for step, branch, inputs in calls():
            with (
                session.step(step, branch=branch),
                tiny.counting(model, lambda name: name.endswith(".norm3")) as counts,
            ):
                outputs.append(model(**inputs)[0])
            ran.append(len(counts.calls))
    assert session.requests[0].outcome == "finished"
    return outputs, ran


def table_of(model: WanTransformer3DModel, rule: str) -> HookTable:
    """The table of one rule."""
    accepted = "".join(
        f"  - {{risk: {risk}, by: tests, date: 2026-01-01, reason: a test}}\n" for risk in tiny.risks_of(rule)
    )
    text = (
        f"version: 1\nkind: plan\nname: test\nmodels: [any]\nrun:\n  steps: [{STEPS}]\n"
        "  sampler: {name: unipc, flow_shift: 3.0}\n  guidance: 5.0\n  shapes: [{size: 32x32, frames: 5}]\n"
        f"caches:\n{rule}acknowledgements:\n{accepted}"
    )
    plan, found = parse_plan(text, "test.yaml")
    assert plan is not None, found
    return compile_plan(plan, model, STEPS)


def compare(one: tuple[list[Tensor], list[int]], other: tuple[list[Tensor], list[int]], tolerance: float) -> None:
    """Blocks run alike in every call, and velocities agree."""
    assert one[1] == other[1]
    for mine, theirs_ in zip(one[0], other[0], strict=True):
        assert float((mine - theirs_).abs().max()) <= tolerance * float(theirs_.abs().max())


@pytest.mark.parametrize("delta", [0.01, 0.05, 0.1, 0.3])
def test_firstblock(model: WanTransformer3DModel, delta: float) -> None:
    """FirstBlockCache: block 0 in every call, the others by the change of what it adds; each branch for itself."""
    rule = (
        f"  - {{name: r, tier: S, method: firstblock, at: 'main[1..3]', branches: apart, params: {{delta: {delta}}}}}\n"
    )
    mine = ours(model, table_of(model, rule))
    compare(mine, theirs(model, FirstBlockCacheConfig(threshold=delta)), 1e-6)
    if delta > 0.05:
        assert 1 in mine[1]


@pytest.mark.parametrize(("delta", "k", "retain"), [(0.06, 2, 0.2), (0.1, 3, 0.25), (0.2, 2, 0.5)])
def test_magcache(model: WanTransformer3DModel, delta: float, k: int, retain: float) -> None:
    """MagCache: which steps reuse the whole stack's residual follows from the ratios, and so does the output."""
    rule = (
        f"  - {{name: r, tier: S, method: magcache, at: main, params: {{delta: {delta}, k: {k}, retain: {retain}, "
        f"ratios: {json.dumps(RATIOS)}}}}}\n"
    )
    table = table_of(model, rule)
    config = MagCacheConfig(
        threshold=delta, max_skip_steps=k, retention_ratio=retain, num_inference_steps=STEPS, mag_ratios=list(RATIOS)
    )
    mine = ours(model, table)
    assert 0 in mine[1]
    compare(mine, theirs(model, config), 1e-6)


@pytest.mark.parametrize(("order", "interval", "before"), [(1, 3, 2), (2, 4, 3), (2, 3, 3)])
def test_taylor(model: WanTransformer3DModel, order: int, interval: int, before: int) -> None:
    """TaylorSeer at attention and feed-forward outputs, in the step index: the same expansion, the same velocities."""
    fresh = [s for s in range(STEPS) if s < before or (s - before - 1) % interval == 0]
    listed = ",".join(map(str, fresh))
    rule = (
        "  - {name: r, tier: S, method: taylor, at: ['main[all].self', 'main[all].cross', 'main[all].ffn'], "
        f"refresh: {{steps: '{listed}'}}, params: {{order: {order}, variable: step, cap: 1000}}}}\n"
    )
    config = TaylorSeerCacheConfig(
        cache_interval=interval,
        disable_cache_before_step=before,
        max_order=order,
        taylor_factors_dtype=torch.float32,
        cache_identifiers=[r"blocks\.\d+\.attn[12]", r"blocks\.\d+\.ffn"],
    )
    mine, other = ours(model, table_of(model, rule)), theirs(model, config)
    compare(mine, other, 2e-5)
    plain = uncached(model)
    assert max(float((a - b).abs().max()) for a, b in zip(mine[0], plain, strict=True)) > 1e-3


def uncached(model: WanTransformer3DModel) -> list[Tensor]:
    """The velocities of the model alone."""
    with torch.no_grad():
        return [model(**inputs)[0] for _, _, inputs in calls()]


def test_nothing_is_left_behind(model: WanTransformer3DModel) -> None:
    """After the sessions and caches above, the model computes what it did."""
    fresh: Callable[..., Any] = type(model).forward
    with torch.no_grad():
        for _, _, inputs in calls()[:4]:
            assert torch.equal(model(**inputs)[0], fresh(model, **inputs)[0])
