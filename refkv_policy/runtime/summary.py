"""What a session did: hits, misses, departures and peak bytes; in all, by branch, by site, by request."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from refkv_policy.compiler import human_bytes
from refkv_policy.compiler.table import COMPUTED, ONLINE, SERVED, UNREACHED, HookTable
from refkv_policy.runtime.call import Call
from refkv_policy.runtime.cells import CallPlan
from refkv_policy.runtime.store import Store

Outcome = str
"""`finished`, `failed`, `cancelled`, `incomplete`; `running` while a request is open."""


@dataclass(frozen=True, slots=True)
class Tally:
    """hits, misses: served and computed cells at sites that a rule governs. departures: cells not obeyed as compiled.

    bytes_peak: the most bytes held at once.
    """

    hits: int = 0
    misses: int = 0
    departures: int = 0
    bytes_peak: int = 0

    def joined(self, other: Tally) -> Tally:
        """Of two runs, one after the other: counts add up, the higher peak stays."""
        peak = max(self.bytes_peak, other.bytes_peak)
        return Tally(self.hits + other.hits, self.misses + other.misses, self.departures + other.departures, peak)


@dataclass(frozen=True, slots=True)
class RequestSummary:
    """One request. sites: by site name, then branch. reasons: departures by reason. error: why it failed, as text.

    never_served: names of the rules that decide in the run, and decided every time to compute.
    """

    request: str
    outcome: Outcome
    total: Tally
    branches: Mapping[str, Tally]
    sites: Mapping[str, Mapping[str, Tally]]
    reasons: Mapping[str, int]
    calls: int
    error: str | None = None
    never_served: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Summary:
    """A session so far: the sums over its requests, the open one among them."""

    total: Tally
    branches: Mapping[str, Tally]
    sites: Mapping[str, Mapping[str, Tally]]
    reasons: Mapping[str, int]
    requests: tuple[RequestSummary, ...]
    unplanned: int
    """Calls outside any request: computed, never cached."""
    outcomes: Mapping[str, int] = field(default_factory=dict)
    """How many requests ended how."""

    def __str__(self) -> str:
        """Four lines for a person."""
        ended = ", ".join(f"{count} {outcome}" for outcome, count in self.outcomes.items()) or "none"
        reasons = (
            f" ({', '.join(f'{count} {reason}' for reason, count in self.reasons.items())})" if self.reasons else ""
        )
        lines = [
            f"requests: {ended}",
            f"hits {self.hits}, misses {self.misses}, departures {self.departures}{reasons}",
            f"peak {human_bytes(self.bytes_peak)}",
        ]
        return "\n".join([*lines, f"calls that were not the table's: {self.unplanned}"] if self.unplanned else lines)

    @property
    def hits(self) -> int:
        """Served cells at governed sites."""
        return self.total.hits

    @property
    def misses(self) -> int:
        """Computed cells at governed sites."""
        return self.total.misses

    @property
    def departures(self) -> int:
        """Cells not obeyed as compiled, whatever the reason."""
        return self.total.departures

    @property
    def bytes_peak(self) -> int:
        """The most bytes that one request held at once."""
        return self.total.bytes_peak

    def to_dict(self) -> dict[str, Any]:
        """JSON-ready."""
        from dataclasses import asdict

        return asdict(self)


@dataclass
class Counts:
    """Counts the decisions of a request's calls as they are made: the calls by plan, and what was otherwise in them."""

    table: HookTable
    unserved: int = 0
    plans: Counter[CallPlan] = field(default_factory=Counter)
    hits: Counter[tuple[str, int]] = field(default_factory=Counter)
    misses: Counter[tuple[str, int]] = field(default_factory=Counter)
    departures: Counter[tuple[str, int]] = field(default_factory=Counter)
    reasons: Counter[str] = field(default_factory=Counter)
    decided: dict[int, bool] = field(default_factory=dict)

    def add(self, call: Call) -> None:
        """Count one call that has run."""
        plan = call.plan
        self.plans[plan] += 1
        if call.withheld is not None and plan.index < 0:
            self.reasons[call.withheld] += len(self.table.rows)
            for position in range(len(self.table.rows)):
                self.departures[plan.branch, position] += 1
        for position, decision in call.changes.items():
            if decision.reason is not None:
                self.departures[plan.branch, position] += 1
                self.reasons[decision.reason] += 1
            if decision.planned == ONLINE:
                rule = self.table.rows[position].rule
                if rule is not None:
                    self.decided[rule] = self.decided.get(rule, False) or decision.action in SERVED
                if self.table.rows[position].counted:
                    self.hits[plan.branch, position] += decision.action in SERVED
                    self.misses[plan.branch, position] += decision.action in COMPUTED
                continue
            if decision.action == UNREACHED:  # skipped with what it lies inside, which was served online
                if self.table.rows[position].counted:
                    self.hits[plan.branch, position] -= decision.planned in SERVED
                    self.misses[plan.branch, position] -= decision.planned in COMPUTED
                continue
            planned_served, computed = decision.planned in SERVED, decision.action in COMPUTED
            self.unserved += planned_served and computed
            if computed and self.table.rows[position].counted and decision.planned not in COMPUTED:
                self.hits[plan.branch, position] -= planned_served
                self.misses[plan.branch, position] += 1

    def summary(self, request: str, outcome: Outcome, store: Store, error: str | None) -> RequestSummary:
        """The counts so far, with the peaks of the store."""
        sites: dict[str, dict[str, Tally]] = {}
        branches: dict[str, Tally] = {}
        hits, misses = Counter(self.hits), Counter(self.misses)
        for plan, count in self.plans.items():
            for position in plan.hits:
                hits[plan.branch, position] += count
            for position in plan.misses:
                misses[plan.branch, position] += count
        for branch, position in sorted({*hits, *misses, *self.departures}):
            key = branch, position
            tally = Tally(hits[key], misses[key], self.departures[key], store.by_site[key].peak)
            sites.setdefault(self.table.rows[position].site, {})[branch] = tally
            branches[branch] = branches.get(branch, Tally()).joined(tally)
        total = join(branches.values())
        branches = {b: _with_peak(t, store.by_branch[b].peak) for b, t in branches.items()}
        return RequestSummary(
            request,
            outcome,
            _with_peak(total, store.total.peak),
            branches,
            sites,
            dict(self.reasons),
            self.plans.total(),
            error,
            tuple(self.table.rules[rule].name for rule, served in sorted(self.decided.items()) if not served),
        )


