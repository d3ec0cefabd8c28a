"""The writer: whole lines or none, and never over a file that exists."""

import os
import subprocess
import sys
import threading

import pytest

from refkv_policy.audit import (
    AuditError,
    AuditWriter,
    Decision,
    NullWriter,
    fold,
    free_path,
    outcome_of,
    read_log,
    verify,
)

HEADER = {"branches": ["cond"]}


def one_step(writer, tools, request="r1", **changed):
    """Log the first step of the table."""
    call = {**vars(tools.obeying(branches=["cond"]).calls[0]), **changed}
    writer.step(request, **call)


def test_a_log_that_exists_is_never_touched(tools, tmp_path):
    """A file that exists, even an empty one or a dangling link, is refused; `free_path` names another."""
    path = tmp_path / "run.jsonl"
    path.write_bytes(b"mine")
    with pytest.raises(AuditError, match="exists; name another file"):
        AuditWriter(path)
    assert path.read_bytes() == b"mine"
    assert free_path(path) == tmp_path / "run-2.jsonl"
    (tmp_path / "run-2.jsonl").symlink_to(tmp_path / "nowhere")
    assert free_path(path) == tmp_path / "run-3.jsonl"
    with pytest.raises(AuditError):
        AuditWriter(tmp_path / "run-2.jsonl")
    with pytest.raises(AuditError, match="cannot be made"):
        AuditWriter(tmp_path / "no-such-folder" / "run.jsonl")


def test_each_step_is_on_disk_as_one_whole_line_when_the_call_returns(tools, tmp_path, monkeypatch):
    """Every call adds exactly one line, in one write, and `head` is the hash of it."""
    path = tmp_path / "run.jsonl"
    writer = AuditWriter(path)
    writes = []
    file = writer._file

    class Counted:
        def __getattr__(self, name):
            return getattr(file, name)

        def write(self, data):
            writes.append(len(data))
            return file.write(data)

    monkeypatch.setattr(writer, "_file", Counted())
    writer.begin("r1", HEADER, tools.table)
    one_step(writer, tools)
    writer.event("r1", "grid_supplied", sigmas=[1.0, 0.5])
    writer.seal("r1", outcome="incomplete", bytes_peak=0)
    writer.close()
    lines = path.read_bytes().splitlines(keepends=True)
    assert writes == [len(line) for line in lines]
    assert len(lines) == 5
    assert tools.records(path)[-1]["hash"] == writer.head == verify(path).head


@pytest.mark.parametrize("value", [object(), float("nan"), {1, 2}, b"x", {"deep": [complex(1)]}])
def test_a_header_value_that_cannot_be_written_is_refused_up_front(tools, tmp_path, value):
    """It raises, writes nothing, and the same request may begin again."""
    with AuditWriter(tmp_path / "run.jsonl") as writer:
        for header in ({**HEADER, "seed": value}, {**HEADER, "versions": {"torch": value}}):
            with pytest.raises(AuditError):
                writer.begin("r1", header, tools.table)
        assert (tmp_path / "run.jsonl").read_bytes() == b""
        writer.begin("r1", HEADER, tools.table)
    assert verify(tmp_path / "run.jsonl").outcome == "ok"


@pytest.mark.parametrize(
    "header",
    [{}, {"branches": []}, {"branches": ["uncond", "cond"]}, {**HEADER, "hash": "x"}, {**HEADER, "digests": 1}],
)
def test_a_header_without_branches_or_with_reserved_keys_is_refused(tools, header):
    """The header names its branches, and leaves to the writer what is the writer's."""
    with pytest.raises(AuditError, match="header of request"):
        NullWriter().begin("r1", header, tools.table)


