"""A plan's difference as a person reads it: in a terminal, in a pull request, by a machine."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import groupby
from typing import Any

from refkv_policy.compiler import Prediction, human_bytes
from refkv_policy.compiler.diff import Change, PlanDiff, RowChange, ScopeDiff
from refkv_policy.compiler.picture import LEGEND, ruler

VERDICTS = {
    "unchanged": "nothing changed",
    "metadata": "only text changed; every table is the same",
    "behaviour": "behaviour changed",
    "added": "new plan",
    "removed": "plan removed",
}
ABSENT = "computed (no row)"


def headline(diff: PlanDiff) -> str:
    """One sentence: what a reviewer needs to know first."""
    words = [VERDICTS[diff.verdict]]
    if diff.verdict == "behaviour":
        words[0] += f" in {len(diff.changed)} of {len(diff.scopes)} tables"
    if gained := sorted(set(diff.risks[1]) - set(diff.risks[0])):
        words.append(f"new risk {', '.join(gained)}")
    if lost := sorted(set(diff.risks[0]) - set(diff.risks[1])):
        words.append(f"no longer carries {', '.join(lost)}")
    if diff.tiers[0] != diff.tiers[1] and diff.verdict == "behaviour":
        words.append(f"tiers {_tiers(diff.tiers[0])} -> {_tiers(diff.tiers[1])}")
    return "; ".join(words)


def _tiers(tiers: Sequence[str]) -> str:
    return "+".join(tiers) or "none"


def figure_rows(diff: PlanDiff) -> list[tuple[str, ...]]:
    """(model, steps, shape, speed-up, hits, cache) with `before -> after` where they differ."""
    rows: list[tuple[str, ...]] = []
    for scope in diff.changed:
        for shape, before, after in scope.figures:
            rows.append(
                (
                    scope.profile,
                    str(scope.steps),
                    str(shape),
                    _pair(before, after, lambda p: f"{p.speedup:.3f}x"),
                    _pair(before, after, lambda p: f"{p.tally.hits}/{p.tally.hits + p.tally.misses}"),
                    _pair(before, after, lambda p: human_bytes(p.bytes_peak)),
                )
            )
    return rows


COLUMNS = ("model", "steps", "shape", "FLOP speed-up", "hits", "peak cache (bf16)")


def _pair(before: Prediction | None, after: Prediction | None, show: Any) -> str:
    a, b = (None if p is None else show(p) for p in (before, after))
    if a == b:
        return str(a)
    return f"{a if a is not None else '-'} -> {b if b is not None else '-'}"


def alike(scopes: Sequence[ScopeDiff]) -> Iterator[tuple[str, ScopeDiff]]:
    """Scopes whose rows and facts changed alike, as one: (their names, the first of them)."""
    for _, group in groupby(scopes, key=lambda s: (s.verdict, s.rows, s.facts)):
        members = list(group)
        yield ", ".join(f"{s.profile} at {s.steps} steps" for s in members), members[0]


def map_lines(scope: ScopeDiff) -> list[str]:
    """Changed rows: before, after and a line of marks under the steps that differ."""
    if not scope.rows:
        return []
    width = max(len(_label(row)) for row in scope.rows) + 2
    lines = [f"  {'':<{width}}{ruler(scope.steps)}"]
    for row in scope.rows:
        lines.append(f"- {_label(row):<{width}}{row.before or ABSENT}")
        lines.append(f"+ {_label(row):<{width}}{row.after or ABSENT}")
        if row.marks:
            lines.append(f"  {'':<{width}}{row.marks.rstrip()}")
    return [*lines, LEGEND]


def _label(row: RowChange) -> str:
    return row.sites if row.branch == "both" else f"{row.sites} {row.branch}"


def fact_lines(changes: Sequence[Change]) -> list[str]:
    """`name: before -> after`."""
    return [f"{c.name}: {c.before or 'none'} -> {c.after or 'none'}" for c in changes]


def text(name: str, diff: PlanDiff) -> str:
    """For a terminal."""
    lines = [f"{name}: {headline(diff)}"]
    if rows := figure_rows(diff):
        lines += ["", *_table(rows)]
    for scopes, scope in alike(diff.changed):
        if scope.rows or scope.facts:
            lines += ["", f"{scopes}:", *(f"  {line}" for line in (*fact_lines(scope.facts), *map_lines(scope)))]
    for title, changes in (("acknowledgements", diff.acknowledgements), ("text", diff.metadata)):
        if changes and (title != "text" or diff.verdict == "metadata"):
            lines += ["", f"{title}:", *(f"  {line}" for line in fact_lines(changes))]
    return "\n".join(lines) + "\n"


def _table(rows: Sequence[tuple[str, ...]]) -> list[str]:
    every = [COLUMNS, *rows]
    widths = [max(len(row[i]) for row in every) for i in range(len(COLUMNS))]
    return ["  ".join(f"{cell:<{w}}" for cell, w in zip(row, widths, strict=True)).rstrip() for row in every]


def markdown(name: str, diff: PlanDiff) -> str:
    """For a pull request: the verdict, the figures, and the maps folded."""
    lines = [f"### {_inline(name)}: {_inline(headline(diff))}", ""]
    if rows := figure_rows(diff):
        lines += [f"| {' | '.join(COLUMNS)} |", "|" + "---|" * len(COLUMNS)]
        lines += [f"| {' | '.join(_inline(c) for c in row)} |" for row in rows]
        lines.append("")
    if diff.acknowledgements:
        lines += ["**Acknowledgements**", "", *(f"- {_inline(line)}" for line in fact_lines(diff.acknowledgements)), ""]
    for scopes, scope in alike(diff.changed):
        if not (scope.rows or scope.facts):
            continue
        sites = (
            f"{len(scope.rows)} group{'s' if len(scope.rows) != 1 else ''} of sites" if scope.rows else "settings only"
        )
        lines += [f"<details><summary>{_inline(scopes)}: {sites}</summary>", ""]
        if scope.facts:
            lines += [*(f"- {_inline(line)}" for line in fact_lines(scope.facts)), ""]
        if scope.rows:
            lines += ["```diff", *map_lines(scope), "```"]
        lines += ["", "</details>", ""]
    if diff.metadata and diff.verdict == "metadata":
        lines += [
            "<details><summary>text</summary>",
            "",
            *(f"- {_inline(x)}" for x in fact_lines(diff.metadata)),
            "",
            "</details>",
            "",
        ]
    return "\n".join(lines)


_SPECIAL = str.maketrans({c: f"\\{c}" for c in "\\`*_{}[]<>|#"} | {"\n": " ", "\r": " "})


def _inline(text: str) -> str:
    """Text that Markdown and HTML show as it is, on one line."""
    return text.replace(" -> ", " → ").translate(_SPECIAL)


def as_json(name: str, diff: PlanDiff) -> dict[str, Any]:
    """JSON-ready."""

    def change(entry: Change) -> dict[str, Any]:
        return {"name": entry.name, "before": entry.before, "after": entry.after}

    def figures(prediction: Prediction | None) -> dict[str, Any] | None:
        if prediction is None:
            return None
        return {
            "hits": prediction.tally.hits,
            "misses": prediction.tally.misses,
            "bytes_peak": prediction.bytes_peak,
            "flops_planned": prediction.flops_planned,
            "flops_uncached": prediction.flops_uncached,
        }

    return {
        "plan": name,
        "name": diff.name,
        "verdict": diff.verdict,
        "summary": headline(diff),
        "tiers": {"before": diff.tiers[0], "after": diff.tiers[1]},
        "risks": {"before": diff.risks[0], "after": diff.risks[1]},
        "acknowledgements": [change(c) for c in diff.acknowledgements],
        "text": [change(c) for c in diff.metadata],
        "scopes": [
            {
                "profile": s.profile,
                "steps": s.steps,
                "verdict": s.verdict,
                "digest": {"before": s.digests[0], "after": s.digests[1]},
                "facts": [change(c) for c in s.facts],
                "rows": [{"sites": r.sites, "branch": r.branch, "before": r.before, "after": r.after} for r in s.rows],
                "predicted": [
                    {"shape": str(shape), "before": figures(before), "after": figures(after)}
                    for shape, before, after in s.figures
                ],
            }
            for s in diff.scopes
        ],
    }
