"""Inputs → Report → files, each written beside its place and renamed there."""

from __future__ import annotations

import datetime
import os
from collections.abc import Iterable, Mapping
from pathlib import Path

from refkv_policy import __version__
from refkv_policy.compiler import compile_all
from refkv_policy.evidence.status import plan_scopes, profile_digests
from refkv_policy.files import atomic_write
from refkv_policy.plan.model import Plan
from refkv_policy.report.drift import drift_charts
from refkv_policy.report.errors import ReportError
from refkv_policy.report.inputs import Inputs
from refkv_policy.report.logs import log_views
from refkv_policy.report.model import DriftView, MapPlot, Plot, Report
from refkv_policy.report.scopes import scope_views
from refkv_policy.report.verdict import Bindings
from refkv_policy.report.videos import Players, players_in, players_of


def make_report(
    given: Inputs,
    *,
    plans: Iterable[Plan] = (),
    videos: Mapping[str, Path] | None = None,
    created: datetime.datetime | None = None,
) -> Report:
    """What is to be shown of the inputs.

    plans: what the evidence is held against; without them nothing can be called stale. videos: files by `input`,
    `uncached` and `planned`; without them, those of the run folders. created: now, unless given. Raises ReportError,
    VideoError, and PlanError for a plan that does not compile.
    """
    bindings = _bindings_by_name(plans)
    scopes = scope_views(given.evidence, bindings, given.logs)
    held = {(f.evidence.plan, entry.scope) for f in given.evidence for entry in f.evidence.scopes}
    missing = [(name, str(s)) for name, bound in bindings.items() for s in bound.scopes if (name, s) not in held]
    moment = created or datetime.datetime.now(datetime.timezone.utc)
    return Report(
        scopes=scopes,
        logs=log_views(given.logs),
        drifts=tuple(
            DriftView(d.name, d.sha256, d.drift, drift_charts(d.drift, f"d{n}")) for n, d in enumerate(given.drifts)
        ),
        players=_players(given, videos or {}),
        missing=tuple(missing),
        plans_given=bool(bindings),
        version=__version__,
        created=moment.astimezone(datetime.timezone.utc).strftime("%Y-%m-%d %H:%M UTC"),
    )


def _bindings_by_name(plans: Iterable[Plan]) -> dict[str, Bindings]:
    """By plan name, which is all that evidence says of its plan. Raises ReportError where that is not enough."""
    named: dict[str, Plan] = {}
    for plan in plans:
        other = named.setdefault(plan.name, plan)
        if other.document.file != plan.document.file:
            both = f"{other.document.file} and {plan.document.file}"
            raise ReportError(f"{both} are both named {plan.name}, so evidence cannot say which it is of: give one")
    return {name: _bindings(plan) for name, plan in named.items()}


def _bindings(plan: Plan) -> Bindings:
    tables = compile_all(plan)
    return Bindings(tables, profile_digests(plan, tables), plan_scopes(plan, tables))


def _players(given: Inputs, videos: Mapping[str, Path]) -> tuple[Players, ...]:
    if videos:
        return (players_of(videos),)
    return tuple(found for folder in given.folders if (found := players_in(folder)) is not None)


def write_page(report: Report, path: str | os.PathLike[str]) -> int:
    """Write the HTML file and give its size in bytes. Raises ReportError."""
    try:
        from refkv_policy.report.page import render
    except ModuleNotFoundError as error:
        raise ReportError(f"a report needs {error.name}: pip install 'refkv-policy[report]'") from error
    data = render(report).encode("utf-8")
    _replace(Path(path), data)
    return len(data)


def plots_of(report: Report) -> tuple[Plot, ...]:
    """Every plot of the report, in its order."""
    plots: list[Plot] = []
    for scope in report.scopes:
        plots.extend(scope.frontier.charts if scope.frontier is not None else ())
        plots.extend([scope.heat] if scope.heat is not None else [])
    for log in report.logs:
        for group in log.groups:
            plots.extend(MapPlot(f"map-{group.key}-{n}", group.plan, each) for n, each in enumerate(group.maps))
            plots.extend([group.memory] if group.memory is not None else [])
    for drift in report.drifts:
        plots.extend(drift.charts)
    return tuple(plots)


def write_plots(report: Report, folder: str | os.PathLike[str]) -> tuple[Path, ...]:
    """Write each plot as a PNG picture into a folder, which is made, and give the paths. Raises ReportError."""
    from refkv_policy.report.draw import picture

    place = Path(folder)
    try:
        place.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise ReportError(f"cannot make the folder {place}: {error.strerror}; choose another with --png") from error
    written = []
    for plot in plots_of(report):
        path = place / f"{plot.key}.png"
        _replace(path, picture(plot))
        written.append(path)
    return tuple(written)


def _replace(path: Path, data: bytes) -> None:
    try:
        with atomic_write(path) as stream:
            stream.write(data)
    except OSError as error:
        raise ReportError(f"cannot write {path}: {error.strerror}; choose another place") from error
