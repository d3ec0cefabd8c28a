"""A tiny model folder, a plan and clips that a command runs on in seconds. Random weights: mechanics only."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from tests import sweeps


@pytest.fixture(scope="session")
def tiny_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A WanVACEPipeline folder, 24 wide."""
    from tests import tiny

    folder = tmp_path_factory.mktemp("models") / "tiny"
    tiny.pipeline().save_pretrained(folder)
    (folder / "refkv.json").write_text(json.dumps({"max_sequence_length": 8}))
    return folder


@pytest.fixture(scope="session")
def clips(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two clips of noise; the first has a prompt of its own."""
    folder = tmp_path_factory.mktemp("clips")
    for seed, name in enumerate(("a", "b")):
        sweeps.clip(folder, name, seed)
    (folder / "a.txt").write_text("a blue ball\n")
    return folder


@pytest.fixture
def plan_file(tmp_path: Path) -> Path:
    """A plan for any model at four steps."""
    path = tmp_path / "plans" / "tiny.yaml"
    path.parent.mkdir()
    path.write_text(sweeps.plan().document.text)
    return path


@pytest.fixture
def refkv(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., Result]:
    """Runs a command line in a folder of its own; gives back exit_code, stdout and stderr."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.delenv("REFKV_MODEL", raising=False)
    monkeypatch.delenv("REFKV_DEBUG", raising=False)

    def call(*arguments: str | Path) -> Result:
        from refkv_policy.cli import refkv as command

        return CliRunner().invoke(command, [str(a) for a in arguments], prog_name="refkv")

    return call
