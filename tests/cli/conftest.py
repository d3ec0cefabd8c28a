"""A model folder, a plan and a clip that run in a second or two."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.plans import one_rule

PLAN = one_rule(
    "tiny",
    steps=4,
    interval=2,
    head="purpose: reference\ndescription: Reuse the deep hints once.\n",
    shape="{size: 32x32, frames: 5}",
)


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
