"""Diagnostics as SARIF 2.1.0, the format that code-scanning services read.

One run; the rules that were broken, with their reasons and examples; results with one-line regions, since services refuse or
misplace others. Paths are relative to the repository, under `%SRCROOT%`, whose own place is left to the reader: the same
plans give the same file on every machine.
"""

from __future__ import annotations

import hashlib
from collections import Counter
from collections.abc import Iterable, Mapping
from pathlib import Path, PurePath
from typing import Any
from urllib.parse import quote

from refkv_policy import __version__
from refkv_policy.cli.catalogue import all_rules, examples, family, summary
from refkv_policy.plan.catalogue import Rule
from refkv_policy.plan.diagnostic import Diagnostic, Span
from refkv_policy.plan.source import lines
from refkv_policy.plan.wording import inert, json_text, visible
from refkv_policy.repository import git_root

SCHEMA = "https://docs.oasis-open.org/sarif/sarif/v2.1.0/errata01/os/schemas/sarif-schema-2.1.0.json"
ROOT = "%SRCROOT%"
FINGERPRINT = "refkv/v1"
"""Of the code, the line's own text and how often both occurred before in the file: lines that move keep theirs."""


def sarif(diagnostics: Iterable[Diagnostic], sources: Mapping[str, str], root: Path | None = None) -> str:
    """A SARIF log, ending in a line break. sources: the text of each file. root: the repository; found from here upward."""
    found = tuple(diagnostics)
    top = (root or repository_root(Path.cwd())).resolve()
    known = all_rules()
    codes = sorted({d.code for d in found})
    split = {file: lines(text.removeprefix("\ufeff")) for file, text in sources.items()}
    seen: Counter[tuple[str, str]] = Counter()
    results = []
    for d in found:
        uri = artifact(d.file, top)
        line = _line(d.span, split.get(d.file, ()))
        digest = hashlib.sha256(f"{d.code}\0{line.strip()}".encode("utf-8", "surrogatepass")).hexdigest()[:32]
        seen[d.file, digest] += 1
        location: dict[str, Any] = {"artifactLocation": uri}
        if d.span is not None:
            location["region"] = region(d.span, line if split.get(d.file) else None)
        results.append(
            {
                "ruleId": d.code,
                "ruleIndex": codes.index(d.code),
                "level": d.severity,
                "message": {"text": _literal(visible(f"{_sentence(d.message)} Help: {d.help}"))},
                "locations": [{"physicalLocation": location}],
                "partialFingerprints": {FINGERPRINT: f"{digest}:{seen[d.file, digest]}"},
            }
        )
    driver = {
        "name": "refkv",
        "semanticVersion": __version__,
        "shortDescription": {"text": "A policy engine for diffusion-model caches."},
        "rules": [_rule(known[code]) if code in known else {"id": code} for code in codes],
    }
    run = {
        "tool": {"driver": driver},
        "columnKind": "unicodeCodePoints",
        "newlineSequences": ["\r\n", "\n", "\r"],
        "originalUriBaseIds": {ROOT: {"description": {"text": "The root of the repository."}}},
        "results": results,
    }
    return json_text({"$schema": SCHEMA, "version": "2.1.0", "runs": [run]}) + "\n"


def repository_root(start: Path) -> Path:
    """The nearest folder upward that git keeps a repository in; `start` where there is none."""
    here = start.resolve()
    return git_root(here) or here


def artifact(file: str, root: Path) -> dict[str, str]:
    """Where a file is: relative to the root with forward slashes, or an absolute URI when it lies outside."""
    if file.startswith("<"):
        return {"uri": quote(file)}
    path = Path(file).resolve()
    try:
        return {"uri": quote(PurePath(path.relative_to(root)).as_posix()), "uriBaseId": ROOT}
    except ValueError:
        return {"uri": path.as_uri()}


def region(span: Span, line: str | None) -> dict[str, int]:
    """One line from 1, its end exclusive and within the line where that is known.

    A span over several lines is clipped to its first: to the end of it, which SARIF assumes where no end is given.
    """
    start = {"startLine": span.line, "startColumn": span.column, "endLine": span.line}
    if line is None:
        return {**start, "endColumn": span.end_column} if span.line == span.end_line else start
    end = span.end_column if span.line == span.end_line else len(line.rstrip()) + 1
    return {**start, "endColumn": max(span.column, min(end, len(line) + 1))}


def help_markdown(rule: Rule) -> str:
    """The reason and the example of a rule, as a page of a code-scanning service shows it."""
    parts, example = [rule.why], examples().get(rule.code)
    sides = (
        ()
        if example is None
        else (("Guardrails", example.guardrails), ("Wrong", example.wrong), ("Right", example.right))
    )
    for heading, text in sides:
        shown = inert(text).rstrip("\n")
        if shown:
            parts.append(f"**{heading}**\n\n```yaml\n{shown}\n```" if "\n" in text else f"**{heading}**: {shown}")
    return "\n\n".join(parts)


def _rule(rule: Rule) -> dict[str, Any]:
    return {
        "id": rule.code,
        "name": rule.name,
        "shortDescription": {"text": _sentence(summary(rule))},
        "fullDescription": {"text": rule.why},
        "help": {"text": rule.why, "markdown": help_markdown(rule)},
        "defaultConfiguration": {"level": rule.severity},
        "properties": {"tags": [family(rule.code)]},
    }


def _line(span: Span | None, source: Iterable[str]) -> str:
    """The text of a span's first line; empty where the text is not there."""
    rows = tuple(source)
    return rows[span.line - 1] if span is not None and span.line <= len(rows) else ""


def _literal(text: str) -> str:
    """Braces doubled, as a message needs them in which `{0}` would be a placeholder [SARIF 2.1.0, 3.11.5]."""
    return text.replace("{", "{{").replace("}", "}}")


def _sentence(text: str) -> str:
    flat = " ".join(text.split())
    return f"{flat[:1].upper()}{flat[1:]}{'' if flat.endswith(('.', '!', '?')) else '.'}"
