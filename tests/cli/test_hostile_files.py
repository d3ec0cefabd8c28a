"""Files that a plan names, or that lie beside it, where they are links to what has no end or lies elsewhere."""

from __future__ import annotations

import os
import resource
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.cli.conftest import PLAN

ROOT = Path(__file__).resolve().parents[2]
MEMORY = 3 << 30
"""Bytes of address space: several times what a command needs, and soon used up by an endless file."""
SECRET = "secret: of somebody else"


def limited() -> None:
    """Bounds a child's memory."""
    resource.setrlimit(resource.RLIMIT_AS, (MEMORY, MEMORY))


def refkv(folder: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    """A command line in a process of its own, ended where it waits or takes all memory."""
    command = [sys.executable, "-m", "refkv_policy.cli", *arguments]
    done = subprocess.run(
        command, cwd=folder, capture_output=True, text=True, timeout=60, preexec_fn=limited,
        env={**os.environ, "PYTHONPATH": str(ROOT)}, stdin=subprocess.DEVNULL,
    )  # fmt: skip
    assert "Traceback" not in done.stderr
    assert "MemoryError" not in done.stderr
    assert SECRET not in done.stdout + done.stderr
    return done


def repository(folder: Path) -> Path:
    """A repository with a plan that names a profile beside it, has a lock, and lies under guardrails."""
    (folder / ".git").mkdir(parents=True)
    (folder / "a.yaml").write_text(PLAN.replace("[wan2.1-vace-mini]", "[./own.yaml]"))
    (folder / "b.yaml").write_text(PLAN)
    shipped = (ROOT / "refkv_policy" / "profiles" / "wan2.1-vace-mini.yaml").read_text()
    (folder / "own.yaml").write_text(shipped)
    (folder / "guardrails.yaml").write_text("version: 1\nkind: guardrails\n")
    (folder / "cache.yaml").write_text("enable_text_cross_attn_cache: true\n")
    return folder


PLACES: dict[str, tuple[tuple[str, ...], int, str]] = {
    "own.yaml": (("validate", "a.yaml"), 1, "own.yaml cannot be read: {why}"),
    "a.lock": (("compile", "--check", "a.yaml"), 1, "it cannot be read: {why}"),
    "b.lock": (("compile", "b.yaml"), 2, "cannot write b.lock: {why}"),
    "guardrails.yaml": (("validate", "b.yaml"), 2, "guardrails.yaml: error RKV003 the file cannot be read: {why}"),
    "plan.yaml": (("validate", "plan.yaml"), 2, "plan.yaml: error RKV003 the file cannot be read: {why}"),
    "cache.yaml": (
        ("import", "--from", "vllm-omni-config", "cache.yaml"),
        2,
        "cache.yaml: the file cannot be read: {why}",
    ),
    "a.jsonl": (("audit", "verify", "a.jsonl"), 2, "the audit log a.jsonl cannot be read: {why}"),
    "c.json": (("report", "c.json", "--out", "c.html"), 2, "c.json cannot be read: {why}"),
}
"""By file: what reads it, the exit status, and what is said."""


@pytest.mark.parametrize("target", ["/dev/zero", "pipe"])
@pytest.mark.parametrize("name", PLACES)
def test_devices_and_pipes(tmp_path: Path, name: str, target: str) -> None:
    """In the place of each file they are refused at once, with its name: no wait, and no memory. In no repository, too."""
    folder = repository(tmp_path)
    (folder / ".git").rmdir()
    os.mkfifo(folder / "pipe")
    (folder / name).unlink(missing_ok=True)
    (folder / name).symlink_to(target)
    command, status, told = PLACES[name]
    done = refkv(folder, *command)
    assert done.returncode == status, done.stderr
    assert told.format(why="it is a device or a pipe, and not a regular file") in done.stdout + done.stderr


@pytest.mark.parametrize("name", ["own.yaml", "a.lock", "b.lock", "guardrails.yaml", "plan.yaml", "cache.yaml"])
def test_links_out_of_the_repository(tmp_path: Path, name: str) -> None:
    """Nothing of what they lead to is shown, and a lock is not written over it."""
    folder, outside = repository(tmp_path / "repository"), tmp_path / "outside"
    outside.write_text(f"{SECRET}\n")
    (folder / name).unlink(missing_ok=True)
    (folder / name).symlink_to(outside)
    command, status, told = PLACES[name]
    done = refkv(folder, *command)
    assert done.returncode == status, done.stderr
    assert told.format(why="it leads out of the repository through a link") in done.stdout + done.stderr
    assert outside.read_text() == f"{SECRET}\n"


@pytest.mark.parametrize(
    ("name", "status", "told"),
    [
        ("own.yaml", 1, "own.yaml cannot be read: it is larger than 1,048,576 bytes"),
        ("a.lock", 1, "it cannot be read: it is larger than"),
        ("b.lock", 2, "cannot write b.lock: it is larger than"),
        ("guardrails.yaml", 1, "RKV005"),
        ("plan.yaml", 1, "RKV005"),
        ("cache.yaml", 2, "the file is larger than"),
        ("a.jsonl", 1, "it is longer than"),
    ],
)
def test_files_of_a_terabyte(tmp_path: Path, name: str, status: int, told: str) -> None:
    """They are read as far as such a file may reach."""
    folder = repository(tmp_path)
    with (folder / name).open("wb") as stream:
        stream.truncate(1 << 40)  # takes no room on the disk
    done = refkv(folder, *PLACES[name][0])
    assert (done.returncode, told in done.stdout + done.stderr) == (status, True), done.stderr


def test_a_huge_file_of_a_revision(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What git holds is bounded too."""
    monkeypatch.setenv("GIT_CONFIG_GLOBAL", os.devnull)
    folder = tmp_path / "repository"
    folder.mkdir()

    def git(*arguments: str) -> None:
        subprocess.run(["git", *arguments], cwd=folder, check=True, capture_output=True)

    (folder / "a.yaml").write_bytes(b"# " + b"x" * (5 << 20))
    git("init", "-q")
    git("add", "-A")
    git("-c", "user.email=a@b", "-c", "user.name=x", "commit", "-qm", "x")
    (folder / "a.yaml").write_text(PLAN)
    done = refkv(folder, "diff", "--base", "HEAD", ".")
    assert (done.returncode, "HEAD:a.yaml is larger than" in done.stderr) == (2, True), done.stderr


def test_a_lock_is_still_written_through_a_link_within(tmp_path: Path) -> None:
    """A link that stays in the repository goes on leading where it did, and a profile may be one."""
    folder = repository(tmp_path)
    (folder / "locks").mkdir()
    (folder / "a.lock").symlink_to("locks/a.lock")
    (folder / "own.yaml").rename(folder / "locks" / "own.yaml")
    (folder / "own.yaml").symlink_to("locks/own.yaml")
    assert refkv(folder, "compile", "a.yaml").returncode == 0
    assert (folder / "a.lock").is_symlink()
    assert (folder / "locks" / "a.lock").read_text().startswith("# refkv lock")
    assert refkv(folder, "compile", "--check", "a.yaml").returncode == 0


def test_folders_of_plans_pass_over_what_is_no_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, refkv: Callable
) -> None:
    """A pipe or a device among the plans is not waited for when a folder is looked through."""
    folder = repository(tmp_path / "plans")
    os.mkfifo(folder / "pipe.yaml")
    (folder / "zero.yaml").symlink_to("/dev/zero")
    with (folder / "huge.yaml").open("wb") as stream:
        stream.truncate(1 << 40)
    result = refkv("validate", folder)
    assert result.exit_code == 1
    assert "huge.yaml: error RKV005" in result.stdout
