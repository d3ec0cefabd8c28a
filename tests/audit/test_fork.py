"""The log is that of the process that made it: a forked one neither writes to it nor closes it."""

from __future__ import annotations

import os
import sys
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from refkv_policy import RefkvWarning
from refkv_policy.audit import AuditWriter, verify

pytestmark = pytest.mark.skipif(not hasattr(os, "fork"), reason="this system forks no process")


def in_a_child(act: Callable[[], Any]) -> str:
    """What the child told while it acted: its warnings, and the exception that left it."""
    read, write = os.pipe()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # of threads that other tests left
        pid = os.fork()
    if pid == 0:
        said = ""
        try:
            with warnings.catch_warnings(record=True) as told:
                warnings.simplefilter("always")
                act()
        except BaseException as error:  # nothing of the child may run on in the test
            said = type(error).__name__
        os.write(write, "\n".join([*(str(w.message) for w in told if w.category is RefkvWarning), said]).encode())
        os._exit(0)
    os.close(write)
    os.waitpid(pid, 0)
    with os.fdopen(read) as pipe:
        return pipe.read()


def leave(writer: AuditWriter) -> None:
    """Unwind the block that holds the writer."""
    with writer:
        sys.exit(1)


def go_on(writer: AuditWriter) -> None:
    """Log more, as a worker does that inherited the writer."""
    for _ in range(2):
        writer.event(None, "between")


def close(writer: AuditWriter) -> None:
    """Close it."""
    writer.close()


def interrupted(writer: AuditWriter) -> None:
    """Close it after a line that was not settled."""
    go_on(writer)
    with writer:
        raise KeyboardInterrupt


@pytest.mark.parametrize("act", [leave, go_on, close, interrupted])
def test_child_leaves_the_log_alone(act: Callable[[AuditWriter], None], tmp_path: Path) -> None:
    """Whatever it does with the writer, the parent's log gains nothing and verifies; a line left out is said once."""
    path = tmp_path / "run.jsonl"
    with AuditWriter(path) as writer:
        writer.event(None, "before")
        size = path.stat().st_size
        said = in_a_child(lambda: act(writer))
        assert path.stat().st_size == size
        writer.event(None, "after")
    assert verify(path).problems == ()
    assert path.read_text().count('"kind":"close"') == 1
    assert said.count("what this forked process does is not logged") == (act in (go_on, interrupted))


def test_writer_made_in_a_child_is_its_own(tmp_path: Path) -> None:
    """A forked worker that opens a log of its own writes it."""

    def work() -> None:
        with AuditWriter(tmp_path / "child.jsonl") as writer:
            writer.event(None, "mine")

    assert in_a_child(work) == ""
    assert verify(tmp_path / "child.jsonl").problems == ()
