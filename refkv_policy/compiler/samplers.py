"""Samplers by the names that plans use: each one's grid in plain floats, and the diffusers scheduler that runs it.

A sampler is one entry here. What the runtime asks of every one of them: it evaluates the model once a step, `set_timesteps`
makes new `sigmas` and `timesteps`, one of each a step and a last sigma of 0, and `step` goes by `step_index`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any

TRAIN_TIMESTEPS = 1000
SMALLEST = 1 / TRAIN_TIMESTEPS
"""The smallest sigma of the training grid, before its shift."""

_FLOW: Mapping[str, Any] = MappingProxyType({"use_flow_sigmas": True, "prediction_type": "flow_prediction"})


@dataclass(frozen=True, slots=True)
class SamplerKind:
    """One sampler.

    scheduler: the diffusers class. settings: what it must have other than the class's own defaults; every other setting is
    the default's. shift: the setting that holds the flow shift. sigmas: the sigma of each step, of a step count and a shift.
    """

    scheduler: str
    settings: Mapping[str, Any]
    shift: str
    sigmas: Callable[[int, float], list[float]]


def shifted(u: float, shift: float) -> float:
    """σ = s·u / (1 + (s − 1)·u): flow matching's shift s of a noise level u [SD3, §5.3.2]."""
    return shift * u / (1 + (shift - 1) * u)


def _unipc(steps: int, shift: float) -> list[float]:
    """U from 1 to 1/1000 in steps + 1 points without the last, shifted; σ₀ is moved off 1 by 1e-6."""
    stride = (SMALLEST - 1) / steps
    grid = [shifted(1 + i * stride, shift) for i in range(steps)]
    if abs(grid[0] - 1) < 1e-6:
        grid[0] -= 1e-6
    return grid


def _dpm(steps: int, shift: float) -> list[float]:
    """U from 1 − 1/1000 to 0 in steps + 1 points without the last, shifted."""
    return [shifted((1 - SMALLEST) * (steps - i) / steps, shift) for i in range(steps)]


def _euler(steps: int, shift: float) -> list[float]:
    """U from 1 to the training grid's smallest sigma, which is shifted already, in `steps` points; then shifted once more."""
    last = shifted(SMALLEST, shift)
    return [shifted(1 + (last - 1) * i / (steps - 1) if i else 1.0, shift) for i in range(steps)]


SAMPLERS: Mapping[str, SamplerKind] = MappingProxyType(
    {
        "unipc": SamplerKind("UniPCMultistepScheduler", _FLOW, "flow_shift", _unipc),
        "euler": SamplerKind("FlowMatchEulerDiscreteScheduler", MappingProxyType({}), "shift", _euler),
        "dpm++": SamplerKind("DPMSolverMultistepScheduler", _FLOW, "flow_shift", _dpm),
    }
)
"""By name. Sources: `set_timesteps` of each class, diffusers 0.37 to 0.42."""
