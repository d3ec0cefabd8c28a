"""What the page shows of one measured scope, row by row."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from refkv_policy.evidence import GATE, Figure, Item, MeasuredScope, Metric
from refkv_policy.report.cost import cost_rows
from refkv_policy.report.facts import Fact, facts
from refkv_policy.report.frontier import FrontierView, frontier_view
from refkv_policy.report.heat import HeatMap, heat_map
from refkv_policy.report.inputs import EvidenceFile, LogFile
from refkv_policy.report.provenance import audit_rows, provenance_rows
from refkv_policy.report.sitemap import SiteMap, planned_maps
from refkv_policy.report.verdict import Bindings, Standing, Tone, scope_standing
from refkv_policy.report.words import NONE, Say, apart, between, item_says, number

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
    measured: Cell
    judged: Cell
    threshold: Cell
    why: str


@dataclass(frozen=True, slots=True)
class ScopeView:
    """One scope. facts: speed, error, memory; levels: (what, planned, uncached, difference); tools: (metric, measured with)."""

    key: str
    plan: str
    file: str
    title: str
    table: str
    standing: Standing
    entry: MeasuredScope
    facts: tuple[Fact, ...]
    items: tuple[ItemRow, ...]
    levels: tuple[Row, ...]
    metrics: tuple[Row, ...]
    tools: tuple[tuple[str, str], ...]
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
        entry=entry,
        facts=facts([entry]),
        items=tuple(sorted(_items(entry), key=lambda item: order.index(item.tone))),
        levels=tuple(cost_rows(entry)),
        metrics=tuple(map(_metric, entry.metrics)),
        tools=tuple((metric.name, metric.provenance) for metric in entry.metrics),
        samples=tuple(samples[:MOST_SAMPLES]),
        samples_more=max(len(samples) - MOST_SAMPLES, 0),
        frontier=frontier_view(entry, key),
        heat=heat_map(entry, key),
        planned=planned_maps(table) if table is not None else (),
        audits=tuple(audit_rows(entry, heads)),
        provenance=tuple(provenance_rows(file, entry)),
    )


def _items(entry: MeasuredScope) -> Iterator[ItemRow]:
    given = {item.name for item in entry.gate}
    for item in entry.gate:
        yield _item(item)
    for name, requirement in GATE.items():
        if name not in given:
            limit = NONE if requirement.threshold is None else number(requirement.threshold)
            yield ItemRow(
                name, requirement.title, "not measured", "open", NONE, NONE, limit, "the document leaves it out"
            )


def _item(item: Item) -> ItemRow:
    tone, word = ITEM_TONES[item.verdict], item.verdict.replace("_", " ")
    # Memory's limit is the plan's budget; where it states none, the document holds the prediction in its place.
    if item.name == "memory" and item.measured is None:
        return ItemRow(item.name, item.title, word, tone, NONE, NONE, NONE, item.why)
    at_most, ends = item.must_be == "at_most", item.interval
    limit = item.threshold + (item.equal_within if at_most else -item.equal_within)
    judged, how = item.measured, "the figure itself"
    if item.judged_by == "interval":
        how = f"the interval's {'high' if at_most else 'low'} end"
        judged = None if ends is None else ends.high if at_most else ends.low
    shown = [value for value in (item.measured, judged) if value is not None]
    say = apart(item_says(item), limit, *shown, *((ends.low, ends.high) if ends is not None else ()))
    return ItemRow(
        item.name,
        item.title,
        word,
        tone,
        NONE if item.measured is None else (say(item.measured), between(ends, say).strip(" ()")),
        NONE if judged is None else (say(judged), how),
        (f"{'at most' if at_most else 'at least'} {say(limit)}", _equal(item, say)),
        f"{item.why} ({item.metric})" if item.metric else item.why,
    )


def _equal(item: Item, say: Say) -> str:
    return f"{say(item.threshold)}, equal within {say(item.equal_within)}" if item.equal_within else ""


METRIC_COLUMNS = ("metric", "mean", "worst frame", "noise floor", "solver floor", "another seed")


def _metric(metric: Metric) -> Row:
    against = "" if metric.reference == "uncached" else "; against the many-step run"
    stand_in = "; a stand-in, on which no item is judged" if metric.stand_in else ""
    return (
        (metric.name, f"{metric.title}, {metric.better} is better{against}{stand_in}"),
        *(_parted(value) for value in (metric.mean, metric.worst, metric.noise, metric.solver, metric.other_seed)),
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
