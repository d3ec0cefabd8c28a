"""What the page shows of one measured scope, row by row."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

from refkv_policy.evidence import GATE, Figure, Item, MeasuredScope, Metric
from refkv_policy.report.charts import HeatMap
from refkv_policy.report.cost import cost_rows
from refkv_policy.report.frontier import FrontierView, frontier_view
from refkv_policy.report.heat import heat_map
from refkv_policy.report.inputs import EvidenceFile, LogFile
from refkv_policy.report.provenance import audit_rows, provenance_rows
from refkv_policy.report.sitemap import SiteMap, planned_maps
from refkv_policy.report.verdict import Bindings, Standing, Tone, scope_standing
from refkv_policy.report.words import NONE, between, item_says, number, percent, size, times

Cell = str | tuple[str, str]
"""A text, or a text and a remark below it."""
Row = tuple[Cell, ...]
ITEM_TONES: dict[str, Tone] = {"green": "good", "red": "bad", "not_measured": "open"}
MOST_SAMPLES = 200


@dataclass(frozen=True, slots=True)
class ItemRow:
    """An item of the gate as the table shows it."""

    name: str
    title: str
    word: str
    tone: Tone
    measured: str
    between: str
    threshold: str
    how: str
    why: str


@dataclass(frozen=True, slots=True)
class ScopeView:
    """One scope. facts: its few headline figures; levels: (what, planned, uncached, difference)."""

    key: str
    plan: str
    file: str
    title: str
    table: str
    standing: Standing
    facts: tuple[tuple[str, str, str], ...]
    items: tuple[ItemRow, ...]
    levels: tuple[Row, ...]
    metrics: tuple[Row, ...]
    samples: tuple[Row, ...]
    samples_more: int
    frontier: FrontierView | None
    heat: HeatMap | None
    planned: tuple[SiteMap, ...]
    audits: tuple[tuple[str, str, str, Tone], ...]
    provenance: tuple[tuple[str, str], ...]


def scope_views(
    files: Sequence[EvidenceFile], bindings: dict[str, Bindings], logs: Sequence[LogFile]
) -> tuple[ScopeView, ...]:
    """Every scope of every document. bindings: what the plans at hand compile to, by the plan's name."""
    heads = {log.found.head: log.name for log in logs if log.found.head is not None}
    views: list[ScopeView] = []
    for file in files:
        for entry in file.evidence.scopes:
            bound = bindings.get(file.evidence.plan)
            standing = scope_standing(file.evidence, entry, bound)
            key = _key(file.evidence.plan, entry, {view.key for view in views})
            views.append(_view(key, file, entry, standing, bound, heads))
    return tuple(views)


def _key(plan: str, entry: MeasuredScope, taken: set[str]) -> str:
    """A name for files and elements that tells the scope: `wan21-p1-k4-wan2.1-vace-mini-30-g5`."""
    told = f"{plan}-{entry.profile}-{entry.steps}-g{number(entry.guidance)}"
    key = base = re.sub(r"[^A-Za-z0-9._]+", "-", told)[:120].strip("-.") or "scope"
    count = 1
    while key in taken:
        count += 1
        key = f"{base}-{count}"
    return key


def _view(
    key: str,
    file: EvidenceFile,
    entry: MeasuredScope,
    standing: Standing,
    bound: Bindings | None,
    heads: dict[str, str],
) -> ScopeView:
    order: list[Tone] = ["bad", "open", "good"]
    samples = [row for metric in entry.metrics for row in _samples(metric)]
    table = bound.tables.get((entry.profile, entry.steps)) if bound is not None else None
    return ScopeView(
        key=key,
        plan=file.evidence.plan,
        file=file.name,
        title=str(entry.scope),
        table=entry.bound.table,
        standing=standing,
        facts=tuple(_facts(entry)),
        items=tuple(sorted(_items(entry), key=lambda item: order.index(item.tone))),
        levels=tuple(cost_rows(entry)),
        metrics=tuple(map(_metric, entry.metrics)),
        samples=tuple(samples[:MOST_SAMPLES]),
        samples_more=max(len(samples) - MOST_SAMPLES, 0),
        frontier=frontier_view(entry, key),
        heat=heat_map(entry, key),
        planned=planned_maps(table) if table is not None else (),
        audits=tuple(audit_rows(entry, heads)),
        provenance=tuple(provenance_rows(file, entry)),
    )


