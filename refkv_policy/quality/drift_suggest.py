"""Drift over clips and seeds, and what it suggests: a deep set and a refresh, by a rule that is stated. No torch."""

from __future__ import annotations

import datetime
import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from statistics import fmean
from typing import Any, Protocol

from refkv_policy import methods
from refkv_policy.compiler import BRANCHES, HookTable
from refkv_policy.compiler.sigmas import fresh_steps
from refkv_policy.compiler.table import COMPUTED
from refkv_policy.plan.model import Refresh
from refkv_policy.text import columns, fold
from refkv_policy.text import table as draw_table

APART = (2, 3, 4, 6, 8)
"""Steps between refreshes that are tried, on average."""
TOLERANCE = 0.1
METHOD = methods.get("hint_forecast")
RULE = (
    "A hint is stable under a refresh when its relative L2 from the newest fresh value, averaged over clips and seeds, "
    "stays within the tolerance at every step that would reuse it, on every branch. Hints form a chain, of which only a "
    "suffix saves blocks: the deep set is the longest suffix of stable hints. Of the refreshes tried (equally spaced in "
    "sigma, 2, 3, 4, 6 and 8 steps apart on average) the one that spares most block runs is suggested, with hint_forecast: "
    "at the same refreshes it was measured nearer to the uncached run than hint_reuse (docs/evidence.md). Drift is what "
    "reuse would meet and no measure of quality: sweep what is suggested."
)


class Distances(Protocol):
    """Relative L2, cosine and norm ratio of one value from its reference (`drift.Distance`)."""

    @property
    def relative_l2(self) -> float:
        """‖v − r‖ / ‖r‖."""

    @property
    def cosine(self) -> float:
        """⟨v, r⟩ / (‖v‖ ‖r‖)."""

    @property
    def norm_ratio(self) -> float:
        """‖v‖ / ‖r‖."""


Sample = Mapping[tuple[str, str], Mapping[str, Mapping[int, Distances]]]
"""One request: by site and branch, then reference, then step."""
FIGURES = ("relative_l2", "cosine", "norm_ratio")


@dataclass(frozen=True, slots=True)
class Suggestion:
    """hints: the deep set, a suffix. worst: its largest drift from a fresh value. spared: share of VACE block runs."""

    schedule: str
    refresh: Mapping[str, Any]
    hints: tuple[int, ...]
    worst: float
    spared: float

    def fragment(self) -> str:
        """A rule for a plan, as YAML, and its acknowledgement, which is no sound one until somebody gives it."""
        first, last = self.hints[0], self.hints[-1]
        refresh = ", ".join(f"{key}: {value}" for key, value in self.refresh.items())
        span = f"{first}-{last}" if last > first else str(first)
        return (
            f"caches:\n  - name: deep-hints\n    tier: {METHOD.tier}\n    method: {METHOD.name}\n"
            f'    at: "hint[{span}]"\n    refresh: {{{refresh}}}\n    branches: together\n'
            "acknowledgements:\n"
            + "".join(
                f"  - risk: {risk}\n    by: # who accepts it\n    date: {datetime.date.today()}\n"
                "    reason: # why the loss is acceptable, and where\n"
                for risk in METHOD.risks({})
            )
        )


def candidates(table: HookTable) -> list[tuple[str, frozenset[int], dict[str, Any]]]:
    """Refreshes to try, by name: their fresh steps, and how a plan writes them."""
    every = frozenset(range(table.steps))
    found: list[tuple[str, frozenset[int], dict[str, Any]]] = []
    for count in dict.fromkeys(math.ceil(table.steps / apart) for apart in APART):
        if 2 <= count < table.steps:
            form: dict[str, Any] = {"spacing": "sigma", "count": count}
            fresh = fresh_steps(Refresh(**form), every, tuple(range(table.steps)), table.sigmas, table.steps)
            found.append((json.dumps(form), fresh, form))
    return found


def plan_fresh(table: HookTable) -> dict[str, frozenset[int]] | None:
    """The steps at which the plan computes its deepest cached hint, by branch; None where it caches none."""
    rows = [row for row in table.rows if table.tree[row.at].added and row.counted]
    if not rows:
        return None
    return {b: frozenset(s for s in table.evaluated if rows[-1].actions(b)[s] in COMPUTED) for b in BRANCHES}


