"""What an evidence document must agree on with itself, beyond its schema."""

from __future__ import annotations

import datetime
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import fields, is_dataclass
from typing import Any

from refkv_policy.evidence import rules
from refkv_policy.evidence.gate import GATE, Interval, Item
from refkv_policy.evidence.json_text import where
from refkv_policy.evidence.model import Evidence, MeasuredScope, Metric
from refkv_policy.plan.diagnostic import Diagnostic
from refkv_policy.plan.document import Document
from refkv_policy.plan.model import Path
from refkv_policy.plan.wording import quoted

Fault = tuple[Path, str]
ON_FEATURES = frozenset({"mean_drop", "worst_frame_drop", "second_half_decay"})
"""Items that are judged on the drop of DINOv2's feature similarity, whose metric's name begins with this:"""
OWN_METRIC = "dinov2"


def contradictions(document: Document, evidence: Evidence) -> Iterator[Diagnostic]:
    """Every place where the document does not agree with itself."""
    for path, problem in _faults(document, evidence):
        yield rules.CONTRADICTION.at(document.file, None, problem=f"{where(path)}: {problem}")


def _faults(document: Document, evidence: Evidence) -> Iterator[Fault]:
    value = document.value
    yield from _repeated(("scopes",), [str(scope.scope) for scope in evidence.scopes], "the scope")
    for index, scope in enumerate(evidence.scopes):
        path: Path = ("scopes", index)
        yield from _scope_faults(path, scope)
        for at, (item, stored) in enumerate(zip(scope.gate, value["scopes"][index]["gate"], strict=True)):
            yield from _verdict((*path, "gate", at, "verdict"), stored["verdict"], item.verdict)
        yield from _verdict((*path, "verdict"), value["scopes"][index]["verdict"], scope.verdict)
    yield from _verdict(("verdict",), value["verdict"], evidence.verdict)


def _scope_faults(path: Path, scope: MeasuredScope) -> Iterator[Fault]:
    try:
        datetime.datetime.fromisoformat(scope.created.replace("Z", "+00:00"))
    except ValueError:
        yield (*path, "created"), f"{quoted(scope.created)} is not a time of the calendar"
    yield from _repeated((*path, "setting", "clips"), [clip.name for clip in scope.setting.clips], "the clip")
    yield from _repeated((*path, "metrics"), [f"{m.name} ({m.reference})" for m in scope.metrics], "the metric")
    yield from _repeated((*path, "gate"), [item.name for item in scope.gate], "the item")
    frontier = scope.levels.frontier
    if frontier is not None:
        place: Path = (*path, "levels", "frontier")
        yield from _repeated((*place, "points"), [point.name for point in frontier.points], "the point")
        yield from _known((*place, "metric"), "metric", frontier.metric, (metric.name for metric in scope.metrics))
    for index, metric in enumerate(scope.metrics):
        yield from _metric_faults((*path, "metrics", index), metric, scope)
    for index, item in enumerate(scope.gate):
        yield from _item_faults((*path, "gate", index), item, scope)
    for place, interval in _intervals(path, scope):
        if interval.low > interval.high:
            yield place, f"the interval's low end {interval.low:g} is above its high end {interval.high:g}"


def _metric_faults(path: Path, metric: Metric, scope: MeasuredScope) -> Iterator[Fault]:
    clips, seeds = {clip.name for clip in scope.setting.clips}, set(scope.setting.seeds)
    names = [f"clip {sample.clip} with seed {sample.seed}" for sample in metric.samples]
    yield from _repeated((*path, "samples"), names, "the sample of")
    for index, sample in enumerate(metric.samples):
        place: Path = (*path, "samples", index)
        yield from _known((*place, "clip"), "clip", sample.clip, clips)
        if sample.seed not in seeds:
            yield (*place, "seed"), f"the setting names no seed {sample.seed}"


def _item_faults(path: Path, item: Item, scope: MeasuredScope) -> Iterator[Fault]:
    own = GATE.get(item.name)
    if own is not None and item.must_be != own.must_be:
        yield (*path, "must_be"), f"the item {item.name} must be {own.must_be} its threshold"
    if item.measured is not None and item.name in ON_FEATURES and not (item.metric or "").startswith(OWN_METRIC):
        told = item.metric or "none that is named"
        yield (*path, "metric"), f"the item {item.name} is measured with {told}, and the gate's own metric is DINOv2's"
    if item.metric is None:
        return
    yield from _known((*path, "metric"), "metric", item.metric, (metric.name for metric in scope.metrics))
    if item.measured is not None and any(m.stand_in and m.name == item.metric for m in scope.metrics):
        yield (*path, "measured"), f"the item {item.name} is judged on {item.metric}, which is a stand-in"


def _intervals(path: Path, value: Any) -> Iterator[tuple[Path, Interval]]:
    """Every interval in a part of the evidence, with its path: the document's keys are the fields' names."""
    if isinstance(value, Interval):
        yield path, value
    elif isinstance(value, tuple):
        for index, inner in enumerate(value):
            if type(inner) not in _SCALARS:
                yield from _intervals((*path, index), inner)
    else:
        for name in _names(type(value)):
            inner = getattr(value, name)
            if type(inner) not in _SCALARS:
                yield from _intervals((*path, name), inner)


_SCALARS = frozenset({int, float, str, bool, type(None)})


_NAMES: dict[type[Any], tuple[str, ...]] = {}


def _names(kind: type[Any]) -> tuple[str, ...]:
    """Of a dataclass its fields, of any other type nothing. Asked for thousands of values of a few types."""
    if kind not in _NAMES:
        _NAMES[kind] = tuple(field.name for field in fields(kind)) if is_dataclass(kind) else ()
    return _NAMES[kind]


def _verdict(path: Path, stored: str, found: str) -> Iterator[Fault]:
    if stored != found:
        yield path, f"the verdict says {stored}, and what was measured is {found}"


def _repeated(path: Path, names: Sequence[str], what: str) -> Iterator[Fault]:
    twice = {name for name, count in Counter(names).items() if count > 1}
    for name in sorted(twice):
        second = names.index(name, names.index(name) + 1)
        yield (*path, second), f"{what} {quoted(name)[1:-1]} stands here a second time"


def _known(path: Path, what: str, name: str, known: Iterable[str]) -> Iterator[Fault]:
    if name not in set(known):
        yield path, f"the scope has no {what} {quoted(name)}"
