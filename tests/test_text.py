"""Text at the width of a terminal: lines are broken between words only, tables keep their columns."""

from __future__ import annotations

import re
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path

import pytest
from click.testing import CliRunner

from refkv_policy.cli import refkv as command
from refkv_policy.cli.group import echo
from refkv_policy.text import columns, fold, table
from tests.text import told

PLAN = """\
version: 1
kind: plan
name: a-plan-whose-name-is-rather-long
models: [wan2.1-vace-mini]
run: {steps: [30], sampler: {name: unipc, flow_shift: 3.0}, guidance: 5.0, shapes: [{size: 96x96, frames: 17}]}
caches:
  - {name: deep, tier: P1, method: hint_reuse, at: "hint[deep]", refresh: {interval: 40}, window: "1..27", branches: to}
acknowledgements:
  - {risk: lossy-hint-cache, by: a team, date: 2026-01-01, reason: A reason that goes on for a while, as they do, evid: x}
"""


@pytest.fixture
def narrow(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Callable[..., tuple[str, str]]:
    """Runs a command line; gives what it prints at 80 columns, and where nothing need be broken."""
    monkeypatch.chdir(tmp_path)

    def run(*arguments: str) -> tuple[str, str]:
        found = []
        for width in ("80", ""):
            monkeypatch.setenv("COLUMNS", width)
            found.append(CliRunner().invoke(command, list(arguments), prog_name="refkv").stdout)
        return found[0], found[1]

    return run


@pytest.mark.parametrize("arguments", [("plans",), ("models",), ("rule",), ("run", "--dry-run")], ids=str)
def test_commands_keep_to_eighty_columns_and_break_no_word(
    narrow: Callable[..., tuple[str, str]], arguments: tuple[str, ...]
) -> None:
    """No line is longer, and the words are those of the text that is not broken, in their order."""
    folded, whole = narrow(*arguments)
    assert max(map(len, whole.splitlines())) > 80, "the text is long enough to be broken"
    assert told(folded, whole) <= 80


def test_validate_keeps_carets_below_what_they_point_at(narrow: Callable[..., tuple[str, str]], tmp_path: Path) -> None:
    """A long line is cut, not wrapped: the caret stays below the first character of the fault."""
    (tmp_path / "p.yaml").write_text(PLAN)
    folded, _ = narrow("validate", "p.yaml")
    lines = folded.splitlines()
    assert max(map(len, lines)) <= 80
    found = 0
    for above, below in pairwise(lines):
        if re.fullmatch(r" +\| +\^+", below):
            word = above[below.index("^") : below.rindex("^") + 1]
            found += word in ("to", "evid")
    assert found == 2, folded


def test_fold_is_exact() -> None:
    """The rest is indented by two more; runs of spaces stay; a word that is longer than the line stays whole."""
    assert fold("  aa bb cc dd", 8) == "  aa bb\n    cc\n    dd"
    assert fold("aa  bb cc", 6) == "aa  bb\n  cc"
    assert fold("x" * 20 + " yy", 8) == "x" * 20 + "\n  yy"
    assert fold("short\n" + "a b " * 4, 8) == "short\na b a b\n  a b a\n  b "
    assert fold("a b c", None) == "a b c"
    assert fold("\x1b[31maaaa\x1b[0m bb", 7) == "\x1b[31maaaa\x1b[0m bb", "colours take no columns"
    assert fold("日本 語語", 7) == "日本\n  語語"


@pytest.mark.parametrize("command", ["::error::x", "::add-mask::secret", "\u00a0::warning::x", "::stop-commands::t"])
@pytest.mark.parametrize("colours", [False, True])
def test_no_line_that_is_broken_begins_with_a_command_to_a_ci_runner(
    capsys: pytest.CaptureFixture[str], command: str, colours: bool
) -> None:
    """A runner takes `::error::` at the start of a line for a command, behind spaces too: what is folded is made inert after."""
    echo(fold(f"a name of many words, {command} and what follows it in the same line", 24), colours=colours)
    told = capsys.readouterr().out.split("\n")
    assert any(": :" in line for line in told)
    assert not any(line.lstrip().startswith("::") for line in told)


def test_tables_break_cells_between_words(monkeypatch: pytest.MonkeyPatch) -> None:
    """At any width that the longest words fit into, every cell's words are whole and numbers stand to the right."""
    rows = [["", "run", "error"], ["*", "refresh.interval=2, at=hint[deep]", "0.0043 (0.0030–0.0051)"], ["", "b", "1"]]
    monkeypatch.setenv("COLUMNS", "")
    wide = table(rows)
    assert [len(line) for line in wide.splitlines()] == [60, 60, 60]
    monkeypatch.setenv("COLUMNS", "40")
    narrow = table(rows)
    assert max(map(len, narrow.splitlines())) <= 40
    assert sorted(narrow.split()) == sorted(wide.split())


@pytest.mark.parametrize(("value", "width"), [("80", 80), ("0", None), ("", None), ("wide", None), ("-3", None)])
def test_the_width_is_what_columns_says(monkeypatch: pytest.MonkeyPatch, value: str, width: int | None) -> None:
    """COLUMNS counts where it is a number; where the output is no terminal, nothing else does."""
    monkeypatch.setenv("COLUMNS", value)
    assert columns() == width
