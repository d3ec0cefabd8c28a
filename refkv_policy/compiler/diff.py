"""What changed between two plans: behaviour first, cell by cell, then what is only text."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import groupby
from typing import Any, Literal

from refkv_policy.compiler import Prediction, examine_plan, plan_profiles, predict, rules
from refkv_policy.compiler.lock import DTYPE, attention_text, compact
from refkv_policy.compiler.picture import kind_of, sites_text
from refkv_policy.compiler.table import BRANCHES, HookTable, Row, TableRule
from refkv_policy.plan.diagnostic import PlanError, errors
from refkv_policy.plan.model import Acknowledgement, Plan, Shape
from refkv_policy.plan.selectors import Site
from refkv_policy.profiles.cost import Workload

Verdict = Literal["unchanged", "metadata", "behaviour", "added", "removed"]
Scope = tuple[str, int]
"""Profile name and step count."""


@dataclass(frozen=True, slots=True)
class Change:
    """One fact before and after; None where it is absent."""

    name: str
    before: str | None
    after: str | None


@dataclass(frozen=True, slots=True)
class RowChange:
    """Neighbouring sites whose actions changed alike. branch: `both`, `cond` or `uncond`. None: the site has no row."""

    sites: str
    branch: str
    before: str | None
    after: str | None

    @property
    def marks(self) -> str:
        """`^` under each step whose action differs; empty where a side is absent."""
        if self.before is None or self.after is None or len(self.before) != len(self.after):
            return ""
        return "".join("^" if a != b else " " for a, b in zip(self.before, self.after, strict=True))


@dataclass(frozen=True, slots=True)
class ScopeDiff:
    """One model at one step count. figures: by shape, the predictions before and after (None where the scope is absent)."""

    profile: str
    steps: int
    verdict: Verdict
    rows: tuple[RowChange, ...]
    facts: tuple[Change, ...]
    figures: tuple[tuple[Shape, Prediction | None, Prediction | None], ...]
    digests: tuple[str | None, str | None]


@dataclass(frozen=True, slots=True)
class PlanDiff:
    """The whole difference. tiers, risks: before and after. metadata: paths of the document whose text changed only."""

    name: str
    verdict: Verdict
    scopes: tuple[ScopeDiff, ...]
    tiers: tuple[tuple[str, ...], tuple[str, ...]]
    risks: tuple[tuple[str, ...], tuple[str, ...]]
    acknowledgements: tuple[Change, ...]
    metadata: tuple[Change, ...]

    @property
    def changed(self) -> tuple[ScopeDiff, ...]:
        """Scopes whose behaviour differs."""
        return tuple(scope for scope in self.scopes if scope.verdict != "unchanged")


def diff_plans(old: Plan | None, new: Plan | None) -> PlanDiff:
    """Compare two plans, or a plan with nothing. Raises PlanError when one of them is unsound, ValueError without either.

    Acknowledgements of the old one may have expired.
    """
    if old is None and new is None:
        raise ValueError("there is no plan on either side")
    before = {} if old is None else sound_tables(old, past=True)
    after = {} if new is None else sound_tables(new)
    shapes = tuple(dict.fromkeys((*(old.run.shapes if old else ()), *(new.run.shapes if new else ()))))
    scopes = tuple(
        _scope(scope, before.get(scope), after.get(scope), shapes, (old, new))
        for scope in dict.fromkeys((*before, *after))
    )
    metadata = tuple(_metadata(old, new)) if old and new else ()
    acknowledgements = tuple(_acknowledgements(old, new))
    verdict: Verdict = (
        "added"
        if old is None
        else "removed"
        if new is None
        else "behaviour"
        if any(s.verdict != "unchanged" for s in scopes)
        else "metadata"
        if metadata or acknowledgements
        else "unchanged"
    )
    return PlanDiff(
        name=(new or old).name,  # type: ignore[union-attr]
        verdict=verdict,
        scopes=scopes,
        tiers=(_tiers(before), _tiers(after)),
        risks=(_risks(before), _risks(after)),
        acknowledgements=acknowledgements,
        metadata=metadata,
    )


def sound_tables(plan: Plan, *, past: bool = False) -> dict[Scope, HookTable]:
    """The tables of a plan. Raises PlanError when it is unsound.

    past: that an acknowledgement has expired since is no fault, so that a plan that renews one can be compared.
    """
    tables, found = examine_plan(plan)
    if any(d.code != rules.ACK_EXPIRED.code or not past for d in errors(found)):
        raise PlanError(found)
    return tables


def _tiers(tables: Mapping[Scope, HookTable]) -> tuple[str, ...]:
    return tuple(sorted({rule.tier for table in tables.values() for rule in table.rules}))


def _risks(tables: Mapping[Scope, HookTable]) -> tuple[str, ...]:
    return tuple(sorted({risk for table in tables.values() for rule in table.rules for risk in rule.risks}))


def _scope(
    scope: Scope,
    old: HookTable | None,
    new: HookTable | None,
    shapes: Sequence[Shape],
    plans: tuple[Plan | None, Plan | None],
) -> ScopeDiff:
    profile, steps = scope
    verdict: Verdict = (
        "added"
        if old is None
        else "removed"
        if new is None
        else "unchanged"
        if old.digest == new.digest
        else "behaviour"
    )
    figures = (
        ()
        if verdict == "unchanged"
        else tuple((shape, _predict(plans[0], old, shape), _predict(plans[1], new, shape)) for shape in shapes)
    )
    return ScopeDiff(
        profile,
        steps,
        verdict,
        rows=tuple(_rows(old, new)) if verdict == "behaviour" else (),
        facts=tuple(_facts(old, new)) if old and new and verdict == "behaviour" else (),
        figures=figures,
        digests=(old.digest if old else None, new.digest if new else None),
    )


def _predict(plan: Plan | None, table: HookTable | None, shape: Shape) -> Prediction | None:
    if plan is None or table is None:
        return None
    profile = next(p for p in plan_profiles(plan) if p.name == table.profile)
    work = Workload(profile.tokens(shape.width, shape.height, shape.frames), profile.text_tokens)
    return predict(table, profile, work, DTYPE)


def _rows(old: HookTable | None, new: HookTable | None) -> Iterator[RowChange]:
    """Changed rows, neighbours that changed alike on one line. A row without a rule reads as what the default does."""
    assert old is not None and new is not None
    sites = dict.fromkeys((*(r.at for r in new.rows), *(r.at for r in old.rows)))
    found: list[tuple[Site, Site, str, str | None, str | None]] = []
    for site in sites:
        before, after = old.by_at.get(site), new.by_at.get(site)
        pairs = {b: (_actions(before, b), _actions(after, b)) for b in BRANCHES}
        if pairs["cond"] == pairs["uncond"]:
            pairs = {"both": pairs["cond"]}
        found += [(kind_of(site), site, branch, *pair) for branch, pair in pairs.items() if pair[0] != pair[1]]
    kinds = list(dict.fromkeys(f[0] for f in found))
    found.sort(key=lambda f: (kinds.index(f[0]), f[2], f[1].order))
    for (_, branch, before_text, after_text), group in groupby(found, key=lambda f: (f[0], f[2], f[3], f[4])):
        yield RowChange(sites_text(f[1] for f in group), branch, before_text, after_text)


def _actions(row: Row | None, branch: str) -> str | None:
    return None if row is None else row.actions(branch)


def _facts(old: HookTable, new: HookTable) -> Iterator[Change]:
    """Sampler, guidance, the steps that are run, and each rule's settings."""
    for name in ("sampler", "flow_shift", "guidance"):
        a, b = getattr(old, name), getattr(new, name)
        if a != b:
            yield Change(name, _text(a), _text(b))
    before_after = attention_text(old), attention_text(new)
    if before_after[0] != before_after[1]:
        yield Change("attention", *before_after)
    if old.evaluated != new.evaluated:
        yield Change("steps that are run", compact(old.evaluated), compact(new.evaluated))
    before = {r.name: _settings(r) for r in old.rules}
    after = {r.name: _settings(r) for r in new.rules}
    for name in dict.fromkeys((*before, *after)):
        if name not in before or name not in after:
            yield Change(f"rule {name}", _joined(before.get(name)), _joined(after.get(name)))
            continue
        for key in dict.fromkeys((*before[name], *after[name])):
            if before[name].get(key) != after[name].get(key):
                yield Change(f"rule {name}: {key}", before[name].get(key), after[name].get(key))


