"""Cache settings of a vLLM-Omni server as data, and why some of them cannot become a plan."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, fields
from types import MappingProxyType
from typing import Literal

from refkv_policy.compiler.attention import BACKENDS as KNOWN
from refkv_policy.compiler.attention import DTYPES as QUANTIZED
from refkv_policy.plan.diagnostic import RefkvError
from refkv_policy.plan.wording import listed

BACKENDS: Mapping[str, tuple[str, ...]] = MappingProxyType(
    {backend.title: backend.dtypes for backend in KNOWN.values()}
)
"""The attention backends of vLLM-Omni that compute in a narrower dtype, and in which; each on Ascend NPU only."""
PLATFORM = "npu"
"""Where it has them."""

Source = Literal["flags", "fields"]


class ExchangeError(RefkvError):
    """Settings that no plan can say, or a plan that the settings cannot. Each reason is a sentence."""

    def __init__(self, reasons: Iterator[str] | list[str]) -> None:
        self.reasons = tuple(reasons)
        super().__init__("\n".join(self.reasons))


@dataclass(frozen=True, slots=True)
class RefTargetKVCacheConfig:
    """The fields of the RFC's section 3.1, one to one, with its defaults."""

    enable_text_cross_attn_cache: bool = False
    enable_vace_hint_cache_lossy: bool = False
    vace_hint_cache_warning_acknowledged: bool = False
    vace_hint_refresh_interval: int = 4
    vace_hint_cached_layers: tuple[int, ...] | None = None
    enable_ref_target_kv: bool = False
    model_type: str = "wan2_1"
    ref_cache_on_device: bool = True
    enable_transfer: bool = False


@dataclass(frozen=True, slots=True)
class AttentionSettings:
    """Runtime attention precision: `diffusion_kv_cache_*`, and the backend of self-attention.

    dtype: one of QUANTIZED; None is native. skip_steps and skip_layers: indices, ascending, that stay native.
    """

    dtype: str | None = None
    skip_steps: tuple[int, ...] = ()
    skip_layers: tuple[int, ...] = ()
    backend: str | None = None


@dataclass(frozen=True, slots=True)
class Settings:
    """What a server is told of caches. source: how a person wrote it, for the sentences about it."""

    cache: RefTargetKVCacheConfig = RefTargetKVCacheConfig()
    attention: AttentionSettings = AttentionSettings()
    source: Source = "flags"

    def word(self, field: str) -> str:
        """A field as its source spells it."""
        return f"--{field.replace('_', '-')}" if self.source == "flags" else field


def refusals(settings: Settings) -> Iterator[str]:
    """Why these settings cannot become a plan: one sentence each, none where they can."""
    yield from _of_tiers(settings)
    yield from _without_effect(settings)
    yield from _of_attention(settings)


def _of_tiers(settings: Settings) -> Iterator[str]:
    cache, word = settings.cache, settings.word
    if cache.enable_ref_target_kv:
        yield (
            f"{word('enable_ref_target_kv')} (P2) needs a model whose reference is a part of the sequence that the target "
            "does not change; in VACE the reference enters through residual hints, so there is no decoupled reference to "
            "cache: leave it out"
        )
    if cache.enable_vace_hint_cache_lossy and not cache.vace_hint_cache_warning_acknowledged:
        yield (
            f"{word('enable_vace_hint_cache_lossy')} is lossy, and the RFC demands "
            f"{word('vace_hint_cache_warning_acknowledged')} beside it: add it once somebody accepts the risk"
        )
    if cache.enable_vace_hint_cache_lossy and cache.vace_hint_cached_layers == ():
        yield (
            f"{word('vace_hint_cached_layers')} is empty, so no hint would be cached: list layers, or leave it out for the "
            "deep ones"
        )
    if cache.enable_transfer:
        yield (
            f"{word('enable_transfer')} moves caches between workers, and a plan's store belongs to one request of one "
            "process: leave it out"
        )
    if cache.model_type != "wan2_1":
        yield f"{word('model_type')} is {cache.model_type!r}, and the RFC's P0 and P1 are defined for 'wan2_1' only"


def _without_effect(settings: Settings) -> Iterator[str]:
    """Settings that do nothing by the RFC's own rules: in a plan they would be believed in."""
    cache, word, default = settings.cache, settings.word, RefTargetKVCacheConfig()
    lossy = ("vace_hint_cache_warning_acknowledged", "vace_hint_refresh_interval", "vace_hint_cached_layers")
    if not cache.enable_vace_hint_cache_lossy:
        for name in lossy:
            if getattr(cache, name) != getattr(default, name):
                switch = word("enable_vace_hint_cache_lossy")
                yield f"{word(name)} has no effect without {switch}: leave it out, or turn the hint cache on"
    if not cache.ref_cache_on_device and not (cache.enable_text_cross_attn_cache or cache.enable_vace_hint_cache_lossy):
        yield f"{word('ref_cache_on_device')} has no effect where nothing is cached: leave it out"


def _of_attention(settings: Settings) -> Iterator[str]:
    attention, word = settings.attention, settings.word
    if attention.dtype is None:
        for name, given in (("skip_steps", attention.skip_steps), ("skip_layers", attention.skip_layers)):
            if given:
                dtype = word("diffusion_kv_cache_dtype")
                yield f"{word(f'diffusion_kv_cache_{name}')} has no effect without {dtype}: leave it out, or name a dtype"
    elif attention.dtype not in QUANTIZED:
        yield f"{word('diffusion_kv_cache_dtype')} cannot be {attention.dtype!r}: it is one of {listed(QUANTIZED)}"
    if attention.backend is None:
        return
    if attention.backend not in BACKENDS:
        yield (
            f"the self-attention backend {attention.backend!r} computes in no narrower dtype: choose {listed(BACKENDS)}, "
            "or leave it out"
        )
    elif attention.dtype is None:
        yield f"the self-attention backend {attention.backend} is no part of a plan without a narrower dtype: leave it out"
    elif attention.dtype in QUANTIZED and attention.dtype not in BACKENDS[attention.backend]:
        yield f"{attention.backend} does not compute in {attention.dtype}: it has {listed(BACKENDS[attention.backend], 'and')}"


CACHE_FIELDS = tuple(field.name for field in fields(RefTargetKVCacheConfig))
"""In the RFC's order."""
