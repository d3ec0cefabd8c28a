"""A command line run in a folder of its own, and small plans to review."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.plans import one_rule

ROOT = Path(__file__).resolve().parents[2]

PLAN = one_rule("reviewed", steps=12, interval=4, reason="a test of plan review")


@pytest.fixture
def git(monkeypatch: pytest.MonkeyPatch) -> Callable[..., str]:
    """Runs git in a folder, for a made-up author, apart from whatever git settings and hooks the machine has."""
    for name in [n for n in os.environ if n.startswith("GIT_")]:
        monkeypatch.delenv(name)
    settings = {"GIT_CONFIG_GLOBAL": os.devnull, "GIT_CONFIG_NOSYSTEM": "1"}
    settings |= {f"GIT_{who}_NAME": "Ada" for who in ("AUTHOR", "COMMITTER")}
    settings |= {f"GIT_{who}_EMAIL": "ada@example.org" for who in ("AUTHOR", "COMMITTER")}
    for name, value in settings.items():
        monkeypatch.setenv(name, value)

    def call(folder: Path, *arguments: str) -> str:
        done = subprocess.run(["git", *arguments], cwd=folder, capture_output=True, text=True, check=True)
        return done.stdout.strip()

    return call


@pytest.fixture
def repository(tmp_path: Path, git: Callable[..., str]) -> Path:
    """A committed repository with one sound plan and its lock."""
    from refkv_policy.compiler.lock import lock_path, write_lock
    from refkv_policy.plan import load_plan

    folder = tmp_path / "repository"
    plan = folder / "plans" / "reviewed.yaml"
    plan.parent.mkdir(parents=True)
    plan.write_text(PLAN)
    write_lock(load_plan(plan), lock_path(plan))
    git(folder, "init", "--quiet", "--initial-branch=main")
    git(folder, "add", "--all")
    git(folder, "commit", "--quiet", "--message", "a plan")
    return folder
