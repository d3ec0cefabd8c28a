"""A plan held against guardrails: first what it says, then what it compiles to, then what was measured of it."""

from __future__ import annotations

import os
from collections.abc import Mapping
from datetime import timedelta
from pathlib import Path as FilePath

from refkv_policy.guardrails import rules
from refkv_policy.guardrails.cells import check_table
from refkv_policy.guardrails.held import Breach, Case, Tables
from refkv_policy.guardrails.measured import Statuses, Verdicts, check_measured
from refkv_policy.guardrails.model import Guardrails, Party
from refkv_policy.plan.diagnostic import Diagnostic
from refkv_policy.plan.model import Acknowledgement, Plan
from refkv_policy.plan.reader import in_order
from refkv_policy.plan.wording import did_you_mean, listed, quoted
from refkv_policy.profiles import ANY, Profile
from refkv_policy.profiles import is_path as is_profile_file


def check_guardrails(
    plan: Plan,
    tables: Tables,
    guardrails: Guardrails,
    evidence_status: Statuses | None = None,
    *,
    verdicts: Verdicts | None = None,
    profiles: Mapping[str, Profile] | None = None,
) -> tuple[Diagnostic, ...]:
    """Everything in which a plan breaks the guardrails, by file and place. Never raises for a plan that was parsed.

    Each diagnostic stands in the plan at what breaks it, and names file and line of the guardrail; only a guardrail that
    cannot be held against one of the plan's models or step counts is told in its own file.

    tables: those of `compile_all`; without them (a plan that does not compile) only what the plan says is judged.
    evidence_status: the status of each (profile, steps, guidance), as `refkv_policy.evidence.status` gives it; None: the
    evidence was not looked at and is not judged. verdicts: of each of these, by item, under the guardrails' own
    `thresholds`; an item that is left out is not judged. profiles: those of the tables by name, unless the plan lists
    them or they are shipped.
    """
    found = breaches(plan, tables, guardrails, evidence_status, verdicts=verdicts, profiles=profiles)
    return in_order(breach.diagnostic for breach in found)


def breaches(
    plan: Plan,
    tables: Tables,
    guardrails: Guardrails,
    evidence_status: Statuses | None = None,
    *,
    verdicts: Verdicts | None = None,
    profiles: Mapping[str, Profile] | None = None,
) -> tuple[Breach, ...]:
    """`check_guardrails`, each diagnostic with what of the plan breaks which guardrail, to compare two plans by."""
    case = Case(plan, tables, guardrails, profiles or {})
    _allowed(case)
    _acknowledged(case)
    _any_model(case)
    for table in tables.values():
        check_table(case, table)
    if evidence_status is not None:
        check_measured(case, evidence_status, verdicts or {})
    return case.found


def _allowed(case: Case) -> None:
    plan, allow = case.plan, case.guardrails.allow
    for rule in plan.caches:
        fields = {"name": rule.name, "tier": rule.tier, "method": rule.method}
        if allow.tiers is not None and rule.tier not in allow.tiers:
            place = (*rule.path, "tier")
            case.tell(rules.TIER, place, ("allow", "tiers"), **fields, allowed=listed(allow.tiers, "and"))
        elif allow.methods is not None and rule.method not in allow.methods:
            place = (*rule.path, "method")
            case.tell(rules.METHOD, place, ("allow", "methods"), **fields, allowed=listed(allow.methods, "and"))
    if allow.models is not None:
        own = _keys(allow.models, case.guardrails.document.file)
        for index, key in enumerate(_keys(plan.models, plan.document.file)):
            if key not in own:
                fields = {"model": plan.models[index], "allowed": listed(allow.models, "and")}
                case.tell(rules.MODEL, ("models", index), ("allow", "models"), **fields)


def _keys(models: tuple[str, ...], file: str) -> list[str]:
    """Entries of `models` made comparable: a profile file is known by its real path."""
    base = FilePath(file).parent
    return [os.path.realpath(base / name) if is_profile_file(name) else name for name in models]


def _acknowledged(case: Case) -> None:
    bounds = case.guardrails.acknowledgements
    for party in bounds.parties:
        given = [entry for entry in case.plan.acknowledgements if entry.risk == party.risk]
        if given and not any(entry.by in party.by for entry in given):
            _party(case, party, given[0])
    for entry in case.plan.acknowledgements:
        _expiry(case, entry)


def _party(case: Case, party: Party, entry: Acknowledgement) -> None:
    wanted = " or ".join(quoted(name) for name in party.by)
    guess = did_you_mean(entry.by, party.by)
    fields = {"risk": party.risk, "by": quoted(entry.by), "wanted": wanted, "guess": guess}
    case.tell(rules.PARTY, (*entry.path, "by"), party.path, **fields)


def _expiry(case: Case, entry: Acknowledgement) -> None:
    bounds = case.guardrails.acknowledgements
    longest = bounds.longest_days
    key = "expires" if bounds.expires else "longest_days"
    if entry.expires is None:
        if bounds.expires or longest is not None:
            within = "" if longest is None else f" at most {longest} after its date"
            rail = ("acknowledgements", key)
            case.tell(rules.NO_EXPIRY, (*entry.path, "risk"), rail, risk=entry.risk, within=within)
    elif longest is not None and (entry.expires - entry.date).days > longest:
        fields = {"risk": entry.risk, "days": (entry.expires - entry.date).days, "longest": longest}
        latest = entry.date + timedelta(days=longest)
        rail = ("acknowledgements", "longest_days")
        case.tell(rules.EXPIRY_LATE, (*entry.path, "expires"), rail, **fields, latest=latest)


def _any_model(case: Case) -> None:
    """A plan for any model has no tables, so what is said of tables cannot be held against it."""
    if ANY not in case.plan.models or case.tables:
        return
    rails = case.guardrails
    for entry in (*rails.refresh, *rails.always_computed, *rails.never_cached, *rails.bytes, *rails.evidence):
        case.tell(rules.ANY_MODEL, ("models", case.plan.models.index(ANY)), entry.path)
        return