def _facts(entry: MeasuredScope) -> Iterator[tuple[str, str, str]]:
    """(name, value, remark) of what a reviewer asks first."""
    latency, counts, memory = entry.levels.step_latency, entry.levels.counts, entry.memory
    if latency is None:
        yield "Speed-up of a step", "not measured", f"{times(1 / (1 - counts.saved))} by FLOPs"
    else:
        yield "Speed-up of a step", times(latency.speedup.value), _interval(latency.speedup, times)
    yield "FLOPs saved", percent(counts.saved), f"{counts.hits:,} hits, {counts.misses:,} misses"
    error = _headline(entry)
    if error is not None:
        floor = "" if error.solver is None else f"solver floor {number(error.solver.value)}"
        yield f"Error ({error.name})", number(error.mean.value), floor
    if memory is not None:
        budget = "no budget" if memory.budget is None else f"budget {size(memory.budget)}"
        yield "Cache at its peak", size(memory.cache), budget


def _headline(entry: MeasuredScope) -> Metric | None:
    """The metric of the frontier, or else the first that compares with the uncached run and is no stand-in."""
    frontier = entry.levels.frontier
    named = [
        m for m in entry.metrics if frontier is not None and m.name == frontier.metric and m.reference == "uncached"
    ]
    plain = [m for m in entry.metrics if m.reference == "uncached" and not m.stand_in]
    return next(iter([*named, *plain]), None)


def _interval(value: Figure, say: Callable[[float], str]) -> str:
    return between(value.interval, say).strip(" ()") if value.interval is not None else "one observation"


def _items(entry: MeasuredScope) -> Iterator[ItemRow]:
    given = {item.name for item in entry.gate}
    for item in entry.gate:
        yield _item(item)
    for name, requirement in GATE.items():
        if name not in given:
            limit = NONE if requirement.threshold is None else number(requirement.threshold)
            yield ItemRow(
                name, requirement.title, "not measured", "open", NONE, "", limit, "", "the document leaves it out"
            )


def _item(item: Item) -> ItemRow:
    say = item_says(item)
    measured = NONE if item.measured is None else say(item.measured)
    scatter = between(item.interval, say).strip(" ()")
    how = ["by the interval's worse end" if item.judged_by == "interval" else "by the figure"]
    if item.equal_within:
        how.append(f"equal within {say(item.equal_within)}")
    if item.metric:
        how.append(item.metric)
    sense = "at most" if item.must_be == "at_most" else "at least"
    word = item.verdict.replace("_", " ")
    # Memory's limit is the plan's budget; where it states none, the document holds the prediction in its place.
    unlimited = item.name == "memory" and item.measured is None
    threshold = NONE if unlimited else f"{sense} {say(item.threshold)}"
    tone = ITEM_TONES[item.verdict]
    return ItemRow(item.name, item.title, word, tone, measured, scatter, threshold, ", ".join(how), item.why)


METRIC_COLUMNS = (
    "metric", "mean", "worst frame", "noise floor", "solver floor", "another seed", "measured with",
)  # fmt: skip


def _metric(metric: Metric) -> Row:
    against = "" if metric.reference == "uncached" else "; against the many-step run"
    stand_in = "; a stand-in, on which no item is judged" if metric.stand_in else ""
    return (
        (metric.name, f"{metric.title}, {metric.better} is better{against}{stand_in}"),
        *(_parted(value) for value in (metric.mean, metric.worst, metric.noise, metric.solver, metric.other_seed)),
        metric.provenance,
    )


def _parted(value: Figure | None) -> Cell:
    """A figure, its interval below it."""
    return NONE if value is None else (number(value.value), between(value.interval).strip(" ()"))


SAMPLE_COLUMNS = ("metric", "clip", "seed", "mean", "worst frame", "at frame")


def _samples(metric: Metric) -> Iterator[Row]:
    for sample in metric.samples:
        worst = NONE if sample.worst is None else number(sample.worst)
        at = NONE if sample.worst_frame is None else str(sample.worst_frame)
        yield metric.name, sample.clip, str(sample.seed), number(sample.mean), worst, at
