"""What a sweep's results say: each entry's errors, latency and counts, the frontier, its elbow, the K to choose. No torch."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from statistics import fmean
from typing import Any

from refkv_policy.evidence import GATE, Figure
from refkv_policy.evidence.frontier import pareto
from refkv_policy.plan.diagnostic import RefkvError
from refkv_policy.quality.statistics import Candidate, choose, elbow, figure_of
from refkv_policy.quality.sweep import OTHER_SEED, Entry, Sweep
from refkv_policy.quality.sweep_metrics import Measure, Reading, Stored, measures
from refkv_policy.quality.tasks import MANY_STEPS, UNCACHED, Store, Task
from refkv_policy.quality.timing import Clock, Latency, latency

INTERVAL = "refresh.interval"


class CollectError(RefkvError):
    """Results that do not say what they are asked for."""


@dataclass(frozen=True, slots=True)
class Measured:
    """One clip and seed of an entry, with its stored result."""

    clip: str
    seed: int
    result: Mapping[str, Any]

    def comparison(self, reference: str) -> Stored | None:
        """The stored comparison with a reference, where there is one."""
        found: Stored | None = self.result.get("comparisons", {}).get(reference)
        return found


@dataclass(frozen=True, slots=True)
class Row:
    """An entry and what was measured of it. faults: of its runs; a row with any takes no part in comparisons."""

    entry: Entry
    samples: tuple[Measured, ...]
    pairs: tuple[Mapping[str, Any], ...]
    latency: Latency | None
    faults: tuple[str, ...]

    def readings(self, measure: Measure, reference: str) -> list[tuple[Measured, Reading]] | None:
        """The metric by sample; None unless every sample has it. The uncached run is 0 from itself."""
        if self.entry.family == "uncached" and reference == UNCACHED:
            return [(sample, Reading(0.0)) for sample in self.samples] if measure.better == "lower" else None
        found = readings(self.samples, measure, reference)
        return found if len(found) == len(self.samples) else None

    def error(self, measure: Measure, reference: str = UNCACHED) -> Figure | None:
        """The metric over all samples, its interval drawn by whole clips."""
        found = self.readings(measure, reference)
        return None if not found else mean_figure(found)

    def errors(self, measure: Measure, reference: str = UNCACHED) -> dict[tuple[str, int], float]:
        """The metric by clip and seed; empty where it is not had of every sample."""
        return {(s.clip, s.seed): r.mean for s, r in self.readings(measure, reference) or ()}

    @property
    def run(self) -> Mapping[str, Any]:
        """What the first sample's run told of itself: calls, hits, misses and the like."""
        told: Mapping[str, Any] = self.samples[0].result["run"]
        return told

    @property
    def memory(self) -> int | None:
        """Peak bytes of any of its runs; None where not known."""
        found = [s.result["run"]["memory"] for s in self.samples]
        return None if None in found else max(found)

    @property
    def speedup(self) -> float:
        """As timed, or by FLOPs where it was not."""
        return self.entry.speedup_flops if self.latency is None else self.latency.speedup.value


@dataclass(frozen=True)
class Findings:
    """The rows of a sweep by family, and both ends of every metric's scale. metric: what errors are of."""

    sweep: Sweep
    rows: tuple[Row, ...]
    measures: tuple[Measure, ...]
    metric: Measure
    clock: Clock
    noise: tuple[Measured, ...]
    others: tuple[Measured, ...]

    @property
    def uncached(self) -> Row:
        """The uncached run's row."""
        return self.rows[0]

    @property
    def plan(self) -> Row:
        """The plan's row."""
        return self.rows[1]

    def of(self, *families: str) -> tuple[Row, ...]:
        """The sound rows of some families, in order."""
        return tuple(row for row in self.rows if row.entry.family in families and not row.faults)

    def scale(self, measure: Measure) -> tuple[Figure | None, Figure | None, Figure | None]:
        """Noise floor, solver floor and another seed, of a metric."""
        noise = readings(self.noise, measure, UNCACHED)
        others = readings(self.others, measure, OTHER_SEED)
        solver = self.uncached.error(measure, MANY_STEPS)
        return (mean_figure(noise) if noise else None), solver, (mean_figure(others) if others else None)

    def speed(self, row: Row) -> float:
        """Measured where every row was timed; else by FLOPs, so that no two kinds of speed are compared."""
        return row.speedup if self.timed else row.entry.speedup_flops

    @property
    def timed(self) -> bool:
        """Whether every sound row but the uncached one was timed."""
        return all(row.latency is not None for row in self.rows[1:] if not row.faults)

    def points(self, rows: Sequence[Row]) -> list[tuple[float, float]]:
        """(speed, error) of rows."""
        return [(self.speed(row), self.value(row)) for row in rows]

    def value(self, row: Row) -> float:
        """A row's error. Raises CollectError where the metric was not had."""
        errors = row.errors(self.metric)
        if not errors:
            raise CollectError(f"{row.entry.name} has no {self.metric.name}; choose another --metric")
        return fmean(errors.values())

    @property
    def frontier(self) -> tuple[Row, ...]:
        """Rows that no other is as good as in speed and error and better in one, by rising speed."""
        rows = self.of("uncached", "plan", "variant", "fewer_steps", "respaced_steps")
        return tuple(rows[i] for i in pareto(self.points(rows)))

    @property
    def elbow(self) -> Row | None:
        """The elbow of the frontier of the plan, its variants and the uncached run."""
        rows = self.of("uncached", "plan", "variant")
        index = elbow(self.points(rows))
        return None if index is None else rows[index]

    @property
    def redline(self) -> float | None:
        """What an error must stay within for a K to be chosen: 8 % of the gate's own metric, else the solver floor."""
        if self.metric.model and not self.metric.stand_in:
            return GATE["mean_drop"].threshold
        solver = self.scale(self.metric)[1]
        return None if solver is None else solver.value

    def chosen(self) -> tuple[tuple[Row, ...], Row | None]:
        """The rows among which the RFC picks K, and the picked one: the largest K whose whole interval keeps the redline.

        Those are the rows that differ in nothing but K, the plan's among them; where several such sets were run, the set
        that the plan is in. See `quality.statistics.choose`.
        """
        groups: dict[tuple[Any, ...], dict[int, Row]] = {}
        for row in self.of("plan", "variant"):
            varied = dict(row.entry.varied)
            k = varied.pop(INTERVAL, None)
            if isinstance(k, int):
                groups.setdefault(tuple(sorted(varied.items())), {})[k] = row
        rows = next(iter(groups.values()), {})
        if self.redline is None:
            return tuple(rows.values()), None
        figures = {k: row.error(self.metric) for k, row in rows.items()}
        best = choose([Candidate(k, figure) for k, figure in figures.items() if figure is not None], self.redline)
        return tuple(rows.values()), None if best is None else rows[best.interval]


