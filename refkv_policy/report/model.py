"""The report as data: what is shown, before it is drawn or written."""

from __future__ import annotations

from dataclasses import dataclass

from refkv_policy.report.charts import Chart
from refkv_policy.report.drift import Drift
from refkv_policy.report.facts import Fact, facts
from refkv_policy.report.heat import HeatMap
from refkv_policy.report.logs import LogView
from refkv_policy.report.scopes import ScopeView
from refkv_policy.report.sitemap import SiteMap
from refkv_policy.report.verdict import ANSWERS, WORDS, Standing, headline
from refkv_policy.report.videos import Players


@dataclass(frozen=True, slots=True)
class DriftView:
    """Drift figures as the page shows them."""

    file: str
    sha256: str
    drift: Drift
    charts: tuple[Chart, ...]


@dataclass(frozen=True, slots=True)
class MapPlot:
    """A step × site map as a plot of its own, under its plan's name."""

    key: str
    plan: str
    map: SiteMap


Plot = Chart | HeatMap | MapPlot
"""What is also drawn as a picture."""


@dataclass(frozen=True, slots=True)
class Report:
    """All that is shown. missing: scopes of the plans at hand that no evidence holds, as (plan, scope)."""

    scopes: tuple[ScopeView, ...]
    logs: tuple[LogView, ...]
    drifts: tuple[DriftView, ...]
    players: tuple[Players, ...]
    missing: tuple[tuple[str, str], ...]
    plans_given: bool
    version: str
    created: str

    @property
    def verdict(self) -> Standing:
        """The report's own."""
        lacking = [Standing("missing", "no evidence given holds it")] * len(self.missing)
        return headline([*(s.standing for s in self.scopes), *lacking], [log.standing for log in self.logs])

    @property
    def answer(self) -> str:
        """Whether what the evidence is of should be approved; empty where there is none."""
        return ANSWERS[self.verdict.tone] if self.scopes or self.missing else ""

    @property
    def facts(self) -> tuple[Fact, ...]:
        """Speed, error and memory over the scopes of the one plan; of several plans each scope has its own.

        None of a document that was edited: there is no telling who wrote its figures.
        """
        one = len({scope.plan for scope in self.scopes}) == 1 and self.verdict.word != "edited"
        return facts([scope.entry for scope in self.scopes]) if one else ()

    @property
    def title(self) -> str:
        """The plans that evidence is of or missing for; else those of the logs; else the files."""
        judged = dict.fromkeys([*(s.plan for s in self.scopes), *(plan for plan, _ in self.missing)])
        names = list(judged or dict.fromkeys(g.plan for log in self.logs for g in log.groups))
        names = names or [d.file for d in self.drifts] or [p.title for p in self.players] or ["nothing"]
        return ", ".join(names[:4]) + (f" and {len(names) - 4} more" if len(names) > 4 else "")

    @property
    def tables(self) -> frozenset[str]:
        """Digests of the tables that the evidence was measured of."""
        return frozenset(scope.table for scope in self.scopes)

    @property
    def ranked(self) -> tuple[ScopeView, ...]:
        """The scopes, the worst first."""
        order = list(WORDS)
        return tuple(sorted(self.scopes, key=lambda s: order.index(s.standing.word)))
