"""Drift figures as `refkv drift` writes them, and their curves: how far a site's value has moved, by layer and step.

The document is JSON with `kind: drift`, `version: 1` and `series`, a list of {`site`, `branch`, `against`, `measure`,
`steps`, `mean`} and, where more than one clip and seed ran, `low` and `high`, the smallest and the largest; the lists are
of one length. `against` is `first`, `previous` or `fresh`; `measure` is `relative_l2`, `cosine` or `norm_ratio`. What else
it tells of the run (ABOUT), its `suggestion` (a plan fragment) and the `rule` behind it are shown where they are there.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from refkv_policy.evidence.json_text import LARGEST, SMALLEST
from refkv_policy.plan.selectors import site_named
from refkv_policy.report.charts import DEPTHS, Chart, Mark, Series
from refkv_policy.report.errors import ReportError
from refkv_policy.report.words import count

AGAINST = {"first": "the first step", "previous": "the step before", "fresh": "the last fresh one"}
MEASURES = {"relative_l2": "relative L2 distance", "cosine": "cosine similarity", "norm_ratio": "ratio of norms"}
ABOUT = (
    "plan", "profile", "weights", "steps", "guidance", "dtype", "device", "clips", "seeds", "fresh_steps", "tolerance", "rule",
)  # fmt: skip
MOST = 2000
LARGEST_STEP = 100_000
"""Curves, and points of one, that are read."""


@dataclass(frozen=True, slots=True)
class Curve:
    """How one site of one branch moved. low, high: the smallest and largest of the samples, where there are several."""

    site: str
    branch: str
    against: str
    measure: str
    steps: tuple[int, ...]
    mean: tuple[float, ...]
    low: tuple[float, ...] | None
    high: tuple[float, ...] | None


@dataclass(frozen=True, slots=True)
class Drift:
    """Drift figures. about: (name, value) of what was measured, as texts; suggestion: a plan fragment, if any."""

    curves: tuple[Curve, ...]
    about: tuple[tuple[str, str], ...]
    suggestion: str | None


def drift_of(value: Mapping[str, Any], name: str) -> Drift:
    """The drift figures of a JSON document. Raises ReportError for anything that is not one."""
    series = value.get("series")
    if value.get("version") != 1 or not isinstance(series, list) or len(series) > MOST:
        raise ReportError(f"{name} holds no drift figures of version 1; write it with `refkv drift`")
    try:
        curves = tuple(_curve(entry) for entry in series)
    except (KeyError, TypeError, ValueError) as error:
        raise ReportError(
            f"{name} holds a drift series that cannot be read ({error}); write it anew with `refkv drift`"
        ) from error
    about = tuple((key.replace("_", " "), _words(value[key])) for key in ABOUT if value.get(key) is not None)
    suggestion = value.get("suggestion")
    return Drift(curves, about, suggestion if isinstance(suggestion, str) else None)


def _curve(entry: Mapping[str, Any]) -> Curve:
    steps = tuple(entry["steps"])
    if len(steps) > MOST or not all(type(s) is int and 0 <= s < LARGEST_STEP for s in steps):
        raise ValueError("its steps are not step numbers")
    site_named(entry["site"])
    for key, known in (("against", AGAINST), ("measure", MEASURES)):
        if entry[key] not in known:
            raise ValueError(f"{key} is not one of {', '.join(known)}")
    ends = [None if entry.get(key) is None else _numbers(entry[key], len(steps)) for key in ("low", "high")]
    mean = _numbers(entry["mean"], len(steps))
    return Curve(entry["site"], str(entry["branch"]), entry["against"], entry["measure"], steps, mean, ends[0], ends[1])


def _numbers(values: Sequence[Any], length: int) -> tuple[float, ...]:
    found = tuple(float(v) for v in values if type(v) in (int, float) and (v == 0 or SMALLEST <= abs(v) <= LARGEST))
    if len(found) != length or len(values) != length:
        raise ValueError("its values are not one number a step that could be measured")
    return found


def _words(value: Any) -> str:
    """What was measured, in a line: names of clips, steps by branch, or the value itself."""
    if isinstance(value, dict):
        return "; ".join(f"{key}: {_words(inner)}" for key, inner in value.items() if not isinstance(inner, dict))
    if isinstance(value, list):
        return ", ".join(str(v.get("name")) if isinstance(v, dict) else str(v) for v in value)
    return str(value)


def drift_charts(drift: Drift, key: str) -> tuple[Chart, ...]:
    """One chart for each measure, reference, branch and stack, relative distances first; its curves by depth."""
    groups: dict[tuple[str, str, str, str], list[Curve]] = {}
    for curve in drift.curves:
        kind = site_named(curve.site)
        stack = f"{kind.stack}.{kind.part}" if kind.part else kind.stack
        groups.setdefault((curve.measure, curve.against, stack, curve.branch), []).append(curve)
    order = [(m, a) for m in MEASURES for a in AGAINST]
    ranked = sorted(groups.items(), key=lambda g: (order.index(g[0][:2]), g[0][2:]))
    return tuple(_chart(curves, *group, key=f"{key}-{n}") for n, (group, curves) in enumerate(ranked, 1))


def _chart(curves: Sequence[Curve], measure: str, against: str, stack: str, branch: str, key: str) -> Chart:
    ordered = sorted(curves, key=lambda c: site_named(c.site).order)
    deepest = max(len(ordered) - 1, 1)
    series = tuple(
        Series(
            c.site, f"depth{n * (len(DEPTHS) - 1) // deepest}", _marks(c, n in (0, len(ordered) - 1)), band=True,
            dots=len(c.steps) == 1,
        )
        for n, c in enumerate(ordered)
    )  # fmt: skip
    scatter = "; the bands reach from the smallest to the largest of the clips and seeds" if ordered[0].low else ""
    return Chart(
        f"drift-{key}",
        f"{stack}, {branch}: {MEASURES[measure]} from {AGAINST[against]}",
        f"{count(len(ordered), 'site')}, from the shallowest (yellow) to the deepest (blue){scatter}.",
        "step",
        MEASURES[measure],
        series,
        steps=True,
        anchor=1.0 if measure == "cosine" else 0.0,
        low=True,
    )


def _marks(curve: Curve, named: bool) -> tuple[Mark, ...]:
    last = len(curve.steps) - 1
    return tuple(
        Mark(
            step, mean, curve.site if named and n == last else "",
            ys=(curve.low[n], curve.high[n]) if curve.low is not None and curve.high is not None else None,
        )
        for n, (step, mean) in enumerate(zip(curve.steps, curve.mean, strict=True))
    )  # fmt: skip
