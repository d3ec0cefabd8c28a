"""The YAML that plans are written in: scalars, positions, files and encodings, limits."""

from __future__ import annotations

import os
import sys
import time
from pathlib import Path
from typing import Any

import pytest
import yaml
from hypothesis import given, settings
from hypothesis import strategies as st

from refkv_policy.plan import Diagnostic, load_document, read_document, read_plan, text_span, yaml_events
from refkv_policy.plan.diagnostic import Span
from refkv_policy.plan.rules import MAX_BYTES, MAX_DEPTH, MAX_NODES
from refkv_policy.plan.source import lines

VALID = sorted((Path(__file__).resolve().parents[1] / "cases" / "valid").glob("*.yaml"))


def only(diagnostics: tuple[Diagnostic, ...]) -> tuple[str, Span | None]:
    """Code and span of the one diagnostic there must be."""
    (found,) = diagnostics
    assert found.help
    return found.code, found.span


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("on", "on"), ("yes", "yes"), ("NO", "NO"), ("y", "y"),
        ("true", True), ("True", True), ("FALSE", False), ("tRue", "tRue"),
        ("~", None), ("null", None), ("Null", None), ("nUll", "nUll"), ("", None),
        ("12", 12), ("012", 12), ("-0", 0), ("+7", 7), ("0o14", 12), ("0x1F", 31), ("0b11", "0b11"), ("1_000", "1_000"),
        ("1:30", "1:30"), ("2026-11-29", "2026-11-29"), ("2026-11-29 10:00:00", "2026-11-29 10:00:00"),
        ("4.0", 4.0), ("4.", 4.0), (".5", 0.5), ("1e3", 1000.0), ("1.5E-3", 0.0015), ("1e", "1e"), (".", "."),
        ("1..27", "1..27"), ("0-3", "0-3"), ("1.2.3", "1.2.3"), ("=", "="), ("'12'", "12"), ('"true"', "true"),
        ("०", "०"), ("-.5", -0.5), ("--1", "--1"), (".inf.", ".inf."), ("nan", "nan"), ("inf", "inf"), ("0o8", "0o8"),
    ],
)  # fmt: skip
def test_scalars_are_those_of_yaml_1_2(text: str, value: Any) -> None:
    """Plain scalars resolve by the core schema of YAML 1.2 (section 10.3.2); quoted ones are texts."""
    document, diagnostics = load_document(f"key: {text}\n", "f.yaml")
    assert not diagnostics
    assert document is not None
    assert document.value == {"key": value}
    assert type(document.value["key"]) is type(value)


@pytest.mark.parametrize("text", [".inf", "-.INF", ".nan", "1e400", "9" * 19, "0x" + "f" * 30, "1." + "0" * 200])
def test_numbers_that_cannot_be_kept_are_refused(text: str) -> None:
    """Infinite, undefined and overlong numbers give one diagnostic that spans the number."""
    document, diagnostics = load_document(f"a: [{text}]\n", "f.yaml")
    assert document is None
    assert only(diagnostics) in [(code, Span(1, 5, 1, 5 + len(text))) for code in ("RKV018", "RKV019")]