def _settings(rule: TableRule) -> dict[str, str]:
    value = {
        "method": rule.method,
        "tier": rule.tier,
        "risk": ", ".join(rule.risks) or "none",
        "history": str(rule.history),
    }
    value |= {f"params.{k}": str(v) for k, v in sorted(rule.params.items())}
    value |= {"keeps": rule.keeps} if rule.keeps != "output" else {}
    value |= {"longest": str(rule.longest)} if rule.longest is not None else {}
    value |= {"store.dtype": rule.store_dtype, "store.device": rule.store_device}
    return value | ({"store.budget": f"{rule.budget} bytes"} if rule.budget is not None else {})


def _joined(settings: Mapping[str, str] | None) -> str | None:
    return None if settings is None else f"{settings['tier']} {settings['method']}"


def _text(value: Any) -> str:
    return ", ".join(f"{v:g}" for v in value) if isinstance(value, tuple) else f"{value}"


def _acknowledgements(old: Plan | None, new: Plan | None) -> Iterator[Change]:
    before = {a.risk: a for a in (old.acknowledgements if old else ())}
    after = {a.risk: a for a in (new.acknowledgements if new else ())}
    for risk in dict.fromkeys((*before, *after)):
        a, b = before.get(risk), after.get(risk)
        if _said(a) != _said(b):
            yield Change(risk, _said(a), _said(b))


def _said(entry: Acknowledgement | None) -> str | None:
    if entry is None:
        return None
    expires = f", expires {entry.expires}" if entry.expires else ""
    evidence = f", evidence {entry.evidence}" if entry.evidence else ""
    return f"by {entry.by} on {entry.date}{expires}{evidence}: {entry.reason}"


def _metadata(old: Plan, new: Plan) -> Iterator[Change]:
    """Leaves of the documents that differ, acknowledgements apart."""
    before, after = dict(_leaves(old.document.value)), dict(_leaves(new.document.value))
    for path in dict.fromkeys((*before, *after)):
        if not path.startswith("acknowledgements") and before.get(path) != after.get(path):
            yield Change(path, before.get(path), after.get(path))


def _leaves(value: Any, path: str = "") -> Iterator[tuple[str, str]]:
    if isinstance(value, dict):
        for key, item in value.items():
            yield from _leaves(item, f"{path}.{key}" if path else str(key))
    elif isinstance(value, list):
        for index, item in enumerate(value):
            name = item.get("name") if isinstance(item, dict) else None
            yield from _leaves(item, f"{path}[{name or index}]")
    else:
        yield path, str(value)
