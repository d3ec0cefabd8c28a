"""Tasks: what their keys depend on, that results are whole, and that nothing is run twice, whatever interrupts it."""

from __future__ import annotations

import contextlib
import json
import signal
import subprocess
import sys
import textwrap
import time
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from refkv_policy.audit import AuditWriter, verify
from refkv_policy.quality.tasks import ResultsError, Source, Store, Task, Work
from refkv_policy.quality.tasks_run import Stage, run_stages
from tests import sweeps

CLIP = Source("a.mp4", "/a.mp4", "a ball", "sha256:" + "1" * 64, 16.0)
TASK = Task("run", "a label", Work(12), CLIP, 0, sweeps.DIGEST)


class Fake:
    """A worker that writes a result at once, and may be interrupted before the n-th."""

    def __init__(self, store: Store, stop_at: int | None = None) -> None:
        self.store, self.stop_at = store, stop_at
        self.done: list[str] = []

    def perform(self, task: Task) -> None:
        """Write an empty result."""
        if len(self.done) == self.stop_at:
            raise KeyboardInterrupt
        if task.keep:
            self.store.keep(task.key, np.zeros((1, 1, 1, 3), np.float32), np.zeros((1,), np.float32))
        self.store.write(task, {})
        self.done.append(task.key)


def some(count: int, **changes: object) -> tuple[Task, ...]:
    """Tasks that differ in their seed."""
    return tuple(replace(TASK, seed=seed, **changes) for seed in range(count))  # type: ignore[arg-type]


def test_a_key_depends_on_all_that_the_result_depends_on() -> None:
    """Kind, steps, table, clip, prompt, rate, seed, conditions, repetition and references; not names, nor what is kept."""
    other = [
        replace(TASK, kind="pair"), replace(TASK, work=Work(13)), replace(TASK, work=Work(12, {}, "sha256:x")),
        replace(TASK, clip=replace(CLIP, sha256="sha256:" + "2" * 64)), replace(TASK, clip=replace(CLIP, prompt="a cat")),
        replace(TASK, clip=replace(CLIP, fps=8.0)), replace(TASK, seed=1), replace(TASK, conditions="sha256:y"),
        replace(TASK, repeat=1), replace(TASK, against=(("uncached", "k"),)), replace(TASK, of="k"), replace(TASK, nominal=9),
    ]  # fmt: skip
    assert len({TASK.key, *(task.key for task in other)}) == 1 + len(other)
    same = replace(TASK, label="another", keep=True, clip=replace(CLIP, name="b.mp4", path="/b.mp4"))
    assert same.key == TASK.key


def test_conditions_are_in_the_key(tmp_path: Path) -> None:
    """Another weight, size, guidance, dtype, device or version is another result."""
    made = sweeps.sweep(sweeps.made_up())
    changes = ({"weights": "sha256:" + "b" * 64}, {"width": 32}, {"guidance": 3.0}, {"dtype": "bfloat16"},
               {"device": "cuda"}, {"versions": {"refkv": "1"}}, {"features": ("x",)}, {"flow_shift": 5.0})  # fmt: skip
    digests = {replace(made.conditions, **change).digest for change in changes}  # type: ignore[arg-type]
    assert len(digests | {made.conditions.digest}) == 1 + len(changes)


def test_an_interrupted_sweep_goes_on_where_it_was(tmp_path: Path) -> None:
    """After an interrupt only what has no result is run, each task once, shared tasks once for both stages."""
    store = Store(tmp_path).open()
    stages = [Stage("one", some(4)), Stage("two", (*some(6), TASK))]
    first, second = Fake(store, stop_at=3), Fake(store)
    with pytest.raises(KeyboardInterrupt):
        run_stages(stages, store, lambda: first)
    run_stages(stages, store, lambda: second)
    assert len(first.done) == 3
    assert sorted(first.done + second.done) == sorted(task.key for task in some(6))

    def never() -> Fake:
        raise AssertionError("a worker was opened although nothing is left")

    run_stages(stages, store, never)


def test_what_must_be_kept_is_run_for_it(tmp_path: Path) -> None:
    """A result without the frames that are now needed is made again; a task asked for both ways keeps them."""
    store = Store(tmp_path).open()
    plain, keeping = some(1), some(1, keep=True)
    run_stages([Stage("plain", plain)], store, lambda: Fake(store))
    worker = Fake(store)
    run_stages([Stage("plain", plain), Stage("keeping", keeping)], store, lambda: worker)
    assert len(worker.done) == 1
    assert store.arrays(keeping[0].key)[0].shape == (1, 1, 1, 3)


