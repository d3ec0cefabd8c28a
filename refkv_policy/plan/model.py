"""The plan as data: what a person wrote, checked against the schema, not yet resolved against any model.

Every version of the plan language parses to these classes. Selectors stay texts here; `plan.selectors` parses them and
the compiler resolves them, because what they name depends on the model and the step count.
"""

from __future__ import annotations

import datetime
from collections.abc import Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any, Literal

from refkv_policy.plan.document import Document

Tier = Literal["P0", "P1", "P2", "S"]
Branches = Literal["together", "cond", "uncond", "apart"]
Path = tuple[str | int, ...]

NO_PARAMS: Mapping[str, Any] = MappingProxyType({})


@dataclass(frozen=True, slots=True)
class Refresh:
    """When a rule's sites are computed afresh; exactly one of the three forms is set.

    interval: compute when that many evaluated steps have passed since the last fresh one.
    steps: the listed steps (a step selector).
    spacing and count: `count` steps equally spaced in `sigma` or `sqrt_sigma`, the first and the last among them.
    """

    interval: int | None = None
    steps: str | None = None
    spacing: Literal["sigma", "sqrt_sigma"] | None = None
    count: int | None = None


@dataclass(frozen=True, slots=True)
class Store:
    """Where kept values live. `budget` is in bytes, for all branches of the rule together; None is unlimited."""

    dtype: Literal["native", "float32", "bfloat16", "float16"] = "native"
    device: Literal["model", "cpu"] = "model"
    budget: int | None = None


@dataclass(frozen=True, slots=True)
class CacheRule:
    """One entry of `caches:`. `path` leads to it in the document, for diagnostics."""

    name: str
    tier: Tier
    method: str
    at: tuple[str, ...]
    path: Path
    models: tuple[str, ...] | None = None
    refresh: Refresh | None = None
    window: str | None = None
    branches: Branches = "together"
    params: Mapping[str, Any] = field(default_factory=lambda: NO_PARAMS)
    store: Store = Store()


@dataclass(frozen=True, slots=True)
class Sampler:
    """The sampler a plan is reviewed for. It fixes each step's sigma."""

    name: str
    flow_shift: float


@dataclass(frozen=True, slots=True)
class Shape:
    """Pixels and frames of the video."""

    width: int
    height: int
    frames: int

    def __str__(self) -> str:
        return f"{self.width}x{self.height}x{self.frames}"


@dataclass(frozen=True, slots=True)
class Run:
    """The operating points a plan is reviewed for. Others are refused, not rescaled (shapes excepted)."""

    steps: tuple[int, ...]
    sampler: Sampler
    guidance: tuple[float, ...]
    shapes: tuple[Shape, ...]


@dataclass(frozen=True, slots=True)
class AttentionQuantization:
    """Runtime precision of self-attention. `skip_steps` and `skip_layers` stay native; a narrower dtype needs a platform.

    platform: where the plan is served, if not by refkv itself, whose attention is native. backend: None leaves the
    platform's dense one.
    """

    dtype: Literal["native", "fp8", "mxfp8", "mxfp4"] = "native"
    platform: Literal["npu", "cuda", "rocm", "xpu"] | None = None
    backend: str | None = None
    skip_steps: str | None = None
    skip_layers: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Quantization:
    """Attention precision, and what P0's bit-exact claim does under it."""

    attention: AttentionQuantization = AttentionQuantization()
    lossless: Literal["refuse", "downgrade"] = "refuse"


@dataclass(frozen=True, slots=True)
class Acknowledgement:
    """A named party accepts one named risk."""

    risk: str
    by: str
    date: datetime.date
    reason: str
    path: Path
    expires: datetime.date | None = None
    evidence: str | None = None


@dataclass(frozen=True, slots=True)
class Plan:
    """A plan, schema-checked. `document` holds its text and the position of every key and value."""

    name: str
    purpose: Literal["reference", "recommended"]
    description: str
    models: tuple[str, ...]
    run: Run
    caches: tuple[CacheRule, ...]
    document: Document = field(repr=False, compare=False)
    quantization: Quantization = Quantization()
    acknowledgements: tuple[Acknowledgement, ...] = ()
    version: int = 1
