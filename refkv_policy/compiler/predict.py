"""What a table will do at a size: hits, misses, bytes held at the peak, FLOPs. Sums over its lines and what they keep."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from functools import lru_cache

from refkv_policy.compiler.table import BRANCHES, COMPUTED, SERVED, HookTable
from refkv_policy.compiler.walk import Case, Keep, keeps, lines, online_rules, probe_keep, settled, value_bytes
from refkv_policy.plan.selectors import Site
from refkv_policy.profiles import Profile, cost
from refkv_policy.profiles.cost import ITEMSIZE, Workload


@dataclass(frozen=True, slots=True)
class Tally:
    """Hits (reused or forecast) and misses (computed) of one site and branch, or of many."""

    hits: int = 0
    misses: int = 0

    def __add__(self, other: Tally) -> Tally:
        return Tally(self.hits + other.hits, self.misses + other.misses)

    @property
    def rate(self) -> float:
        """Hits as a share of all, 0 when there is nothing."""
        return self.hits / (self.hits + self.misses) if self.hits + self.misses else 0.0


@dataclass(frozen=True, slots=True)
class Prediction:
    """Figures of one request that departs nowhere: exact, unless cells are decided online.

    tally: all governed sites of the branches that run. sites: by site name and branch. bytes_peak: the largest sum of
    all kept values at once. bytes_rule: the most that each rule holds, by name. flops: of all forwards.
    over_budget: names of rules whose need exceeds their budget at this workload: they will depart.
    """

    tally: Tally
    sites: Mapping[str, Mapping[str, Tally]]
    bytes_peak: int
    bytes_rule: Mapping[str, int]
    flops_planned: int
    flops_uncached: int
    over_budget: tuple[str, ...]

    @property
    def saved(self) -> float:
        """Share of the uncached denoising FLOPs that is not computed, 0 to 1."""
        return 1 - self.flops_planned / self.flops_uncached

    @property
    def speedup(self) -> float:
        """Uncached over planned FLOPs."""
        return self.flops_uncached / self.flops_planned


def branches_of(table: HookTable, guidance: float | None = None) -> tuple[str, ...]:
    """The branches that run at a guidance (the table's largest unless said): guidance of 1 or less has no uncond call."""
    scale = max(table.guidance) if guidance is None else guidance
    return BRANCHES if scale > 1 else BRANCHES[:1]


def predict(
    table: HookTable,
    profile: Profile,
    work: Workload,
    dtype: str,
    branches: tuple[str, ...] | None = None,
    online: Case = "worst",
) -> Prediction:
    """The figures of a table at a workload. dtype: the model's (`float32`, `bfloat16`, `float16`).

    online: the case of cells that are decided in the run. Raises KeyError for another dtype.
    """
    branches = branches_of(table) if branches is None else branches
    actions = {branch: settled(table, branch, online) for branch in branches}
    sites = {
        row.site: {
            b: Tally(*(_count(actions[b][row.at], table, wanted) for wanted in (SERVED, COMPUTED))) for b in branches
        }
        for row in table.rows
        if row.counted and table.evaluated
    }
    peak, by_rule = _bytes(table, profile, work, dtype, branches, online)
    over = tuple(r.name for i, r in enumerate(table.rules) if r.budget is not None and by_rule[i] > r.budget)
    return Prediction(
        tally=sum((t for site in sites.values() for t in site.values()), Tally()),
        sites=sites,
        bytes_peak=peak,
        bytes_rule={rule.name: by_rule[i] for i, rule in enumerate(table.rules)},
        flops_planned=sum(
            line.flops * _count(line.actions, table, COMPUTED)
            for branch in branches
            for line in lines(table, profile, work, branch, online)
            if line.flops
        ),
        flops_uncached=table.steps * len(branches) * cost.forward(profile, work),
        over_budget=over,
    )


def bytes_needed(table: HookTable, profile: Profile, work: Workload, dtype: str) -> dict[str, int]:
    """`Prediction.bytes_rule` alone: the most that each rule holds, by name. Raises KeyError for another dtype."""
    _, by_rule = _bytes(table, profile, work, dtype, branches_of(table), "worst")
    return {rule.name: by_rule[i] for i, rule in enumerate(table.rules)}


def bytes_bound(table: HookTable, profile: Profile, work: Workload, dtype: str) -> dict[str, int]:
    """Bytes that each rule certainly does not exceed, by name: every kept value at once, on both branches.

    Much cheaper than `bytes_needed`, and mostly enough. Raises KeyError for another dtype.
    """
    found = dict.fromkeys((rule.name for rule in table.rules), 0)
    for row in table.rows:
        if row.rule is not None and row.keeps:
            size = value_bytes(table, row, profile, work, ITEMSIZE[dtype])
            found[table.rules[row.rule].name] += len(BRANCHES) * table.history(row) * size
    for rule in online_rules(table):
        for branch in BRANCHES:
            found[table.rules[rule].name] += sum(k.size for k in probe_keep(table, rule, profile, work, branch))
    return found


def _count(actions: str, table: HookTable, wanted: Collection[str]) -> int:
    """How many of the evaluated cells hold one of some actions."""
    counts = _counts(actions, table.evaluated)
    return sum(counts[action] for action in wanted)


@lru_cache(maxsize=4096)
def _counts(actions: str, evaluated: tuple[int, ...]) -> Counter[str]:
    return Counter(actions[step] for step in evaluated)


def _bytes(
    table: HookTable, profile: Profile, work: Workload, dtype: str, branches: tuple[str, ...], online: Case
) -> tuple[int, dict[int, int]]:
    """Peak bytes in all and by rule index: the store through every call, of what is kept only."""
    now = peak = 0
    rule_now = dict.fromkeys(range(len(table.rules)), 0)
    rule_peak = dict(rule_now)
    order = {branch: _moments(table, profile, work, dtype, branch, online) for branch in branches}
    for step in table.evaluated:
        for branch in branches:
            for keep, computed in order[branch]:
                if change := keep.change(step, computed):
                    now += change
                    rule_now[keep.rule] += change
                    peak = max(peak, now)
                    rule_peak[keep.rule] = max(rule_peak[keep.rule], rule_now[keep.rule])
    return peak, rule_peak


def _moments(
    table: HookTable, profile: Profile, work: Workload, dtype: str, branch: str, online: Case
) -> tuple[tuple[Keep, bool], ...]:
    """What is kept, at the moments at which it may change: when its site is reached, and when it is computed."""
    kept: dict[Site, list[Keep]] = {}
    for keep in keeps(table, profile, work, dtype, branch, online):
        kept.setdefault(keep.site, []).append(keep)
    return tuple((keep, computed) for site, computed in table.tree.moments for keep in kept.get(site, ()))
