"""What a session did: hits, misses, departures and peak bytes; in all, by branch, by site, by request."""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, field, replace
from typing import Any

from refkv_policy.compiler import human_bytes
from refkv_policy.compiler.table import COMPUTED, ONLINE, SERVED, UNREACHED, HookTable
from refkv_policy.runtime.call import Call
from refkv_policy.runtime.cells import CallPlan
from refkv_policy.runtime.store import Store

NEWEST = 100
"""How many of the requests that have ended a session remembers one by one."""

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

    def __str__(self) -> str:
        return (
            f"{self.hits} hits, {self.misses} misses, {self.departures} departures, "
            f"{human_bytes(self.bytes_peak)} held at most"
        )


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

    def __str__(self) -> str:
        error = "" if self.error is None else f"; {self.error}"
        return f"{self.request} {self.outcome}: {self.total}{error}"


@dataclass(frozen=True, slots=True)
class Summary:
    """A session so far: the sums over its requests, the open one among them.

    requests: the newest of them, one by one. outcomes: how many ended how.
    unplanned: calls of the transformer that belong to no request (another pipeline's, calls by hand), and are computed.
    """

    total: Tally = Tally()
    branches: Mapping[str, Tally] = field(default_factory=dict)
    sites: Mapping[str, Mapping[str, Tally]] = field(default_factory=dict)
    reasons: Mapping[str, int] = field(default_factory=dict)
    requests: tuple[RequestSummary, ...] = ()
    unplanned: int = 0
    outcomes: Mapping[Outcome, int] = field(default_factory=dict)

    def __str__(self) -> str:
        """A few lines for a person: sums, departures by reason, how the requests ended and the newest of them."""
        outcomes = ", ".join(f"{count} {outcome}" for outcome, count in self.outcomes.items()) or "none"
        lines = [str(self.total), f"requests: {outcomes}"]
        if self.reasons:
            lines.insert(1, "departures: " + ", ".join(f"{count} {reason}" for reason, count in self.reasons.items()))
        if self.unplanned:
            lines.append(f"{self.unplanned} calls of the transformer outside any request, computed without the cache")
        return "\n".join([*lines, *(f"  {request}" for request in self.requests[-5:])])

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
        return asdict(self)

    def plus(self, request: RequestSummary) -> Summary:
        """The sums with one request more; `requests` stays."""
        sites = dict(self.sites)
        for site, tallies in request.sites.items():
            sites[site] = _joined(sites.get(site, {}), tallies)
        return replace(
            self,
            total=self.total.joined(request.total),
            branches=_joined(self.branches, request.branches),
            sites=sites,
            reasons=dict(Counter(self.reasons) + Counter(request.reasons)),
            outcomes={**self.outcomes, request.outcome: self.outcomes.get(request.outcome, 0) + 1},
        )


class Ledger:
    """The sums over every request that has ended, and the newest of them one by one: its size does not grow with time."""

    def __init__(self) -> None:
        self.count = 0
        self.newest: deque[RequestSummary] = deque(maxlen=NEWEST)
        self._sums = Summary()

    def add(self, request: RequestSummary) -> None:
        """Count a request that has ended."""
        self.count += 1
        self.newest.append(request)
        self._sums = self._sums.plus(request)

    def summary(self, running: RequestSummary | None, unplanned: int) -> Summary:
        """The session so far, with the request that is open, if there is one."""
        sums = self._sums if running is None else self._sums.plus(running)
        requests = tuple(self.newest) if running is None else (*self.newest, running)
        return replace(sums, requests=requests, unplanned=unplanned)


@dataclass
class Counts:
    """Counts the decisions of a request's calls as they are made.

    ran: the plans of the calls; what they have as compiled is counted out at the end. The counters hold what was
    otherwise, by branch and position.
    """

    table: HookTable
    unserved: int = 0
    ran: list[CallPlan] = field(default_factory=list)
    hits: Counter[tuple[str, int]] = field(default_factory=Counter)
    misses: Counter[tuple[str, int]] = field(default_factory=Counter)
    departures: Counter[tuple[str, int]] = field(default_factory=Counter)
    reasons: Counter[str] = field(default_factory=Counter)
    decided: dict[int, bool] = field(default_factory=dict)

    def add(self, call: Call) -> None:
        """Count one call that has run."""
        plan = call.plan
        self.ran.append(plan)
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
        hits, misses, departures = self.hits.copy(), self.misses.copy(), self.departures.copy()
        reasons = self.reasons.copy()
        for plan in self.ran:
            for counter, positions in ((hits, plan.hits), (misses, plan.misses)):
                for position in positions:
                    counter[plan.branch, position] += 1
            for position, decision in enumerate(plan.decisions):
                if decision.reason is not None:  # of a call outside the plan, where each decision has one
                    reasons[decision.reason] += 1
                    departures[plan.branch, position] += 1
        sites: dict[str, dict[str, Tally]] = {}
        branches: dict[str, Tally] = {}
        for branch, position in sorted({*hits, *misses, *departures}):
            key = branch, position
            tally = Tally(hits[key], misses[key], departures[key], store.by_site[key].peak)
            sites.setdefault(self.table.rows[position].site, {})[branch] = tally
            branches[branch] = branches.get(branch, Tally()).joined(tally)
        total = join(branches.values())
        return RequestSummary(
            request,
            outcome,
            replace(total, bytes_peak=store.total.peak),
            {b: replace(t, bytes_peak=store.by_branch[b].peak) for b, t in branches.items()},
            sites,
            dict(reasons),
            len(self.ran),
            error,
            tuple(self.table.rules[rule].name for rule, served in sorted(self.decided.items()) if not served),
        )


def join(tallies: Iterable[Tally]) -> Tally:
    """All of them, one after the other."""
    total = Tally()
    for tally in tallies:
        total = total.joined(tally)
    return total


def _joined(one: Mapping[str, Tally], other: Mapping[str, Tally]) -> dict[str, Tally]:
    return {**one, **{name: one.get(name, Tally()).joined(tally) for name, tally in other.items()}}
