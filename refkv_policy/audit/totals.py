"""What a request's decisions add up to: hits, misses, departures; by site and by branch."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple

from refkv_policy.audit.decision import Decision
from refkv_policy.audit.fold import fold_names
from refkv_policy.compiler.table import COMPUTED, SERVED, HookTable

UNKNOWN = "unknown"
"""Stands for the branch of a call whose branch is not known."""


class Count(NamedTuple):
    """How often a site was served from the cache and how often it was computed; not reached counts as neither."""

    served: int
    computed: int


@dataclass(frozen=True, slots=True)
class Totals:
    """The sum of the decisions logged so far; immutable, `plus` gives the next.

    hits, misses: served and computed cells at the sites that count (`Row.counted`); a departed cell is a miss.
    departures: by reason; `chain` among them. unserved: cells the table serves that were computed instead.
    cells: (served, computed) by (branch, site), of every site of the table, counted or not.
    """

    counted: frozenset[str]
    hits: int
    misses: int
    unserved: int
    departures: Mapping[str, int]
    cells: Mapping[tuple[str, str], tuple[int, int]]

    @classmethod
    def none(cls, table: HookTable) -> Totals:
        """Nothing counted yet, for a run of this table."""
        return cls(frozenset(row.site for row in table.rows if row.counted), 0, 0, 0, {}, {})

    def plus(self, branch: str | None, decisions: Iterable[Decision]) -> Totals:
        """These totals and one more step's decisions."""
        name = branch or UNKNOWN
        hits, misses, unserved = self.hits, self.misses, self.unserved
        departures, cells = dict(self.departures), dict(self.cells)
        for d in decisions:
            if d.reason is not None:
                departures[d.reason] = departures.get(d.reason, 0) + 1
            if d.action in SERVED:
                served, computed = 1, 0
            elif d.action in COMPUTED:
                served, computed = 0, 1
                unserved += d.planned in SERVED
            else:
                continue
            if d.site in self.counted:
                hits, misses = hits + served, misses + computed
            key = (name, d.site)
            before = cells.get(key, _NOTHING)
            cells[key] = (before[0] + served, before[1] + computed)
        return Totals(self.counted, hits, misses, unserved, departures, cells)

    @property
    def hit_rate(self) -> float | None:
        """Hits among hits and misses; None when there are neither."""
        cells = self.hits + self.misses
        return self.hits / cells if cells else None

    def by_site(self) -> dict[str, Count]:
        """Hits and misses of each counted site, all branches together."""
        return self._sum(1)

    def by_branch(self) -> dict[str, Count]:
        """Hits and misses of each branch, all counted sites together."""
        return self._sum(0)

    def _sum(self, key: int) -> dict[str, Count]:
        result: dict[str, Count] = {}
        for names, count in self.cells.items():
            if names[1] in self.counted:
                before = result.get(names[key], _NOTHING)
                result[names[key]] = Count(before[0] + count[0], before[1] + count[1])
        return result

    def to_dict(self) -> dict[str, Any]:
        """JSON-ready. `sites` holds [served, computed] by branch, of every site, equal neighbours folded to a range."""
        sites: dict[str, dict[str, list[int]]] = {}
        for (branch, site), count in self.cells.items():
            sites.setdefault(site, {})[branch] = list(count)
        return {
            "hits": self.hits,
            "misses": self.misses,
            "unserved": self.unserved,
            "departures": dict(self.departures),
            "branches": {name: {"hits": c.served, "misses": c.computed} for name, c in self.by_branch().items()},
            "sites": fold_names(list(sites.items())),
        }


_NOTHING = Count(0, 0)
