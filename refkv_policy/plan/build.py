"""A checked document as a Plan. Nothing is judged here."""

from __future__ import annotations

import datetime
from collections.abc import Mapping
from types import MappingProxyType
from typing import Any

from refkv_policy.plan.checks import bytes_of, size_of
from refkv_policy.plan.document import Document
from refkv_policy.plan.model import (
    Acknowledgement,
    AttentionQuantization,
    CacheRule,
    Path,
    Plan,
    Quantization,
    Refresh,
    Run,
    Sampler,
    Shape,
    Store,
)

Values = Mapping[str, Any]


def build_plan(document: Document) -> Plan:
    """The plan of a document in which no error was found (any other may raise)."""
    value = document.value
    return Plan(
        name=value["name"],
        purpose=value.get("purpose", "reference"),
        description=value.get("description", ""),
        models=tuple(value["models"]),
        run=_run(value["run"]),
        caches=tuple(_rule(entry, ("caches", n)) for n, entry in enumerate(value["caches"])),
        document=document,
        quantization=_quantization(value.get("quantization", {})),
        acknowledgements=tuple(
            _acknowledgement(entry, ("acknowledgements", n))
            for n, entry in enumerate(value.get("acknowledgements", ()))
        ),
        version=value["version"],
    )


def _run(value: Values) -> Run:
    sampler, guidance = value["sampler"], value["guidance"]
    return Run(
        steps=tuple(value["steps"]),
        sampler=Sampler(sampler["name"], float(sampler["flow_shift"])),
        guidance=tuple(map(float, guidance if isinstance(guidance, list) else [guidance])),
        shapes=tuple(Shape(*size_of(shape["size"]), shape["frames"]) for shape in value["shapes"]),
    )


def _rule(value: Values, path: Path) -> CacheRule:
    return CacheRule(
        name=value["name"],
        tier=value["tier"],
        method=value["method"],
        at=_texts(value["at"]),
        path=path,
        models=tuple(value["models"]) if "models" in value else None,
        refresh=Refresh(**value["refresh"]) if "refresh" in value else None,
        window=value.get("window"),
        branches=value.get("branches", "together"),
        params=MappingProxyType(dict(value.get("params", {}))),
        store=_store(value.get("store", {})),
    )


def _store(value: Values) -> Store:
    budget = bytes_of(value["budget"]) if "budget" in value else None
    return Store(value.get("dtype", "native"), value.get("device", "model"), budget)


def _quantization(value: Values) -> Quantization:
    attention = value.get("attention", {})
    return Quantization(
        AttentionQuantization(
            dtype=attention.get("dtype", "native"),
            platform=attention.get("platform"),
            backend=attention.get("backend"),
            skip_steps=attention.get("skip_steps"),
            skip_layers=_texts(attention.get("skip_layers", [])),
        ),
        value.get("lossless", "refuse"),
    )


def _acknowledgement(value: Values, path: Path) -> Acknowledgement:
    expires = value.get("expires")
    return Acknowledgement(
        risk=value["risk"],
        by=value["by"],
        date=datetime.date.fromisoformat(value["date"]),
        reason=value["reason"],
        path=path,
        expires=None if expires is None else datetime.date.fromisoformat(expires),
        evidence=value.get("evidence"),
    )


def _texts(value: str | list[str]) -> tuple[str, ...]:
    return (value,) if isinstance(value, str) else tuple(value)
