"""Figures and foreign texts in words."""

from __future__ import annotations

import unicodedata

import pytest
from hypothesis import given
from hypothesis import strategies as st

from refkv_policy.evidence import Figure, make_item
from refkv_policy.report.words import (
    Say,
    apart,
    decay,
    figure,
    item_says,
    listed,
    number,
    percent,
    seconds,
    size,
    times,
    visible,
)
from tests.report.sample import interval


def test_what_hides_or_turns_text_is_made_visible() -> None:
    """Direction marks, controls, zero widths and lone surrogates are written as their code points."""
    hostile = "a\u202eb\u2066c\u200bd\x1be\ud800f\x00"
    shown = visible(hostile)
    assert shown == "a⟨U+202E⟩b⟨U+2066⟩c⟨U+200B⟩d⟨U+001B⟩e⟨U+D800⟩f⟨U+0000⟩"
    shown.encode("utf-8")


@pytest.mark.parametrize("text", ["plain", "<b>&\"'", "Łódź 画像 σ × –", "emoji 🎬", "space\N{NO-BREAK SPACE}kept"])
def test_what_can_be_seen_stays_as_it_is(text: str) -> None:
    """Only characters that hide or turn others are replaced."""
    assert visible(text) == text


def test_breaks_become_spaces_and_long_texts_are_cut() -> None:
    """A text stays on its line, and of a megabyte its beginning is shown with the rest counted."""
    assert visible("a\r\n\tb") == "a   b"
    assert visible("x" * 1_000_000).endswith("x … (996000 more characters)")


def test_no_shown_character_is_a_control_or_format() -> None:
    """Over the planes in use, surrogates and tags among them: nothing shown is of a category that cannot be seen."""
    everything = "".join(map(chr, [*range(0x20000), *range(0xE0000, 0xE0200), 0x10FFFF]))
    shown = "".join(visible(everything[start : start + 4000]) for start in range(0, len(everything), 4000))
    assert not {unicodedata.category(c) for c in set(shown)} & {"Cc", "Cf", "Cs", "Zl", "Zp"}


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (0, "0"),
        (0.00214, "0.00214"),
        (1.236, "1.24"),
        (36, "36"),
        (12345, "12,345"),
        (1e-7, "1e-07"),
        (10**400, "beyond 1e308"),
    ],
)
def test_numbers_have_three_digits(value: float, text: str) -> None:
    """Three significant digits, thousands parted, and no failure on what a hostile log may hold."""
    assert number(value) == text


def test_units() -> None:
    """Shares, ratios, seconds and bytes carry their units."""
    said = [percent(0.0821), times(1.333), seconds(0.0123), seconds(4.1), size(3 << 20)]
    assert [text.replace("\N{NO-BREAK SPACE}", " ") for text in said] == [
        "8.21 %",
        "1.33×",
        "12.3 ms",
        "4.1 s",
        "3 MiB",
    ]


def test_a_figure_without_a_value_is_a_dash() -> None:
    """What was not measured is never a zero."""
    assert figure(None) == "–"
    assert figure(Figure(0.002, interval(0.001, 0.003))) == "0.002 (0.001 to 0.003)"


def test_gate_items_are_written_in_their_unit() -> None:
    """A drop in percent, memory in bytes, anything else as a number."""
    drop, memory = make_item("mean_drop", 0.1, why=""), make_item("memory", 1, why="", threshold=1 << 20)
    assert item_says(drop)(0.08).replace("\N{NO-BREAK SPACE}", " ") == "8 %"
    assert item_says(memory)(1 << 20).replace("\N{NO-BREAK SPACE}", " ") == "1 MiB"


def test_lists_read_as_sentences() -> None:
    """Two names are joined by `and`; of very many the first are named and the others counted."""
    assert listed(["a"]) == "a"
    assert listed(["a", "b", "c"]) == "a, b and c"
    assert listed(list("abcdefgh"), most=2) == "a, b and 6 more"


@pytest.mark.parametrize(
    ("say", "limit", "value", "shown", "told"),
    [
        (percent, 0.1, 0.10036748805784634, "10 %", "10.04 %"),
        (percent, 0.9, 0.8999, "90 %", "89.99 %"),
        (decay, 0.5, 0.50004, "0.5 /s", "0.50004 /s"),
        (size, 2684354560, 2684354561, "2,684,354,560 B", "2,684,354,561 B"),
        (number, 0.0015579867430973783, 0.00155799, "0.001557987", "0.00155799"),
        (times, 1.2, 1.2004, "1.2000×", "1.2004×"),
        (percent, 0.1, 0.1, "10 %", "10 %"),
        (percent, 0.1, 0.04, "10 %", "4 %"),
    ],
)
def test_a_figure_never_rounds_onto_its_limit(say: Say, limit: float, value: float, shown: str, told: str) -> None:
    """So many digits that the two read differently, three where that is enough; equal ones read equal."""
    said = apart(say, limit, value)
    texts = [said(each).replace("\N{NO-BREAK SPACE}", " ") for each in (limit, value)]
    assert texts == [shown, told]


@given(st.floats(1e-6, 1e3), st.lists(st.floats(1e-6, 1e3), max_size=4))
def test_what_is_read_has_the_order_of_what_was_measured(limit: float, values: list[float]) -> None:
    """For any figures: read back from the text, each lies on the same side of the limit as it did."""
    said = apart(number, limit, *values)
    shown = float(said(limit).replace(",", ""))
    for value in values:
        read = float(said(value).replace(",", ""))
        assert (read > shown, read < shown) == (value > limit, value < limit)
