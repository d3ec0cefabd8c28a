"""Diagnostics in each format."""

from __future__ import annotations

import json

import pytest

from refkv_policy.cli.render import WIDTH, render
from refkv_policy.plan import Diagnostic, Span, parse_plan

TEXT = "version: 1\nkind: plan\nnaam: é😀 # note\n"


def diagnostic(**changes: object) -> Diagnostic:
    """A diagnostic at `naam`, with changes."""
    fields: dict[str, object] = {
        "code": "RKV101",
        "severity": "error",
        "message": "`naam` is not a key of the plan",
        "file": "p.yaml",
        "span": Span(3, 1, 3, 5),
        "help": "did you mean `name`?",
    }
    return Diagnostic(**{**fields, **changes})  # type: ignore[arg-type]


def test_text_shows_the_line_and_the_mend() -> None:
    """The text format has place, code and message, the line with carets, and the help."""
    assert render([diagnostic()], "text", {"p.yaml": TEXT}) == (
        "p.yaml:3:1: error RKV101 `naam` is not a key of the plan\n"
        "  3 | naam: é😀 # note\n"
        "    | ^^^^\n"
        "  help: did you mean `name`?\n"
    )


def test_text_without_a_source_or_a_place() -> None:
    """A file without text has no snippet, and a fault of a whole file no position."""
    assert render([diagnostic()]).count("\n") == 2
    assert render([diagnostic(span=None)]).startswith("p.yaml: error RKV101")


def test_carets_stand_under_wide_characters() -> None:
    """Carets allow for characters that take two columns of a terminal."""
    out = render([diagnostic(span=Span(3, 9, 3, 15))], sources={"p.yaml": TEXT})
    assert out.splitlines()[2] == "    | " + " " * 9 + "^" * 6
    out = render([diagnostic(span=Span(3, 8, 3, 9))], sources={"p.yaml": TEXT})
    assert out.splitlines()[2] == "    | " + " " * 7 + "^^"


def test_a_span_over_several_lines_is_underlined_on_its_first() -> None:
    """Of a long span the first line is shown, underlined to its end."""
    out = render([diagnostic(span=Span(2, 7, 3, 5))], sources={"p.yaml": TEXT})
    assert out.splitlines()[1:3] == ["  2 | kind: plan", "    |       ^^^^"]


def test_long_lines_are_cropped_around_the_fault() -> None:
    """A line of a megabyte shows a stretch around the fault."""
    text = "x" * 500_000 + "HERE" + "y" * 500_000
    out = render([diagnostic(span=Span(1, 500_001, 1, 500_005))], sources={"p.yaml": text}).splitlines()
    assert len(out[1]) < WIDTH + 12
    start = out[2].index("^")
    assert out[1][start : start + 4] == "HERE"


def test_nothing_in_a_plan_can_steer_the_terminal() -> None:
    """Escape sequences in the source, the file name or a message are drawn, not sent."""
    evil = "\x1b]0;owned\x07\u202e\r"
    found = diagnostic(file=f"p{evil}.yaml", message=f"bad {evil}", span=Span(1, 1, 1, 2))
    for form in ("text", "concise"):
        out = render([found], form, {f"p{evil}.yaml": f"a{evil}"})
        assert not set(out) & set("\x1b\x07\u202e\r")


def test_colour_only_when_asked() -> None:
    """Colour is off by default and adds nothing but escape sequences when on."""
    import click

    plain = render([diagnostic()], sources={"p.yaml": TEXT})
    coloured = render([diagnostic()], sources={"p.yaml": TEXT}, color=True)
    assert "\x1b" not in plain
    assert "\x1b" in coloured
    assert click.unstyle(coloured) == plain


def test_concise_is_one_line_each() -> None:
    """The concise format has one line a diagnostic, in the order of files and places."""
    later = diagnostic(code="RKV102", severity="warning", message="two\nlines", span=Span(4, 1, 4, 2))
    other = diagnostic(file="a.yaml")
    assert render([later, diagnostic(), other], "concise") == (
        "a.yaml:3:1: error RKV101 `naam` is not a key of the plan\n"
        "p.yaml:3:1: error RKV101 `naam` is not a key of the plan\n"
        "p.yaml:4:1: warning RKV102 two lines\n"
    )


def test_json_has_ranges() -> None:
    """The json format names its version, and gives each diagnostic's rule and range, or null for a whole file."""
    value = json.loads(render([diagnostic(), diagnostic(file="z.yaml", span=None)], "json"))
    assert value["format_version"] == 1
    assert value["diagnostics"][0] == {
        "code": "RKV101",
        "name": "unknown-key",
        "severity": "error",
        "message": "`naam` is not a key of the plan",
        "help": "did you mean `name`?",
        "file": "p.yaml",
        "range": {"start": {"line": 3, "column": 1}, "end": {"line": 3, "column": 5}},
    }
    assert value["diagnostics"][1]["range"] is None


def test_json_of_nothing() -> None:
    """No diagnostics are an empty list in json and nothing in the other formats."""
    assert json.loads(render([], "json")) == {"format_version": 1, "diagnostics": []}
    assert [render([], form) for form in ("text", "concise", "github")] == ["", "", ""]


@pytest.mark.parametrize(("severity", "command"), [("error", "error"), ("warning", "warning"), ("note", "notice")])
def test_github_commands_are_escaped(severity: str, command: str) -> None:
    """Messages escape `%` and line breaks, properties `:` and `,` too, as the runner's command parser undoes them."""
    found = diagnostic(severity=severity, file="a,b:c%.yaml", message="50%: x, y\r\nz", help="m")
    assert render([found], "github") == (
        f"::{command} title=RKV101 unknown-key,file=a%2Cb%3Ac%25.yaml,line=3,endLine=3,col=1,endColumn=5"
        "::50%25: x, y  z%0Ahelp: m\n"
    )


def test_github_spans_over_lines_have_no_columns() -> None:
    """Columns are left out of a span over several lines, and everything of a place that is not there."""
    assert "line=2,endLine=3::" in render([diagnostic(span=Span(2, 7, 3, 5))], "github")
    assert render([diagnostic(span=None)], "github").startswith("::error title=RKV101 unknown-key,file=p.yaml::")


def test_an_unknown_format_is_refused() -> None:
    """A format that does not exist is a KeyError, not text."""
    with pytest.raises(KeyError):
        render([], "xml")


def test_a_real_plan_end_to_end() -> None:
    """A faulty plan's diagnostics render in every format."""
    _, diagnostics = parse_plan(TEXT, "p.yaml")
    assert [line for line in render(diagnostics, "concise").splitlines() if "RKV101" in line] == [
        "p.yaml:3:1: error RKV101 `naam` is not a key of the plan"
    ]
