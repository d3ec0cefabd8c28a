"""Runs that take turns: one at a time, the one that is less far first, whatever ends the other."""

from __future__ import annotations

import os
import signal
import threading
import time
from collections.abc import Callable
from functools import partial

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from refkv_policy.quality.turns import Pause, take_turns


def _stepper(name: str, total: int, told: list[str], fails_at: int | None = None) -> Callable[[Pause], str]:
    def run(pause: Pause) -> str:
        for step in range(total):
            if step == fails_at:
                raise ValueError(f"{name} fails")
            told.append(f"{name}{step}")
            if step < total - 1:
                pause()
        return name

    return run


@given(st.tuples(st.integers(1, 12), st.integers(1, 12)), st.integers(0, 1))
@settings(max_examples=60, deadline=None)
def test_steps_alternate_as_far_as_they_can(totals: tuple[int, int], first: int) -> None:
    """Both run whole, each in its own order; at no time is one ahead by more than a step of the longer one's."""
    told: list[str] = []
    found = take_turns([_stepper("a", totals[0], told), _stepper("b", totals[1], told)], totals, first)
    assert found == ["a", "b"]
    assert told[0] == ("a0", "b0")[first]
    done = {"a": 0, "b": 0}
    for entry in told:
        assert entry == f"{entry[0]}{done[entry[0]]}"
        done[entry[0]] += 1
        ahead = done["a"] / totals[0] - done["b"] / totals[1]
        assert abs(ahead) <= 1 / min(totals) + 1e-9
    assert (done["a"], done["b"]) == totals


def test_only_one_works_at_a_time() -> None:
    """While one run is between two pauses, the other stands still."""
    working, most = 0, 0
    lock = threading.Lock()

    def run(pause: Pause) -> None:
        nonlocal working, most
        for step in range(6):
            with lock:
                working += 1
                most = max(most, working)
            time.sleep(0.002)
            with lock:
                working -= 1
            if step < 5:
                pause()

    take_turns([run, run], (6, 6))
    assert most == 1


@pytest.mark.parametrize("fails_at", [0, 2, 5])
@pytest.mark.parametrize("who", [0, 1])
def test_a_run_that_fails_ends_both(who: int, fails_at: int) -> None:
    """What it raised is raised, and no thread is left."""
    told: list[str] = []
    runs = [_stepper(name, 6, told, fails_at if i == who else None) for i, name in enumerate("ab")]
    with pytest.raises(ValueError, match=f"{'ab'[who]} fails"):
        take_turns(runs, (6, 6))
    assert not [t for t in threading.enumerate() if t.name.startswith("turns")]


def test_an_interrupt_ends_both() -> None:
    """Ctrl-C reaches the thread that waits for both; neither goes on, and what each does on its way out is done by then."""
    told: list[str] = []
    tidied: list[bool] = []

    def slow(pause: Pause, tidying: float) -> None:
        try:
            for step in range(10_000):
                told.append(str(step))
                time.sleep(0.002)
                pause()
        finally:
            time.sleep(tidying)
            tidied.append(True)

    # A job that a shell put into the background ignores the signal.
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        threading.Timer(0.2, os.kill, (os.getpid(), signal.SIGINT)).start()
        with pytest.raises(KeyboardInterrupt):
            # The first takes longer, since a thread that is waited for by name is the one that is missed.
            take_turns([partial(slow, tidying=0.6), partial(slow, tidying=0.0)], (10_000, 10_000))
    finally:
        signal.signal(signal.SIGINT, before)
    assert tidied == [True, True]
    seen = len(told)
    time.sleep(0.05)
    assert len(told) == seen < 10_000
