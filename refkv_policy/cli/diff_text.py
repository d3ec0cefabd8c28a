"""A plan's difference as a person reads it: in a terminal, in a pull request, by a machine."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from itertools import groupby
from typing import Any

from refkv_policy.cli.diff_standing import Moved, counted
from refkv_policy.compiler import Prediction, human_bytes
from refkv_policy.compiler.diff import Change, PlanDiff, RowChange, ScopeDiff, Verdict
from refkv_policy.compiler.picture import LEGEND, ruler
from refkv_policy.plan.wording import visible

VERDICTS = {
    "unchanged": "nothing changed",
    "metadata": "only text changed; every table is the same",
    "behaviour": "behaviour changed",
    "added": "new plan",
    "removed": "plan removed",
}
COUNTED: dict[Verdict, str] = {
    "behaviour": "with changed behaviour",
    "added": "new",
    "removed": "removed",
    "metadata": "with changed text only",
    "unchanged": "unchanged",
}
ABSENT = "computed (no row)"


NOTHING = Moved()


def headline(diff: PlanDiff, moved: Moved = NOTHING) -> str:
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
    return "; ".join((*words, *_standing_words(moved)))


def _standing_words(moved: Moved) -> Iterator[str]:
    """What of evidence and guardrails belongs in the headline: what came to be wrong, or right."""
    for status in ("stale", "edited", "red", "green"):
        if count := moved.gone(status):
            yield f"evidence {status} at {count} operating point{'s' if count != 1 else ''}"
    if moved.faults:
        yield "its guardrails are faulty"
    if count := len(moved.broken):
        yield f"breaks {count} guardrail{'s' if count != 1 else ''}"
    if count := len(moved.mended):
        yield f"mends {count} guardrail{'s' if count != 1 else ''}"


def preface(compared: Sequence[tuple[PlanDiff, Moved]]) -> str:
    """What several plans come to together, and whether guardrails themselves changed; empty where neither is to be told."""
    verdicts = Counter(diff.verdict for diff, _ in compared)
    words = [f"{verdicts[verdict]} {COUNTED[verdict]}" for verdict in COUNTED if verdicts[verdict]]
    tallies = {
        "evidence stale": sum(bool(moved.gone("stale")) for _, moved in compared),
        "evidence red": sum(bool(moved.gone("red")) for _, moved in compared),
        "guardrails newly broken": sum(bool(moved.broken) for _, moved in compared),
    }
    words += [f"{title} in {count}" for title, count in tallies.items() if count]
    notable = set(verdicts) - {"unchanged"} or any(tallies.values())
    lines = [f"{len(compared)} plans: {', '.join(words)}"] if len(compared) > 1 and notable else []
    for before, after in dict.fromkeys(moved.guardrails for _, moved in compared if moved.demands):
        if before and after:
            lines.append(f"guardrails ask for something else: {before} -> {after}")
        else:
            lines.append(f"guardrails were {'removed' if before else 'added'}: {before or after}")
    return "\n".join(map(visible, lines))


def standing_lines(moved: Moved) -> dict[str, list[str]]:
    """Lines by heading: of evidence and of guardrails, each in the order of what a reviewer must act on."""
    evidence = [
        f"{after}, as before: {counted(scopes)}" if before == after else f"{before} -> {after}: {counted(scopes)}"
        for before, after, scopes in moved.evidence
    ]
    rails = [f"faulty: {sentence}" for sentence in moved.faults]
    rails += [f"now broken: {sentence}" for sentence in moved.broken]
    rails += [f"mended: {sentence}" for sentence in moved.mended]
    rails += [f"broken as before: {sentence}" for sentence in moved.still]
    return {title: lines for title, lines in (("evidence", evidence), ("guardrails", rails)) if lines}


def _tiers(tiers: Sequence[str]) -> str:
    return "+".join(tiers) or "none"


def figure_rows(diff: PlanDiff, shapes: slice = slice(None)) -> list[tuple[str, ...]]:
    """(model, steps, shape, speed-up, hits, cache) with `before -> after` where they differ. shapes: which of each scope.

    A plan that is there on one side only has its own figures, without an arrow.
    """
    rows: list[tuple[str, ...]] = []
    alone = diff.verdict in ("added", "removed")
    for scope in diff.changed:
        for shape, old, new in scope.figures[shapes]:
            before, after = (new or old, new or old) if alone else (old, new)
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


def text(name: str, diff: PlanDiff, moved: Moved = NOTHING) -> str:
    """For a terminal."""
    lines = [f"{name}: {headline(diff, moved)}"]
    if rows := figure_rows(diff):
        lines += ["", *_table(rows)]
    for scopes, scope in alike(diff.changed):
        if scope.rows or scope.facts:
            lines += ["", f"{scopes}:", *(f"  {line}" for line in (*fact_lines(scope.facts), *map_lines(scope)))]
    told = {"acknowledgements": fact_lines(diff.acknowledgements), **standing_lines(moved)}
    if diff.verdict == "metadata":
        told["text"] = fact_lines(diff.metadata)
    for title, each in told.items():
        if each:
            lines += ["", f"{title}:", *(f"  {line}" for line in each)]
    return "\n".join(map(visible, lines)) + "\n"


def _table(rows: Sequence[tuple[str, ...]]) -> list[str]:
    every = [COLUMNS, *rows]
    widths = [max(len(row[i]) for row in every) for i in range(len(COLUMNS))]
    return ["  ".join(f"{cell:<{w}}" for cell, w in zip(row, widths, strict=True)).rstrip() for row in every]


def markdown_preface(compared: Sequence[tuple[PlanDiff, Moved]]) -> str:
    """`preface` for a pull request."""
    return "".join(f"{_inline(_capital(line))}.\n\n" for line in preface(compared).splitlines())


def markdown(name: str, diff: PlanDiff, moved: Moved = NOTHING) -> str:
    """For a pull request: the verdict, the figures at each plan's first shape, what to act on; the rest folded."""
    lines = [f"### {_inline(name)}", "", f"**{_inline(_capital(headline(diff, moved)))}.**", ""]
    lines += _markdown_table(figure_rows(diff, slice(1)))
    for title, each in {"acknowledgements": fact_lines(diff.acknowledgements), **standing_lines(moved)}.items():
        if each:
            lines += [f"**{_capital(title)}**", "", *(f"- {_inline(line)}" for line in each), ""]
    if rows := figure_rows(diff, slice(1, None)):
        lines += _folded(f"The same at {'other shapes' if len(rows) > 1 else 'another shape'}", _markdown_table(rows))
    for scopes, scope in alike(diff.changed):
        if not (scope.rows or scope.facts):
            continue
        sites = (
            f"{len(scope.rows)} group{'s' if len(scope.rows) != 1 else ''} of sites" if scope.rows else "settings only"
        )
        inner = [*(f"- {_inline(line)}" for line in fact_lines(scope.facts)), ""] if scope.facts else []
        inner += ["```diff", *map(visible, map_lines(scope)), "```", ""] if scope.rows else []
        lines += _folded(f"{scopes}: {sites}", inner)
    if diff.metadata and diff.verdict == "metadata":
        lines += _folded("Text", [*(f"- {_inline(x)}" for x in fact_lines(diff.metadata)), ""])
    return "\n".join(lines)


