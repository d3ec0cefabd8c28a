"""Hostile files: one clear diagnostic each, never a traceback."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from refkv_policy.evidence import Evidence, parse_evidence, read_evidence
from refkv_policy.evidence.json_text import load_json
from refkv_policy.evidence.rules import MAX_BYTES, MAX_DEPTH, MAX_VALUES
from tests.evidence import sample

HEAD = '{"version": 1, "kind": "evidence",\n'


@pytest.mark.parametrize(
    ("text", "code", "line", "column", "words"),
    [
        ("", "RKV511", 1, 1, "expecting value"),
        ("not json", "RKV511", 1, 1, "this is not JSON"),
        ("version: 1\nkind: evidence\n", "RKV511", 1, 1, "this is not JSON"),
        ('{"a": 1,\n "b": }', "RKV511", 2, 7, "expecting value"),
        ('{"a": 1,\n "b": "x', "RKV511", 2, 7, "unterminated string"),
        ('{"a": "\t"}', "RKV511", 1, 8, "control character"),
        (HEAD + ' "plan": NaN}', "RKV511", 2, 10, "not finite"),
        (HEAD + ' "plan": [1, -Infinity]}', "RKV511", 2, 14, "not finite"),
        (HEAD + ' "plan": 1e999}', "RKV511", 2, 10, "not finite"),
        (HEAD + f' "plan": {"9" * 5000}}}', "RKV511", 2, 10, "digits"),
        (HEAD + ' "plan": "\\ud800"}', "RKV511", 2, 10, "half a character"),
        (HEAD + ' "plan": {"\\udfff": 1}}', "RKV511", 2, 10, "half a character"),
        (
            HEAD + ' "plan": {"a": {},\n  "b": 1, "a": 2}}',
            "RKV511",
            3,
            11,
            '"a" stands here a second time; first on line 2',
        ),
        ("[]", "RKV512", 1, 1, "it holds a list"),
        ("3", "RKV512", 1, 1, "it holds the number 3"),
        ("null", "RKV512", 1, 1, "it holds nothing"),
        ("{}", "RKV512", 1, 1, "there is none"),
        ('{"kind": "plan"}', "RKV512", 1, 10, 'it says the text "plan"'),
        ('{"kind": "evidence"}', "RKV512", 1, 1, "the file says nothing"),
        ('{"kind": "evidence", "version": 2}', "RKV512", 1, 33, "reads version 1, and the file says the number 2"),
        ('{"kind": "evidence", "version": true}', "RKV512", 1, 33, "the file says true"),
        ('{"kind": "evidence", "version": 1.0}', "RKV512", 1, 33, "the file says the number 1.0"),
    ],
)
def test_each_gives_one_diagnostic_at_its_place(text: str, code: str, line: int, column: int, words: str) -> None:
    """The exact line and column, and words that say what is wrong."""
    evidence, diagnostics = parse_evidence(text, "x.json")
    assert evidence is None
    assert [(d.code, d.span and d.span.line, d.span and d.span.column) for d in diagnostics] == [(code, line, column)]
    assert words in diagnostics[0].message
    assert diagnostics[0].help


@pytest.mark.parametrize(
    "text",
    [
        "[" * 100_000,
        "[" * 900 + "]" * 900,
        '{"a":' * 5000,
        '{"a":' * 200 + "1" + "}" * 200,
        '{"a": ' + "[" * 500 + "]" * 500 + ', "a": 1}',
        '{"a": ' + "[" * 5000 + "]" * 5000 + ', "a": 1}',
    ],
    ids=["open", "closed", "open mappings", "mappings", "under a key that is repeated", "far under one"],
)
def test_deep_nesting_is_refused(text: str) -> None:
    """Any depth beyond the limit is one diagnostic, however it is written."""
    evidence, diagnostics = parse_evidence(text)
    assert evidence is None
    assert [d.code for d in diagnostics] == ["RKV511"]


def test_depth_is_allowed_to_the_limit() -> None:
    """The deepest permitted nesting is read, one more is not."""
    assert load_json("[" * MAX_DEPTH + "]" * MAX_DEPTH, "x")[0] is not None
    assert load_json("[" * (MAX_DEPTH + 1) + "]" * (MAX_DEPTH + 1), "x")[0] is None


def test_size_is_limited() -> None:
    """Too many bytes and too many values are refused before anything is parsed."""
    for text in ('"' + "x" * MAX_BYTES + '"', "[" + "0," * (MAX_VALUES + 1) + "0]"):
        evidence, diagnostics = parse_evidence(text)
        assert evidence is None
        assert "larger than" in diagnostics[0].message


def faulty_files(folder: Path) -> dict[str, Path]:
    """Files that cannot be had as text, by what is told of them."""
    files = {
        "no such file": folder / "none.json",
        "directory": folder / "folder",
        "not UTF-8 (byte 0xff at offset 0)": folder / "utf16.json",
        "not UTF-8 (byte 0xfc at offset 1)": folder / "latin1.json",
        "larger than": folder / "large.json",
        "embedded null byte": folder / "a\0b.json",
        "too long": folder / ("x" * 300),
    }
    files["directory"].mkdir()
    files["not UTF-8 (byte 0xff at offset 0)"].write_bytes(sample.text().encode("utf-16-le").join([b"\xff\xfe", b""]))
    files["not UTF-8 (byte 0xfc at offset 1)"].write_bytes('"ü"'.encode("latin-1"))
    files["larger than"].write_bytes(b" " * (MAX_BYTES + 1))
    if hasattr(os, "mkfifo"):
        files["regular file"] = folder / "pipe"
        os.mkfifo(files["regular file"])
    return files


def test_files_that_cannot_be_read_are_told(tmp_path: Path) -> None:
    """Missing, a directory, a pipe (which must not be waited for), a wrong encoding, too large: one diagnostic each."""
    for words, path in faulty_files(tmp_path).items():
        evidence, diagnostics = read_evidence(path)
        assert evidence is None
        assert [d.code for d in diagnostics] == ["RKV510"], words
        assert words in diagnostics[0].message


def test_a_byte_order_mark_is_tolerated(tmp_path: Path) -> None:
    """Some editors write one; it is no edit."""
    path = tmp_path / "x.json"
    path.write_bytes(b"\xef\xbb\xbf" + sample.text().encode())
    assert read_evidence(path) == (sample.evidence(), ())


def test_schema_faults_stand_where_they_are() -> None:
    """A wrong type, an unknown key, a missing key and guidance 1, each at its own line."""
    value = sample.value()
    scope = value["scopes"][0]
    scope["setting"]["batch"] = "one"
    scope["guidance"] = 1.0
    scope["memry"] = scope.pop("memory")
    del scope["bound"]["weights"]
    text = json.dumps(value, indent=1)
    evidence, diagnostics = parse_evidence(text)
    assert evidence is None
    lines = text.split("\n")
    told = {d.code: lines[d.span.line - 1].strip() for d in diagnostics if d.span is not None}
    assert told["RKV101"].startswith('"memry"')
    assert told["RKV102"].startswith('"bound"')
    assert told["RKV103"] == '"batch": "one",'
    assert told["RKV106"].startswith('"guidance": 1.0')
    assert len(diagnostics) == 4


JSON = st.recursive(
    st.one_of(
        st.none(),
        st.booleans(),
        st.integers(),
        st.floats(),
        st.sampled_from(
            [-1, 10**29, 10**400, 1e308, -0.0, "", "green", "sha256:" + "0" * 64, "\ud800", "\x1b[2J", "💥"]
        ),
        st.text(max_size=8),
    ),
    lambda inner: st.one_of(st.lists(inner, max_size=3), st.dictionaries(st.text(max_size=6), inner, max_size=3)),
    max_leaves=6,
)


def sound_or_told(text: str) -> None:
    """Reading either gives evidence whose every part can be asked, or says in whole sentences why not."""
    evidence, diagnostics = parse_evidence(text, "x.json")
    assert (evidence is None) <= bool(diagnostics)
    if evidence is not None:
        assert isinstance(evidence, Evidence)
        assert evidence.verdict in ("green", "red", "incomplete")
        assert all(scope.verdicts and str(scope.scope) for scope in evidence.scopes)
    for d in diagnostics:
        assert d.message
        assert d.help
        assert d.span is None or d.span.line >= 1
        d.message.encode()


@settings(max_examples=120, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(data=st.data())
def test_no_value_anywhere_gives_a_traceback(data: Any) -> None:
    """Any JSON in place of any value, the digest worked out anew: read, or told, and never raised."""
    value = sample.value()
    for _ in range(data.draw(st.integers(1, 2))):
        at, path = value, []
        while isinstance(at, (dict, list)) and at and (not path or data.draw(st.booleans())):
            key = data.draw(st.sampled_from(sorted(at) if isinstance(at, dict) else range(len(at))))
            parent, at = at, at[key]
            path.append(key)
        parent[path[-1]] = data.draw(JSON)
    try:
        text = sample.forged(value, lambda _: None)
    except ValueError:  # an int too long to print
        return
    sound_or_told(text)


@settings(max_examples=80, deadline=None)
@given(data=st.data())
def test_no_damage_to_the_text_gives_a_traceback(data: Any) -> None:
    """Cut, doubled and overwritten stretches of the text are read as edited, or told."""
    text = sample.text()
    start = data.draw(st.integers(0, len(text)))
    end = data.draw(st.integers(start, min(len(text), start + 40)))
    middle = data.draw(st.one_of(st.just(""), st.just(text[start:end] * 2), st.text(max_size=5)))
    sound_or_told(text[:start] + middle + text[end:])


@settings(max_examples=100, deadline=None)
@given(value=JSON)
def test_every_place_of_a_json_text_is_found(value: Any) -> None:
    """The span of each key and value, cut out of the text, is that key and value."""
    for indent in (None, 1):
        text = json.dumps(value, indent=indent, ensure_ascii=False)
        document, _ = load_json(text, "x")
        if document is None:
            continue
        lines = text.split("\n")
        for spans, key in ((document.values, False), (document.keys, True)):
            for path, span in spans.items():
                expected = document.value
                for step in path:
                    expected = expected[step]
                inner = lines[span.line - 1 : span.end_line]
                inner[-1] = inner[-1][: span.end_column - 1]
                inner[0] = inner[0][span.column - 1 :]
                assert json.loads("\n".join(inner)) == (path[-1] if key else expected)
