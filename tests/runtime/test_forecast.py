"""Forecast cells: linear in sigma, in fp32, from each branch's own two newest fresh hints."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor

from refkv_policy.runtime import attach
from tests import tiny

FORECAST = (
    '  - {name: hints, tier: P1, method: hint_forecast, at: "hint[1]", refresh: {steps: "0,2"}, params: {cap: 9}}\n'
)
REUSE = FORECAST.replace("hint_forecast", "hint_reuse").replace(", params: {cap: 9}", "")


class LinearHints:
    """Makes hint 1 of a model exactly linear in sigma, and records what is added after its main block."""

    def __init__(self, model: Any, dtype: torch.dtype, offset: float = 0.0) -> None:
        self.base = tiny.noise(1, 8, 24, seed=1) + offset
        self.slope = tiny.noise(1, 8, 24, seed=2)
        self.dtype, self.sigma = dtype, 0.0
        self.before: list[Tensor] = []
        self.after: list[Tensor] = []
        model.vace_blocks[1].register_forward_hook(lambda _m, _i, out: (self.value(self.sigma).to(dtype), out[1]))
        model.blocks[2].register_forward_hook(lambda _m, _i, out: self.before.append(out))
        model.blocks[3].register_forward_pre_hook(lambda _m, args: self.after.append(args[0]))

    def value(self, sigma: float) -> Tensor:
        """The hint at a sigma, in fp32."""
        return self.base + sigma * self.slope

    @property
    def added(self) -> Tensor:
        """What was added in the newest forward."""
        return self.after[-1].float() - self.before[-1].float()


def run_steps(model: Any, table: Any, hints: LinearHints, steps: int, dtype: torch.dtype) -> list[Tensor]:
    """What each step adds after main block 2; the main stream there is held at 0, so that the sum is the hint."""
    model.blocks[2].register_forward_hook(lambda _m, _i, out: torch.zeros_like(out))
    hints.before.clear()
    added = []
    with attach(model, table) as session, torch.no_grad():
        for step in range(steps):
            hints.sigma = table.sigmas[step]
            with session.step(step, branch="cond"):
                model(**tiny.inputs(dtype=dtype))
            added.append(hints.after[-1].float())
    return added


def test_exact_on_hints_linear_in_sigma() -> None:
    """In fp32 a forecast of hints that are linear in sigma is the hint itself, to 1e-5."""
    model = tiny.transformer()
    table = tiny.compiled(model, FORECAST)
    assert "F" in table.by_site["hint[1]"].cond
    hints = LinearHints(model, torch.float32)
    for step, added in enumerate(run_steps(model, table, hints, 6, torch.float32)):
        planned = table.by_site["hint[1]"].cond[step]
        expected = hints.value(table.sigmas[0 if planned == "R" else step])
        assert float((added - expected).abs().max()) <= 1e-5


def test_bfloat16_error_is_that_of_the_rounded_observations() -> None:
    """In bf16 the error is at most (1 + 2ρ) half-ulps of the observations and half an ulp of the result."""
    model = tiny.transformer(dtype=torch.bfloat16)
    table = tiny.compiled(model, FORECAST)
    hints = LinearHints(model, torch.bfloat16)
    added = run_steps(model, table, hints, 6, torch.bfloat16)
    sigma = table.sigmas
    for step, value in enumerate(added):
        if table.by_site["hint[1]"].cond[step] != "F":
            continue
        rho = (sigma[step] - sigma[2]) / (sigma[2] - sigma[0])
        h1, h0, exact = hints.value(sigma[2]).abs(), hints.value(sigma[0]).abs(), hints.value(sigma[step]).abs()
        half_ulp = 2.0**-8
        bound = half_ulp * ((1 + rho) * h1 + rho * h0) * (1 + half_ulp) + half_ulp * exact * 1.02 + 1e-6
        assert bool(((value - hints.value(sigma[step])).abs() <= bound).all())


def test_equal_to_reuse_until_two_fresh_ones_exist_and_beyond_the_cap() -> None:
    """Where the table says `R`, a forecast run adds what a reuse run adds."""
    short = FORECAST.replace("cap: 9", "cap: 1")
    model = tiny.transformer()
    forecast, reuse = tiny.compiled(model, short), tiny.compiled(model, REUSE)
    actions = forecast.by_site["hint[1]"].cond
    assert actions.startswith("CRC")
    assert "F" in actions[3:]
    assert "R" in actions[3:]
    ours = run_steps(model, forecast, LinearHints(model, torch.float32), 6, torch.float32)
    model = tiny.transformer()
    theirs = run_steps(model, reuse, LinearHints(model, torch.float32), 6, torch.float32)
    for step, action in enumerate(actions):
        assert torch.equal(ours[step], theirs[step]) == (action != "F")


def test_branches_forecast_from_their_own_hints() -> None:
    """Exchanging the prompts of the branches exchanges their outputs, forecast steps included."""
    model = tiny.transformer()
    table = tiny.compiled(model, FORECAST)
    of = {"cond": tiny.inputs(seed=1), "uncond": tiny.inputs(seed=8)}

    def outputs(of: dict[str, Any]) -> dict[str, Tensor]:
        with attach(model, table) as session, torch.no_grad():
            for step in range(4):
                last = {}
                for branch in ("cond", "uncond"):
                    with session.step(step, branch=branch):
                        last[branch] = model(**of[branch])[0]
            assert session.summary.departures == 0
        return last

    straight, swapped = outputs(of), outputs({"cond": of["uncond"], "uncond": of["cond"]})
    assert torch.equal(straight["cond"], swapped["uncond"])
    assert torch.equal(straight["uncond"], swapped["cond"])


def test_one_observation_does_not_make_a_forecast() -> None:
    """After new control one refresh is not enough for `F`: computed, kept, and forecast again from two."""
    model = tiny.transformer()
    rows = {"hint[1]": "CCFFFF", "vace[1]": "..----"}
    table = tiny.written(model, 6, rows, rules=(tiny.rule("hint_forecast", history=2),))
    inputs = tiny.inputs()
    with torch.no_grad(), attach(model, table) as session:
        for step in range(2):
            with session.step(step, branch="cond"):
                model(**inputs)
        inputs["control_hidden_states"] = tiny.noise(1, 96, 2, 4, 4, seed=70)
        actions = []
        for step in range(2, 6):
            with session.step(step, branch="cond"), tiny.counting(model, tiny.is_vace_block) as counts:
                model(**inputs)
            actions.append(counts.of("vace_blocks.1"))
    assert actions == [1, 1, 0, 0]
    assert session.summary.reasons == {"new_control": 1, "no_state": 1, "chain": 2}


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=["fp32", "bf16"])
def test_forecast_is_given_in_the_models_dtype(dtype: torch.dtype) -> None:
    """A whole run with forecasts stays in the model's dtype, from a store of narrower dtype in host memory too."""
    caches = (
        '  - {name: hints, tier: P1, method: hint_forecast, at: "hint[all]", refresh: {interval: 2}, '
        "store: {dtype: bfloat16, device: cpu}}\n"
    )
    pipe = tiny.pipeline(tiny.transformer(dtype=dtype))
    seen = set()
    pipe.transformer.blocks[3].register_forward_pre_hook(lambda _m, args: seen.add(args[0].dtype))
    before = tiny.run(pipe)
    with attach(pipe, tiny.compiled(pipe.transformer, caches)) as session:
        after = tiny.run(pipe)
    assert seen == {dtype}
    assert session.summary.bytes_peak == 2 * 2 * 2 * 8 * 24 * 2, "two branches, two hints, two observations in bf16"
    assert 0 < float((after - before).abs().max()) < 0.5 * float(before.abs().max())
