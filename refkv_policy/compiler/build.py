"""Plan × Profile × steps → HookTable: place the rules, derive the chain, and keep only what a later cell reads."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from functools import lru_cache
from types import MappingProxyType

from refkv_policy.compiler import rules
from refkv_policy.compiler.chain import Chain, keep_only_read, resolve_chain
from refkv_policy.compiler.effects import check_effects
from refkv_policy.compiler.place import Placed, Placing
from refkv_policy.compiler.quantization import place_quantization, risks_of
from refkv_policy.compiler.sigmas import sigma_grid
from refkv_policy.compiler.table import BRANCHES, COMPUTE, COMPUTED, HookTable, Layout, Row, TableRule
from refkv_policy.methods.method import Grid, Method
from refkv_policy.plan import plan_digest
from refkv_policy.plan.diagnostic import Diagnostic
from refkv_policy.plan.model import CacheRule, Plan
from refkv_policy.plan.selectors import Site
from refkv_policy.profiles import Profile

Actions = dict[Site, dict[str, str]]
"""Actions by site and branch."""


def build(
    plan: Plan, profile: Profile, steps: int, entries: Iterable[tuple[CacheRule, Method]]
) -> tuple[HookTable | None, tuple[Diagnostic, ...]]:
    """The table, and every fault found on the way; None when a fault is an error.

    entries: the rules that apply to this profile and have no fault of their own.
    """
    entries = tuple(entries)
    placing = Placing(plan, profile, steps)
    sigmas = sigma_grid(plan.run.sampler, steps)
    schedules = [e for e in entries if e[1].schedules]
    grid = Grid(steps, tuple(range(steps)), sigmas)
    step_row, grid, schedule = _schedule(placing, schedules, grid)
    placed = list(placing.place([e for e in entries if not e[1].schedules], grid))
    quantized = place_quantization(placing, grid)
    hints, chains = _hints(profile, placed, grid)
    parts = _parts(placed, chains, grid)
    check_effects(placing, [*([schedule] if schedule else []), *placed], {**hints, **parts}, chains, grid)
    if any(d.severity == "error" for d in placing.diagnostics):
        return None, tuple(placing.diagnostics)
    used = ([schedule] if schedule else []) + placed
    used.sort(key=lambda p: p.rule.path)
    table = HookTable(
        plan=plan.name,
        plan_digest=plan_digest(plan),
        profile=profile.name,
        layout=layout_of(profile),
        steps=steps,
        evaluated=grid.evaluated,
        sigmas=sigmas,
        sampler=plan.run.sampler.name,
        flow_shift=plan.run.sampler.flow_shift,
        guidance=plan.run.guidance,
        rules=tuple(_table_rule(plan, p) for p in used),
        rows=_rows(profile, grid, step_row, used, hints, chains, parts),
        attention_dtype=plan.quantization.attention.dtype,
        quantized=quantized,
        acknowledgements=tuple(
            MappingProxyType(
                {
                    "risk": a.risk,
                    "by": a.by,
                    "date": a.date.isoformat(),
                    "reason": a.reason,
                    "expires": a.expires and a.expires.isoformat(),
                    "evidence": a.evidence,
                }
            )
            for a in plan.acknowledgements
        ),
    )
    return table, tuple(placing.diagnostics)


def layout_of(profile: Profile) -> Layout:
    """What a table depends on of a profile."""
    return Layout(
        profile.family, profile.main_blocks, profile.vace_at, profile.dim, profile.ffn_dim, profile.heads, profile.patch
    )


def _table_rule(plan: Plan, placed: Placed) -> TableRule:
    rule, method = placed.rule, placed.method
    risks = risks_of(plan, rule, method)
    return TableRule(
        name=rule.name,
        method=method.name,
        tier=rule.tier,
        risk=", ".join(risks) or None,
        history=placed.lowered.history,
        params=MappingProxyType(dict(rule.params)),
        store_dtype=rule.store.dtype,
        store_device=rule.store.device,
        budget=rule.store.budget,
    )


def _schedule(
    placing: Placing, entries: Sequence[tuple[CacheRule, Method]], grid: Grid
) -> tuple[str, Grid, Placed | None]:
    """The `step` row, the grid that is left, and the rule that thinned it."""
    for rule, _ in entries[1:]:
        span = placing.plan.document.span((*rule.path, "method"))
        placing.diagnostics.append(
            rules.SCHEDULE_TWICE.at(placing.plan.document.file, span, name=rule.name, model=placing.profile.name)
        )
    for placed in placing.place(entries[:1], grid):
        row = placed.lowered.actions
        evaluated = tuple(s for s in grid.evaluated if row[s] in COMPUTED)
        return row, Grid(grid.steps, evaluated, grid.sigmas), placed
    return _default(grid), grid, None


def _default(grid: Grid, reached: tuple[int, ...] | None = None) -> str:
    """`.` at the steps that are run (and reached), `-` elsewhere."""
    return _dots(grid.steps, grid.evaluated if reached is None else reached)


@lru_cache(maxsize=1024)
def _dots(steps: int, reached: tuple[int, ...]) -> str:
    visited = set(reached)
    return "".join(COMPUTE if s in visited else "-" for s in range(steps))


def _hints(profile: Profile, placed: Sequence[Placed], grid: Grid) -> tuple[Actions, dict[str, Chain]]:
    """The hints' actions and, for each branch, the chain they need."""
    hints: Actions = {
        Site("hint", j, None): dict.fromkeys(BRANCHES, _default(grid)) for j in range(len(profile.vace_at))
    }
    stale = {b: [False] * len(hints) for b in BRANCHES}
    for entry in placed:
        for site in entry.sites:
            if site not in hints:
                continue
            for branch in entry.branches:
                hints[site][branch] = keep_only_read(entry.lowered.actions, entry.lowered.history)
                stale[branch][site.index or 0] = entry.rule.params.get("chain") == "stale"
    ordered = sorted(hints, key=lambda s: s.index or 0)
    # A hint that nothing reads again is still fresh at its step, and a stale chain keeps its state there.
    chains = {b: resolve_chain([hints[s][b] for s in ordered], stale[b], grid.evaluated) for b in BRANCHES}
    return hints, chains


