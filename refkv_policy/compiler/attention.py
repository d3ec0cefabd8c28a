"""Which attention backend computes in a dtype narrower than the model's, and on which platform. Data, with its source.

Every table here is that of SOURCE. What it does not list is not supported there, and refused here: quantized attention that
nothing computes is never left native in silence.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType

SOURCE = "vllm-omni/docs/user_guide/quantization/quantized_kvcache.md"

PLATFORMS: Mapping[str, str] = MappingProxyType(
    {"npu": "Ascend NPU", "cuda": "NVIDIA GPU", "rocm": "AMD ROCm", "xpu": "Intel XPU"}
)
"""The platforms of the hardware table, by the names that vLLM-Omni gives them."""


@dataclass(frozen=True, slots=True)
class Backend:
    """One self-attention backend. path: `dense` or `block-sparse`. dtypes: those it computes in, on each of `platforms`."""

    name: str
    title: str
    path: str
    dtypes: tuple[str, ...]
    platforms: frozenset[str]


_NPU = frozenset({"npu"})
BACKENDS: Mapping[str, Backend] = MappingProxyType(
    {
        backend.name: backend
        for backend in (
            Backend("flash_attn", "FLASH_ATTN", "dense", ("fp8", "mxfp8", "mxfp4"), _NPU),
            Backend("rainfusion_attn", "RAINFUSION_ATTN", "block-sparse", ("fp8", "mxfp4"), _NPU),
        )
    }
)
"""By the name a plan uses. Both tables of the source in one: backend × dtype, and path × platform."""

DEFAULT_BACKEND = "flash_attn"
"""What runs where a plan names no backend: the block-sparse path has to be asked for."""

DTYPES = tuple(dict.fromkeys(dtype for backend in BACKENDS.values() for dtype in backend.dtypes))
"""Every dtype that some backend computes in."""

QUANTIZED_PART = "self"
"""The part of a block that is quantized: cross-attention keeps its native dtype on every backend."""

MODELS: tuple[tuple[str, str, str], ...] = (
    ("Wan2.2", "self-attention on Ascend NPU", "NPU interface and T2V smoke tested"),
    ("other diffusion models", "eligible DiT full attention on Ascend NPU", "not tested"),
)
"""(model, scope, status) of the source's table of models. Wan2.1 VACE is one of the others."""

LOSSLESS_DOWNGRADED = "downgraded-lossless-cache"
"""Risk of a lossless rule under quantized attention, whose bit-exact claim the plan gives up [RFC §5.4]."""
FORECAST_QUANTIZED = "forecast-of-quantized"
"""Risk of forecasting while attention is quantized: extrapolation amplifies quantization noise."""
RISKS = (LOSSLESS_DOWNGRADED, FORECAST_QUANTIZED)
"""Risks of a rule and quantized attention together, which neither carries alone."""


def computed_on(dtype: str) -> tuple[str, ...]:
    """The platforms on which some backend computes in a dtype, in the order of PLATFORMS."""
    return tuple(p for p in PLATFORMS if any(dtype in b.dtypes and p in b.platforms for b in BACKENDS.values()))
