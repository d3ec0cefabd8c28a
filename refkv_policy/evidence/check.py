"""The evidence that a plan's acknowledgements name: found, read, and held against what the plan compiles to."""

from __future__ import annotations

import datetime
import os
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from refkv_policy.compiler import compile_all
from refkv_policy.evidence import rules
from refkv_policy.evidence.model import Evidence, Scope
from refkv_policy.evidence.read import read_evidence
from refkv_policy.evidence.status import (
    Status,
    Tables,
    differences,
    entry_status,
    plan_scopes,
    profile_digests,
    status,
)
from refkv_policy.plan.catalogue import Rule
from refkv_policy.plan.diagnostic import Diagnostic, PlanError, Severity
from refkv_policy.plan.model import Acknowledgement, Plan
from refkv_policy.plan.wording import quoted
from refkv_policy.repository import repository_root, shown

SHOWN = 3
"""Scopes and items a message names before it counts the rest."""


@dataclass(frozen=True, slots=True)
class Findings:
    """The status of each of a plan's scopes, and every fault of its evidence."""

    statuses: Mapping[Scope, Status]
    diagnostics: tuple[Diagnostic, ...]


def check_evidence(
    plan: Plan, tables: Tables | None = None, today: datetime.date | None = None
) -> tuple[Diagnostic, ...]:
    """Every fault of the evidence that the plan names. Never raises; compiles nothing when it names none.

    Stale, edited, unreadable and misplaced evidence is an error; red evidence is one under `purpose: recommended` and a
    note otherwise; missing evidence is a warning there and a note otherwise, incomplete evidence a note: both are left to
    guardrails.
    """
    if all(entry.evidence is None for entry in plan.acknowledgements):
        return tuple(_unbacked(plan))
    return examine(plan, tables, today).diagnostics


def examine(plan: Plan, tables: Tables | None = None, today: datetime.date | None = None) -> Findings:
    """`check_evidence`, with the statuses.

    tables: those of `compile_all`, which is called unless they are given, for `today`. A plan that does not compile has
    no statuses: its own faults come first.
    """
    if tables is None:
        try:
            tables = compile_all(plan, today)
        except PlanError:
            tables = {}
    documents: list[Evidence] = []
    found: list[Diagnostic] = []
    seen: set[str] = set()
    root = repository_root(plan.document.file)
    if all(entry.evidence is None for entry in plan.acknowledgements):
        found.extend(_unbacked(plan))
    for entry in plan.acknowledgements:
        if entry.evidence is None or entry.evidence in seen:
            continue
        seen.add(entry.evidence)
        path, problem = locate(root, entry.evidence)
        teller = _Teller(plan, entry)
        if path is None:
            found.append(teller.tell(rules.WRONG_PATH, problem=problem, name=_stem(plan)))
        elif not os.path.lexists(path):
            found.append(teller.missing("is not there"))
        else:
            evidence, faults = read_evidence(shown(path))
            found.extend(faults)
            if evidence is not None:
                documents.append(evidence)
                found.extend(teller.of_document(evidence, tables))
    return Findings(status(plan, tables, documents), tuple(found))


def _unbacked(plan: Plan) -> Iterator[Diagnostic]:
    """A plan that is recommended at a risk, none of whose acknowledgements names evidence."""
    if plan.purpose == "recommended" and plan.acknowledgements:
        document = plan.document
        path = f"evidence/{_stem(plan)}.json"
        span = document.span(plan.acknowledgements[0].path)
        yield rules.UNBACKED.at(document.file, span, path=path, plan=document.file)


def locate(root: Path, path: str) -> tuple[Path | None, str]:
    """Where an evidence path leads, or None and why it may not lead there. The file need not exist."""
    if "\\" in path:
        return None, "has a backslash; write `/`"
    if path.startswith(("/", "~")) or re.match("[A-Za-z]:", path):
        return None, "is not relative to the repository"
    if ".." in path.split("/"):
        return None, "goes up with `..`"
    place = root / path
    try:
        top = os.path.realpath(root)
        inside = os.path.commonpath([os.path.realpath(place), top]) == top
    except (OSError, ValueError) as error:
        return None, f"is no path: {error}"
    return (place, "") if inside else (None, "leads out of the repository through a link")


class _Teller:
    """Diagnostics about one acknowledgement's evidence, at the place where the plan names it."""

    def __init__(self, plan: Plan, entry: Acknowledgement) -> None:
        self.plan, self.entry = plan, entry
        self.recommended = plan.purpose == "recommended"

    def tell(self, rule: Rule, severity: Severity | None = None, **fields: object) -> Diagnostic:
        document = self.plan.document
        span = document.span((*self.entry.path, "evidence"))
        found = rule.at(document.file, span, path=_word(self.entry.evidence), plan=document.file, **fields)
        return found if severity is None else replace(found, severity=severity)

    def missing(self, problem: str) -> Diagnostic:
        return self.tell(rules.MISSING, "warning" if self.recommended else None, problem=problem)

    def of_document(self, evidence: Evidence, tables: Tables) -> Iterator[Diagnostic]:
        """What of the plan's scopes is stale, red, incomplete or missing in it; an edit is told by reading."""
        profiles = profile_digests(self.plan, tables)
        by: dict[Status, list[Scope]] = {}
        for scope in plan_scopes(self.plan, tables):
            by.setdefault(entry_status(evidence, scope, tables, profiles=profiles), []).append(scope)
        if scopes := by.get("stale"):
            told = [
                difference
                for scope in scopes
                if (entry := evidence.of(scope)) is not None
                for difference in differences(entry, tables[scope.profile, scope.steps], profiles.get(scope.profile))
            ]
            yield self.tell(rules.STALE, scopes=_scopes(scopes), difference=", ".join(dict.fromkeys(told)))
        if scopes := by.get("red"):
            severity: Severity = "error" if self.recommended else "note"
            advice = rules.RED_RECOMMENDED if self.recommended else rules.RED_REFERENCE
            items = _items(evidence, scopes, "red")
            yield self.tell(rules.RED, severity, scopes=_scopes(scopes), items=items, advice=advice)
        if scopes := by.get("incomplete"):
            yield self.tell(rules.INCOMPLETE, scopes=_scopes(scopes), items=_items(evidence, scopes, "not_measured"))
        if scopes := by.get("missing"):
            yield self.missing(f"says nothing of {_scopes(scopes)}")


def _items(evidence: Evidence, scopes: Iterable[Scope], verdict: str) -> str:
    names = {
        name: None
        for scope in scopes
        if (entry := evidence.of(scope)) is not None
        for name, found in entry.verdicts.items()
        if found == verdict
    }
    return ", ".join(names)


def _scopes(scopes: Sequence[Scope]) -> str:
    more = f" and {len(scopes) - SHOWN} more" if len(scopes) > SHOWN else ""
    return ", ".join(map(str, scopes[:SHOWN])) + more


def _stem(plan: Plan) -> str:
    return plan.name.replace("-", "_").replace(".", "_")


def _word(path: str | None) -> str:
    """The path as it is where it is plain, else quoted."""
    text = path or ""
    return text if re.fullmatch(r"[\w./-]+", text) else quoted(text)
