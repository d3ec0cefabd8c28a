"""One line: canonical JSON and its hash."""

import hashlib
import json

import pytest

from refkv_policy.audit.record import GENESIS, MAX_LINE, AuditError, canonical, chained, checked, parse, quoted


def test_a_line_carries_the_sha256_of_its_canonical_json():
    """The hash of a line is sha256 over the record without it: keys sorted, no spaces, ASCII."""
    line, head = chained({"b": 1, "a": "é"}, GENESIS)
    body = json.dumps({"a": "é", "b": 1, "prev": GENESIS}, sort_keys=True, separators=(",", ":"))
    assert head == "sha256:" + hashlib.sha256(body.encode()).hexdigest()
    assert json.loads(line) == {"a": "é", "b": 1, "prev": GENESIS, "hash": head}
    assert line.endswith(b"\n")
    assert parse(line[:-1]) == (json.loads(line), None)


@pytest.mark.parametrize("value", [float("nan"), float("inf"), {1, 2}, {(1,): 2}, {1: 0, "a": 1}, b"x", object()])
def test_what_json_cannot_hold_is_refused(value):
    """Values that JSON has no exact text for raise AuditError."""
    with pytest.raises(AuditError, match="cannot hold"):
        canonical(value)


def test_a_checked_record_is_a_plain_copy():
    """Tuples become lists and later changes of the caller's values do not reach the copy."""
    given = {"shape": (1, 2), "list": [1]}
    copy = checked(given)
    given["list"].append(2)
    assert copy == {"shape": [1, 2], "list": [1]}


def test_a_line_that_is_too_long_is_refused():
    """The writer makes no line that the reader would not read."""
    with pytest.raises(AuditError, match="longer"):
        chained({"a": "x" * MAX_LINE}, GENESIS)


@pytest.mark.parametrize(
    "body",
    [b'{"a":1,"a":1}', b'{"b":1,"a":2}', b'{"a": 1}', b'{"a":1.00}', b'{"a":"\\u0041"}', b'{"a":1e999}'],
)
def test_only_the_canonical_spelling_is_accepted(body):
    """A line with a true hash but a second spelling (duplicate or unsorted keys, spaces, escapes) is not accepted."""
    digest = hashlib.sha256(body).hexdigest().encode()
    assert parse(body[:-1] + b',"hash":"sha256:' + digest + b'"}')[1] is not None


@pytest.mark.parametrize(
    "line", [b"", b"\xff\xfe", b"null", b"[]", b"{}", b'{"a":NaN}', b"[" * 100_000, b'{"a":' * 50_000, b"1" * 5000]
)
def test_a_line_that_is_none_is_told_in_one_short_sentence(line):
    """Bytes, other JSON, NaN, nesting without end and numbers without end are faults, never exceptions."""
    problem = parse(line)[1]
    assert problem is not None
    assert len(problem) < 300
    assert "\n" not in problem


def test_quoting_keeps_control_characters_out_of_a_terminal():
    """Texts from a log are told in ASCII, cut to 80 characters."""
    assert quoted("\x1b[31m\x7f") == '"\\u001b[31m\\u007f"'
    assert len(quoted("x" * 1000)) == 80