def _markdown_table(rows: Sequence[tuple[str, ...]]) -> list[str]:
    if not rows:
        return []
    lines = [f"| {' | '.join(COLUMNS)} |", "|" + "---|" * len(COLUMNS)]
    return [*lines, *(f"| {' | '.join(_inline(c) for c in row)} |" for row in rows), ""]


def _folded(summary: str, lines: Sequence[str]) -> list[str]:
    return [f"<details><summary>{_inline(summary)}</summary>", "", *lines, "</details>", ""]


def _capital(text: str) -> str:
    return text[:1].upper() + text[1:]


NO_LINK = "&#8203;"
"""Put behind `@` and `#`, which are looked for in the finished page, where a backslash is gone: it would ping a team."""
_SPECIAL = str.maketrans({c: f"\\{c}" for c in "\\`*_{}[]<>|~$"} | {c: f"{c}{NO_LINK}" for c in "@#"} | {"&": "&amp;"})


def _inline(text: str) -> str:
    """Text that Markdown and HTML show as it is, on one line; that calls nobody, and refers to no issue."""
    return visible(text.replace(" -> ", " → ")).translate(_SPECIAL)


def as_json(name: str, diff: PlanDiff, moved: Moved = NOTHING) -> dict[str, Any]:
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
        "summary": headline(diff, moved),
        "tiers": {"before": diff.tiers[0], "after": diff.tiers[1]},
        "risks": {"before": diff.risks[0], "after": diff.risks[1]},
        "acknowledgements": [change(c) for c in diff.acknowledgements],
        "evidence": [
            {**scope._asdict(), "before": before, "after": after}
            for before, after, scopes in moved.evidence
            for scope in scopes
        ],
        "guardrails": {
            "before": moved.guardrails[0],
            "after": moved.guardrails[1],
            "demands_changed": moved.demands,
            "faults": moved.faults,
            "now_broken": moved.broken,
            "mended": moved.mended,
            "still_broken": moved.still,
        },
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
