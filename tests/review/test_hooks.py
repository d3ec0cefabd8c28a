"""The hooks that refkv offers to pre-commit: the manifest, what each finds, and pre-commit itself running them."""

from __future__ import annotations

import os
import re
import shlex
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import yaml
from click.testing import Result

from tests.review.conftest import PLAN, ROOT

HOOKS: dict[str, dict[str, Any]] = {
    hook["id"]: hook for hook in yaml.safe_load((ROOT / ".pre-commit-hooks.yaml").read_text(encoding="utf-8"))
}
BROKEN = {
    "refkv-validate": (PLAN.replace("hint[deep]", "hint[0]"), "RKV302"),
    "refkv-lock": (PLAN.replace("interval: 4", "interval: 3"), "RKV702"),
}
"""A plan that each hook stops, and what it says."""


def command(hook: dict[str, Any]) -> list[str]:
    """The command line of a hook, less `refkv`."""
    program, *arguments = shlex.split(hook["entry"])
    assert program == "refkv"
    return [*arguments, *hook["args"]]


def test_the_hooks_are_these() -> None:
    """Each is installed as a Python package and given the folder, since other files decide about a plan as well."""
    assert set(HOOKS) == set(BROKEN)
    for hook in HOOKS.values():
        assert (hook["language"], hook["pass_filenames"], hook["args"]) == ("python", False, ["plans"])
        assert "additional_dependencies" not in hook


@pytest.mark.parametrize(
    ("path", "hooks"),
    [
        ("plans/a.yaml", {"refkv-validate", "refkv-lock"}),
        ("plans/video/a.yml", {"refkv-validate", "refkv-lock"}),
        ("plans/a.lock", {"refkv-lock"}),
        ("guardrails.yaml", {"refkv-validate"}),
        (".refkv/guardrails.yaml", {"refkv-validate"}),
        ("evidence/a.json", {"refkv-validate"}),
        ("other/plans/a.yaml", set()),
        ("plans/README.md", set()),
        ("config.yaml", set()),
    ],
)
def test_which_files_wake_a_hook(path: str, hooks: set[str]) -> None:
    """Plans wake both, locks the lock's, guardrails and evidence the validation."""
    assert {name for name, hook in HOOKS.items() if re.search(hook["files"], path)} == hooks


@pytest.mark.parametrize("name", HOOKS)
def test_a_hook_passes_and_fails(
    refkv: Callable[..., Result], repository: Path, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    """The entry as it stands in the manifest accepts a sound plan with its lock, and stops what it is there for."""
    monkeypatch.chdir(repository)
    assert refkv(*command(HOOKS[name])).exit_code == 0
    text, code = BROKEN[name]
    (repository / "plans" / "reviewed.yaml").write_text(text)
    result = refkv(*command(HOOKS[name]))
    assert result.exit_code == 1
    assert code in result.output


# pre-commit itself ---------------------------------------------------------------------------------------------------


def pre_commit(folder: Path, *arguments: str, home: Path) -> subprocess.CompletedProcess[str]:
    """Run pre-commit in a folder, its environments under `home`, this environment's commands first."""
    pytest.importorskip("pre_commit", reason="pre-commit is not installed")
    path = os.pathsep.join((str(Path(sys.executable).parent), os.environ["PATH"]))
    environment = {**os.environ, "PRE_COMMIT_HOME": str(home), "PATH": path, "PRE_COMMIT_COLOR": "never"}
    environment.pop("PYTHONPATH", None)
    return subprocess.run(
        [sys.executable, "-m", "pre_commit", *arguments], cwd=folder, capture_output=True, text=True, env=environment
    )


def configured(repository: Path, repo: dict[str, Any]) -> None:
    """Give a repository a pre-commit configuration with one entry in `repos`."""
    (repository / ".pre-commit-config.yaml").write_text(yaml.safe_dump({"repos": [repo]}))


def check_both(repository: Path, git: Callable[..., str], home: Path) -> None:
    """Both hooks accept the repository as it is, and each stops the commit of what it is there for."""
    git(repository, "add", "--all")
    done = pre_commit(repository, "run", "--all-files", "--verbose", home=home)
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stdout.count("Passed") == 2
    plan = repository / "plans" / "reviewed.yaml"
    for name, (text, code) in BROKEN.items():
        plan.write_text(text)
        git(repository, "add", "--all")
        done = pre_commit(repository, "run", name, home=home)
        assert done.returncode == 1, done.stdout + done.stderr
        assert code in done.stdout
    plan.write_text(PLAN)
    git(repository, "add", "--all")
    (repository / "notes.txt").write_text("nothing of refkv's\n")
    git(repository, "add", "--all")
    assert "no files to check" in pre_commit(repository, "run", "--files", "notes.txt", home=home).stdout


def test_pre_commit_accepts_the_manifest(tmp_path: Path) -> None:
    """The manifest is valid by pre-commit's own check."""
    done = pre_commit(ROOT, "validate-manifest", ".pre-commit-hooks.yaml", home=tmp_path / "home")
    assert done.returncode == 0, done.stdout


def test_pre_commit_runs_the_entries(repository: Path, git: Callable[..., str], tmp_path: Path) -> None:
    """Within pre-commit the entries pass and fail as they should; for speed with this environment's refkv."""
    hooks = [{**hook, "language": "system"} for hook in HOOKS.values()]
    configured(repository, {"repo": "local", "hooks": hooks})
    check_both(repository, git, tmp_path / "home")


@pytest.mark.slow
def test_pre_commit_installs_the_hooks(repository: Path, git: Callable[..., str], tmp_path: Path) -> None:
    """From a repository of this tree pre-commit builds its own environment, without torch, and both hooks work in it."""
    source = tmp_path / "refkv"
    ignored = shutil.ignore_patterns("__pycache__", "*.part*", "*.safetensors", "*.mp4")
    for name in ("refkv_policy", "plans", "schemas"):
        shutil.copytree(ROOT / name, source / name, ignore=ignored)
    for name in ("pyproject.toml", "README.md", "LICENSE", ".pre-commit-hooks.yaml"):
        shutil.copy(ROOT / name, source / name)
    git(source, "init", "--quiet", "--initial-branch=main")
    git(source, "add", "--all", "--force")
    git(source, "commit", "--quiet", "--message", "refkv")
    configured(
        repository, {"repo": str(source), "rev": git(source, "rev-parse", "HEAD"), "hooks": [{"id": i} for i in HOOKS]}
    )
    home = tmp_path / "home"
    check_both(repository, git, home)
    (site,) = home.glob("repo*/py_env-*/lib/python*/site-packages")
    installed = {path.name.split("-")[0].lower() for path in site.glob("*.dist-info")}
    assert "refkv_policy" in installed
    assert not installed & {"torch", "diffusers", "transformers", "numpy", "av"}
