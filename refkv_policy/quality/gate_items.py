"""The gate's nine items, judged on a sweep's findings. What was not measured is said, with the reason. No torch."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

from refkv_policy.evidence import Figure, Item, make_item
from refkv_policy.evidence.frontier import error_at
from refkv_policy.quality.abpack import MIN_PAIRS, MIN_RATERS, Ratings
from refkv_policy.quality.baselines import SPACINGS
from refkv_policy.quality.statistics import figure_of
from refkv_policy.quality.sweep_collect import Findings, Row
from refkv_policy.quality.sweep_metrics import Measure, decay_of
from refkv_policy.quality.sweep_text import chosen_lines, figure_text
from refkv_policy.quality.tasks import UNCACHED

Thresholds = Mapping[str, float]


@dataclass(frozen=True, slots=True)
class Comparison:
    """The plan's error beyond a line of step-reduction baselines at equal latency, paired by clip and seed."""

    beyond: Figure
    line: str
    speed: float


def gate_items(
    findings: Findings, ratings: Ratings | None, budget: int | None, thresholds: Thresholds
) -> tuple[Item, ...]:
    """All nine, in the gate's order. thresholds: those that differ from the gate's own, by item.

    budget: bytes that the plan's rules may keep together; None where it states none.
    """

    def item(name: str, measured: float | None, **more: object) -> Item:
        given = {"threshold": thresholds.get(name), **more}
        return make_item(name, measured, **given)  # type: ignore[arg-type]

    return (
        _mean_drop(findings, item),
        _worst_drop(findings, item),
        _speedup(findings, item),
        _pareto(findings, item),
        _decay(findings, item),
        _subjective(ratings, item),
        _against(findings, "fewer_steps", item),
        _against(findings, "respaced_steps", item),
        _memory(findings, budget, item),
    )


Make = Callable[..., Item]


def gate_measure(findings: Findings) -> tuple[int, Measure] | None:
    """The feature model that the gate asks for and its place among the models; None where only a stand-in ran."""
    features = [m for m in findings.measures if m.model]
    return next(((i, m) for i, m in enumerate(features) if not m.stand_in), None)


def _no_model(findings: Findings) -> str:
    stand_in = next((m.model for m in findings.measures if m.model), None)
    ran = f"only {stand_in} ran, whose scale is another" if stand_in else "no feature model ran"
    return f"{ran}; name a DINOv2 model with --features"


def _mean_drop(findings: Findings, item: Make) -> Item:
    found = gate_measure(findings)
    if found is None:
        return item("mean_drop", None, judged_by="interval", why=_no_model(findings))
    figure = findings.plan.error(found[1])
    if figure is None:
        return item("mean_drop", None, judged_by="interval", why="the feature model gave no figure for some sample")
    why = (
        "mean over frames, clips and seeds" if figure.interval else "one clip gives no interval to judge by: name more"
    )
    return item(
        "mean_drop", figure.value, interval=figure.interval, judged_by="interval", metric=found[1].name, why=why
    )


def _worst_drop(findings: Findings, item: Make) -> Item:
    found = gate_measure(findings)
    if found is None:
        return item("worst_frame_drop", None, why=_no_model(findings))
    readings = findings.plan.readings(found[1], UNCACHED) or []
    worst = max(readings, key=lambda sr: sr[1].worst or 0.0, default=None)
    if worst is None or worst[1].worst is None:
        return item("worst_frame_drop", None, why="the feature model gave no figure for some sample")
    sample, reading = worst
    why = f"frame {reading.worst_frame} of {sample.clip} with seed {sample.seed}, the worst of all"
    return item("worst_frame_drop", reading.worst, metric=found[1].name, why=why)


def _speedup(findings: Findings, item: Make) -> Item:
    row = findings.plan
    by_flops = f"{1 - 1 / row.entry.speedup_flops:.1%} by FLOPs"
    if row.latency is None:
        return item("speedup", None, judged_by="interval", why=f"nothing was timed (--repeats); {by_flops}")
    saved = row.latency.saved
    pairs = f"{len(row.pairs)} timed pair{'s' * (len(row.pairs) > 1)}"
    enough = "" if saved.interval else ", of which an interval needs two"
    why = f"median of {pairs}{enough}; {by_flops}"
    return item("speedup", saved.value, interval=saved.interval, judged_by="interval", why=why)


def _pareto(findings: Findings, item: Make) -> Item:
    """A variant counts when it is faster and its error, paired by clip and seed, is smaller beyond its interval."""
    plan, variants = findings.plan, findings.of("variant")
    metric, errors = findings.metric, findings.plan.errors(findings.metric)
    if not any(errors.values()):
        return item(
            "pareto", 0.0, metric=metric.name, why="the plan's output equals the uncached run's: nothing is nearer"
        )
    if not variants:
        return item("pareto", None, metric=metric.name, why="no variant ran to compare with; name one with --vary")
    better: list[str] = []
    unsure: list[str] = []
    for row in variants:
        if findings.speed(row) <= findings.speed(plan):
            continue
        theirs = row.errors(metric)
        beyond = figure_of([errors[k] - theirs[k] for k in errors], groups=[clip for clip, _ in errors])
        if beyond.value > 0:
            sure = beyond.interval is not None and beyond.interval.low > 0
            (better if sure else unsure).append(row.entry.name)
    said = [f"{len(variants)} variants ran, speed {'as measured' if findings.timed else 'by FLOPs'}"]
    said += [f"faster and nearer: {', '.join(better)}"] if better else []
    said += [f"faster, and nearer within the interval only, so counted as equal: {', '.join(unsure)}"] if unsure else []
    said += [f"elbow: {findings.elbow.entry.name}"] if findings.elbow else []
    return item("pareto", float(len(better)), metric=metric.name, why="; ".join([*said, *chosen_lines(findings)]))


