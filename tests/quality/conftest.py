"""A tiny model folder, a plan and clips that a command runs on in seconds. Random weights: mechanics only."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

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
