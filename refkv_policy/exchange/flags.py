"""Flags of `vllm serve --omni`: those the RFC proposes, and the `diffusion_kv_cache_*` ones that exist, as Settings."""

from __future__ import annotations

import json
import re
import shlex
from collections import deque
from typing import Any, Literal

from refkv_policy.exchange.indices import parse_indices
from refkv_policy.exchange.settings import AttentionSettings, ExchangeError, RefTargetKVCacheConfig, Settings
from refkv_policy.plan.wording import did_you_mean, quoted

Kind = Literal["switch", "count", "word", "indices", "attention", "backend"]
_ATTENTION = "--diffusion-attention-config"
FLAGS: dict[str, Kind] = {
    "--enable-text-cross-attn-cache": "switch",
    "--enable-vace-hint-cache-lossy": "switch",
    "--vace-hint-cache-warning-acknowledged": "switch",
    "--vace-hint-refresh-interval": "count",
    "--enable-ref-target-kv": "switch",
    "--model-type": "word",
    "--diffusion-kv-cache-dtype": "word",
    "--diffusion-kv-cache-skip-steps": "indices",
    "--diffusion-kv-cache-skip-layers": "indices",
    _ATTENTION: "attention",
    f"{_ATTENTION}.per_role.self.backend": "backend",
}
"""The first six are the RFC's (section 2.3 and 3.2); the others are in the released 0.30.0."""

_UNSET = ("float", "auto")
"""Values of `--diffusion-kv-cache-dtype` that leave attention native."""


def read_flags(text: str) -> Settings:
    """The settings of a text of flags, with or without the `vllm serve MODEL --omni` before them.

    Raises ExchangeError with every flag that is unknown, repeated, or has a value that it cannot have: none is dropped.
    """
    try:
        words = shlex.split(re.sub(r"\\\r?\n", " ", text))
    except ValueError as error:
        raise ExchangeError([f"the flags cannot be split into words: {str(error).lower()}"]) from error
    if words[:2] == ["vllm", "serve"]:
        words = words[2:]
        if words and not words[0].startswith("-"):
            words = words[1:]
    given: dict[str, Any] = {}
    reasons: list[str] = []
    rest = deque(words)
    while rest:
        word = rest.popleft()
        if word == "--omni":
            continue
        flag, equals, value = word.partition("=")
        name = _normal(flag)
        if name not in FLAGS:
            reasons.append(_unknown(word, name))
            if word.startswith("-") and not equals and rest and not rest[0].startswith("-"):
                rest.popleft()  # most likely its value
            continue
        if name in given:
            reasons.append(f"{name} is given twice: keep one of the two")
        kind = FLAGS[name]
        try:
            given[name] = _value(name, kind, value if equals else None, rest)
        except ValueError as error:
            given[name] = None
            reasons.append(f"{name}: {error}")
    if reasons:
        raise ExchangeError(reasons)
    return _settings(given)


def _normal(flag: str) -> str:
    """A flag as it is listed: vLLM takes `_` for `-` in names, though not behind a dot."""
    head, dot, tail = flag.partition(".")
    return head.replace("_", "-") + dot + tail if flag.startswith("--") else flag


def _unknown(word: str, name: str) -> str:
    if not word.startswith("-"):
        return f"{quoted(word)} is not a flag: give only the flags that are about caches"
    return (
        f"{quoted(name)[1:-1]} is not a flag of caches: {did_you_mean(name, FLAGS)}leave it out if it is about something else; "
        "what is imported must be understood"
    )


def _value(name: str, kind: Kind, value: str | None, rest: deque[str]) -> Any:
    """The value of a flag, taken from `rest` where it does not stand behind `=`. Raises ValueError with a sentence."""
    if kind == "switch":
        if value is not None:
            raise ValueError("it is a switch and takes no value")
        return True
    if value is None:
        if not rest or rest[0].startswith("--"):
            raise ValueError("its value is missing")
        value = rest.popleft()
    match kind:
        case "count":
            if not re.fullmatch(r"[0-9]{1,4}", value, re.ASCII) or not 1 <= int(value) <= 1000:
                raise ValueError(f"{quoted(value)} is not a whole number from 1 to 1000")
            return int(value)
        case "indices":
            return parse_indices(value)
        case "attention":
            return self_backend(_json(value))
        case "backend":
            return value.upper()
        case _:
            return None if "dtype" in name and value in _UNSET else value


def _json(text: str) -> Any:
    try:
        return json.loads(text)
    except (ValueError, RecursionError) as error:
        raise ValueError(f"it is not JSON: {error}") from error


def self_backend(config: Any) -> str:
    """The backend of self-attention of a `diffusion_attention_config`. Raises ValueError when it says anything else.

    A default backend is for cross-attention too, and what else the config can hold is not about a plan.
    """
    match config:
        case {"per_role": {"self": str(backend), **roles}, **others} if not roles and not others:
            return backend.upper()
        case {"per_role": {"self": {"backend": str(backend), **more}, **roles}, **others} if not (
            more or roles or others
        ):
            return backend.upper()
    raise ValueError("only the backend of self-attention can be imported: {per_role: {self: {backend: FLASH_ATTN}}}")


def _settings(given: dict[str, Any]) -> Settings:
    cache = {name[2:].replace("-", "_"): v for name, v in given.items() if "diffusion" not in name}
    dotted = f"{_ATTENTION}.per_role.self.backend"
    if _ATTENTION in given and dotted in given:
        raise ExchangeError([f"{_ATTENTION} is given twice, as JSON and dotted: keep one of the two"])
    attention = AttentionSettings(
        dtype=given.get("--diffusion-kv-cache-dtype"),
        skip_steps=given.get("--diffusion-kv-cache-skip-steps", ()),
        skip_layers=given.get("--diffusion-kv-cache-skip-layers", ()),
        backend=given.get(_ATTENTION, given.get(dotted)),
    )
    return Settings(RefTargetKVCacheConfig(**cache), attention, "flags")
