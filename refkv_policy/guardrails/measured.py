"""Guardrails about evidence: for which operating points there must be some, how good, and by which thresholds."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from refkv_policy.guardrails import rules
from refkv_policy.guardrails.held import Case
from refkv_policy.guardrails.model import OWN, SENSES, EvidenceDemand
from refkv_policy.plan.model import Path

Scope = tuple[str, int, float]
"""A profile's name, a step count and a guidance."""
Statuses = Mapping[Any, str]
"""By scope, any tuple of the three."""
Verdicts = Mapping[Any, Mapping[str, str]]
"""By scope and item of the gate."""

_ENOUGH = {"green": ("green",), "incomplete": ("green", "incomplete"), "red": ("green", "incomplete", "red")}
_WANTED = {"green": "green evidence", "incomplete": "evidence without a red item", "red": "evidence, be it red"}
_SHOWN = 3


def check_measured(case: Case, statuses: Statuses, verdicts: Verdicts) -> None:
    """Tell the case every demand that the evidence of its operating points does not meet."""
    holding = [(demand, _scopes(case, demand)) for demand in case.guardrails.evidence]
    stated = {(scope, item) for demand, scopes in holding for scope in scopes for item in demand.thresholds}
    for demand, scopes in holding:
        short: dict[str, list[Scope]] = {}
        unkept: dict[str, list[Scope]] = {}
        for scope in scopes:
            status = statuses.get(scope, "missing")
            if status not in _ENOUGH[demand.status]:
                short.setdefault(status, []).append(scope)
                continue
            for item in SENSES:
                if verdicts.get(scope, {}).get(item) != "red" or demand.status == "red":
                    continue
                if item in demand.thresholds or (scope, item) not in stated:
                    unkept.setdefault(item, []).append(scope)
        path = _place(case, demand)
        for status, found in short.items():
            _tell_short(case, demand, path, status, found)
        for item, found in unkept.items():
            limit = demand.thresholds.get(item, OWN[item])
            fields = {"item": item, "sense": SENSES[item].replace("_", " "), "limit": limit}
            rail = (*demand.path, *(("thresholds", item) if item in demand.thresholds else ("status",)))
            case.tell(rules.THRESHOLD, path, rail, **fields, scopes=_listed(found))


def _scopes(case: Case, demand: EvidenceDemand) -> list[Scope]:
    """The operating points that need evidence."""
    found = []
    for (model, steps), table in case.tables.items():
        if demand.holds_for(case.plan.purpose, frozenset(rule.tier for rule in table.rules), *case.names(model)):
            found += [(model, steps, guidance) for guidance in case.plan.run.guidance]
    return found


def _tell_short(case: Case, demand: EvidenceDemand, path: Path, status: str, scopes: list[Scope]) -> None:
    advice = f"measure it with `refkv gate {case.plan.document.file}`, and name it in the acknowledgement's `evidence`"
    if status == "red":
        advice = "change the plan and measure again, or do not recommend it"
    fields = {"status": status, "scopes": _listed(scopes), "wanted": _WANTED[demand.status], "advice": advice}
    case.tell(rules.EVIDENCE, path, (*demand.path, "status"), **fields)


def _place(case: Case, demand: EvidenceDemand) -> Path:
    """Where evidence is named, or should be: in the acknowledgement of a rule's risk, or else the rule's tier."""
    of_tiers = [rule for rule in case.plan.caches if rule.tier in demand.tiers]
    risks = {
        risk
        for table in case.tables.values()
        for rule in table.rules
        if rule.tier in demand.tiers
        for risk in rule.risks
    }
    entries = [entry for entry in case.plan.acknowledgements if entry.risk in risks]
    for entry in entries:
        if entry.evidence is not None:
            return (*entry.path, "evidence")
    if entries:
        return (*entries[0].path, "risk")
    return (*of_tiers[0].path, "tier") if of_tiers else ("caches",)


def _listed(scopes: list[Scope]) -> str:
    shown = [f"{model} at {steps} steps and guidance {guidance:g}" for model, steps, guidance in scopes[:_SHOWN]]
    more = f" and {len(scopes) - _SHOWN} more" if len(scopes) > _SHOWN else ""
    return ", ".join(shown) + more
