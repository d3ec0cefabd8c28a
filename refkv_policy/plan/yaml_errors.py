"""The YAML library's errors as sentences that say what to do."""

from __future__ import annotations

from typing import Any

from refkv_policy.plan import rules
from refkv_policy.plan.diagnostic import Diagnostic, Span
from refkv_policy.plan.source import lines
from refkv_policy.plan.wording import cut

CONTEXT, PROBLEM = "context", "problem"

# What the library's problem contains, where to point, the sentence, the help. The first that fits is taken.
_SENTENCES: tuple[tuple[str, str, str, str], ...] = (
    ("mapping values are not allowed", PROBLEM,
     "a colon cannot stand here: this is already inside a value",
     "check the indentation of this line and the colon of the one above; quote the value if the colon belongs to it"),
    ("sequence entries are not allowed", PROBLEM,
     "a list cannot begin here, on the line of its key",
     "put each `- item` on a line of its own below the key"),
    ("mapping keys are not allowed", PROBLEM,
     "a `?` key cannot stand here",
     "write `key: value`, or put the text in quotes"),
    ("could not find expected ':'", CONTEXT,
     "this line has no colon, so it is neither a key nor a part of the value above",
     "write `key: value`; check quotes and indentation of this line and of the one above"),
    ("found unexpected end of stream", CONTEXT,
     "the quote that opens here is never closed",
     "close it with the same quote"),
    ("found unexpected document", CONTEXT,
     "the quote that opens here is not closed before the `---` or `...` of a document",
     "close it with the same quote"),
    ("unknown escape character", PROBLEM,
     "this backslash begins no escape that YAML knows",
     "double the backslash, or use single quotes, in which it is an ordinary character"),
    ("escape code", PROBLEM,
     "this escape names no character",
     "write the character itself"),
    ("hexdecimal", PROBLEM,
     "this escape lacks hexadecimal digits",
     "double the backslash, or use single quotes, in which it is an ordinary character"),
    ("hexadecimal", PROBLEM,
     "this escape lacks hexadecimal digits",
     "double the backslash, or use single quotes, in which it is an ordinary character"),
    ("',' or ']'", CONTEXT,
     "the `[` that opens here is not closed where it should be",
     "close it with `]`, and put a comma between its items"),
    ("',' or '}'", CONTEXT,
     "the `{` that opens here is not closed where it should be",
     "close it with `}`, and put a comma between its entries"),
    ("expected '-' indicator", PROBLEM,
     "the indentation of this line fits neither the list above it nor the entries of that list",
     "align it with the lines it belongs to, or begin it with `- `"),
    ("expected <block end>, but found '-'", PROBLEM,
     "a list item cannot stand here among the keys of a mapping",
     "indent it below its key"),
    ("expected key", PROBLEM,
     "this is not a key of the mapping above it",
     "check the indentation of this line, and the quotes and brackets of the one above"),
    ("expected <block end>", PROBLEM,
     "this does not fit what stands above it",
     "check the indentation of this line, and the quotes and brackets of the one above"),
    ("expected node content", PROBLEM,
     "a value is missing before this character",
     "write the value, or delete the character"),
    ("expected the node content", PROBLEM,
     "a value is missing before this character",
     "write the value, or delete the character"),
    ("document start", PROBLEM,
     "something stands here after the end of the document",
     "check the indentation of this line, or delete the line"),
    ("comment or line break", PROBLEM,
     "nothing but a comment may follow `|` or `>` on its line",
     "put the text on the next line, indented"),
    ("comment or a line break", PROBLEM,
     "nothing but a comment may follow `|` or `>` on its line",
     "put the text on the next line, indented"),
    ("indentation indicator", PROBLEM,
     "the indentation of a `|` or `>` text must be 1 to 9",
     "leave the number out"),
    ("alphabetic or numeric", CONTEXT,
     "a value cannot begin with `&` or `*`",
     "put the value in quotes"),
)  # fmt: skip


def translated(error: Any, file: str, text: str) -> Diagnostic:
    """The diagnostic of an error that the YAML library raised while parsing `text`. Takes a `yaml.MarkedYAMLError`."""
    problem = str(getattr(error, "problem", None) or error)
    mark = getattr(error, "problem_mark", None) or getattr(error, "context_mark", None)
    context = getattr(error, "context_mark", None) or mark
    here = _character(text, mark)
    if "tab character" in problem or ("cannot start any token" in problem and here == "\t"):
        return rules.TAB_INDENTATION.at(file, _point(text, mark))
    if "nesting" in problem:
        return rules.TOO_DEEP.at(file, _point(text, mark))
    if "cannot start any token" in problem:
        sentence = f"a value cannot begin with `{here}`"
        return rules.SYNTAX.at(file, _point(text, mark), problem=sentence, advice="put the value in quotes")
    if "directive" in str(getattr(error, "context", "")) or "YAML document" in problem or "%YAML" in problem:
        return rules.DIRECTIVE.at(file, _point(text, context))
    if "tag" in str(getattr(error, "context", "")) or "tag handle" in problem:
        return rules.TAG.at(file, _point(text, context), text=f"`{cut(_rest(text, context))}`")
    for bracket, closing in (("',' or ']'", "]"), ("',' or '}'", "}")):
        if bracket in problem and mark and context and mark.line == context.line and here.strip():
            sentence = f"a comma or `{closing}` is missing before this"
            return rules.SYNTAX.at(file, _point(text, mark), problem=sentence, advice="write it, or quote the text")
    for part, where, sentence, advice in _SENTENCES:
        if part in problem:
            span = _point(text, context if where == CONTEXT else mark)
            return rules.SYNTAX.at(file, span, problem=sentence, advice=advice)
    sentence = f"this is not YAML: {cut(problem.splitlines()[0] if problem else 'unreadable', 120)}"
    advice = "check the indentation, quotes and brackets of this line and of the one above"
    return rules.SYNTAX.at(file, _point(text, mark), problem=sentence, advice=advice)


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


def _character(text: str, mark: Any) -> str:
    rows = lines(text)
    return rows[mark.line][mark.column : mark.column + 1] if mark is not None and mark.line < len(rows) else ""


def _rest(text: str, mark: Any) -> str:
    rows = lines(text)
    words = rows[mark.line][mark.column :].split() if mark.line < len(rows) else []
    return words[0] if words else "!"
