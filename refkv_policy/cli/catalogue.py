"""The whole rule catalogue: every package's `rules.py`, and the `examples.yaml` beside it.

A package that finds faults of its own keeps their texts in `rules.py` and an example of each in `examples.yaml`; both are
found here by their names, so that a new family of rules needs no edit elsewhere.
"""

from __future__ import annotations

import datetime
import functools
import importlib
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

from refkv_policy.plan.catalogue import RULES, Rule
from refkv_policy.plan.diagnostic import Diagnostic, PlanError
from refkv_policy.resources import PACKAGE

FAMILIES = {
    "0": "file and YAML",
    "1": "schema",
    "2": "selectors and sites",
    "3": "composition and tiers",
    "4": "quantization",
    "5": "acknowledgements and evidence",
    "6": "guardrails",
    "7": "lock",
}
"""By the first digit of a code."""

TODAY = datetime.date(2026, 12, 15)
"""The day on which the examples' acknowledgements are judged, so that they read the same on every day."""

_FIELD = re.compile(r"\{\{|\}\}|(?P<tick>`?)\{[a-z_]+(?:![rs])?(?::[^{}]*)?\}(?P=tick)")
_TELLING = 12
"""Letters that a template must have besides its fields to tell anything."""
_SECTION = re.compile(r"^(?=[^\s#-])", re.MULTILINE)


@dataclass(frozen=True, slots=True)
class Example:
    """What breaks a rule and what does not.

    form: the sides are `part` of a plan, a whole `file`, a guardrails file (`rails`) or a sentence each (`prose`).
    base: the sound plan that a part is put into, and that guardrails are held against. guardrails: those that the plan
    is held against; empty where none. also: the codes that the wrong side gives besides its own.
    """

    form: Literal["part", "file", "rails", "prose"]
    wrong: str
    right: str
    base: str
    guardrails: str = ""
    also: tuple[str, ...] = ()

    def findings(self, side: Literal["wrong", "right"]) -> tuple[Diagnostic, ...]:
        """What `refkv validate` says about a side on the examples' day; nothing about prose."""
        text: str = getattr(self, side)
        match self.form:
            case "prose":
                return ()
            case "rails":
                return _findings(self.base, text)
            case "file":
                return _findings(text, self.guardrails)
            case "part":
                return _findings(_with_sections(self.base, text), self.guardrails)


@functools.cache
def all_rules() -> dict[str, Rule]:
    """Every rule of every package by code, ascending."""
    for path in sorted(PACKAGE.glob("*/rules.py")):
        importlib.import_module(f"refkv_policy.{path.parent.name}.rules")
    return dict(sorted(RULES.items()))


@functools.cache
def examples() -> dict[str, Example]:
    """The example of each rule that has one, by code. Raises PlanError when an examples file is not one."""
    from refkv_policy.plan.yaml_subset import load_document

    bases: dict[str, str] = {}
    entries: dict[str, Any] = {}
    for path in sorted(PACKAGE.glob("*/examples.yaml")):
        document, faults = load_document(path.read_text(encoding="utf-8"), str(path))
        if document is None:
            raise PlanError(faults)
        bases |= document.value.get("bases", {})
        entries |= document.value["examples"]
    return {code: _example(entry, bases) for code, entry in sorted(entries.items())}


def family(code: str) -> str:
    """What the rules of a code's hundred are about."""
    return FAMILIES.get(code[3:4], "")


def summary(rule: Rule) -> str:
    """The message on one line with `…` for what differs from case to case; the reason where little else is left of it."""
    return _without_fields(rule.message) or rule.why.split(". ")[0].rstrip(".")


def advice(rule: Rule) -> str:
    """The help likewise; empty where it is another one in each case."""
    return _without_fields(rule.help)


def _without_fields(template: str) -> str:
    text = _FIELD.sub(lambda m: m[0][0] if m[0] in ("{{", "}}") else "…", template)
    return text if sum(map(str.isalpha, text)) >= _TELLING else ""


def wrong_says(code: str) -> Diagnostic | None:
    """The diagnostic of a rule's wrong example; None when it has none, or one in prose."""
    example = examples().get(code)
    return None if example is None else next((d for d in example.findings("wrong") if d.code == code), None)


def _example(entry: Mapping[str, Any], bases: Mapping[str, str]) -> Example:
    base = bases[entry["base"]] if "base" in entry else next(iter(bases.values()))
    return Example(
        entry["form"], entry["wrong"], entry["right"], base, entry.get("guardrails", ""), tuple(entry.get("also", ()))
    )


@functools.cache
def _findings(plan_text: str, guardrails_text: str) -> tuple[Diagnostic, ...]:
    """What is said about a plan, and about it under guardrails when there are any."""
    from refkv_policy.compiler import check_plan, compile_all
    from refkv_policy.guardrails import check_guardrails, parse_guardrails
    from refkv_policy.plan import errors, parse_plan

    plan, found = parse_plan(plan_text, "plans/example.yaml")
    if plan is not None:
        found = (*found, *check_plan(plan, TODAY))
    if not guardrails_text:
        return found
    guardrails, faults = parse_guardrails(guardrails_text, "plans/guardrails.yaml")
    found = (*found, *faults)
    if plan is None or guardrails is None or errors(found):
        return found
    return (*found, *check_guardrails(plan, compile_all(plan, TODAY), guardrails))


def _with_sections(base: str, part: str) -> str:
    """`base` with the top-level sections of `part` in the place of its own, those that it lacks at its end."""
    sections = {_heading(s): s for s in _SECTION.split(base) if s}
    mine = [s for s in _SECTION.split(part) if s]
    for section in mine:
        sections[_heading(section)] = section
    return "".join(sections.values())


def _heading(section: str) -> str:
    return section.partition(":")[0].strip()