def collect(sweep: Sweep, store: Store, metric: str | None = None, clock: Clock = "wall") -> Findings:
    """The findings of a sweep whose tasks were run. metric: of the errors, `pixel_difference` unless said.

    Raises CollectError for a result that is missing, an uncached run that failed, or a metric there is none of.
    """
    rows = tuple(_row(sweep, entry, store, clock) for entry in sweep.entries)
    for row in rows[:1]:
        if row.faults:
            raise CollectError(f"the uncached run failed: {row.faults[0]}")
    noise = tuple(_measured(store, sweep.noise(clip, seed)) for clip, seed in sweep.samples)
    others = tuple(_measured(store, sweep.other_seed(clip, seed)) for clip, seed in sweep.samples)
    stored = rows[0].samples[0].comparison(MANY_STEPS)
    known = measures(stored["features"] if stored else ())
    return Findings(sweep, rows, known, error_metric(known, metric), clock, noise, others)


def error_metric(known: Sequence[Measure], name: str | None) -> Measure:
    """The metric that errors are of: `pixel_difference` unless said. Raises CollectError for one that cannot be."""
    lower = {m.name: m for m in known if m.better == "lower"}
    wanted = name or "pixel_difference"
    if wanted not in lower:
        raise CollectError(f"errors cannot be of {wanted}; choose one of {', '.join(lower)}")
    return lower[wanted]


def readings(samples: Sequence[Measured], measure: Measure, reference: str) -> list[tuple[Measured, Reading]]:
    """The metric of those samples that have it."""
    return list(_readings(samples, measure, reference))


def mean_figure(found: Sequence[tuple[Measured, Reading]]) -> Figure:
    """The mean over samples with its interval, drawn by whole clips."""
    return figure_of([r.mean for _, r in found], groups=[s.clip for s, _ in found])


def _readings(samples: Sequence[Measured], measure: Measure, reference: str) -> Iterator[tuple[Measured, Reading]]:
    for sample in samples:
        comparison = sample.comparison(reference)
        reading = None if comparison is None else measure.read(comparison)
        if reading is not None:
            yield sample, reading


def _row(sweep: Sweep, entry: Entry, store: Store, clock: Clock) -> Row:
    samples = tuple(_measured(store, sweep.run(entry, clip, seed)) for clip, seed in sweep.samples)
    timed = [_result(store, task) for task in sweep.pairs(entry)]
    faults = [f"{s.clip}, seed {s.seed}: {s.result['failed']}" for s in samples if "failed" in s.result]
    faults += [f"a timed pair: {pair['failed']}" for pair in timed if "failed" in pair]
    faults += [
        f"{s.clip}, seed {s.seed}: the request ended {s.result['run']['outcome']}"
        for s in samples
        if s.result.get("run", {}).get("outcome", "finished") != "finished"
    ]
    pairs = tuple(pair for pair in timed if "failed" not in pair)
    return Row(entry, samples, pairs, latency(pairs, clock), tuple(faults))


def _measured(store: Store, task: Task) -> Measured:
    return Measured(task.clip.name, task.seed, _result(store, task))


def _result(store: Store, task: Task) -> Mapping[str, Any]:
    result = store.result(task)
    if result is None:
        raise CollectError(
            f"{task.label} on {task.clip.name} with seed {task.seed} has not been run; run the sweep again"
        )
    return result
