"""No mutation of a valid plan raises or hangs: each gives a plan or diagnostics with places inside the text."""

from __future__ import annotations

from datetime import timedelta
from pathlib import Path

import pytest
import yaml
from hypothesis import given, settings
from hypothesis import strategies as st

from refkv_policy.cli.render import FORMATS, render
from refkv_policy.plan import errors, parse_plan, plan_digest, yaml_events
from refkv_policy.plan.source import lines

VALID = Path(__file__).resolve().parents[1] / "cases" / "valid"
TEXTS = [path.read_text(encoding="utf-8") for path in sorted(VALID.glob("*.yaml"))]
SIGNS = "[]{}:,-!&*#|>'\"%@`?\t\n\r \\~\ufeff\0\x85\u2028\ud800\x1bé😀"
WORDS = (
    "<<: ",
    "&a ",
    "*a",
    "!!str ",
    "---\n",
    "...\n",
    "? ",
    "- ",
    "\n  ",
    "%YAML 1.2\n",
    "\\x41",
    "0:3",
    "1..2",
    "4.0",
)
JUNK = st.sampled_from([*SIGNS, *WORDS, ".nan", "9" * 50, "null"]) | st.text(max_size=3)


@st.composite
def mutants(draw: st.DrawFn) -> str:
    """A valid plan after one to four blows."""
    text = draw(st.sampled_from(TEXTS))
    for _ in range(draw(st.integers(1, 4))):
        rows = text.split("\n")
        a, b = sorted(draw(st.tuples(*[st.integers(0, max(len(rows) - 1, 0))] * 2)))
        at = draw(st.integers(0, len(text)))
        match draw(st.integers(0, 7)):
            case 0:
                del rows[a]
                text = "\n".join(rows)
            case 1:
                text = "\n".join([*rows[:b], rows[a], *rows[b:]])
            case 2:
                rows[a], rows[b] = rows[b], rows[a]
                text = "\n".join(rows)
            case 3:
                text = text[:at] + draw(JUNK) + text[at:]
            case 4:
                text = text[:at]
            case 5:
                text = text[:at] + text[at + draw(st.integers(1, 5)) :]
            case 6:
                words = text.split(" ")
                i, j = draw(st.tuples(*[st.integers(0, len(words) - 1)] * 2))
                words[i], words[j] = words[j], words[i]
                text = " ".join(words)
            case _:
                rows[a] = " " * draw(st.integers(0, 6)) + rows[a].strip()
                text = "\n".join(rows)
    return text


def examine(text: str) -> None:
    """What must hold for any text whatever."""
    plan, diagnostics = parse_plan(text, "p.yaml")
    assert (plan is None) == bool(errors(diagnostics))
    if plan is not None:
        plan_digest(plan)
    rows = lines(text.removeprefix("\ufeff"))
    for d in diagnostics:
        assert d.message
        assert d.help
        assert d.span is not None
        assert 1 <= d.span.line <= d.span.end_line <= len(rows)
        assert 1 <= d.span.column <= len(rows[d.span.line - 1]) + 1
        assert (d.span.line, d.span.column) < (d.span.end_line, d.span.end_column)
    assert len({(d.code, d.span) for d in diagnostics}) == len(diagnostics) or "RKV102" in {d.code for d in diagnostics}
    for form in FORMATS:
        render(diagnostics, form, {"p.yaml": text})


@settings(max_examples=300, deadline=timedelta(seconds=20))
@given(mutants())
def test_mutants_never_raise(text: str) -> None:
    """Deleted, doubled, swapped, re-indented lines, swapped words, junk and truncation give diagnostics or a plan."""
    examine(text)


@settings(max_examples=60, deadline=timedelta(seconds=20))
@given(mutants())
def test_mutants_never_raise_with_the_pure_parser(text: str) -> None:
    """The same without libyaml."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(yaml_events, "LOADER", yaml.Loader)
        examine(text)


@settings(max_examples=100, deadline=timedelta(seconds=20))
@given(st.text())
def test_any_text_never_raises(text: str) -> None:
    """Texts that never were a plan give diagnostics."""
    examine(text)