def series(samples: Sequence[Sample], references: Sequence[str]) -> list[dict[str, Any]]:
    """Curves by site, branch, reference and figure: its mean over samples by step, the smallest and the largest.

    Steps at which a figure is not a number in some sample (a reference of zero) are left out.
    """
    found = []
    for site, branch in samples[0]:
        for reference in references:
            each = [sample[site, branch].get(reference, {}) for sample in samples]
            for name in FIGURES:
                columns = {step: [float(getattr(one[step], name)) for one in each] for step in sorted(each[0])}
                finite = {step: values for step, values in columns.items() if all(map(math.isfinite, values))}
                if finite:
                    curve = {"site": site, "branch": branch, "against": reference, "measure": name}
                    ends = {"low": [min(v) for v in finite.values()], "high": [max(v) for v in finite.values()]}
                    means = {"steps": list(finite), "mean": [fmean(v) for v in finite.values()]}
                    found.append({**curve, **means, **(ends if len(samples) > 1 else {})})
    return found


def suggest(
    samples: Sequence[Sample],
    table: HookTable,
    tried: Sequence[tuple[str, frozenset[int], dict[str, Any]]],
    tolerance: float,
) -> Suggestion | None:
    """What `RULE` picks; None where no hint is stable under any refresh tried."""
    count = len(table.layout.vace_at)
    best: Suggestion | None = None
    for name, fresh, form in tried:
        worst = [_worst(samples, f"hint[{j}]", name) for j in range(count)]
        stable = count
        while stable and worst[stable - 1] <= tolerance:
            stable -= 1
        deep = tuple(range(stable, count))
        spared = len(deep) * (table.steps - len(fresh)) / (count * table.steps)
        found = Suggestion(name, form, deep, max(worst[stable:], default=0.0), spared)
        if deep and (best is None or (found.spared, -found.worst) > (best.spared, -best.worst)):
            best = found
    return best


def drift_text(curves: Sequence[Mapping[str, Any]], steps: int) -> str:
    """A line a site and branch: relative L2 over the run, and the worst step from each reference."""
    by = {
        (c["site"], c["branch"], c["against"], c["measure"]): dict(zip(c["steps"], c["mean"], strict=True))
        for c in curves
    }
    at = sorted({round(share * (steps - 1)) for share in (0.25, 0.5, 0.75, 1.0)})
    rows = [["site", "branch", *(f"first @{step}" for step in at), "cosine", "norm", "previous", "fresh"]]
    for site, branch in dict.fromkeys((c["site"], c["branch"]) for c in curves):

        def of(reference: str, measure: str, key: tuple[str, str] = (site, branch)) -> Mapping[int, float]:
            return by.get((*key, reference, measure), {})

        moved = [_number(of("first", "relative_l2").get(step)) for step in at]
        last = [_number(of("first", measure).get(at[-1])) for measure in ("cosine", "norm_ratio")]
        worst = [_worst_step(of(reference, "relative_l2")) for reference in ("previous", "fresh")]
        rows.append([site, branch, *moved, *last, *worst])
    legend = (
        "relative L2 from the first step at the steps named, its cosine and norm ratio at the last; the worst from the step "
        "before and from the plan's newest fresh value, with the step it is met at"
    )
    return f"{draw_table(rows)}\n{fold(legend, columns())}"


def _worst(samples: Sequence[Sample], site: str, reference: str) -> float:
    """Largest over reused steps and branches of the mean over samples; infinite where one is not a number."""
    worst = 0.0
    for branch in {branch for s, branch in samples[0] if s == site}:
        each = [sample[site, branch].get(reference, {}) for sample in samples]
        for step in each[0]:
            mean = fmean(one[step].relative_l2 for one in each)
            worst = max(worst, mean if math.isfinite(mean) else math.inf)
    return worst


def _worst_step(by_step: Mapping[int, float]) -> str:
    worst = max(by_step, key=lambda step: by_step[step], default=None)
    return "–" if worst is None else f"{by_step[worst]:.3f} @{worst}"


def _number(value: float | None) -> str:
    return "–" if value is None else f"{value:.3f}"
