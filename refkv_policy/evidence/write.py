"""Writing evidence: what a table already tells is filled in, and what is written is what can be read back."""

from __future__ import annotations

import datetime
import json
import os
from collections.abc import Iterable, Mapping
from dataclasses import replace
from types import MappingProxyType

from refkv_policy import __version__
from refkv_policy.compiler import HookTable
from refkv_policy.evidence import rules
from refkv_policy.evidence.document import sigmas_digest, to_value
from refkv_policy.evidence.gate import Item
from refkv_policy.evidence.model import (
    Audit,
    Bound,
    Evaluations,
    Evidence,
    Levels,
    MeasuredScope,
    Memory,
    Metric,
    Setting,
)
from refkv_policy.evidence.read import parse_evidence
from refkv_policy.files import atomic_write
from refkv_policy.plan.diagnostic import PlanError, errors
from refkv_policy.profiles import Profile


def make_scope(
    table: HookTable,
    profile: Profile,
    *,
    guidance: float,
    weights: str,
    model: str,
    command: Iterable[str],
    setting: Setting,
    evaluations: Evaluations,
    levels: Levels,
    audits: Iterable[Audit],
    metrics: Iterable[Metric] = (),
    memory: Memory | None = None,
    gate: Iterable[Item] = (),
    created: datetime.datetime | None = None,
) -> MeasuredScope:
    """What was measured of a table at one guidance, bound to both.

    weights: the digest of the transformer's weights. created: now, unless given (with its time zone). Versions that
    `setting` leaves out are filled in. Raises ValueError when the profile or the guidance is not the table's.
    """
    if profile.name != table.profile:
        raise ValueError(f"the table is of {table.profile}, not of {profile.name}")
    if guidance not in table.guidance:
        raise ValueError(f"the table is reviewed for guidance {table.guidance}, not {guidance}")
    moment = created or datetime.datetime.now(datetime.timezone.utc)
    return MeasuredScope(
        profile=table.profile,
        steps=table.steps,
        guidance=guidance,
        created=moment.astimezone(datetime.timezone.utc).isoformat(timespec="seconds"),
        command=tuple(command),
        model=model,
        bound=Bound(
            table=table.digest,
            weights=weights,
            profile=profile.digest,
            sampler=table.sampler,
            flow_shift=table.flow_shift,
            sigmas=sigmas_digest(table.sigmas),
        ),
        setting=replace(setting, versions=MappingProxyType({**versions(), **setting.versions})),
        evaluations=evaluations,
        levels=levels,
        metrics=tuple(metrics),
        memory=memory,
        audits=tuple(audits),
        gate=tuple(gate),
    )


def versions() -> Mapping[str, str]:
    """Of refkv, Python, the platform, and torch and diffusers where they are installed (`none` where not)."""
    import platform  # here, since reading evidence, which every validation does, needs none of it

    found = {name: _installed(name) for name in ("torch", "diffusers")}
    machine = f"{platform.system()} {platform.machine()}"
    return {"refkv": __version__, "python": platform.python_version(), "platform": machine, **found}


def with_scope(evidence: Evidence | None, plan: str, scope: MeasuredScope) -> Evidence:
    """The evidence of a plan with a scope added, in place of what it held of that scope. Scopes are kept in order.

    Raises ValueError for evidence that was edited: writing it anew would give the edit a sound digest.
    """
    if evidence is not None and evidence.edited:
        raise ValueError("the evidence was changed after it was written; measure anew into another file")
    others = () if evidence is None else (entry for entry in evidence.scopes if entry.scope != scope.scope)
    return Evidence(plan, tuple(sorted((*others, scope), key=lambda entry: entry.scope)))


def evidence_text(evidence: Evidence) -> str:
    """The JSON text, the same for the same evidence, pure ASCII.

    Raises PlanError, with every fault, for evidence that could not be read back; TypeError for what JSON cannot hold.
    """
    name = f"evidence of {evidence.plan}"
    try:
        text = json.dumps(to_value(evidence), sort_keys=True, indent=1, ensure_ascii=True) + "\n"
    except ValueError:
        problem, advice = "a number is not finite", "a figure that was not measured is None"
        raise PlanError([rules.NOT_JSON.at(name, None, problem=problem, advice=advice)]) from None
    faults = errors(parse_evidence(text, name)[1])
    if faults:
        raise PlanError(faults)
    return text


def write_evidence(path: str | os.PathLike[str], evidence: Evidence) -> str:
    """Write the evidence beside its place, rename it there and give its digest. Raises what `evidence_text` does."""
    data = evidence_text(evidence).encode("ascii")
    with atomic_write(path, sync=True) as stream:
        stream.write(data)
    digest: str = to_value(evidence)["digest"]
    return digest


def _installed(name: str) -> str:
    from importlib.metadata import PackageNotFoundError, version

    try:
        return version(name)
    except PackageNotFoundError:
        return "none"