@lru_cache(maxsize=1024)
def _run_at(row: str, evaluated: tuple[int, ...]) -> tuple[int, ...]:
    """The steps at which a block runs."""
    return tuple(s for s in evaluated if row[s] in COMPUTED)


def _parts(placed: Sequence[Placed], chains: dict[str, Chain], grid: Grid) -> Actions:
    """Actions of the parts that a rule names: lowered against the steps at which their block runs."""
    parts: Actions = {}
    for entry in placed:
        made: dict[tuple[int, ...], str] = {}
        for site in entry.sites:
            if site.part is None:
                continue
            parts[site] = {}
            for branch in BRANCHES:
                reached = grid.evaluated
                if site.stack == "vace":
                    row = chains[branch].vace[site.index or 0]
                    reached = _run_at(row, grid.evaluated)
                if branch not in entry.branches or not reached:
                    parts[site][branch] = _default(grid, reached)
                    continue
                if reached not in made:
                    fresh = (entry.fresh & frozenset(reached)) | {reached[0]}
                    lowered = entry.method.lower(fresh, Grid(grid.steps, reached, grid.sigmas), entry.rule.params)
                    made[reached] = keep_only_read(lowered.actions, lowered.history)
                parts[site][branch] = made[reached]
    return parts


_row = lru_cache(maxsize=4096)(Row)
"""Plans have most of their rows in common, and a row is never changed."""


@lru_cache(maxsize=64)
def _main_rows(count: int, actions: str) -> tuple[Row, ...]:
    """The main blocks where no rule governs a whole one."""
    return tuple(_row("main", index, None, actions, actions, None) for index in range(count))


def _rows(
    profile: Profile,
    grid: Grid,
    step_row: str,
    used: Sequence[Placed],
    hints: Actions,
    chains: dict[str, Chain],
    parts: Actions,
) -> tuple[Row, ...]:
    """Rows in the table's order."""
    governor = {site: index for index, entry in enumerate(used) for site in entry.sites}

    def row(site: Site, actions: dict[str, str], rule: int | None = None) -> Row:
        return _row(site.stack, site.index, site.part, actions["cond"], actions["uncond"], governor.get(site, rule))

    rows = [row(Site("step", None, None), dict.fromkeys(BRANCHES, step_row))]
    part_rows: dict[tuple[str, int | None], list[Site]] = {}
    for site in sorted(parts, key=lambda s: s.part or ""):
        part_rows.setdefault((site.stack, site.index), []).append(site)
    everywhere = _default(grid)
    for plain in _main_rows(profile.main_blocks, everywhere):
        rule = governor.get(Site("main", plain.index))
        rows.append(plain if rule is None else _row("main", plain.index, None, everywhere, everywhere, rule))
        rows += [row(s, parts[s]) for s in part_rows.get(("main", plain.index), ())]
    for index in range(len(profile.vace_at)):
        actions = {b: chains[b].vace[index] for b in BRANCHES}
        keeps = any("C" in a or "R" in a for a in actions.values())
        rows.append(row(Site("vace", index), actions, governor.get(Site("hint", index)) if keeps else None))
        rows += [row(s, parts[s]) for s in part_rows.get(("vace", index), ())]
    rows += [row(site, hints[site]) for site in sorted(hints, key=lambda s: s.index or 0)]
    return tuple(rows)
