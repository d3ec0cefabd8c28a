"""The frontier as plots: speed against error, both lines of fewer steps beside the plan, and the floors under them."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

from refkv_policy.evidence import Figure, Frontier, MeasuredScope, Metric, Point
from refkv_policy.evidence.frontier import ends, error_at, pareto
from refkv_policy.report.charts import STYLES, Chart, Floor, Mark, Series
from refkv_policy.report.words import NONE, apart, count, figure, number, size, times

FAMILIES = {
    "plan": "the plan",
    "variant": "variants of the plan",
    "respaced_steps": "fewer steps, re-spaced",
    "fewer_steps": "fewer steps",
    "uncached": "uncached",
}
"""In the order in which they are listed; each line is drawn through the points of one family by rising speed."""
LINES = ("fewer_steps", "respaced_steps")


@dataclass(frozen=True, slots=True)
class FrontierView:
    """The frontier of a scope, drawn and as a table. sentences: the comparison at equal latency, in words."""

    metric: str
    charts: tuple[Chart, ...]
    sentences: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]


COLUMNS = (
    "run",
    "kind",
    "speed-up",
    "speed-up in FLOPs",
    "error",
    "against the many-step run",
    "calls",
    "hits",
    "misses",
    "peak memory",
)


def frontier_view(scope: MeasuredScope, key: str) -> FrontierView | None:
    """The frontier of a scope; None where it was not measured."""
    frontier = scope.levels.frontier
    if frontier is None or not frontier.points:
        return None
    metric = _metric(scope, frontier)
    speed = Speed.of(frontier.points)
    charts = [_chart(frontier.points, lambda p: p.error, speed, metric, scope, f"frontier-{key}", "the uncached run")]
    many = [p for p in frontier.points if p.solver_error is not None]
    if many:
        steps = scope.setting.solver_steps
        against = f"the run of {steps} steps" if steps else "the many-step run"
        charts.append(_chart(many, lambda p: p.solver_error, speed, metric, scope, f"solver-{key}", against))
    title = metric.title if metric else frontier.metric
    return FrontierView(title, tuple(charts), tuple(_at_equal_latency(frontier, speed, metric)), _rows(frontier))


@dataclass(frozen=True, slots=True)
class Speed:
    """Which speed-up all points are drawn by: the measured one where each was timed, else that of FLOPs."""

    measured: bool

    @classmethod
    def of(cls, points: Sequence[Point]) -> Speed:
        """The measured one, but for points that were not timed, of which one kind for all is kept."""
        return cls(all(p.speedup is not None for p in points if p.family != "uncached"))

    @property
    def title(self) -> str:
        """The axis's title."""
        kind = "measured denoising time" if self.measured else "denoising FLOPs, not time: not every run was timed"
        return f"speed-up over the uncached run ({kind})"

    def __call__(self, point: Point) -> Figure:
        """A point's."""
        timed = self.measured and point.speedup is not None
        return point.speedup if timed and point.speedup is not None else Figure(point.speedup_flops)


Error = Callable[[Point], Figure | None]


def _chart(
    points: Sequence[Point],
    error: Error,
    speed: Speed,
    metric: Metric | None,
    scope: MeasuredScope,
    key: str,
    against: str,
) -> Chart:
    floors = list(_floors(points, metric, key.startswith("solver")))
    series = [s for family in reversed(FAMILIES) for s in _series(family, points, error, speed)]
    front = _front(points, error, speed)
    if front is not None:
        series.insert(0, front)
    return Chart(
        key,
        f"Speed against error from {against}",
        f"{count(len(points), 'run')} of {scope.scope}. Error: {metric.title if metric else 'of the named metric'}. "
        "Lower is nearer, further right is faster.",
        speed.title,
        f"error from {against}",
        tuple(series),
        tuple(floors),
        say=times,
        log=True,
    )


def _series(family: str, points: Sequence[Point], error: Error, speed: Speed) -> Iterable[Series]:
    for number_of, (name, line) in enumerate(sorted(_lines(family, points).items())):
        ordered = sorted(line, key=lambda p: (speed(p).value, p.name))
        marks = tuple(_mark(p, found, speed(p)) for p in ordered if (found := error(p)) is not None)
        if marks:
            style = family if number_of == 0 or f"{family}_2" not in STYLES else f"{family}_2"
            yield Series(name, style, marks, line=family in LINES)