@pytest.mark.parametrize(
    "changed",
    [
        {"sigma": object()},
        {"sigma": float("nan")},
        {"bytes_held": 1.5},
        {"decisions": [Decision("nowhere[1]", ".", ".")]},
        {"decisions": [Decision("step", "?", ".")]},
        {"decisions": [Decision("step", ".", "?", signal=float("inf"))]},
        {"decisions": [Decision("step", ".", "?", signal=object())]},
        {"decisions": [None]},
    ],
)
def test_a_step_that_cannot_be_written_leaves_no_trace(tools, tmp_path, changed):
    """An exception in serialisation leaves no half line, no count, and a writer that goes on."""
    path = tmp_path / "run.jsonl"
    with AuditWriter(path) as writer:
        writer.begin("r1", HEADER, tools.table)
        before, head, totals = path.read_bytes(), writer.head, writer.totals("r1")
        with pytest.raises(AuditError):
            one_step(writer, tools, **changed)
        assert (path.read_bytes(), writer.head, writer.totals("r1")) == (before, head, totals)
        one_step(writer, tools)
    found = verify(path)
    assert (found.outcome, found.requests) == ("ok", {"r1": "incomplete"})


class Interrupting:
    """A file whose next write puts `part` of the data down and then raises."""

    def __init__(self, file, part, error):
        self.file, self.part, self.error = file, part, error

    def __getattr__(self, name):
        return getattr(self.file, name)

    def write(self, data):
        """Write, or write some of it and raise, once."""
        if self.error is None:
            return self.file.write(data)
        error, self.error = self.error, None
        self.file.write(data[: int(len(data) * self.part)])
        raise error


@pytest.mark.parametrize("part", [0, 0.5, 1])
@pytest.mark.parametrize("error", [KeyboardInterrupt(), OSError(28, "No space left on device")])
def test_a_write_that_is_interrupted_or_fails_leaves_whole_lines_only(tools, tmp_path, part, error):
    """Whatever of a line got down when the write raised, the log goes on whole: the line is all there or not at all."""
    path = tmp_path / "run.jsonl"
    with AuditWriter(path) as writer:
        writer.begin("r1", HEADER, tools.table)
        writer._file = Interrupting(writer._file, part, error)
        with pytest.raises((KeyboardInterrupt, AuditError)):
            one_step(writer, tools)
        totals = writer.seal("r1", outcome="cancelled", bytes_peak=100)
    found = verify(path)
    assert (found.outcome, found.problems, found.requests) == ("ok", (), {"r1": "cancelled"})
    assert bool(totals.cells) == bool(read_log(path).requests[0].steps) == (part == 1)


def test_a_full_disk_takes_the_line_back(tools, tmp_path):
    """A real write that fails part-way (a file size limit) raises, and the file ends with its last whole line."""
    script = (
        "import resource, sys\n"
        "from refkv_policy.audit import AuditError, AuditWriter\n"
        "resource.setrlimit(resource.RLIMIT_FSIZE, (1000, 1000))\n"
        "writer = AuditWriter(sys.argv[1])\n"
        "for n in range(100):\n"
        "    try: writer.event(None, 'tick', n=n)\n"
        "    except AuditError as error: sys.exit(f'said: {error}')\n"
    )
    path = tmp_path / "run.jsonl"
    done = subprocess.run([sys.executable, "-c", script, str(path)], capture_output=True, text=True, check=False)
    assert "said: the audit log" in done.stderr
    assert 500 < path.stat().st_size <= 1000
    found = verify(path)
    assert (found.outcome, found.problems, found.lines > 2) == ("unsealed", (), True)
    assert not any("half a line" in note for note in found.notes)


def test_the_table_is_written_once_for_each_digest(tools, tmp_path):
    """A later request of the same table refers to it by digest; another table is written in full."""
    run, tiny = tools.obeying(), tools.obeying(tools.tiny)
    records = tools.records(tools.write(tmp_path / "run.jsonl", run, run, tiny, run))
    assert ["table" in r for r in records if r["kind"] == "request"] == [True, False, True, False]
    assert verify(tmp_path / "run.jsonl").outcome == "ok"


def test_the_header_is_filled_from_the_table(tools, tmp_path):
    """Digests, sampler, sigmas and steps come from the table; what the caller gives stands beside them."""
    run = tools.obeying()
    run.header = {"digests": {"weights": "sha256:w"}, "versions": {"torch": "2"}, "device": "cpu"}
    header = tools.records(tools.write(tmp_path / "run.jsonl", run))[0]
    assert header["digests"] == {"plan": tools.table.plan_digest, "table": tools.table.digest, "weights": "sha256:w"}
    assert set(header["versions"]) == {"python", "torch"}
    assert (header["steps"], header["left_out"], header["sampler"], header["device"]) == (8, [3], "unipc", "cpu")


