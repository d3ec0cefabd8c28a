"""Hostile files: sentences, never a traceback."""

import copy
import io
import json
import os

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from refkv_policy.audit import AuditError, read_log, verify
from refkv_policy.audit.read import scan_file
from refkv_policy.audit.record import GENESIS, MAX_LINE
from refkv_policy.audit.record import AuditError as Unwritable
from refkv_policy.audit.show import render_map, render_step, shown
from refkv_policy.audit.summary import render_summary, summary
from refkv_policy.audit.verify import verify_lines
from refkv_policy.compiler.table import BRANCHES

JSON = st.recursive(
    st.one_of(
        st.none(),
        st.booleans(),
        st.integers(),
        st.sampled_from([-1, 10**6, 10**400, 1e308, -0.0, "", "step", "cond", "r1", "main[0-3]", "\ud800", "\x1b[2J"]),
        st.text(max_size=8),
    ),
    lambda inner: st.one_of(st.lists(inner, max_size=3), st.dictionaries(st.text(max_size=6), inner, max_size=3)),
    max_leaves=6,
)


def read_everything(path):
    """Read, sum up and show a log; nothing may raise but AuditError."""
    log = read_log(path)
    json.dumps(summary(log))
    render_summary(log).encode("ascii")
    for request in log.requests:
        json.dumps(shown(request, request.steps))
        for branch in BRANCHES:
            render_map(request, branch)
        for line in request.steps:
            render_step(line)
    return log


def places(value, path=()):
    """Every path in a JSON value."""
    yield path
    if isinstance(value, (dict, list)):
        for key, inner in value.items() if isinstance(value, dict) else enumerate(value):
            yield from places(inner, (*path, key))


@pytest.fixture(scope="module")
def records(tools, tmp_path_factory):
    """The records of a sound log with an event."""
    folder = tmp_path_factory.mktemp("hostile")
    records = tools.records(tools.write(folder / "run.jsonl", tools.obeying(tools.tiny)))
    records.insert(1, {"kind": "event", "request": "r1", "event": "x", "fields": {}})
    return records, [(n, path) for n, record in enumerate(records) for path in places(record) if path]


