"""What a table will do at a size, counted cell by cell: hits, misses, bytes held at the peak, FLOPs."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

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
    sites: dict[str, dict[str, Tally]] = {}
    for row, branch, _, action in table.cells(branches):
        if row.counted:
            tally = sites.setdefault(row.site, {}).setdefault(branch, Tally())
            sites[row.site][branch] = tally + Tally(int(action in SERVED), int(action in COMPUTED))
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
    order = [row for row in call_order(table) if row.rule is not None]
    held: dict[tuple[str, str], int] = {}
    now = peak = 0
    rule_now = dict.fromkeys(range(len(table.rules)), 0)
    rule_peak = dict(rule_now)
    for step in table.evaluated:
        for branch in branches:
            for row in order:
                action = row.actions(branch)[step]
                if action == UNREACHED or row.rule is None:
                    continue
                rule = table.rules[row.rule]
                history = 1 if row.stack == "vace" and row.part is None else rule.history
                keep = retained(row.actions(branch), step, history)
                before = held.get((row.site, branch), 0)
                after = min(keep, before + 1) if action == COMPUTE_KEEP else min(keep, before)
                held[row.site, branch] = after
                size = cost.value_bytes(profile, work, row.part, ITEMSIZE.get(rule.store_dtype, itemsize))
                now += (after - before) * size
                rule_now[row.rule] += (after - before) * size
                peak, rule_peak[row.rule] = max(peak, now), max(rule_peak[row.rule], rule_now[row.rule])
    return peak, rule_peak


def _flops(table: HookTable, profile: Profile, work: Workload, branches: tuple[str, ...]) -> int:
    """FLOPs of all forwards that the table runs."""
    total = 0
    kv = cost.text_kv(profile, work)
    for row, _, _, action in table.cells(branches):
        if row.part == "text_kv":
            total -= kv if action == REUSE else 0
        elif row.stack == "step":
            total += cost.frame(profile, work) if action in COMPUTED else 0
        elif row.stack == "main" and action in COMPUTED:
            total += cost.main_block(profile, work)
        elif row.stack == "vace" and action in COMPUTED:
            total += cost.vace_block(profile, work, row.index or 0)
    return total
