"""The YAML library's errors as sentences that say what to do."""

from __future__ import annotations

import re
from typing import Any

from refkv_policy.plan import rules
from refkv_policy.plan.diagnostic import Diagnostic, Span
from refkv_policy.plan.source import lines
from refkv_policy.plan.wording import cut

# What the library's problem matches (libyaml's wording and PyYAML's), whether to point at the context rather than at the
# problem, the sentence, the help. The first that fits is taken; what none fits is told in the library's own words.
_INDENTATION = "check the indentation of this line, and the quotes and brackets of the one above"
_SENTENCES: tuple[tuple[str, bool, str, str], ...] = (
    ("mapping values are not", False, "a colon cannot stand here: this is already inside a value",
     "check the indentation of this line and the colon of the one above; quote the value if the colon belongs to it"),
    ("sequence entries are not", False, "a list cannot begin here, on the line of its key",
     "put each `- item` on a line of its own below the key"),
    ("could not find expected ':'", True, "this line has no colon, so it is neither a key nor a part of the value above",
     "write `key: value`; check quotes and indentation of this line and of the one above"),
    ("found unexpected (end of stream|document)", True, "the quote that opens here is never closed",
     "close it with the same quote"),
    ("escape c|hexa?decimal|too large|chr", False, "this backslash begins no escape that YAML knows",
     "double the backslash, or use single quotes, in which it is an ordinary character"),
    ("',' or '[]]'", True, "the `[` that opens here is not closed where it should be",
     "close it with `]`, and put a comma between its items"),
    ("',' or '}'", True, "the `{` that opens here is not closed where it should be",
     "close it with `}`, and put a comma between its entries"),
    ("expected '-' indicator", False, "this line fits neither the list above it nor the entries of that list",
     "align it with the lines it belongs to, or begin it with `- `"),
    ("expected key|expected <block end>", False, "this does not fit what stands above it", _INDENTATION),
    ("expected (the )?node content", False, "a value is missing before this character",
     "write the value, or delete the character"),
    ("document start", False, "something stands here after the end of the document",
     "check the indentation of this line, or delete the line"),
    ("comment or (a )?line break|indentation indicator", False, "nothing but a comment may follow `|` or `>` on its line",
     "put the text on the next line, indented"),
    ("alphabetic or numeric", True, "a value cannot begin with `&` or `*`", "put the value in quotes"),
)  # fmt: skip


def translated(error: Exception, file: str, text: str) -> Diagnostic:
    """The diagnostic of an error that the YAML library raised while parsing `text`; most are `yaml.MarkedYAMLError`."""
    problem = str(getattr(error, "problem", None) or error)
    context = str(getattr(error, "context", None))
    mark: Any = getattr(error, "problem_mark", None) or getattr(error, "context_mark", None)
    opening: Any = getattr(error, "context_mark", None) or mark
    here = _rest(text, mark)[:1]
    at, before = _point(text, mark), _point(text, opening)
    if "tab character" in problem or ("cannot start any token" in problem and here == "\t"):
        return rules.TAB_INDENTATION.at(file, at)
    if "nesting" in problem:
        return rules.TOO_DEEP.at(file, at)
    if "directive" in context or "YAML document" in problem or "%YAML" in problem:
        return rules.DIRECTIVE.at(file, before)
    if "tag" in context or "tag handle" in problem:
        return rules.TAG.at(file, before, text=f"`{cut((_rest(text, opening).split() or ['!'])[0])}`")
    if "cannot start any token" in problem:
        return rules.SYNTAX.at(
            file, at, problem=f"a value cannot begin with `{here}`", advice="put the value in quotes"
        )
    if "',' or" in problem and mark and mark.line == opening.line and here.strip():
        sentence = f"a comma or `{']' if ']' in problem else '}'}` is missing before this"
        return rules.SYNTAX.at(file, at, problem=sentence, advice="write it, or quote the text")
    for wording, at_context, sentence, advice in _SENTENCES:
        if re.search(wording, problem):
            return rules.SYNTAX.at(file, before if at_context else at, problem=sentence, advice=advice)
    sentence = f"this is not YAML: {cut(problem.splitlines()[0] if problem else 'unreadable', 120)}"
    return rules.SYNTAX.at(file, at, problem=sentence, advice=_INDENTATION)


def _point(text: str, mark: Any) -> Span:
    """The character at a mark; at the end of the text, the last character before it that is not blank."""
    if mark is None:
        return Span.point(1, 1)
    rows = lines(text)
    line, column = min(mark.line, len(rows) - 1), mark.column
    while line > 0 and not rows[line].strip() and mark.index >= len(text.rstrip()):
        line, column = line - 1, len(rows[line - 1])
    if column >= len(rows[line]) > 0:
        column = len(rows[line].rstrip()) - 1
    return Span.point(line + 1, max(column, 0) + 1)


def _rest(text: str, mark: Any) -> str:
    """What stands from a mark to the end of its line."""
    rows = lines(text)
    return rows[mark.line][mark.column :] if mark is not None and mark.line < len(rows) else ""
