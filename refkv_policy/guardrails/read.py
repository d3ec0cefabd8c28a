"""File → Guardrails: YAML, kind and version, schema, and then what must be known: methods, models, sites and risks."""

from __future__ import annotations

import functools
import json
import os
from collections.abc import Iterator, Mapping
from pathlib import Path as FilePath
from types import MappingProxyType
from typing import Any

from refkv_policy.guardrails import rules
from refkv_policy.guardrails.known import known_faults
from refkv_policy.guardrails.model import (
    LOSSY,
    TIERS,
    AcknowledgementBounds,
    Allow,
    AlwaysComputed,
    ByteLimit,
    EvidenceDemand,
    Guardrails,
    Names,
    NeverCached,
    Party,
    RefreshBound,
)
from refkv_policy.plan.checks import bytes_of, size_of
from refkv_policy.plan.diagnostic import Diagnostic, Span, errors
from refkv_policy.plan.document import Document
from refkv_policy.plan.model import Path, Shape
from refkv_policy.plan.reader import in_order
from refkv_policy.plan.schema import Schema, check_schema
from refkv_policy.plan.wording import described
from refkv_policy.plan.yaml_subset import load_document, read_document
from refkv_policy.profiles import load_profile
from refkv_policy.resources import resource

VERSION, KIND = 1, "guardrails"
FILES = ("guardrails.yaml", ".refkv/guardrails.yaml")
"""Where a folder has its guardrails."""

Values = Mapping[str, Any]


def find_guardrails(plan_file: str, top: FilePath) -> tuple[FilePath, ...]:
    """The guardrails file that holds for a plan: none, one, or the two of a folder that has both.

    The folders are searched from the plan's own upward to `top`, which is searched last (the repository's root); the
    first that has a file decides. A plan that does not lie below `top` has none but those beside it.
    """
    folder, last = FilePath(os.path.abspath(plan_file)).parent, FilePath(os.path.abspath(top))
    folders = (folder, *folder.parents)
    for place in folders[: folders.index(last) + 1] if last in folders else folders[:1]:
        if found := tuple(place / name for name in FILES if os.path.lexists(place / name)):
            return found
    return ()


def read_guardrails(path: str | os.PathLike[str]) -> tuple[Guardrails | None, tuple[Diagnostic, ...]]:
    """The guardrails of a file, or None with every fault found, in the order of the text. Raises for no file's content.

    A warning is told beside the guardrails.
    """
    document, faults = read_document(path)
    return _read(document, faults)


def parse_guardrails(text: str, file: str = "<text>") -> tuple[Guardrails | None, tuple[Diagnostic, ...]]:
    """The same of a text."""
    document, faults = load_document(text, file)
    return _read(document, faults)


@functools.cache
def guardrails_schema() -> Schema:
    """The published schema of guardrails, version 1."""
    schema: Schema = json.loads(resource("schemas/guardrails.v1.schema.json").read_text(encoding="utf-8"))
    return schema


def _read(
    document: Document | None, faults: tuple[Diagnostic, ...]
) -> tuple[Guardrails | None, tuple[Diagnostic, ...]]:
    if document is None:
        return None, faults
    found = tuple(_head_faults(document)) or check_schema(document, guardrails_schema(), (), "the guardrails")
    if not found:
        found = known_faults(document)
    guardrails = None if errors(found) else _build(document)
    return guardrails, in_order((*faults, *found))


def _head_faults(document: Document) -> Iterator[Diagnostic]:
    """Why no schema can be chosen, if none can."""
    value, file = document.value, document.file
    whole = document.span(())
    if not isinstance(value, dict):
        span = whole if whole.line == whole.end_line else Span.point(whole.line, whole.column)
        yield rules.NOT_GUARDRAILS.at(file, span, problem=f"it holds {described(value)}")
    elif value.get("kind") != KIND:
        given = f"it says {described(value['kind'])}" if "kind" in value else "there is none"
        span = document.span(("kind",)) if "kind" in value else Span.point(1, 1)
        yield rules.NOT_GUARDRAILS.at(file, span, problem=f"`kind` must be `{KIND}`, and {given}")
    elif type(value.get("version")) is not int or value["version"] != VERSION:
        given = described(value["version"]) if "version" in value else "nothing"
        span = document.span(("version",)) if "version" in value else Span.point(1, 1)
        problem = f"this refkv reads version {VERSION}, and the file says {given}"
        yield rules.NOT_GUARDRAILS.at(file, span, problem=problem)


# Building ------------------------------------------------------------------------------------------------------------


def _build(document: Document) -> Guardrails:
    """The guardrails of a document in which no error was found (any other may raise)."""
    value = document.value
    base = FilePath(document.file).parent

    def common(entry: Values, path: Path, tiers: Names = LOSSY) -> dict[str, Any]:
        models = tuple(load_profile(name, base).name for name in entry["models"]) if "models" in entry else None
        return {"path": path, "tiers": tuple(entry.get("tiers", tiers)), "models": models}

    def entries(key: str) -> Iterator[tuple[Values, Path]]:
        for index, entry in enumerate(value.get(key, ())):
            yield entry, (key, index)

    allow = {key: tuple(names) for key, names in value.get("allow", {}).items()}
    return Guardrails(
        document=document,
        description=value.get("description", ""),
        allow=Allow(**allow),
        refresh=tuple(
            RefreshBound(
                **common(e, p), largest_interval=e.get("largest_interval"), smallest_count=e.get("smallest_count")
            )
            for e, p in entries("refresh")
        ),
        always_computed=tuple(AlwaysComputed(**common(e, p), steps=e["steps"]) for e, p in entries("always_computed")),
        never_cached=tuple(
            NeverCached(**common(e, p, TIERS), sites=_texts(e["sites"]), reason=e.get("reason", ""))
            for e, p in entries("never_cached")
        ),
        acknowledgements=_acknowledgements(value.get("acknowledgements", {})),
        bytes=tuple(
            ByteLimit(
                **common(e, p, TIERS),
                largest=bytes_of(e["largest"]) or 0,
                dtype=e.get("dtype", "bfloat16"),
                shapes=_shapes(e["shapes"]) if "shapes" in e else None,
            )
            for e, p in entries("bytes")
        ),
        evidence=tuple(
            EvidenceDemand(
                **common(e, p),
                status=e["status"],
                purpose=e.get("purpose"),
                thresholds=MappingProxyType({k: float(v) for k, v in e.get("thresholds", {}).items()}),
            )
            for e, p in entries("evidence")
        ),
    )


def _acknowledgements(value: Values) -> AcknowledgementBounds:
    parties = tuple(
        Party(("acknowledgements", "parties", index), entry["risk"], tuple(entry["by"]))
        for index, entry in enumerate(value.get("parties", ()))
    )
    return AcknowledgementBounds(value.get("expires") == "required", value.get("longest_days"), parties)


def _shapes(values: list[Values]) -> tuple[Shape, ...]:
    return tuple(Shape(*size_of(shape["size"]), shape["frames"]) for shape in values)


def _texts(value: str | list[str]) -> Names:
    return (value,) if isinstance(value, str) else tuple(value)