def _lines(family: str, points: Sequence[Point]) -> dict[str, list[Point]]:
    """The points of a family by the line they lie on: steps re-spaced in sigma are not joined with those in its root."""
    lines: dict[str, list[Point]] = {}
    for point in points:
        if point.family == family:
            words = [str(v) for v in point.varied.values() if isinstance(v, str)] if family in LINES else []
            name = f"{FAMILIES[family]} ({', '.join(words)})" if words else FAMILIES[family]
            lines.setdefault(name, []).append(point)
    return lines


def _mark(point: Point, error: Figure, speed: Figure) -> Mark:
    xs = ends(speed) if speed.interval else None
    ys = ends(error) if error.interval else None
    return Mark(speed.value, error.value, point.name, xs, ys)


def _front(points: Sequence[Point], error: Error, speed: Speed) -> Series | None:
    """The Pareto frontier of all points."""
    known = [(speed(p).value, found.value) for p in points if (found := error(p)) is not None]
    marks = tuple(Mark(*known[index]) for index in pareto(known))
    return Series("Pareto frontier", "frontier", marks, dots=False) if len(marks) > 1 else None


def _floors(points: Sequence[Point], metric: Metric | None, of_many_steps: bool) -> Iterable[Floor]:
    if metric is not None and metric.solver is not None:
        yield Floor(
            f"solver floor {number(metric.solver.value)}", metric.solver.value, "solver", below=not of_many_steps
        )
    if metric is not None and metric.noise is not None and metric.noise.value > 0 and not of_many_steps:
        yield Floor(f"noise floor {number(metric.noise.value)}", metric.noise.value, "noise")


def _at_equal_latency(frontier: Frontier, speed: Speed, metric: Metric | None) -> Iterable[str]:
    plan = next((p for p in frontier.points if p.family == "plan"), None)
    if plan is None:
        return
    at, own = speed(plan).value, plan.error.value
    uncached = [(speed(p).value, p.error.value) for p in frontier.points if p.family == "uncached"]
    found: list[tuple[str, float | None]] = []
    for family in LINES:
        for name, line in (_lines(family, frontier.points) or {FAMILIES[family]: []}).items():
            speeds = [*uncached, *((speed(p).value, p.error.value) for p in line)]
            found.append((name, error_at(speeds, at)) if line else (f"{name} not measured", None))
    solver = metric.solver.value if metric is not None and metric.solver is not None else None
    say = apart(number, own, *(error for error in (*dict(found).values(), solver) if error is not None))
    told = []
    for name, error in found:
        less = "" if error is None else "less" if error < own else "more" if error > own else "the same"
        unknown = name if name.endswith("not measured") else f"{name} not covered"
        told.append(unknown if error is None else f"{name} {say(error)} ({less})")
    yield f"At {times(at)} the plan's error is {say(own)}. At the same speed: {'; '.join(told)}."
    if solver is not None:
        side = "below" if own < solver else "at" if own == solver else "above"
        yield (
            f"The solver floor is {say(solver)}: so far is the uncached run itself from one of many more steps. "
            f"The plan's error is {side} it."
        )


def _rows(frontier: Frontier) -> tuple[tuple[str, ...], ...]:
    order = list(FAMILIES)
    ordered = sorted(frontier.points, key=lambda p: (order.index(p.family), p.speedup_flops, p.name))
    return tuple(
        (
            p.name,
            FAMILIES[p.family],
            figure(p.speedup, times),
            times(p.speedup_flops),
            figure(p.error),
            figure(p.solver_error),
            f"{p.evaluations:,}",
            f"{p.hits:,}",
            f"{p.misses:,}",
            NONE if p.memory is None else size(p.memory),
        )
        for p in ordered
    )


def _metric(scope: MeasuredScope, frontier: Frontier) -> Metric | None:
    named = [m for m in scope.metrics if m.name == frontier.metric]
    return next((m for m in named if m.reference == "uncached"), named[0] if named else None)
