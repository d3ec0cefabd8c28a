"""The gate: a sweep's findings as one scope of an evidence document, bound to what was measured. No torch."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from refkv_policy.compiler import human_bytes
from refkv_policy.evidence import (
    Audit,
    Clip,
    Counts,
    EndToEnd,
    Evaluations,
    Figure,
    Frontier,
    Item,
    Levels,
    MeasuredScope,
    Memory,
    Metric,
    Point,
    Sample,
    Setting,
    StepLatency,
    make_scope,
)
from refkv_policy.plan import Plan
from refkv_policy.plan.diagnostic import RefkvError
from refkv_policy.quality.abpack import Ratings
from refkv_policy.quality.baselines import MANY
from refkv_policy.quality.gate_items import gate_items
from refkv_policy.quality.statistics import figure_of
from refkv_policy.quality.sweep import Sweep
from refkv_policy.quality.sweep_collect import Findings, Measured, Row
from refkv_policy.quality.sweep_metrics import Measure, Reading
from refkv_policy.quality.tasks import MANY_STEPS, UNCACHED, Source
from refkv_policy.quality.timing import end_to_end, parts, timing_text
from refkv_policy.text import columns, fold


class GateError(RefkvError):
    """A plan that cannot be gated as asked; says what to do."""


def check_gateable(guidance: float, clips: Sequence[Source]) -> None:
    """Raises GateError for a setting whose figures would not hold in service, or that evidence cannot state."""
    if guidance <= 1:
        raise GateError(
            "a plan is not gated at guidance 1: there the loss is a lower bound of that in service; "
            "gate it at the guidance it is served with"
        )
    rates = sorted({clip.fps for clip in clips})
    if len(rates) > 1:
        listed = ", ".join(f"{rate:g}" for rate in rates)
        raise GateError(
            f"the clips play at {listed} frames a second, and evidence states one rate; say which with --fps"
        )


def measured_scope(
    findings: Findings,
    *,
    model: str,
    command: Sequence[str],
    ratings: Ratings | None = None,
    thresholds: Mapping[str, float] | None = None,
) -> MeasuredScope:
    """Everything that was measured of the plan. model: which weights ran, in words. thresholds: of guardrails, by item.

    Raises GateError when a run of the plan failed: then nothing can be said of it.
    """
    sweep, plan = findings.sweep, findings.plan
    if plan.faults:
        raise GateError(f"the plan's own run failed: {plan.faults[0]}")
    budget = plan_budget(sweep.plan, sweep)
    return make_scope(
        sweep.table,
        sweep.profile,
        guidance=sweep.guidance,
        weights=sweep.conditions.weights,
        model=model,
        command=command,
        setting=_setting(findings),
        evaluations=Evaluations(int(plan.run["calls"]), int(findings.uncached.run["calls"])),
        levels=_levels(findings),
        audits=tuple(_audits(plan)),
        metrics=tuple(_metrics(findings)),
        memory=_memory(findings, budget),
        gate=gate_items(findings, ratings, budget, thresholds or {}),
    )


def plan_budget(plan: Plan, sweep: Sweep) -> int | None:
    """The sum of the budgets of the rules that keep anything here; None where one of them states none."""
    entry = sweep.entries[1]
    keeping = [] if entry.prediction is None else [name for name, size in entry.prediction.bytes_rule.items() if size]
    budgets = [rule.store.budget for rule in plan.caches if rule.name in keeping]
    if not budgets or None in budgets:
        return None
    return sum(budget for budget in budgets if budget is not None)


def verdict_text(scope: MeasuredScope) -> str:
    """The verdict first, then each item in a line."""
    width = max(len(item.name) for item in scope.gate)
    lines = [f"{scope.verdict}: {scope.scope}"]
    lines += [f"  {item.verdict.replace('_', ' '):<12}  {item.name:<{width}}  {_judged(item)}" for item in scope.gate]
    return fold("\n".join(lines), columns())


def _judged(item: Item) -> str:
    """What was measured and how it stands to the threshold: by the end of its interval that decides, where one does."""
    most = item.must_be == "at_most"
    slack = item.equal_within if most else -item.equal_within
    decides, interval = item.measured, item.interval
    if interval is not None and item.judged_by == "interval":
        decides = interval.high if most else interval.low
    bound = item.threshold + slack
    # As many digits as show what is the larger.
    digits = next((n for n in (4, 6, 9) if decides in (None, bound) or f"{decides:.{n}g}" != f"{bound:.{n}g}"), 17)

    def say(value: float) -> str:
        return human_bytes(round(value)) if item.name == "memory" else f"{value:.{digits}g}"

    limit = say(item.threshold) + (f" {'+' if most else '-'} {say(item.equal_within)}" if slack else "")
    if item.measured is None or decides is None:
        # Memory is not measured where no budget limits it.
        return item.why if item.name == "memory" else f"{item.why} (must be {'<=' if most else '>='} {limit})"
    spread = "" if interval is None else f" ({say(interval.low)} to {say(interval.high)})"
    end = "" if decides == item.measured else f", and {say(decides)}"
    kept = decides <= bound if most else decides >= bound
    sign = ("<=" if most else ">=") if kept else (">" if most else "<")
    return f"{say(item.measured)}{spread}{end} {sign} {limit}: {item.why}"


def _setting(findings: Findings) -> Setting:
    sweep, shared = findings.sweep, findings.sweep.conditions
    return Setting(
        seeds=sweep.seeds,
        clips=tuple(Clip(clip.name, clip.sha256) for clip in sweep.clips),
        width=shared.width,
        height=shared.height,
        frames=shared.frames,
        fps=sweep.clips[0].fps,
        batch=1,
        dtype=shared.dtype,
        device=shared.device,
        solver_steps=MANY * sweep.steps,
        compile=None,
        warm_up=1,
        timed_pairs=len(findings.plan.pairs),
        timing=timing_text(findings.plan.pairs, findings.clock),
        versions=shared.versions,
    )


def _levels(findings: Findings) -> Levels:
    plan, steps = findings.plan, findings.sweep.steps
    prediction = plan.entry.prediction
    assert prediction is not None
    departures: Counter[str] = Counter()
    for sample in plan.samples:
        departures |= Counter(sample.result["run"]["departures"])
    counts = Counts(
        hits=int(plan.run["hits"]),
        misses=int(plan.run["misses"]),
        departures=dict(departures),
        flops_planned=float(prediction.flops_planned),
        flops_uncached=float(prediction.flops_uncached),
    )
    step = whole = None
    if plan.latency is not None:
        times = plan.latency
        step = StepLatency(_scaled(times.planned, 1 / steps), _scaled(times.uncached, 1 / steps), times.speedup)
        whole = EndToEnd(parts(plan.pairs, "planned"), parts(plan.pairs, "uncached"), end_to_end(plan.pairs))
    points = tuple(_point(findings, row) for row in findings.rows if not row.faults)
    return Levels(counts, step, whole, Frontier(findings.metric.name, points))


def _scaled(figure: Figure, by: float) -> Figure:
    interval = figure.interval
    if interval is not None:
        interval = type(interval)(by * interval.low, by * interval.high, interval.level, interval.method)
    return Figure(by * figure.value, interval)


def _point(findings: Findings, row: Row) -> Point:
    error = row.error(findings.metric)
    assert error is not None
    return Point(
        name=row.entry.name,
        family=row.entry.family,
        varied=dict(row.entry.varied),
        table=row.entry.work.digest,
        evaluations=int(row.run["calls"]),
        hits=int(row.run["hits"]),
        misses=int(row.run["misses"]),
        speedup=None if row.latency is None else row.latency.speedup,
        speedup_flops=row.entry.speedup_flops,
        error=error,
        solver_error=row.error(findings.metric, MANY_STEPS),
        memory=row.memory,
    )


def _audits(plan: Row) -> Iterator[Audit]:
    told = [sample.result["run"]["audit"] for sample in plan.samples]
    told += [pair["planned"]["audit"] for pair in plan.pairs]
    for audit in told:
        yield Audit(audit["log"], audit["head"])


def _metrics(findings: Findings) -> Iterator[Metric]:
    """Every metric against the uncached run, and that of the errors against the many-step run too.

    One that some sample does not have (PSNR of equal frames, motion of a still clip) is left out.
    """
    for measure in findings.measures:
        for reference in (UNCACHED, MANY_STEPS):
            if reference == MANY_STEPS and measure is not findings.metric:
                continue
            found = findings.plan.readings(measure, reference)
            if found:
                yield _metric(findings, measure, reference, found)


def _metric(findings: Findings, measure: Measure, reference: str, found: list[tuple[Measured, Reading]]) -> Metric:
    noise, solver, other = findings.scale(measure)
    worst = [r.worst for _, r in found if r.worst is not None]
    frames = [r.per_frame for _, r in found]
    even = bool(frames[0]) and len({len(f) for f in frames}) == 1
    mean = findings.plan.error(measure, reference)
    assert mean is not None
    return Metric(
        name=measure.name,
        title=measure.title,
        provenance=measure.provenance[:1000],
        stand_in=measure.stand_in,
        better=measure.better,
        reference="uncached" if reference == UNCACHED else "many_steps",
        mean=mean,
        worst=figure_of(worst, groups=[s.clip for s, _ in found]) if len(worst) == len(found) else None,
        noise=noise,
        solver=solver,
        other_seed=other,
        per_frame=tuple(sum(values) / len(values) for values in zip(*frames, strict=True)) if even else (),
        samples=tuple(Sample(s.clip, s.seed, r.mean, r.worst, r.worst_frame) for s, r in found),
    )


def _memory(findings: Findings, budget: int | None) -> Memory | None:
    plan, uncached = findings.plan, findings.uncached
    what: Any = plan.run["memory_of"]
    if plan.memory is None or uncached.memory is None or what is None:
        return None
    held = max(int(sample.result["run"]["bytes_peak"]) for sample in plan.samples)
    predicted = 0 if plan.entry.prediction is None else plan.entry.prediction.bytes_peak
    return Memory(what, plan.memory, uncached.memory, held, predicted, budget)
