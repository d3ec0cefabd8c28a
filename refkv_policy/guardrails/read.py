"""File → Guardrails: YAML, kind and version, schema, and then what must be known: methods, models, sites and risks."""

from __future__ import annotations

import functools
import json
import os
from collections.abc import Iterator
from pathlib import Path as FilePath
from typing import Any

from refkv_policy.guardrails import rules
from refkv_policy.guardrails.known import known_faults
from refkv_policy.guardrails.model import LOSSY, TIERS, Guardrails
from refkv_policy.plain import from_plain
from refkv_policy.plan.build import shapes_of, with_paths
from refkv_policy.plan.checks import bytes_of
from refkv_policy.plan.diagnostic import Diagnostic, Span, errors
from refkv_policy.plan.document import Document
from refkv_policy.plan.reader import in_order
from refkv_policy.plan.schema import Schema, check_schema
from refkv_policy.plan.wording import described
from refkv_policy.plan.yaml_subset import load_document, read_document
from refkv_policy.profiles import load_profile
from refkv_policy.resources import resource

VERSION, KIND = 1, "guardrails"
FILES = ("guardrails.yaml", ".refkv/guardrails.yaml")
"""Where a folder has its guardrails."""


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

    def entries(key: str, **defaults: Any) -> list[dict[str, Any]]:
        found: list[dict[str, Any]] = []
        for entry in with_paths((key,), value.get(key, [])):
            models = entry.get("models")
            names = None if models is None else [load_profile(name, base).name for name in models]
            found.append({"tiers": LOSSY, **defaults, **entry, "models": names})
        return found

    limits = entries("bytes", tiers=TIERS, dtype="bfloat16")
    for limit in limits:
        limit["largest"] = bytes_of(limit["largest"]) or 0
        limit["shapes"] = shapes_of(limit["shapes"]) if "shapes" in limit else None
    named = value.get("acknowledgements", {})
    acknowledgements = {
        **named,
        "expires": named.get("expires") == "required",
        "parties": with_paths(("acknowledgements", "parties"), named.get("parties", [])),
    }
    return from_plain(
        Guardrails,
        {
            **value,
            "document": document,
            "refresh": entries("refresh"),
            "always_computed": entries("always_computed"),
            "never_cached": entries("never_cached", tiers=TIERS),
            "acknowledgements": acknowledgements,
            "bytes": limits,
            "evidence": entries("evidence"),
        },
    )