def test_folded_decisions_are_logged_as_the_decisions_themselves(tools, tmp_path):
    """A caller may fold once and log the result many times."""
    plain, folded = tools.obeying(), tools.obeying()
    for call in folded.calls:
        call.decisions = fold(call.decisions)
    one, other = (tools.records(tools.write(tmp_path / f"{n}.jsonl", r)) for n, r in enumerate((plain, folded)))
    assert [r.get("decisions") for r in one] == [r.get("decisions") for r in other]


def test_writer_out_of_order_is_refused(tools, tmp_path):
    """Steps, events and seals need an open request; an id is used once; nothing follows close."""
    writer = AuditWriter(tmp_path / "run.jsonl")
    for call in (
        lambda: one_step(writer, tools),
        lambda: writer.event("r1", "x"),
        lambda: writer.seal("r1", outcome="finished", bytes_peak=0),
    ):
        with pytest.raises(AuditError, match="not open"):
            call()
    writer.begin("r1", HEADER, tools.table)
    with pytest.raises(AuditError, match="not an outcome"):
        writer.seal("r1", outcome="fine", bytes_peak=0)
    with pytest.raises(AuditError, match="cannot begin"):
        writer.begin("r1", HEADER, tools.table)
    writer.seal("r1", outcome="incomplete", bytes_peak=0)
    with pytest.raises(AuditError, match="cannot begin"):
        writer.begin("r1", HEADER, tools.table)
    writer.close()
    writer.close()
    with pytest.raises(AuditError, match="closed"):
        writer.event(None, "x")
    assert verify(tmp_path / "run.jsonl").outcome == "ok"


@pytest.mark.parametrize(
    ("error", "outcome"), [(None, "incomplete"), (ValueError("no"), "failed"), (KeyboardInterrupt(), "cancelled")]
)
def test_leaving_the_writer_seals_what_is_open(tools, tmp_path, error, outcome):
    """An exception seals open requests as failed or cancelled, with its text; without one they are incomplete."""
    path = tmp_path / "run.jsonl"
    try:
        with AuditWriter(path) as writer:
            writer.begin("r1", HEADER, tools.table)
            one_step(writer, tools)
            if error is not None:
                raise error
    except (ValueError, KeyboardInterrupt):
        pass
    found = verify(path)
    assert (found.outcome, found.requests) == ("ok", {"r1": outcome})
    if error is not None:
        assert outcome_of(error) == outcome
        assert type(error).__name__ in read_log(path).requests[0].seal["error"]


def test_the_null_writer_counts_the_same_and_writes_nothing(tools, tmp_path):
    """`NullWriter` has the same calls, gives the same totals, and makes no file."""
    null = NullWriter()
    run = tools.obeying()
    run.write(null)
    null.close()
    seal = tools.records(tools.write(tmp_path / "run.jsonl", run))[-2]
    again = NullWriter()
    again.begin("r1", {"branches": run.branches}, run.table)
    for call in run.calls:
        again.step("r1", **vars(call))
    assert again.seal("r1", outcome="finished", bytes_peak=0).to_dict() == seal["totals"]
    assert null.head is None
    assert os.listdir(tmp_path) == ["run.jsonl"]


def test_two_writers_interleave_without_meeting(tools, tmp_path):
    """Two sessions on two models write two logs, each whole, also from two threads."""
    paths = [tmp_path / "a.jsonl", tmp_path / "b.jsonl"]
    threads = [threading.Thread(target=tools.write, args=(path, *[tools.obeying()] * 3)) for path in paths]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert [verify(path).outcome for path in paths] == ["ok", "ok"]


def test_the_audit_package_imports_no_heavy_library():
    """Importing the audit log brings in neither torch nor diffusers, numpy, rich or click."""
    script = (
        "import sys, refkv_policy.audit\n"
        "print([m for m in ('torch', 'diffusers', 'numpy', 'rich', 'click') if m in sys.modules])"
    )
    assert subprocess.check_output([sys.executable, "-c", script], text=True).strip() == "[]"
