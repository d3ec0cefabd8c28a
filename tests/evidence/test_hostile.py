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
from refkv_policy.plan.diagnostic import Diagnostic
from tests.evidence import sample

HEAD = '{"version": 1, "kind": "evidence",\n'


@pytest.mark.parametrize(
    ("text", "line", "column", "words"),
    [
        ("", 1, 1, "expecting value"),
        ("not json", 1, 1, "this is not JSON"),
        ("version: 1\nkind: evidence\n", 1, 1, "this is not JSON"),
        ('{"a": 1,\n "b": }', 2, 7, "expecting value"),
        ('{"a": 1,\n "b": "x', 2, 7, "unterminated string"),
        ('{"a": "\t"}', 1, 8, "control character"),
    ],
)
def test_what_is_not_json_is_told_at_its_place(text: str, line: int, column: int, words: str) -> None:
    """The line and column at which JSON ends, and words that say what is wrong."""
    (found,) = refused(text)
    assert found.code == "RKV511"
    assert found.span is not None
    assert (found.span.line, found.span.column) == (line, column)
    assert words in found.message


@pytest.mark.parametrize(
    ("text", "words"),
    [
        (HEAD + ' "plan": NaN}', "the number NaN is not finite"),
        (HEAD + ' "plan": [1, -Infinity]}', "the number -Infinity is not finite"),
        (HEAD + ' "plan": 1e999}', "the number 1e999 is not finite"),
        (HEAD + ' "plan": 1e70}', "the number 1e70 is no figure"),
        (HEAD + ' "plan": -1e-40}', "the number -1e-40 is no figure"),
        (HEAD + f' "plan": {"9" * 5000}}}', "has more than 30 digits"),
        (HEAD + f' "plan": -{"9" * 30}}}', "has more than 30 digits"),
        (HEAD + ' "plan": "\\ud800"}', "half a character"),
        (HEAD + ' "plan": {"\\udfff": 1}}', "half a character"),
        (HEAD + ' "plan": "\udc00"}', "half a character"),
        (HEAD + ' "plan": {"a": {},\n  "b": 1, "a": 2}}', 'the key "a" stands twice in one mapping'),
        (HEAD + ' "kind": "evidence"}', 'the key "kind" stands twice'),
        (HEAD + ' "plan": [{"\\u0061": 1, "a": 1}]}', 'the key "a" stands twice'),
        (HEAD + ' "\\u001b[2J": 1, "\\u001b[2J": 1}', r'the key "\u001b[2J" stands twice'),
    ],
)
def test_what_strict_json_does_not_hold_is_told(text: str, words: str) -> None:
    """Numbers that are not finite, too large or too small, halves of characters, keys that stand twice."""
    (found,) = refused(text)
    assert found.code == "RKV511"
    assert words in found.message


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("[]", "it holds a list"),
        ("3", "it holds the number 3"),
        ("null", "it holds nothing"),
        ("{}", "there is none"),
        ('{"kind": "plan"}', 'it says the text "plan"'),
        ('{"kind": "evidence"}', "the file says nothing"),
        ('{"kind": "evidence", "version": 2}', "reads version 1, and the file says the number 2"),
        ('{"kind": "evidence", "version": true}', "the file says true"),
        ('{"kind": "evidence", "version": 1.0}', "the file says the number 1.0"),
    ],
)
def test_what_is_no_evidence_is_told(text: str, words: str) -> None:
    """Another kind of file, or another version, with what the file says of itself."""
    (found,) = refused(text)
    assert found.code == "RKV512"
    assert words in found.message


def refused(text: str) -> tuple[Diagnostic, ...]:
    """What is told of a text that gives no evidence, each with what to do."""
    evidence, diagnostics = parse_evidence(text, "x.json")
    assert evidence is None
    assert all(found.help and found.file == "x.json" for found in diagnostics)
    return diagnostics


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


def test_schema_faults_are_told_by_their_paths() -> None:
    """A wrong type, an unknown key, a missing key and guidance 1, each by its own path."""
    value = sample.value()
    scope = value["scopes"][0]
    scope["setting"]["batch"] = "one"
    scope["guidance"] = 1.0
    scope["memry"] = scope.pop("memory")
    del scope["bound"]["weights"]
    told = {found.code: found.message.partition(": ")[0] for found in refused(json.dumps(value))}
    assert told == {
        "RKV101": "scopes[0].memry",
        "RKV102": "scopes[0].bound",
        "RKV103": "scopes[0].setting.batch",
        "RKV106": "scopes[0].guidance",
    }


@pytest.mark.parametrize("key", ["\x1b[2J", "a.b", "a b", "", "\n", "x" * 5000])
def test_a_path_through_an_odd_key_is_quoted(key: str) -> None:
    """A key that is no plain word is shown escaped and cut, and cannot pass for another path."""
    value = sample.value()
    value["scopes"][0][key] = 1
    (found,) = refused(json.dumps(value))
    assert found.message.startswith('scopes[0]["')
    assert found.message.isprintable()
    assert len(found.message) < 400


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