def test_a_killed_sweep_leaves_whole_results_only(tmp_path: Path) -> None:
    """Killed outright in the middle of writing, every result there is whole, and going on completes each task once."""
    code = textwrap.dedent(
        f"""
        import os, sys, time
        sys.path[:0] = {[str(Path(__file__).parents[2])]!r}
        from refkv_policy.quality.tasks_run import Stage, run_stages
        from refkv_policy.quality.tasks import Store
        from tests.quality.test_tasks import some
        from pathlib import Path
        store = Store(Path({str(tmp_path)!r})).open()
        class Slow:
            def perform(self, task):
                store.write(task, {{"padding": "x" * 3_000_000}})
                with open({str(tmp_path / "count")!r}, "a") as log:
                    log.write(task.key + "\\n")
        run_stages([Stage("all", some(60))], store, Slow)
        """
    )
    process = subprocess.Popen([sys.executable, "-c", code], stderr=subprocess.PIPE)
    deadline = time.monotonic() + 300
    while time.monotonic() < deadline and len(list(tmp_path.glob("*.json"))) < 4:
        assert process.poll() is None, process.stderr and process.stderr.read().decode()
        time.sleep(0.005)
    process.send_signal(signal.SIGKILL)
    process.wait()
    store = Store(tmp_path)
    left = [json.loads(path.read_text()) for path in tmp_path.glob("*.json")]
    assert 4 <= len(left) < 60
    worker = Fake(store)
    run_stages([Stage("all", some(60))], store, lambda: worker)
    counted = (tmp_path / "count").read_text().split() + worker.done
    # Killed between writing a result and counting it, one may be missing from the count; none is there twice.
    assert len(counted) in (59, 60)
    assert len(set(counted)) == len(counted)
    assert all(store.done(task) for task in some(60))


def test_a_half_result_counts_as_none(tmp_path: Path) -> None:
    """A file that is no JSON, is of another format or of another task is not a result."""
    store = Store(tmp_path).open()
    for text in (
        "{",
        "[" * 200_000,
        "[]",
        "{}",
        json.dumps({"format": 0, "key": TASK.key}),
        json.dumps({"format": 1, "key": "other"}),
    ):
        (tmp_path / f"{TASK.key}.json").write_text(text)
        assert store.result(TASK) is None
    store.write(TASK, {"x": 1.5})
    assert (store.result(TASK) or {})["x"] == 1.5
    file = tmp_path / f"{TASK.key}.json"
    file.write_text(file.read_text().replace("1.5", "1.25"))
    assert store.result(TASK) is None, "a figure that was changed since it was written"


def test_a_run_whose_audit_log_is_gone_is_made_again(tmp_path: Path) -> None:
    """Evidence binds heads of logs: they must be there, whole, and the ones that were written."""
    store = Store(tmp_path).open()
    table = sweeps.sweep(sweeps.made_up()).table

    def log(name: str) -> str:
        with AuditWriter(tmp_path / "audits" / name) as writer:
            writer.begin("r1", {"branches": ["cond"]}, table)
            writer.seal("r1", outcome="incomplete", bytes_peak=0)
        return verify(tmp_path / "audits" / name).head or ""

    head = log("a.jsonl")
    store.write(TASK, {"run": {"audit": {"log": "audits/a.jsonl", "head": head}}})
    assert store.done(TASK)
    file = tmp_path / "audits" / "a.jsonl"
    whole = file.read_bytes()
    for damage in (b"garbage", whole[:-20], b""):
        file.write_bytes(damage)
        assert not store.done(TASK)
    file.unlink()
    assert not store.done(TASK)
    file.write_bytes(whole)
    assert store.done(TASK)
    store.write(TASK, {"planned": {"audit": {"log": "audits/a.jsonl", "head": "sha256:" + "0" * 64}}})
    assert not store.done(TASK)


@given(st.data())
@settings(max_examples=60, deadline=None)
def test_damaged_arrays_are_a_sentence(tmp_path_factory: pytest.TempPathFactory, data: st.DataObject) -> None:
    """Cut short anywhere or garbled in a few bytes, kept arrays are read as they were or told of."""
    store = Store(tmp_path_factory.mktemp("store")).open()
    frames, latents = np.ones((2, 4, 4, 3), np.float32), np.ones((1, 3), np.float32)
    store.keep("key", frames, latents)
    whole = store.arrays_path("key").read_bytes()
    cut = data.draw(st.integers(0, len(whole)))
    garbled = bytearray(whole[:cut] if data.draw(st.booleans()) else whole)
    for at, byte in data.draw(st.lists(st.tuples(st.integers(0, len(whole) - 1), st.integers(0, 255)), max_size=4)):
        if at < len(garbled):
            garbled[at] = byte
    store.arrays_path("key").write_bytes(garbled)
    found = None
    with contextlib.suppress(ResultsError):
        found = store.arrays("key")
    if garbled == whole:
        assert found is not None
    if found is not None:
        assert np.array_equal(found[0], frames)
        assert np.array_equal(found[1], latents)


def test_a_folder_that_cannot_be_used_is_a_sentence(tmp_path: Path) -> None:
    """A file in the way, and arrays that are gone, say what to do."""
    (tmp_path / "file").write_text("")
    with pytest.raises(ResultsError, match="--results"):
        Store(tmp_path / "file").open()
    with pytest.raises(ResultsError, match="delete it"):
        Store(tmp_path).arrays("gone")


def test_ray_missing_is_a_sentence(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Ray is imported only when it is asked for, and its extra is named where it is missing."""
    monkeypatch.setitem(sys.modules, "ray", None)
    store = Store(tmp_path).open()
    run_stages([Stage("one", some(1))], store, lambda: Fake(store))
    with pytest.raises(Exception, match=r"refkv-policy\[ray\]"):
        run_stages([Stage("two", some(2))], store, lambda: Fake(store), executor="ray")