def _decay(findings: Findings, item: Make) -> Item:
    found = gate_measure(findings)
    if found is None:
        told = [_no_model(findings)]
        if any(m.model for m in findings.measures):
            figure, reasons = _second_half(findings, 0)
            said = "; ".join(reasons) if figure is None else f"there {figure_text(figure, '+.3f')} points a second"
            told.append(said)
        return item("second_half_decay", None, judged_by="interval", why="; ".join(told))
    figure, reasons = _second_half(findings, found[0])
    if figure is None:
        return item("second_half_decay", None, judged_by="interval", why="; ".join(reasons))
    why = "percentage points of drop gained a second, the stricter reading of the RFC, which names no unit"
    return item(
        "second_half_decay", figure.value, interval=figure.interval, judged_by="interval", metric=found[1].name, why=why
    )


def _second_half(findings: Findings, model: int) -> tuple[Figure | None, tuple[str, ...]]:
    """What a feature model says of the second halves, or None and why, once for each reason. model: its place."""
    slopes, clips = [], []
    reasons: dict[str, list[str]] = {}
    for sample in findings.plan.samples:
        comparison = sample.comparison(UNCACHED)
        assert comparison is not None
        slope, reason = decay_of(comparison, model)
        clips.append(sample.clip)
        if slope is None:
            reasons.setdefault(str(reason), []).append(sample.clip)
        else:
            slopes.append(slope)
    if len(reasons) == 1 and not slopes:
        return None, tuple(reasons)
    told = tuple(f"{', '.join(dict.fromkeys(names))}: {reason}" for reason, names in reasons.items())
    return None if told or not slopes else figure_of(slopes, groups=clips), told


def _subjective(ratings: Ratings | None, item: Make) -> Item:
    if ratings is None:
        return item("subjective", None, why="nobody has rated it; make a pack with --ab-pack and give it to raters")
    told = (
        f"{ratings.unnoticed} of {ratings.answers} answers by {ratings.raters} raters on {ratings.pairs} pairs saw no "
        f"noticeable degradation; {ratings.false_alarms} of {ratings.controls} equal pairs were called different"
    )
    if ratings.raters < MIN_RATERS or ratings.pairs < MIN_PAIRS:
        need = f"the RFC asks for {MIN_RATERS} raters and {MIN_PAIRS} pairs at least"
        return item("subjective", None, why=f"{told}; {need}")
    return item("subjective", ratings.share, interval=ratings.interval, why=told)


def _against(findings: Findings, family: Literal["fewer_steps", "respaced_steps"], item: Make) -> Item:
    """The plan's error beyond the line's at equal latency; of several lines, the one that is hardest to beat."""
    metric = findings.metric
    floor = findings.scale(metric)[1]
    equal = 0.0 if floor is None else floor.value
    given = {"judged_by": "interval", "equal_within": equal, "metric": metric.name}
    lines = {
        spacing: [row for row in findings.of(family) if row.entry.varied.get("spacing", "") == spacing]
        for spacing in (SPACINGS if family == "respaced_steps" else ("",))
    }
    compared = [c for spacing, rows in lines.items() if (c := compare_with_line(findings, rows, spacing)) is not None]
    if not compared:
        return item(family, None, **given, why="the plan is faster than any of the step counts that ran")
    hardest = max(compared, key=lambda c: c.beyond.value)
    beyond = hardest.beyond
    axis = "as timed" if findings.timed else "by FLOPs"
    spaced = f", spaced in {hardest.line}" if hardest.line else ""
    said = [f"at {hardest.speed:.2f} x {axis}{spaced}: {figure_text(beyond, '+.4f')} in {metric.title}"]
    worst = beyond.value if beyond.interval is None else beyond.interval.high
    if beyond.interval is None:
        said.append("one clip gives no interval to judge by")
    elif 0 < worst <= equal:
        said.append(f"within the solver floor of {equal:.4f}, which counts as equal")
    elif worst <= 0:
        said.append("no farther from the uncached run than fewer steps")
    return item(family, beyond.value, interval=beyond.interval, **given, why="; ".join(said))


def compare_with_line(findings: Findings, rows: Sequence[Row], line: str) -> Comparison | None:
    """The plan against a line of baselines at its own speed, sample by sample; None where the line does not reach it.

    The uncached run (speed 1, error 0) begins every line. A plan slower than that is compared with it.
    """
    metric, plan = findings.metric, findings.plan
    speed = max(1.0, findings.speed(plan))
    errors = plan.errors(metric)
    beyond = []
    for sample, error in errors.items():
        points = [(1.0, 0.0), *((findings.speed(row), row.errors(metric)[sample]) for row in rows)]
        reached = error_at(points, speed)
        if reached is None:
            return None
        beyond.append(error - reached)
    if not beyond:
        return None
    return Comparison(figure_of(beyond, groups=[clip for clip, _ in errors]), line, speed)


def _memory(findings: Findings, budget: int | None, item: Make) -> Item:
    row = findings.plan
    held = max(int(sample.result["run"]["bytes_peak"]) for sample in row.samples)
    predicted = 0 if row.entry.prediction is None else row.entry.prediction.bytes_peak
    told = f"the cache held {held} bytes at its peak, {predicted} were predicted"
    if budget is not None:
        return item("memory", float(held), threshold=float(budget), why=told)
    if predicted == 0:
        return item("memory", float(held), threshold=0.0, why=f"the plan keeps nothing; {told}")
    return item("memory", None, threshold=float(predicted), why=f"the plan states no budget to keep to; {told}")
