"""Any change of a log's lines is found: all of them are tried."""

import copy
import io
import json
from dataclasses import replace

import pytest

from refkv_policy.audit import verify
from refkv_policy.audit.read import scan_file
from refkv_policy.audit.record import chained
from refkv_policy.audit.verify import verify_lines


@pytest.fixture(scope="module")
def logs(tools, tmp_path_factory):
    """Two real logs: one of two requests with a table each, and a tiny one for what is tried byte by byte."""
    folder = tmp_path_factory.mktemp("logs")
    small = tools.write(folder / "small.jsonl", tools.obeying(branches=["cond"]), tools.obeying(tools.tiny))
    tiny = tools.write(folder / "tiny.jsonl", tools.obeying(tools.tiny, ["cond"]))
    return {"small": small.read_bytes(), "tiny": tiny.read_bytes()}


def outcome(data):
    """The verdict on a log of these bytes."""
    return verify_lines(scan_file(io.BytesIO(data))).outcome


@pytest.mark.parametrize("name", ["small", "tiny"])
def test_the_logs_themselves_are_sound(logs, name):
    """What the tests below change verifies before they do."""
    assert outcome(logs[name]) == "ok"


def test_every_changed_byte_is_found(logs):
    """Each byte of the tiny log, changed to another or left out, makes it fall short."""
    data = logs["tiny"]
    for n, byte in enumerate(data):
        for new in (bytes([byte ^ 1]), b""):
            assert outcome(data[:n] + new + data[n + 1 :]) != "ok", (n, new)


def test_every_dropped_line_is_found(logs):
    """Each line left out; the last one leaves a log that is unsealed, any other a broken one."""
    lines = logs["small"].splitlines(keepends=True)
    for n in range(len(lines)):
        expected = "unsealed" if n == len(lines) - 1 else "broken"
        assert outcome(b"".join(lines[:n] + lines[n + 1 :])) == expected, n


def test_every_swap_of_two_lines_is_found(logs):
    """Each pair of lines, exchanged."""
    lines = logs["small"].splitlines(keepends=True)
    for n in range(len(lines)):
        for m in range(n):
            changed = list(lines)
            changed[n], changed[m] = lines[m], lines[n]
            assert outcome(b"".join(changed)) == "broken", (n, m)


def test_every_moved_or_doubled_line_is_found(logs):
    """Each line put in at each other place, taken from where it was or not."""
    lines = logs["small"].splitlines(keepends=True)
    for n, line in enumerate(lines):
        rest = lines[:n] + lines[n + 1 :]
        for m in range(len(lines)):
            if m != n:
                assert outcome(b"".join([*rest[:m], line, *rest[m:]])) != "ok", (n, m)
            assert outcome(b"".join([*lines[:m], line, *lines[m:]])) == "broken", (n, m)


def test_every_inserted_line_is_found(logs):
    """A new line at each place, with the right `prev` and a hash of its own, and an empty line."""
    lines = logs["small"].splitlines(keepends=True)
    for n in range(len(lines) + 1):
        prev = json.loads(lines[n - 1])["hash"] if n else "sha256:" + "0" * 64
        event = chained({"kind": "event", "request": None, "event": "x", "fields": {}}, prev)[0]
        for new in (event, b"\n", b"{}\n"):
            assert outcome(b"".join([*lines[:n], new, *lines[n:]])) == "broken", (n, new)


def test_every_truncation_reads_unsealed(logs):
    """The tiny log cut at each byte, the other at each end of a line."""
    lines = logs["small"].splitlines(keepends=True)
    cuts = [logs["tiny"][:length] for length in range(len(logs["tiny"]))]
    for data in [*cuts, *(b"".join(lines[:n]) for n in range(len(lines)))]:
        assert outcome(data) == "unsealed", len(data)


def leaves(value, path=()):
    """Every path to a leaf of a JSON value."""
    if isinstance(value, (dict, list)) and value:
        for key, inner in value.items() if isinstance(value, dict) else enumerate(value):
            yield from leaves(inner, (*path, key))
    else:
        yield path


def other(value):
    """Another value of the same type."""
    if isinstance(value, bool) or value is None:
        return "x"
    if isinstance(value, (int, float)):
        return value + 1
    return value + "x" if isinstance(value, str) else ["x"]


def test_every_edit_with_a_forged_hash_is_found(logs):
    """Each value in each line changed, and that line's hash made anew: what follows no longer fits."""
    lines = logs["tiny"].splitlines(keepends=True)
    tried = 0
    for n, line in enumerate(lines):
        record = json.loads(line)
        for path in [*leaves(record), ("added",)]:
            changed = copy.deepcopy(record)
            at = changed
            for key in path[:-1]:
                at = at[key]
            at[path[-1]] = other(at.get(path[-1]) if isinstance(at, dict) else at[path[-1]])
            prev = changed.pop("prev")
            del changed["hash"]
            if path == ("hash",):
                continue
            forged = chained(changed, prev)[0]
            assert outcome(b"".join([*lines[:n], forged, *lines[n + 1 :]])) == "broken", (n, path)
            tried += 1
    assert tried > 130


def test_a_rewrite_of_the_whole_file_shows_against_a_recorded_head(tools, tmp_path):
    """Only a head recorded elsewhere tells a rewritten log; verify compares it where it is given."""
    path = tools.write(tmp_path / "run.jsonl", tools.obeying())
    head = verify(path).head
    assert verify(path, head=head).outcome == "ok"
    records = tools.records(path)
    records[0]["seed"] = 8
    path.write_bytes(tools.rechained(records))
    assert verify(path).outcome == "ok"
    assert verify(path, head=head).outcome == "broken"


def test_another_table_than_the_expected_one_is_found(tools, tmp_path):
    """A log is held to the table, or the digest, that it should have run."""
    path = tools.write(tmp_path / "run.jsonl", tools.obeying())
    assert verify(path, table=tools.table).outcome == "ok"
    assert verify(path, table_digest=tools.table.digest).outcome == "ok"
    changed = replace(tools.table, flow_shift=5.0)
    for found in (verify(path, table=changed), verify(path, table_digest=changed.digest)):
        assert found.outcome == "broken"
        assert "ran the table" in found.problems[0].message


def test_half_a_line_behind_the_close_is_found(logs):
    """A killed writer leaves half a line before the close, never behind it: bytes there were put there."""
    assert outcome(logs["tiny"] + b"x") == "broken"
    assert outcome(logs["tiny"] + logs["tiny"][:40]) == "broken"
    assert outcome(logs["tiny"][:-5]) == "unsealed"
