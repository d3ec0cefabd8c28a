"""Text → Plan: YAML, then version and kind, then the schema they choose, then what a schema cannot say."""

from __future__ import annotations

import os
from collections.abc import Iterable

from refkv_policy.canonical import json_digest
from refkv_policy.plan import rules
from refkv_policy.plan.build import build_plan
from refkv_policy.plan.checks import check_values
from refkv_policy.plan.diagnostic import Diagnostic, PlanError, Span, errors
from refkv_policy.plan.document import Document
from refkv_policy.plan.model import Path, Plan
from refkv_policy.plan.schema import plan_schema, schema_faults
from refkv_policy.plan.wording import described, did_you_mean
from refkv_policy.plan.yaml_subset import compose, read_text
from refkv_policy.resources import resource

VERSION, KIND = 1, "plan"


def load_plan(path: str | os.PathLike[str]) -> Plan:
    """The plan of a file, or a shipped plan by its file's name or its own (`wan21_p1_k4`, `wan21-p1-k4`).

    Raises PlanError, which carries every diagnostic, when it is not a sound one.
    """
    plan, diagnostics = read_plan(_shipped(path) or path)
    if plan is None:
        raise PlanError(diagnostics)
    return plan


def _shipped(path: str | os.PathLike[str]) -> str | None:
    """The file of a shipped plan that a bare name means; None where it is a path, or a file of that name is there."""
    name = os.fspath(path)
    if os.path.basename(name) != name or os.path.splitext(name)[1] or os.path.exists(name):
        return None
    try:
        return os.fspath(resource(f"plans/{name.replace('-', '_')}.yaml"))
    except FileNotFoundError:
        return None


def read_plan(path: str | os.PathLike[str]) -> tuple[Plan | None, tuple[Diagnostic, ...]]:
    """The plan of a file, or None with every fault found, in the order of the text. Raises for no file's content."""
    text, diagnostics = read_text(path)
    return (None, diagnostics) if text is None else parse_plan(text, os.fspath(path))


def parse_plan(text: str, file: str = "<text>") -> tuple[Plan | None, tuple[Diagnostic, ...]]:
    """The plan of a text, or None with every fault found, in the order of the text. Raises for no text."""
    composed = compose(text, file)
    found = list(composed.diagnostics)
    if composed.document is not None:
        found += _faults(composed.document, composed.unclear)
    diagnostics = in_order(found)
    if composed.document is None or errors(diagnostics):
        return None, diagnostics
    return build_plan(composed.document), diagnostics


def plan_digest(plan: Plan) -> str:
    """`sha256:…` of the plan's canonical JSON: comments, layout and the order of keys do not count."""
    return json_digest(plan.document.value)


def in_order(diagnostics: Iterable[Diagnostic]) -> tuple[Diagnostic, ...]:
    """By file, place and code; those of a whole file first."""
    return tuple(sorted(diagnostics, key=lambda d: (d.file, d.span or Span(0, 0, 0, 0), d.code)))


def _faults(document: Document, unclear: set[Path]) -> list[Diagnostic]:
    found = _head_faults(document, unclear)
    if found:
        return found
    faults = schema_faults(document, plan_schema(), (), "the plan", unclear)
    refused = {path for path, d in faults if d.code in _OF_THE_VALUE} | unclear
    return [d for _, d in faults] + check_values(document, refused)


_OF_THE_VALUE = frozenset(
    r.code for r in (rules.WRONG_TYPE, rules.NOT_A_CHOICE, rules.WRONG_FORM, rules.OUT_OF_RANGE, rules.SHORT_TEXT)
)
"""Rules whose fault makes the value itself unusable; with the others its inner values can still be checked."""


def _head_faults(document: Document, unclear: set[Path]) -> list[Diagnostic]:
    """Why no schema can be chosen, if none can: not a mapping, or not of a version and kind that are known here."""
    value, file = document.value, document.file
    if not isinstance(value, dict):
        if () in unclear:
            return []
        if value is None:
            return [rules.EMPTY_FILE.at(file, document.span(()), what="an empty document")]
        return [rules.NOT_A_MAPPING.at(file, _first_line(document.span(())), given=described(value))]
    if not value and () not in unclear:
        return [rules.EMPTY_FILE.at(file, document.span(()), what="an empty mapping")]
    found = []
    if "version" not in value and "kind" not in value and () not in unclear:
        first = document.span((next(iter(value)),), key=True)
        return [rules.NOT_A_PLAN.at(file, first)]
    if ("version",) not in unclear and "version" in value:
        version = value["version"]
        if type(version) is not int or version != VERSION:
            newer = type(version) is int and version > VERSION
            advice = "use a newer refkv, or write `version: 1`" if newer else "write `version: 1`"
            fields = {"known": VERSION, "given": described(version), "advice": advice}
            found.append(rules.UNKNOWN_VERSION.at(file, document.span(("version",)), **fields))
    if ("kind",) not in unclear and "kind" in value and value["kind"] != KIND:
        kind = value["kind"]
        suggestion = did_you_mean(kind, [KIND]) if isinstance(kind, str) else ""
        span = document.span(("kind",))
        found.append(rules.UNKNOWN_KIND.at(file, span, given=described(kind), suggestion=suggestion))
    return found


def _first_line(span: Span) -> Span:
    """A long span cut to one character, so that it does not underline the whole file."""
    return span if span.line == span.end_line else Span.point(span.line, span.column)
