"""The methods' own arithmetic and what they lower to."""

from __future__ import annotations

import pytest
import torch

from refkv_policy import methods
from refkv_policy.compiler.sigmas import sigma_grid
from refkv_policy.methods import Grid, Method, Observation
from refkv_policy.methods.hint_forecast import ratio
from refkv_policy.plan.model import Sampler


def grid(steps: int = 12, shift: float = 3.0) -> Grid:
    """A grid on which every step is run."""
    return Grid(steps, tuple(range(steps)), sigma_grid(Sampler("unipc", shift), steps))


def test_every_shipped_method_is_found_by_the_name_of_its_file() -> None:
    """The registry is discovered, not listed, and each method declares where it stands and its tier."""
    assert {"hint_forecast", "hint_reuse", "step_schedule", "text_kv"} <= set(methods.names())
    for name in methods.names():
        method = methods.get(name)
        assert isinstance(method, Method)
        assert method.name == name
        assert method.sites
        assert method.tier in ("P0", "P1", "P2", "S")
        assert (method.risk is None) == (method.tier == "P0")
    with pytest.raises(KeyError):
        methods.get("hint-reuse")


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_a_forecast_is_exact_where_hints_are_linear_in_sigma(dtype: torch.dtype) -> None:
    """On h(σ) = a + σb the forecast equals the true hint: to 1e-5 in fp32, to (1 + 2ρ)·2⁻⁹ of its size in bf16."""
    generator = torch.Generator().manual_seed(1)
    a, b = torch.randn(2, 64, 8, generator=generator)
    s0, s1, s = 0.9, 0.8, 0.65
    hints = {sigma: (a + sigma * b).to(dtype) for sigma in (s0, s1)}
    history = [Observation(s1, hints[s1]), Observation(s0, hints[s0])]
    forecast = methods.get("hint_forecast").predict(history, s, {})
    assert forecast.dtype == torch.float32
    truth = a + s * b
    # Rounding to bf16 moves h by at most 2⁻⁹ of its size; the forecast passes it on as (1 + ρ)|δ₁| + ρ|δ₀|.
    size = (a.abs() + b.abs()).max()
    bound = 1e-5 if dtype == torch.float32 else float((1 + 2 * ratio(s, s1, s0)) * 2**-9 * size)
    assert float((forecast - truth).abs().max()) <= bound


def test_a_forecast_waits_for_two_fresh_values_and_stops_at_the_cap() -> None:
    """Until two fresh steps exist, and wherever the ratio in sigma exceeds the cap, the action is plain reuse."""
    clock = grid()
    fresh = frozenset({0, 4, 5, 9})
    for cap in (0.5, 1.0, 2.0, 5.0, 1000.0):
        actions = methods.get("hint_forecast").lower(fresh, clock, {"cap": cap}).actions
        seen: list[int] = []
        for step in range(12):
            if step in fresh:
                assert actions[step] == "C"
                seen.append(step)
                continue
            s = clock.sigmas
            within = len(seen) > 1 and (s[step] - s[seen[-1]]) / (s[seen[-1]] - s[seen[-2]]) <= cap
            assert actions[step] == ("F" if within else "R")
    assert "F" in methods.get("hint_forecast").lower(fresh, clock, {}).actions


def test_a_gain_damps_the_forecast() -> None:
    """The forecast difference is multiplied by the gain."""
    history = [Observation(0.8, torch.tensor([2.0])), Observation(0.9, torch.tensor([1.0]))]
    method = methods.get("hint_forecast")
    assert float(method.predict(history, 0.7, {})) == pytest.approx(3.0)
    assert float(method.predict(history, 0.7, {"gain": 0.25})) == pytest.approx(2.25)


def test_a_step_schedule_leaves_steps_out_and_keeps_the_first() -> None:
    """Steps not named are not reached; a schedule without step 0 or with one step is refused."""
    schedule = methods.get("step_schedule")
    assert schedule.lower(frozenset({0, 2, 11}), grid(), {}).actions == ".-.--------."
    for fresh in (frozenset({1, 2}), frozenset({0})):
        with pytest.raises(methods.MethodError):
            schedule.lower(fresh, grid(), {})


def test_methods_import_no_torch() -> None:
    """Looking a method up works on the base install."""
    import subprocess
    import sys

    code = "import sys; from refkv_policy import methods; methods.names(); print('torch' in sys.modules)"
    assert (
        subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout.strip()
        == "False"
    )
