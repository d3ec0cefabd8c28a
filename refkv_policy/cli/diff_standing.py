"""How a plan stands on each side of a comparison: what its evidence is worth, and which guardrails it breaks."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from itertools import groupby
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

from refkv_policy.cli.guard import Guards, held_against
from refkv_policy.compiler.diff import sound_tables
from refkv_policy.guardrails import Breach
from refkv_policy.plan import Plan
from refkv_policy.plan.model import Path

if TYPE_CHECKING:
    from refkv_policy.evidence import Scope

UNNAMED = "none"
"""The status of an operating point whose plan names no evidence, or that the plan does not have."""
UNFIT = ("edited", "stale", "red")
"""Statuses that a reviewer is told of even where they were so before."""

Key = tuple[object, ...]
Naming = Callable[[str], str]


@dataclass(frozen=True, slots=True)
class Standing:
    """One side.

    guardrails: their file; None without any. demands: what they say, comments apart. faults: of the guardrails
    themselves, as sentences. breaches: what the plan breaks, as sentences, by what they are about. statuses: of the
    evidence; empty where the plan names none.
    """

    guardrails: str | None = None
    demands: Any = None
    faults: tuple[str, ...] = ()
    breaches: Mapping[Key, tuple[str, ...]] = field(default_factory=lambda: MappingProxyType({}))
    statuses: Mapping[Scope, str] = field(default_factory=lambda: MappingProxyType({}))


@dataclass(frozen=True, slots=True)
class Moved:
    """What is otherwise around the plan now.

    evidence: (before, after, operating points), changed or unfit. guardrails: their files before and after. demands:
    whether they ask for something else. faults: why the present ones cannot be held against the plan. broken, mended,
    still: sentences about guardrails that the plan breaks now and did not before, did and no longer does, and does as
    before.
    """

    evidence: tuple[tuple[str, str, tuple[Scope, ...]], ...] = ()
    guardrails: tuple[str | None, str | None] = (None, None)
    demands: bool = False
    faults: tuple[str, ...] = ()
    broken: tuple[str, ...] = ()
    mended: tuple[str, ...] = ()
    still: tuple[str, ...] = ()

    @property
    def changed(self) -> bool:
        """Whether the plan's own standing is otherwise; guardrails that ask for something else it may meet as before."""
        return bool(any(before != after for before, after, _ in self.evidence) or self.broken or self.mended)

    def gone(self, status: str) -> int:
        """How many operating points have come to a status that they did not have."""
        return sum(len(scopes) for before, after, scopes in self.evidence if after == status != before)


def standing(plan: Plan | None, guards: Guards, named: Naming = str, *, past: bool = False) -> Standing | None:
    """How a plan that compiles stands, None without a plan. named: makes a text presentable. past: it is the old side."""
    if plan is None:
        return None
    guardrails, faults = guards.read(plan.document.file)
    evidence = any(entry.evidence for entry in plan.acknowledgements)
    told = () if guardrails is not None else tuple(named(str(fault)) for fault in faults)
    if guardrails is None and not evidence:
        return Standing(faults=told)
    tables = sound_tables(plan, past=past)
    statuses: Mapping[Scope, str] = {}
    if evidence:
        from refkv_policy.evidence import examine

        statuses = examine(plan, tables).statuses
    if guardrails is None:
        return Standing(faults=told, statuses=statuses)
    return Standing(
        guardrails=named(guardrails.document.file),
        demands=guardrails.document.value,
        breaches=_by_key(plan, held_against(guardrails, plan, tables, statuses=statuses), named),
        statuses=statuses,
    )


def moved(old: Standing | None, new: Standing | None) -> Moved:
    """What lies between two sides; nothing where the plan is removed. Operating points stay in the plan's order."""
    if new is None:
        return Moved()
    was_there, old = old is not None, old or Standing()
    pairs = [(old.statuses.get(s, UNNAMED), new.statuses.get(s, UNNAMED), s) for s in {**new.statuses, **old.statuses}]
    notable = sorted((p for p in pairs if p[0] != p[1] or p[1] in UNFIT), key=lambda p: (p[0], p[1]))
    evidence = tuple(
        (before, after, tuple(entry[2] for entry in group))
        for (before, after), group in groupby(notable, key=lambda p: (p[0], p[1]))
    )
    return Moved(
        evidence=evidence,
        guardrails=(old.guardrails, new.guardrails),
        demands=was_there and not new.faults and old.demands != new.demands,
        faults=new.faults,
        broken=tuple(_beyond(new.breaches, old.breaches)),
        mended=tuple(_beyond(old.breaches, new.breaches)) if new.guardrails is not None else (),
        still=tuple(_within(new.breaches, old.breaches)),
    )


def _beyond(these: Mapping[Key, tuple[str, ...]], those: Mapping[Key, tuple[str, ...]]) -> Iterator[str]:
    for key, sentences in these.items():
        yield from sentences[len(those.get(key, ())) :]


def _within(these: Mapping[Key, tuple[str, ...]], those: Mapping[Key, tuple[str, ...]]) -> Iterator[str]:
    for key, sentences in these.items():
        yield from sentences[: len(those.get(key, ()))]


def _by_key(plan: Plan, found: Iterable[Breach], named: Naming) -> dict[Key, tuple[str, ...]]:
    """Sentences by code, entry of the plan and kind of guardrail: neither moved lines nor another order are a difference."""
    keys: dict[Key, list[str]] = {}
    for breach in found:
        rail = tuple(step for step in breach.rail if isinstance(step, str))
        key = (breach.diagnostic.code, _entry(plan, breach.path), rail)
        keys.setdefault(key, []).append(named(f"{breach.diagnostic.code} {breach.diagnostic.message}"))
    return {key: tuple(sentences) for key, sentences in keys.items()}


def _entry(plan: Plan, path: Path | None) -> Key | None:
    """What of a plan a path leads to, by its name and not by its number."""
    if path is None or len(path) < 2:
        return path
    section, index = path[:2]
    value = plan.document.value[section]
    entry = value[index] if isinstance(value, list) and isinstance(index, int) else index
    if isinstance(entry, dict):
        entry = entry.get("name") or entry.get("risk") or index
    return (section, str(entry))


def counted(scopes: Iterable[Scope]) -> str:
    """`wan2.1-vace-1.3b at 30, 50 steps and guidance 5; …`: operating points as a person counts them."""
    steps: dict[tuple[str, float], list[str]] = {}
    for scope in scopes:
        steps.setdefault((scope.profile, scope.guidance), []).append(str(scope.steps))
    return "; ".join(
        f"{model} at {', '.join(counts)} steps and guidance {guidance:g}" for (model, guidance), counts in steps.items()
    )
