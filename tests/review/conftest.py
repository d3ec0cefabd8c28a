"""A command line run in a folder of its own, and small plans to review."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

ROOT = Path(__file__).resolve().parents[2]

PLAN = """\
version: 1
kind: plan
name: reviewed
models: [wan2.1-vace-mini]
run:
  steps: [12]
  sampler: {name: unipc, flow_shift: 3.0}
  guidance: 5.0
  shapes: [{size: 96x96, frames: 17}]
caches:
  - name: deep-hints
    tier: P1
    method: hint_reuse
    at: "hint[deep]"
    refresh: {interval: 4}
acknowledgements:
  - {risk: lossy-hint-cache, by: tests, date: 2026-01-01, reason: a test of plan review}
"""


@pytest.fixture
def refkv(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., Result]:
    """Runs a command line in a folder of its own; gives back exit_code, stdout and stderr."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("REFKV_DEBUG", raising=False)

    def call(*arguments: str | Path, **settings: object) -> Result:
        from refkv_policy.cli import refkv as command

        return CliRunner().invoke(command, [str(a) for a in arguments], prog_name="refkv", **settings)  # type: ignore[arg-type]

    return call


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