@settings(max_examples=300, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(data=st.data())
def test_no_value_anywhere_in_a_well_chained_log_gives_a_traceback(data, tools, records, tmp_path):
    """Any JSON in place of any value, all hashes right: verifying, reading and showing never raise."""
    changed = copy.deepcopy(records[0])
    for _ in range(data.draw(st.integers(1, 2))):
        n, path = data.draw(st.sampled_from(records[1]))
        at = changed[n]
        try:
            for key in path[:-1]:
                at = at[key]
            if data.draw(st.booleans()):
                at[path[-1]] = data.draw(JSON)
            else:
                del at[path[-1]]
        except (TypeError, KeyError, IndexError, AttributeError):
            continue
    try:
        blob = tools.rechained(changed)
    except Unwritable:
        return
    found = verify_lines(scan_file(io.BytesIO(blob)))
    assert found.outcome in ("ok", "unsealed", "broken")
    for problem in (*found.problems, *found.notes):
        str(problem).encode("ascii")
    (tmp_path / "changed.jsonl").write_bytes(blob)
    read_everything(tmp_path / "changed.jsonl")


@settings(max_examples=100, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.binary(max_size=300))
def test_no_bytes_give_a_traceback(tmp_path, data):
    """Any bytes are broken or unsealed, never ok, and are told in sentences."""
    path = tmp_path / "junk.jsonl"
    path.write_bytes(data)
    assert verify(path).outcome in ("broken", "unsealed")
    read_everything(path)


@pytest.mark.parametrize("kind", ["missing", "folder", "null byte", "not permitted"])
def test_a_file_that_cannot_be_read_is_one_sentence(tmp_path, kind):
    """A missing file, a folder or an impossible name raise AuditError."""
    path = {"missing": tmp_path / "no.jsonl", "folder": tmp_path, "null byte": "a\0b"}.get(
        kind, tmp_path / "shut.jsonl"
    )
    if kind == "not permitted":
        if os.geteuid() == 0:
            pytest.skip("root may read everything")
        path.touch(mode=0)
    for read in (verify, read_log):
        with pytest.raises(AuditError, match=r"the audit log .* cannot be read: "):
            read(path)


def test_an_empty_file_is_unsealed(tmp_path):
    """A log that was killed before its first line holds nothing, and says so."""
    path = tmp_path / "empty.jsonl"
    path.touch()
    found = verify(path)
    assert (found.outcome, found.head, found.notes) == ("unsealed", None, ("the log holds no whole line",))
    assert read_log(path).requests == ()


def test_a_line_of_100_megabytes_is_refused_without_reading_it_all(tmp_path):
    """A line longer than the limit is a fault; what follows is not read."""
    path = tmp_path / "long.jsonl"
    with open(path, "wb") as file:
        file.truncate(100 * 2**20)
    found = verify(path)
    assert found.outcome == "broken"
    assert f"longer than {MAX_LINE} bytes" in found.problems[0].message
    assert len(read_log(path).problems) == 1


@pytest.mark.parametrize("deep", [b"[" * 200_000, b'{"a":' * 200_000, b"[" * 900 + b"]" * 900])
def test_deep_nesting_is_told(tmp_path, deep):
    """Nesting without end is a fault of its line."""
    path = tmp_path / "deep.jsonl"
    path.write_bytes(deep + b"\n")
    assert verify(path).outcome == "broken"
    assert len(read_everything(path).problems) == 1


@pytest.mark.parametrize("at", ["layout", "rows", "rules", "acknowledgements", "plan", "guidance"])
@pytest.mark.parametrize("depth", [100, 300, 700])
def test_deep_nesting_in_a_table_is_told(tools, tmp_path, at, depth):
    """A table that nests deeply where it has a type is a fault of its header, however deep."""
    path = tools.write(tmp_path / "run.jsonl", tools.obeying(tools.tiny))
    records = tools.records(path)
    deep = []
    for _ in range(depth):
        deep = [deep]
    table = records[0]["table"]
    if at == "layout":
        table["layout"]["dim"] = deep
    elif at in ("rows", "rules"):
        table[at][0]["index" if at == "rows" else "risk"] = deep
    else:
        table[at] = [{"x": deep}] if at == "acknowledgements" else deep
    path.write_bytes(tools.rechained(records))
    assert (verify(path).outcome == "broken") == (at != "acknowledgements")
    read_everything(path)


def test_very_many_faults_are_cut_off(tmp_path):
    """Of a file with a fault in every line the first 200 are listed, and that there are more."""
    path = tmp_path / "many.jsonl"
    path.write_bytes(b"{}\n" * 5000)
    problems = verify(path).problems
    assert len(problems) == 201
    assert "more faults" in problems[-1].message


def test_a_log_of_a_later_schema_is_refused_by_name(tools, tmp_path):
    """A schema that this refkv does not read is named."""
    path = tools.write(tmp_path / "run.jsonl", tools.obeying(tools.tiny))
    records = tools.records(path)
    records[0]["schema"] = 2
    path.write_bytes(tools.rechained(records))
    assert "its schema is 2; this refkv reads 1" in verify(path).problems[0].message
    assert records[0]["prev"] == GENESIS


@pytest.mark.parametrize("part", ["Text", "\x1b[2J", "é", "", "a.b"])
def test_a_table_with_a_site_that_has_no_name_is_refused(tools, tmp_path, part):
    """A row whose stack or part is no part of a site's name is a fault of the header."""
    path = tools.write(tmp_path / "run.jsonl", tools.obeying(tools.tiny))
    records = tools.records(path)
    records[0]["table"]["rows"][1]["part"] = part
    path.write_bytes(tools.rechained(records))
    problem = verify(path).problems[0].message
    assert problem.startswith("not a hook table: ")
    assert problem.isascii()
    assert problem.isprintable()
    read_everything(path)
