"""A model folder, a plan and a clip that run in a second or two."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

PLAN = """\
version: 1
kind: plan
name: tiny
purpose: reference
description: Reuse the deep hints once.
models: [wan2.1-vace-mini]
run:
  steps: [4]
  sampler: {name: unipc, flow_shift: 3.0}
  guidance: 5.0
  shapes: [{size: 32x32, frames: 5}]
caches:
  - name: deep-hints
    tier: P1
    method: hint_reuse
    at: "hint[deep]"
    refresh: {interval: 2}
acknowledgements:
  - {risk: lossy-hint-cache, by: tests, date: 2026-11-30, reason: a test of the command line}
"""


@pytest.fixture(scope="session")
def model_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A WanVACEPipeline folder of the embedded model's shape with random weights."""
    import torch

    from refkv_policy.mini.architecture import random_pipeline, write_settings

    torch.set_num_threads(1)
    folder = tmp_path_factory.mktemp("models") / "random"
    random_pipeline().save_pretrained(folder)
    write_settings(folder)
    return folder


@pytest.fixture
def plan_file(tmp_path: Path) -> Path:
    """A small sound plan for four steps."""
    path = tmp_path / "plans" / "tiny.yaml"
    path.parent.mkdir()
    path.write_text(PLAN)
    return path


@pytest.fixture
def refkv(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., Result]:
    """Runs a command line in a folder of its own; gives back exit_code, stdout and stderr."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("REFKV_MODEL", raising=False)
    monkeypatch.delenv("REFKV_DEBUG", raising=False)

    def call(*arguments: str | Path, **settings: object) -> Result:
        from refkv_policy.cli import refkv as command

        return CliRunner().invoke(command, [str(a) for a in arguments], prog_name="refkv", **settings)  # type: ignore[arg-type]

    return call