def summarise(requests: Iterable[RequestSummary], unplanned: int, before: Summary | None = None) -> Summary:
    """The sums over requests, and over those of an earlier summary."""
    requests = tuple(requests)
    sites: dict[str, dict[str, Tally]] = {site: dict(by) for site, by in before.sites.items()} if before else {}
    branches: dict[str, Tally] = dict(before.branches) if before else {}
    reasons: Counter[str] = Counter(before.reasons if before else {})
    outcomes: Counter[str] = Counter(before.outcomes if before else {})
    for request in requests:
        reasons.update(request.reasons)
        outcomes[request.outcome] += 1
        for branch, tally in request.branches.items():
            branches[branch] = branches.get(branch, Tally()).joined(tally)
        for site, by_branch in request.sites.items():
            for branch, tally in by_branch.items():
                mine = sites.setdefault(site, {})
                mine[branch] = mine.get(branch, Tally()).joined(tally)
    total = join((*((before.total,) if before else ()), *(r.total for r in requests)))
    return Summary(total, branches, sites, dict(reasons), requests, unplanned, dict(outcomes))


def join(tallies: Iterable[Tally]) -> Tally:
    """All of them, one after the other."""
    total = Tally()
    for tally in tallies:
        total = total.joined(tally)
    return total


def _with_peak(tally: Tally, peak: int) -> Tally:
    return Tally(tally.hits, tally.misses, tally.departures, peak)
