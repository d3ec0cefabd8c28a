"""What the evidence of a plan is worth today: one status for each of its scopes."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Literal

from refkv_policy.compiler import HookTable, plan_profiles
from refkv_policy.evidence.document import sigmas_digest
from refkv_policy.evidence.model import Evidence, MeasuredScope, Scope
from refkv_policy.plan.model import Plan
from refkv_policy.profiles import load_profile, names

Status = Literal["missing", "incomplete", "green", "red", "stale", "edited"]
Tables = Mapping[tuple[str, int], HookTable]
"""What `compile_all` gives: tables by profile name and step count."""

WORST_FIRST: tuple[Status, ...] = ("edited", "stale", "red", "incomplete", "green", "missing")


def plan_scopes(plan: Plan, tables: Tables) -> tuple[Scope, ...]:
    """The scopes of a plan: every table at every guidance it is reviewed for."""
    return tuple(Scope(profile, steps, guidance) for profile, steps in tables for guidance in plan.run.guidance)


def status(
    plan: Plan,
    tables: Tables,
    documents: Iterable[Evidence],
    *,
    profiles: Mapping[str, str] | None = None,
    weights: Mapping[str, str] | None = None,
) -> dict[Scope, Status]:
    """The status of each of the plan's scopes; of several documents that hold one, the worst counts.

    profiles: the digest of each profile by name; `profile_digests` of the plan unless given. weights: the digest of the
    weights at hand by profile name: only when running can it be told that others were measured.
    """
    documents = tuple(documents)
    profiles = profile_digests(plan, tables) if profiles is None else profiles
    found: dict[Scope, Status] = {}
    for scope in plan_scopes(plan, tables):
        each = {
            entry_status(document, scope, tables, profiles=profiles, weights=weights) for document in documents
        } or {"missing"}
        found[scope] = next(s for s in WORST_FIRST if s in each)
    return found


def profile_digests(plan: Plan, tables: Tables) -> dict[str, str]:
    """The digest of each profile that the tables are of, by name, where it is known: shipped, or the plan's own."""
    if not tables:
        return {}
    shipped = {name for name, _ in tables} & set(names())
    own = {profile.name: profile.digest for profile in plan_profiles(plan)}
    return {**{name: load_profile(name).digest for name in shipped}, **own}


def entry_status(
    document: Evidence,
    scope: Scope,
    tables: Tables,
    *,
    profiles: Mapping[str, str],
    weights: Mapping[str, str] | None = None,
) -> Status:
    """The status of one scope in one document."""
    entry = document.of(scope)
    if entry is None:
        return "missing"
    if document.edited:
        return "edited"
    table = tables[scope.profile, scope.steps]
    if differences(entry, table, profiles.get(scope.profile)):
        return "stale"
    if not of_weights(entry, (weights or {}).get(scope.profile)):
        return "stale"
    return entry.verdict


def differences(entry: MeasuredScope, table: HookTable, profile: str | None) -> tuple[str, ...]:
    """What of a table is no longer what was measured, as phrases; empty when all is. profile: its digest, if known."""
    bound = entry.bound
    told = []
    if (bound.sampler, bound.flow_shift) != (table.sampler, table.flow_shift):
        told.append(f"the sampler was {bound.sampler} with shift {bound.flow_shift:g}")
    elif bound.sigmas != sigmas_digest(table.sigmas):
        told.append("the sampler's sigmas were others")
    if profile is not None and bound.profile != profile:
        told.append("the profile was another")
    if bound.table != table.digest:
        told.append("the plan compiles to another table")
    return tuple(told)


def of_weights(entry: MeasuredScope, weights: str | None) -> bool:
    """Whether a measurement is of these weights, by their digest; None, not known, contradicts nothing."""
    return weights is None or entry.bound.weights == weights