@pytest.mark.parametrize("loader", [yaml.Loader, getattr(yaml, "CLoader", yaml.Loader)])
def test_spans_count_characters(loader: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """Spans are exact behind non-ASCII characters, emoji and Windows line breaks, with both parsers."""
    monkeypatch.setattr(yaml_events, "LOADER", loader)
    text = "é: {\U0001f600: 'a é', b:   x y  }\r\nlist:\r\n  - \"q\"\r\n  - [1,\r\n     2]\r\nlast: end # note\r\n"
    document, diagnostics = load_document(text, "f.yaml")
    assert not diagnostics
    assert document is not None
    assert dict(document.keys) == {
        ("é",): Span(1, 1, 1, 2),
        ("é", "\U0001f600"): Span(1, 5, 1, 6),
        ("é", "b"): Span(1, 15, 1, 16),
        ("list",): Span(2, 1, 2, 5),
        ("last",): Span(6, 1, 6, 5),
    }
    assert dict(document.values) == {
        (): Span(1, 1, 6, 10),
        ("é",): Span(1, 4, 1, 26),
        ("é", "\U0001f600"): Span(1, 8, 1, 13),
        ("é", "b"): Span(1, 20, 1, 23),
        ("list",): Span(3, 3, 5, 8),
        ("list", 0): Span(3, 5, 3, 8),
        ("list", 1): Span(4, 5, 5, 8),
        ("list", 1, 0): Span(4, 6, 4, 7),
        ("list", 1, 1): Span(5, 6, 5, 7),
        ("last",): Span(6, 7, 6, 10),
    }


@pytest.mark.parametrize("path", VALID, ids=lambda path: path.stem)
def test_the_pure_parser_reads_the_same(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Without libyaml every valid case has the same value and the same spans."""
    with_libyaml, _ = read_document(path)
    monkeypatch.setattr(yaml_events, "LOADER", yaml.Loader)
    assert read_document(path)[0] == with_libyaml


@pytest.mark.parametrize(
    ("scalar", "inside"),
    [
        ("hint[deep]", Span(1, 9, 1, 13)),
        ("'hint[deep]'", Span(1, 10, 1, 14)),
        ('"hint[deep]"', Span(1, 10, 1, 14)),
        ('"\\x68int[deep]"', Span(1, 4, 1, 19)),
        (">-\n  hint[deep]", Span(1, 4, 2, 13)),
    ],
)
def test_a_span_inside_a_text(scalar: str, inside: Span) -> None:
    """Offsets in a plain or quoted text become columns; of one with escapes or line breaks the whole is taken."""
    document, _ = load_document(f"a: {scalar}", "f.yaml")
    assert document is not None
    assert text_span(document, ("a",), 5, 9) == inside


@settings(deadline=None)
@given(st.dictionaries(st.text("ab:#'é ", min_size=1), st.text() | st.integers(-9, 9) | st.lists(st.text(max_size=3))))
def test_what_a_writer_writes_is_read_back(value: dict[str, Any]) -> None:
    """Any mapping that PyYAML writes in quotes is read back equal, or refused for a character, never changed."""
    text = yaml.dump(value, default_style='"', allow_unicode=True).replace("!!int ", "")
    document, diagnostics = load_document(text, "f.yaml")
    if document is None:
        assert {d.code for d in diagnostics} == {"RKV007"}
    else:
        assert {k: str(v) if isinstance(v, int) else v for k, v in value.items()} == document.value


# Files and encodings -------------------------------------------------------------------------------------------------


def test_a_missing_file(tmp_path: Path) -> None:
    """A file that is not there is one diagnostic without a place."""
    plan, diagnostics = read_plan(tmp_path / "none.yaml")
    assert plan is None
    assert only(diagnostics) == ("RKV001", None)


def test_a_directory(tmp_path: Path) -> None:
    """A directory is one diagnostic without a place."""
    assert only(read_plan(tmp_path)[1]) == ("RKV002", None)


@pytest.mark.parametrize("name", ["a\0b.yaml", "x" * 5000])
def test_a_name_that_no_file_can_have(name: str) -> None:
    """A name that the system refuses is a diagnostic, not an exception."""
    assert only(read_plan(name)[1]) == ("RKV003", None)


@pytest.mark.skipif(sys.platform == "win32" or os.geteuid() == 0, reason="the superuser may read everything")
def test_an_unreadable_file(tmp_path: Path) -> None:
    """A file without read permission is one diagnostic that says so."""
    path = tmp_path / "p.yaml"
    path.write_text("version: 1\n")
    path.chmod(0)
    assert only(read_plan(path)[1]) == ("RKV003", None)


@pytest.mark.parametrize(
    ("text", "what"),
    [("", "an empty text"), ("\n \n", "blank lines"), ("# note\n\n", "comments"), ("\ufeff", "an empty text")],
)
def test_a_file_of_nothing(tmp_path: Path, text: str, what: str) -> None:
    """An empty file says what it holds instead of a plan."""
    path = tmp_path / "p.yaml"
    path.write_text(text, encoding="utf-8")
    plan, diagnostics = read_plan(path)
    assert plan is None
    assert only(diagnostics) == ("RKV004", Span.point(1, 1))
    assert what in diagnostics[0].message


@pytest.mark.parametrize(
    ("data", "code", "line", "column"),
    [
        ("version: 1\nname: é\n".encode("latin-1"), "RKV006", 2, 7),
        ("a: 1\r\nb: 😀é".encode() + b"\xff", "RKV006", 2, 6),
        (b"\xef\xbb\xbfa: \x80", "RKV006", 1, 4),
        ("a: 1\n".encode("utf-16"), "RKV006", 1, 1),
        ("a: 1\n".encode("utf-16-le"), "RKV007", 1, 2),
        (b"a: 1\nb: x\0y\n", "RKV007", 2, 5),
        (b"a: \x1b[31mred\n", "RKV007", 1, 4),
        ("a: 1\n\ufeffb: 2\n".encode(), "RKV007", 2, 1),
        ("a: b\u2028c: d\n".encode(), "RKV007", 1, 5),
        ("a: b\x85".encode(), "RKV007", 1, 5),
        ("a: # \u202egnp.x\n".encode(), "RKV007", 1, 6),
    ],
)
def test_wrong_encodings_and_forbidden_characters(
    tmp_path: Path, data: bytes, code: str, line: int, column: int
) -> None:
    """Bytes that are not UTF-8, and characters that hide something, are one diagnostic at line and column."""
    path = tmp_path / "p.yaml"
    path.write_bytes(data)
    found, span = only(read_plan(path)[1])
    assert (found, span) == (code, Span.point(line, column))


def test_the_offset_of_a_bad_byte(tmp_path: Path) -> None:
    """The diagnostic of a bad byte names the byte and its offset in the file, mark included."""
    path = tmp_path / "p.yaml"
    path.write_bytes(b"\xef\xbb\xbfab\xfe")
    assert "byte 0xfe at offset 5 " in read_plan(path)[1][0].message


def test_a_byte_order_mark_is_tolerated(tmp_path: Path) -> None:
    """A leading byte order mark changes neither the value nor any column."""
    path = tmp_path / "p.yaml"
    path.write_bytes(b"\xef\xbb\xbfa: 1\n")
    document, diagnostics = read_document(path)
    assert not diagnostics
    assert document is not None
    assert (document.value, document.keys[("a",)]) == ({"a": 1}, Span(1, 1, 1, 2))


def test_lone_surrogates_in_a_text() -> None:
    """A text that is no Unicode (a caller's slip) is refused like any other character that cannot be written."""
    assert only(load_document("a: \ud83d\n", "f.yaml")[1]) == ("RKV007", Span.point(1, 4))


# Limits --------------------------------------------------------------------------------------------------------------

JUNK = {
    "a too large file": ("a: " + "x" * MAX_BYTES, "RKV005"),
    "opening brackets": ("[" * (MAX_BYTES - 1), "RKV011"),
    "opening braces": ("{a: " * 200_000, "RKV011"),
    "nested lists": ("- " * 500_000, "RKV011"),
    "nested keys": ("".join(f"{' ' * n}a:\n" for n in range(1000)), "RKV011"),
    "question marks": ("? " * 500_000, "RKV011"),
    "a list of ones": ("[" + "1," * 500_000 + "]", "RKV024"),
    "keys": ("".join(f"k{n}: 1\n" for n in range(60_000)), "RKV024"),
    "one long word": ("x" * (MAX_BYTES - 1), "RKV021"),
    "one long key": ("k" * 900 + ": 1\n" + "version: 1\nkind: plan\n", None),
    "noise": ("".join(chr(33 + (n * 7919) % 90) for n in range(MAX_BYTES - 1)), None),
    "quotes": ("'" * (MAX_BYTES - 1), None),
    "blank lines": ("\n" * (MAX_BYTES - 1), "RKV004"),
    "deep in a merge": ("<<: " + "[" * 900 + "]" * 900, None),
    "long number": ("version: " + "1" * 1_000_000, None),
}


@pytest.mark.parametrize("name", JUNK)
def test_a_megabyte_of_junk(tmp_path: Path, name: str) -> None:
    """Hostile and garbled input is refused within two seconds, by the limit it meets first."""
    text, code = JUNK[name]
    path = tmp_path / "p.yaml"
    path.write_text(text, encoding="utf-8", newline="")
    begun = time.process_time()
    plan, diagnostics = read_plan(path)
    assert time.process_time() - begun < 2
    assert plan is None
    assert diagnostics
    assert all(len(d.message) + len(d.help) < 600 for d in diagnostics)
    if code is not None:
        assert diagnostics[0].code == code


def test_the_size_limit_counts_bytes() -> None:
    """A text is measured as the file it would be, before it is parsed."""
    fits = "# " + "é" * (MAX_BYTES // 2 - 4) + "\na: 1"
    assert len(fits.encode()) <= MAX_BYTES
    assert load_document(fits, "f.yaml")[0] is not None
    assert only(load_document("# " + "é" * (MAX_BYTES // 2) + "\na: 1", "f.yaml")[1])[0] == "RKV005"


@pytest.mark.parametrize(("depth", "fits"), [(MAX_DEPTH, True), (MAX_DEPTH + 1, False)])
def test_the_depth_limit(depth: int, fits: bool) -> None:
    """Nesting is counted exactly, and the diagnostic points to the bracket that is one too many."""
    document, diagnostics = load_document("[" * depth + "]" * depth, "f.yaml")
    assert (document is not None) == fits
    if not fits:
        assert only(diagnostics) == ("RKV011", Span.point(1, depth))


@pytest.mark.parametrize(("count", "fits"), [(MAX_NODES - 1, True), (MAX_NODES, False)])
def test_the_limit_of_values(count: int, fits: bool) -> None:
    """The list itself and each of its entries count as one value."""
    document, _ = load_document("[" + "1," * count + "]", "f.yaml")
    assert (document is not None) == fits


def test_an_alias_bomb_expands_to_nothing() -> None:
    """The billion laughs are refused, anchor by anchor and alias by alias, without being expanded."""
    text = "a: &a [x, x]\n" + "".join(f"{b}: &{b} [*{a}, *{a}]\n" for a, b in zip("abcdefgh", "bcdefghi", strict=True))
    document, diagnostics = load_document(text, "f.yaml")
    assert document is None
    assert [d.code for d in diagnostics].count("RKV014") == 16
    assert [d.code for d in diagnostics].count("RKV023") == 9


def test_lines_are_those_of_yaml() -> None:
    """LF, CRLF and CR end a line; form feeds and other separators, which are refused, do not."""
    assert lines("a\nb\r\nc\rd\n") == ["a", "b", "c", "d", ""]


@pytest.mark.parametrize("loader", ["CLoader", "Loader"])
@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        ('a: "\\q"', "begins no escape"),
        ('a: "\\xzz"', "begins no escape"),
        ('a: "\\U99999999"', "begins no escape"),
        ('a: "\\U7fffffff"', "begins no escape"),
        ('a: "x\n', "the quote that opens here is never closed"),
        ("a: 'x\n---\nb: 1\n", "the quote that opens here is never closed"),
        ("a: |x\n  b\n", "nothing but a comment may follow"),
        ("a: |0\n  b\n", "nothing but a comment may follow"),
        ("a: *\n", "a value cannot begin with"),
        ("a: {x: 1 y: 2}\n", "a comma or `}` is missing"),
        ("a: 1\nb\n", "this line has no colon"),
        ("a:\n  b: 1\n  - c\n", "does not fit what stands above it"),
    ],
)
def test_both_parsers_faults_are_one_sentence(
    text: str, sentence: str, loader: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Libyaml and PyYAML word a fault differently; people read one sentence, and never a traceback."""
    monkeypatch.setattr(yaml_events, "LOADER", getattr(yaml, loader))
    document, (fault,) = load_document(text, "x.yaml")
    assert document is None
    assert fault.code == "RKV010"
    assert sentence in fault.message
    assert "not YAML" not in fault.message
