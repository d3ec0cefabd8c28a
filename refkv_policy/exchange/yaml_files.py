"""YAML (or JSON) files of settings: the RFC's `RefTargetKVCacheConfig`, and a vLLM-Omni deploy fragment.

They are read as strictly as plans are: a key that is not known is told with its place, not dropped.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from refkv_policy.exchange.flags import self_backend
from refkv_policy.exchange.indices import parse_indices
from refkv_policy.exchange.settings import AttentionSettings, ExchangeError, RefTargetKVCacheConfig, Settings
from refkv_policy.plan.diagnostic import PlanError
from refkv_policy.plan.document import Document
from refkv_policy.plan.schema import check_schema
from refkv_policy.plan.yaml_subset import load_document

Schema = Mapping[str, Any]


def parse_config(text: str, file: str) -> Settings:
    """The settings of a text of `RefTargetKVCacheConfig` fields. Raises PlanError with every fault at its place."""
    value = _checked(text, file, _CONFIG, "the configuration").value
    layers = value.get("vace_hint_cached_layers")
    fields = {**value, "vace_hint_cached_layers": None if layers is None else tuple(sorted(layers))}
    return Settings(RefTargetKVCacheConfig(**fields), source="fields")


def parse_deploy(text: str, file: str) -> Settings:
    """The settings of a deploy YAML that holds nothing but `diffusion_kv_cache_*` and the self-attention backend.

    Raises PlanError with every fault at its place; ExchangeError when a value is not one of theirs, or two stages have
    settings, of which one plan can say only one.
    """
    document = _checked(text, file, _DEPLOY, "the deploy fragment")
    stages = [stage for stage in document.value["stages"] if set(stage) - {"stage_id"}]
    if len(stages) > 1:
        raise ExchangeError(
            [f"{file}: {len(stages)} stages have settings, and a plan is for one model: give one stage"]
        )
    stage = stages[0] if stages else {}
    reasons: list[str] = []
    found: dict[str, Any] = {}
    for key in ("skip_steps", "skip_layers"):
        try:
            found[key] = _indices(stage.get(f"diffusion_kv_cache_{key}"))
        except ValueError as error:
            reasons.append(f"{file}: diffusion_kv_cache_{key}: {error}")
    if (config := stage.get("diffusion_attention_config")) is not None:
        try:
            found["backend"] = self_backend(config)
        except ValueError as error:
            reasons.append(f"{file}: diffusion_attention_config: {error}")
    if reasons:
        raise ExchangeError(reasons)
    dtype = stage.get("diffusion_kv_cache_dtype")
    attention = AttentionSettings(dtype=None if dtype in ("float", "auto") else dtype, **found)
    return Settings(attention=attention, source="fields")


def _indices(value: str | list[int] | None) -> tuple[int, ...]:
    if value is None:
        return ()
    return parse_indices(value) if isinstance(value, str) else tuple(sorted(set(value)))


def _checked(text: str, file: str, schema: Schema, root: str) -> Document:
    document, faults = load_document(text, file)
    if document is not None:
        faults = check_schema(document, schema, (), root)
    if document is None or faults:
        raise PlanError(faults)
    return document


def _switch(description: str, default: bool = False) -> Schema:
    return {"title": "a switch", "description": description, "type": "boolean", "examples": [not default]}


_LAYER: Schema = {"title": "a layer", "type": "integer", "minimum": 0, "maximum": 1000, "examples": [8]}
_CONFIG: Schema = {
    "type": "object",
    "additionalProperties": False,
    "properties": {
        "enable_text_cross_attn_cache": _switch("P0: keep the text's K and V."),
        "enable_vace_hint_cache_lossy": _switch("P1: reuse VACE hints."),
        "vace_hint_cache_warning_acknowledged": _switch("The risk of P1 is accepted."),
        "vace_hint_refresh_interval": {"type": "integer", "minimum": 1, "maximum": 1000, "examples": [4]},
        "vace_hint_cached_layers": {
            "type": ["array", "null"],
            "uniqueItems": True,
            "items": _LAYER,
            "examples": [[8, 9]],
        },
        "enable_ref_target_kv": _switch("P2."),
        "model_type": {"type": "string", "examples": ["wan2_1"]},
        "ref_cache_on_device": _switch("Keep what is cached on the device, not in host memory.", True),
        "enable_transfer": _switch("Move caches between workers."),
    },
}
_SELECTOR: Schema = {"type": ["string", "array", "null"], "items": _LAYER, "examples": ["0,1,4-6"]}
_DEPLOY: Schema = {
    "type": "object",
    "additionalProperties": False,
    "required": ["stages"],
    "properties": {
        "stages": {
            "type": "array",
            "examples": [[{"stage_id": 0, "diffusion_kv_cache_dtype": "fp8"}]],
            "items": {
                "type": "object",
                "additionalProperties": False,
                "required": ["stage_id"],
                "properties": {
                    "stage_id": {"type": "integer", "minimum": 0, "examples": [0]},
                    "diffusion_kv_cache_dtype": {"type": ["string", "null"], "examples": ["fp8"]},
                    "diffusion_kv_cache_skip_steps": _SELECTOR,
                    "diffusion_kv_cache_skip_layers": _SELECTOR,
                    "diffusion_attention_config": {"type": ["object", "null"]},
                },
            },
        },
    },
}
