"""What a table will do at a size, counted cell by cell: hits, misses, bytes held at the peak, FLOPs."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass
from functools import lru_cache

from refkv_policy.compiler.table import (
    BRANCHES,
    COMPUTE_KEEP,
    COMPUTED,
    REUSE,
    SERVED,
    UNREACHED,
    HookTable,
    Row,
    retained,
)
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
    """Exact figures of one request that departs nowhere.

    tally: all governed sites of the branches that run. sites: by site name and branch. bytes_peak: the largest sum of
    kept values, all branches and devices. bytes_rule: the same for each rule by name. flops: of all forwards.
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
    table: HookTable, profile: Profile, work: Workload, dtype: str, branches: tuple[str, ...] | None = None
) -> Prediction:
    """The figures of a table at a workload. dtype: the model's (`float32`, `bfloat16`, `float16`).

    Raises KeyError for another dtype.
    """
    branches = branches_of(table) if branches is None else branches
    sites = {
        row.site: {
            branch: Tally(_count(table, row, branch, SERVED), _count(table, row, branch, COMPUTED))
            for branch in branches
        }
        for row in table.rows
        if row.counted and table.evaluated
    }
    peak, by_rule = _bytes(table, profile, work, ITEMSIZE[dtype], branches)
    over = tuple(r.name for i, r in enumerate(table.rules) if r.budget is not None and by_rule[i] > r.budget)
    return Prediction(
        tally=sum((t for site in sites.values() for t in site.values()), Tally()),
        sites=sites,
        bytes_peak=peak,
        bytes_rule={rule.name: by_rule[i] for i, rule in enumerate(table.rules)},
        flops_planned=_flops(table, profile, work, branches),
        flops_uncached=table.steps * len(branches) * cost.forward(profile, work),
        over_budget=over,
    )


def bytes_needed(table: HookTable, profile: Profile, work: Workload, dtype: str) -> dict[str, int]:
    """`Prediction.bytes_rule` alone: the most that each rule holds, by name. Raises KeyError for another dtype."""
    _, by_rule = _bytes(table, profile, work, ITEMSIZE[dtype], branches_of(table))
    return {rule.name: by_rule[i] for i, rule in enumerate(table.rules)}


def bytes_bound(table: HookTable, profile: Profile, work: Workload, dtype: str) -> dict[str, int]:
    """Bytes that each rule certainly does not exceed, by name: every kept value at once, on both branches.

    Much cheaper than `bytes_needed`, and mostly enough. Raises KeyError for another dtype.
    """
    found = dict.fromkeys((rule.name for rule in table.rules), 0)
    for row in table.rows:
        if row.rule is not None and COMPUTE_KEEP in row.cond + row.uncond:
            rule = table.rules[row.rule]
            itemsize = ITEMSIZE.get(rule.store_dtype, ITEMSIZE[dtype])
            found[rule.name] += len(BRANCHES) * rule.history * cost.value_bytes(profile, work, row.part, itemsize)
    return found


def _count(table: HookTable, row: Row, branch: str, wanted: Collection[str]) -> int:
    """How many of a row's evaluated cells hold one of some actions."""
    counts = _counts(row.actions(branch), table.evaluated)
    return sum(counts[action] for action in wanted)


@lru_cache(maxsize=1024)
def _counts(actions: str, evaluated: tuple[int, ...]) -> Counter[str]:
    return Counter(actions[step] for step in evaluated)


def call_order(table: HookTable) -> Iterator[Row]:
    """Rows in the order in which one call keeps and reads values: a hint (its block's text first) before its main block."""
    at = {main: j for j, main in enumerate(table.layout.vace_at)}
    rows = table.by_site
    for main in range(table.layout.main_blocks):
        names = []
        if main in at:
            j = at[main]
            names += [f"vace[{j}].text_kv", f"vace[{j}]", f"hint[{j}]"]
        names += [f"main[{main}].text_kv", f"main[{main}]"]
        yield from (rows[name] for name in names if name in rows)


def _bytes(
    table: HookTable, profile: Profile, work: Workload, itemsize: int, branches: tuple[str, ...]
) -> tuple[int, dict[int, int]]:
    """Peak bytes in all and by rule index, by walking the store through every call."""
    now = peak = 0
    rule_now = dict.fromkeys(range(len(table.rules)), 0)
    rule_peak = dict(rule_now)
    grown: dict[str, list[tuple[int, int, tuple[int, ...]]]] = {branch: [] for branch in branches}
    for row in call_order(table):
        if row.rule is None:
            continue
        rule = table.rules[row.rule]
        history = 1 if row.stack == "vace" and row.part is None else rule.history
        size = cost.value_bytes(profile, work, row.part, ITEMSIZE.get(rule.store_dtype, itemsize))
        for branch in branches:
            grown[branch].append((row.rule, size, _growth(row.actions(branch), table.evaluated, history)))
    for step in table.evaluated:
        for branch in branches:
            for rule_index, size, growth in grown[branch]:
                if change := growth[step]:
                    now += change * size
                    rule_now[rule_index] += change * size
                    peak = max(peak, now)
                    rule_peak[rule_index] = max(rule_peak[rule_index], rule_now[rule_index])
    return peak, rule_peak


@lru_cache(maxsize=1024)
def _growth(actions: str, evaluated: tuple[int, ...], history: int) -> tuple[int, ...]:
    """By nominal step, how many more observations a row keeps after it than before. Rows of one rule share most of it."""
    changes, held = [0] * len(actions), 0
    for step in evaluated:
        action = actions[step]
        if action == UNREACHED:
            continue
        keep = retained(actions, step, history)
        after = min(keep, held + 1) if action == COMPUTE_KEEP else min(keep, held)
        changes[step], held = after - held, after
    return tuple(changes)


def _flops(table: HookTable, profile: Profile, work: Workload, branches: tuple[str, ...]) -> int:
    """FLOPs of all forwards that the table runs."""
    total = 0
    for row in table.rows:
        if row.part == "text_kv":
            one, wanted = -cost.text_kv(profile, work), frozenset(REUSE)
        elif row.stack == "step":
            one, wanted = cost.frame(profile, work), COMPUTED
        elif row.stack == "main":
            one, wanted = cost.main_block(profile, work), COMPUTED
        elif row.stack == "vace":
            one, wanted = cost.vace_block(profile, work, row.index or 0), COMPUTED
        else:
            continue
        total += one * sum(_count(table, row, branch, wanted) for branch in branches)
    return total
