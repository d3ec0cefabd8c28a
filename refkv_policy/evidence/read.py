"""File → Evidence: JSON, then kind and version, the schema, the digest, and what the document must agree on."""

from __future__ import annotations

import functools
import json
import os
from collections.abc import Iterator
from typing import Any

from refkv_policy.evidence import rules
from refkv_policy.evidence.agree import contradictions
from refkv_policy.evidence.document import KIND, VERSION, from_value
from refkv_policy.evidence.json_text import load_json
from refkv_policy.evidence.model import Evidence
from refkv_policy.files import read_bounded
from refkv_policy.plan.diagnostic import Diagnostic
from refkv_policy.plan.document import Document
from refkv_policy.plan.schema import Schema, check_schema
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
    schema = dict(evidence_schema())
    definitions = schema.pop("$defs")

    def resolve(part: Any) -> Any:
        if isinstance(part, list):
            return [resolve(each) for each in part]
        if not isinstance(part, dict):
            return part
        beside = {key: resolve(value) for key, value in part.items() if key != "$ref"}
        if "$ref" not in part:
            return beside
        return {**resolve(definitions[part["$ref"].removeprefix("#/$defs/")]), **beside}

    resolved: Schema = resolve(schema)
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
    faults = tuple(_head_faults(document)) or check_schema(document, _inlined(), (), "the evidence")
    if faults:
        return None, faults
    evidence = from_value(document.value)
    if evidence.edited:
        return evidence, (rules.EDITED.at(file, document.span(("digest",))),)
    faults = tuple(contradictions(document, evidence))
    return (None if faults else evidence), faults


def _head_faults(document: Document) -> Iterator[Diagnostic]:
    """Why no schema can be chosen, if none can."""
    value, file = document.value, document.file
    if not isinstance(value, dict):
        span = document.span(())
        yield rules.NOT_EVIDENCE.at(file, span, problem=f"it holds {described(value)}, not a mapping")
    elif value.get("kind") != KIND:
        given = f"it says {described(value['kind'])}" if "kind" in value else "there is none"
        problem = f'`kind` must be "{KIND}", and {given}'
        yield rules.NOT_EVIDENCE.at(file, document.span(("kind",)), problem=problem)
    elif type(value.get("version")) is not int or value["version"] != VERSION:
        given = described(value["version"]) if "version" in value else "nothing"
        problem = f"this refkv reads version {VERSION}, and the file says {given}"
        yield rules.NOT_EVIDENCE.at(file, document.span(("version",)), problem=problem)


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
