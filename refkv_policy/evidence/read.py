"""File → Evidence: JSON, then kind and version, the schema, the digest, and what the document must agree on."""

from __future__ import annotations

import functools
import json
import os
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

from refkv_policy.evidence import rules
from refkv_policy.evidence.agree import contradictions
from refkv_policy.evidence.document import KIND, VERSION, from_value
from refkv_policy.evidence.json_text import load_json, where
from refkv_policy.evidence.model import Evidence
from refkv_policy.files import read_bounded
from refkv_policy.plan.diagnostic import Diagnostic
from refkv_policy.plan.document import Document
from refkv_policy.plan.schema import Schema, schema_faults
from refkv_policy.plan.wording import described
from refkv_policy.resources import resource


@functools.cache
def evidence_schema() -> Schema:
    """The published schema of evidence, version 1."""
    schema: Schema = json.loads(resource("schemas/evidence.v1.schema.json").read_text(encoding="utf-8"))
    return schema


@functools.cache
def _inlined() -> Schema:
    """The schema with its definitions put where they are referred to, as `fits` wants it: 40 ms a document less.

    What stands beside a reference is title and description alone, so that it may replace the definition's.
    """
    definitions = evidence_schema()["$defs"]

    def resolve(part: Any) -> Any:
        if isinstance(part, list):
            return [resolve(each) for each in part]
        if not isinstance(part, dict):
            return part
        beside = {key: resolve(value) for key, value in part.items() if key not in ("$ref", "$defs")}
        return {**resolve(definitions[part["$ref"].removeprefix("#/$defs/")]), **beside} if "$ref" in part else beside

    resolved: Schema = resolve(evidence_schema())
    return resolved


def read_evidence(path: str | os.PathLike[str]) -> tuple[Evidence | None, tuple[Diagnostic, ...]]:
    """The evidence of a file, or None with what is wrong with it. Raises for no file's content.

    Evidence that was changed after it was written is returned, with `edited` set, beside the error that says so.
    """
    file = os.fspath(path)
    text, reason = _text(file)
    if text is None:
        return None, (rules.UNREADABLE.at(file, None, reason=reason),)
    return parse_evidence(text, file)


@functools.lru_cache(maxsize=64)
def parse_evidence(text: str, file: str = "<text>") -> tuple[Evidence | None, tuple[Diagnostic, ...]]:
    """The same of a text."""
    document, faults = load_json(text, file)
    if document is None:
        return None, faults
    faults = tuple(_head_faults(document.value, file)) or tuple(_schema_faults(document))
    if faults:
        return None, faults
    evidence = from_value(document.value)
    if evidence.edited:
        return evidence, (rules.EDITED.at(file, None),)
    faults = tuple(contradictions(document, evidence))
    return (None if faults else evidence), faults


def _head_faults(value: Any, file: str) -> Iterator[Diagnostic]:
    """Why no schema can be chosen, if none can."""
    if not isinstance(value, dict):
        yield rules.NOT_EVIDENCE.at(file, None, problem=f"it holds {described(value)}, not a mapping")
    elif value.get("kind") != KIND:
        given = f"it says {described(value['kind'])}" if "kind" in value else "there is none"
        yield rules.NOT_EVIDENCE.at(file, None, problem=f'`kind` must be "{KIND}", and {given}')
    elif type(value.get("version")) is not int or value["version"] != VERSION:
        given = described(value["version"]) if "version" in value else "nothing"
        problem = f"this refkv reads version {VERSION}, and the file says {given}"
        yield rules.NOT_EVIDENCE.at(file, None, problem=problem)


def _schema_faults(document: Document) -> Iterator[Diagnostic]:
    """What does not fit the schema, each by its path."""
    for path, fault in schema_faults(document, _inlined(), (), "the evidence"):
        yield replace(fault, span=None, message=f"{where(path)}: {fault.message}" if path else fault.message)


def _text(file: str) -> tuple[str | None, str]:
    """The text of a regular UTF-8 file of bounded size, or None and why it cannot be had."""
    try:
        data = read_bounded(file, rules.MAX_BYTES)
    except (OSError, ValueError) as error:
        return None, (getattr(error, "strerror", None) or str(error)).lower()
    try:
        return data.decode("utf-8-sig"), ""
    except UnicodeDecodeError as error:
        return None, f"it is not UTF-8 (byte 0x{error.object[error.start]:02x} at offset {error.start})"
