"""A command line run in a folder of its own."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

# A worker of pytest-xdist has it, and texts are broken at its width.
os.environ.pop("COLUMNS", None)


@pytest.fixture
def refkv(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., Result]:
    """Runs a command line in a folder of its own; gives back exit_code, stdout and stderr."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.delenv("REFKV_MODEL", raising=False)
    monkeypatch.delenv("REFKV_DEBUG", raising=False)

    def call(*arguments: str | Path, **settings: object) -> Result:
        from refkv_policy.cli import refkv as command

        return CliRunner().invoke(command, [str(a) for a in arguments], prog_name="refkv", **settings)  # type: ignore[arg-type]

    return call
