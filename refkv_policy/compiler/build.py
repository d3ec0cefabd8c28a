"""Plan × Profile × steps → HookTable: place the rules, lower them in one pass, check what they come to."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from types import MappingProxyType

from refkv_policy.compiler import rules
from refkv_policy.compiler.effects import check_effects
from refkv_policy.compiler.lower import lower
from refkv_policy.compiler.place import Placed, Placing
from refkv_policy.compiler.quantization import place_quantization, risks_of
from refkv_policy.compiler.sigmas import sigma_grid
from refkv_policy.compiler.table import BRANCHES, COMPUTE, COMPUTED, HookTable, Layout, TableRule
from refkv_policy.methods.method import Grid, Method, Placement
from refkv_policy.plan import plan_digest
from refkv_policy.plan.diagnostic import Diagnostic
from refkv_policy.plan.model import CacheRule, Plan
from refkv_policy.profiles import Profile
from refkv_policy.profiles.sites import STEP


def build(
    plan: Plan, profile: Profile, steps: int, entries: Iterable[tuple[CacheRule, Method]]
) -> tuple[HookTable | None, tuple[Diagnostic, ...]]:
    """The table, and every fault found on the way; None when a fault is an error.

    entries: the rules that apply to this profile and have no fault of their own.
    """
    entries = tuple(entries)
    placing = Placing(plan, profile, steps)
    _check_clips(placing)
    sigmas = sigma_grid(plan.run.sampler, steps)
    schedules = [e for e in entries if e[1].schedules]
    grid = Grid(steps, tuple(range(steps)), sigmas)
    step_row, grid, schedule = _schedule(placing, schedules, grid)
    placed = list(placing.place([e for e in entries if not e[1].schedules], grid))
    quantized = place_quantization(placing, grid)
    used = sorted([*([schedule] if schedule else []), *placed], key=lambda p: p.rule.path)
    lowering = lower(placing.tree, used, grid, step_row)
    check_effects(placing, used, lowering, grid)
    if any(d.severity == "error" for d in placing.diagnostics):
        return None, tuple(placing.diagnostics)
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
        rules=tuple(
            _table_rule(plan, p, lowering.history.get(n, 1), lowering.longest.get(n)) for n, p in enumerate(used)
        ),
        rows=lowering.rows,
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


def _check_clips(placing: Placing) -> None:
    """Each shape of the plan is a clip that the model makes."""
    for index, shape in enumerate(placing.plan.run.shapes):
        for fault in placing.profile.clip_faults(shape.width, shape.height, shape.frames):
            kind = rules.SIZE if fault.field == "size" else rules.FRAMES
            path = ("run", "shapes", index, fault.field)
            placing.report(kind, path, given=fault.given, takes=fault.takes, help=fault.help)


def layout_of(profile: Profile) -> Layout:
    """What a table depends on of a profile."""
    return Layout(
        profile.family, profile.main_blocks, profile.vace_at, profile.dim, profile.ffn_dim, profile.heads, profile.patch
    )


def _table_rule(plan: Plan, placed: Placed, history: int, longest: int | None) -> TableRule:
    rule, method = placed.rule, placed.method
    return TableRule(
        name=rule.name,
        method=method.name,
        tier=rule.tier,
        risks=risks_of(plan, rule, method),
        history=history,
        params=MappingProxyType(dict(rule.params)),
        store_dtype=rule.store.dtype,
        store_device=rule.store.device,
        budget=rule.store.budget,
        keeps=method.keeps,
        longest=longest,
        apart=rule.branches == "apart",
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
        row = placed.method.lower(Placement(placed.rule.params, STEP, BRANCHES[0], grid, placed.fresh)).actions
        evaluated = tuple(s for s in grid.evaluated if row[s] in COMPUTED)
        return row, Grid(grid.steps, evaluated, grid.sigmas), placed
    return COMPUTE * grid.steps, grid, None
