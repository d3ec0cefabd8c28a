"""The GitHub Action: its file, and its shell steps run in a temporary repository as a runner would run them."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.review.conftest import PLAN, ROOT

ACTION: dict[str, Any] = yaml.safe_load((ROOT / "action.yml").read_text(encoding="utf-8"))
STEPS: list[dict[str, Any]] = ACTION["runs"]["steps"]
SHELL = ["bash", "--noprofile", "--norc", "-e", "-o", "pipefail"]
"""How a runner starts `shell: bash`."""

BASH = pytest.mark.skipif(shutil.which("bash") is None, reason="no bash here")


def value_of(expression: str, known: Mapping[str, str]) -> str:
    """The value of `a || b || …`, each a name; a name that is not known is empty, as GitHub has it."""
    return next((v for name in expression.split("||") if (v := known.get(name.strip(), ""))), "")


def filled(text: str, known: Mapping[str, str]) -> str:
    """A text with its `${{ … }}` replaced."""
    return re.sub(r"\$\{\{(.*?)\}\}", lambda m: value_of(m[1], known), text)


@dataclass
class Runner:
    """What a runner has beside a checkout: temporary files, the summary, the outputs of the steps and the log."""

    workspace: Path
    temporary: Path
    known: dict[str, str] = field(default_factory=dict)
    log: str = ""
    failed: list[str] = field(default_factory=list)

    def run(self, **given: str) -> Mapping[str, str]:
        """Run the shell steps in turn until one fails; returns the action's outputs."""
        self.known |= {f"inputs.{name}": str(entry["default"]) for name, entry in ACTION["inputs"].items()}
        self.known |= {f"inputs.{name.replace('_', '-')}": value for name, value in given.items()}
        self.known["github.action_path"] = str(ROOT)
        for step in STEPS:
            if "run" in step and not self.failed:
                self.step(step)
        return {name: filled(entry["value"], self.known) for name, entry in ACTION["outputs"].items()}

    def step(self, step: Mapping[str, Any]) -> None:
        """One step, with the files in which it may leave something."""
        assert step["shell"] == "bash"
        self.temporary.mkdir(exist_ok=True)
        outputs, script = self.temporary / "outputs", self.temporary / "step.sh"
        outputs.write_text("")
        script.write_text(step["run"])
        environment = {
            **os.environ,
            **{name: filled(str(text), self.known) for name, text in step.get("env", {}).items()},
            "RUNNER_TEMP": str(self.temporary),
            "GITHUB_OUTPUT": str(outputs),
            "GITHUB_STEP_SUMMARY": str(self.summary),
        }
        done = subprocess.run(
            [*SHELL, str(script)],
            cwd=self.workspace,
            env=environment,
            capture_output=True,
            text=True,
            stdin=subprocess.DEVNULL,
        )
        self.log += done.stdout + done.stderr
        if done.returncode:
            self.failed.append(step["name"])
        for line in outputs.read_text().splitlines():
            name, _, value = line.partition("=")
            self.known[f"steps.{step['id']}.outputs.{name}"] = value

    @property
    def summary(self) -> Path:
        """The job's summary page."""
        return self.temporary / "summary.md"

    def commands(self) -> list[str]:
        """The workflow commands of the log that a runner would obey: those between stop-commands are none."""
        found, token = [], None
        for line in self.log.splitlines():
            if token is None and line.startswith("::"):
                found.append(line)
                token = line.removeprefix("::stop-commands::") if line.startswith("::stop-commands::") else None
            elif token is not None and line == f"::{token}::":
                token = None
        return [line for line in found if not line.startswith("::stop-commands::")]


@pytest.fixture
def runner(repository: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Runner:
    """A runner with the repository checked out, and this environment's refkv in the place of the installed one."""
    refkv = Path(sys.executable).parent / "refkv"
    if not refkv.exists():
        pytest.skip("refkv is not installed as a command here")
    monkeypatch.setitem(STEPS[1], "run", f'echo "refkv={refkv}" >> "$GITHUB_OUTPUT"\n')
    return Runner(repository, tmp_path / "runner")


# The file ------------------------------------------------------------------------------------------------------------


def test_no_expression_stands_in_a_script() -> None:
    """What comes from outside reaches the shell as a variable, never as text of the script."""
    assert any("run" in step for step in STEPS)
    assert not any("${{" in step.get("run", "") for step in STEPS)


def test_inputs_and_outputs_are_described() -> None:
    """Every input has a default and a description; every output comes from a step that exists."""
    assert all(entry["description"] and "default" in entry for entry in ACTION["inputs"].values())
    ids = {step["id"] for step in STEPS if "id" in step}
    for entry in ACTION["outputs"].values():
        assert set(re.findall(r"steps\.([a-z]+)\.", entry["value"])) <= ids
    named = set(re.findall(r"inputs\.([a-z-]+)", (ROOT / "action.yml").read_text(encoding="utf-8")))
    assert named == set(ACTION["inputs"])


@pytest.mark.slow
def test_the_schema_store_accepts_the_file() -> None:
    """check-jsonschema finds nothing by the schema of GitHub actions that it ships."""
    pytest.importorskip("check_jsonschema", reason="check-jsonschema is not installed")
    arguments = ["--builtin-schema", "vendor.github-actions", "action.yml"]
    done = subprocess.run(
        [sys.executable, "-m", "check_jsonschema", *arguments], cwd=ROOT, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stdout


def node_tool(name: str) -> str | None:
    """A command of npm's, on the PATH or in this repository's node_modules."""
    return shutil.which(name) or shutil.which(name, path=str(ROOT / "node_modules" / ".bin"))


@pytest.mark.slow
@pytest.mark.skipif(
    node_tool("action-validator") is None, reason="no action-validator: npm install @action-validator/cli"
)
def test_action_validator_accepts_the_file() -> None:
    """action-validator finds nothing in action.yml."""
    tool = node_tool("action-validator")
    assert tool is not None
    done = subprocess.run([tool, "action.yml"], cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.slow
@pytest.mark.skipif(shutil.which("shellcheck") is None, reason="no shellcheck here")
def test_shellcheck_accepts_the_scripts(tmp_path: Path) -> None:
    """ShellCheck finds nothing in any step, not even an unquoted variable (PATHS is the action's own name)."""
    for number, step in enumerate(STEPS):
        if "run" in step:
            script = tmp_path / f"{number}.sh"
            script.write_text(f"#!/usr/bin/env bash\nset -eo pipefail\n{step['run']}")
            done = subprocess.run(
                ["shellcheck", "--severity=info", "--exclude=SC2153", script], capture_output=True, text=True
            )
            assert done.returncode == 0, done.stdout


# The steps -----------------------------------------------------------------------------------------------------------


@BASH
def test_an_unchanged_repository_passes(runner: Runner) -> None:
    """Sound plans, current locks and no base: everything passes, nothing is compared, and the SARIF file is empty of results."""
    outputs = runner.run()
    assert not runner.failed, runner.log
    assert outputs["verdict"] == "skipped"
    log = json.loads(Path(outputs["sarif-file"]).read_text())
    assert log["runs"][0]["results"] == []
    comment = Path(outputs["comment-file"]).read_text()
    assert comment.splitlines()[:3] == ["<!-- refkv -->", "Plans: sound.", "Locks: current."]
    assert "Nothing was compared" in comment
    assert runner.summary.read_text() == comment
    assert runner.commands() == []


@BASH
def test_a_change_of_behaviour_is_shown(runner: Runner) -> None:
    """A changed interval with its lock: passes, and the comment is what `refkv diff` says in Markdown."""
    from refkv_policy.compiler.lock import lock_path, write_lock
    from refkv_policy.plan import load_plan

    plan = runner.workspace / "plans" / "reviewed.yaml"
    plan.write_text(PLAN.replace("interval: 4", "interval: 6"))
    write_lock(load_plan(plan), lock_path(plan))
    outputs = runner.run(base="HEAD")
    assert not runner.failed, runner.log
    assert outputs["verdict"] == "behaviour"
    comment = Path(outputs["comment-file"]).read_text()
    refkv = Path(sys.executable).parent / "refkv"
    printed = subprocess.run(
        [refkv, "diff", "--base", "HEAD", "--format", "markdown"], cwd=runner.workspace, capture_output=True, text=True
    )
    assert printed.stdout
    assert comment.endswith(printed.stdout)


@pytest.mark.slow
@BASH
def test_a_change_of_text_is_told_apart(runner: Runner) -> None:
    """A changed reason changes no table: the verdict is metadata, and no change at all is unchanged."""
    assert runner.run(base="HEAD")["verdict"] == "unchanged"
    plan = runner.workspace / "plans" / "reviewed.yaml"
    plan.write_text(PLAN.replace("a test of plan review", "another reason"))
    assert runner.run(base="HEAD")["verdict"] == "metadata"
    assert not runner.failed, runner.log


@BASH
def test_an_unsound_plan_fails_with_annotations(runner: Runner) -> None:
    """The fault is an annotation and a SARIF result at its line; the plans cannot be compared; the last step fails."""
    plan = runner.workspace / "plans" / "reviewed.yaml"
    plan.write_text(PLAN.replace("hint[deep]", "hint[0]"))
    outputs = runner.run(base="HEAD")
    assert runner.failed == ["Verdict"]
    first, *others = runner.commands()
    assert first.startswith(
        "::error title=RKV302 saves-no-block,file=plans/reviewed.yaml,line=14,endLine=14,col=9,endColumn=18::"
    )
    assert [line.split("::")[1] for line in others] == ["error title=refkv locks"]
    (result,) = json.loads(Path(outputs["sarif-file"]).read_text())["runs"][0]["results"]
    assert result["locations"][0]["physicalLocation"]["region"]["startLine"] == 14
    assert outputs["verdict"] == "failed"
    comment = Path(outputs["comment-file"]).read_text()
    assert "**Plans: unsound.**" in comment
    assert "could not be compared" in comment


@BASH
def test_a_stale_lock_fails(runner: Runner) -> None:
    """A plan changed without its lock is sound, and the action fails all the same, saying what to run."""
    (runner.workspace / "plans" / "reviewed.yaml").write_text(PLAN.replace("interval: 4", "interval: 6"))
    outputs = runner.run(base="HEAD")
    assert runner.failed == ["Verdict"]
    (told,) = runner.commands()
    assert told.startswith("::error title=refkv locks::A lock is missing or stale")
    assert "RKV702" in runner.log
    assert outputs["verdict"] == "behaviour"
    comment = Path(outputs["comment-file"]).read_text()
    assert "Plans: sound." in comment
    assert "**Locks: not current.** Run `refkv compile`." in comment


@pytest.mark.slow
@BASH
def test_a_fix_of_an_unsound_base_passes(runner: Runner, git: Callable[..., str]) -> None:
    """Where the base itself is unsound nothing can be compared, which does not keep its mending from passing."""
    plan = runner.workspace / "plans" / "reviewed.yaml"
    plan.write_text(PLAN.replace("hint[deep]", "hint[0]"))
    git(runner.workspace, "commit", "--quiet", "--all", "--message", "broken")
    plan.write_text(PLAN)
    outputs = runner.run(base="HEAD")
    assert not runner.failed, runner.log
    assert outputs["verdict"] == "failed"
    assert "could not be compared" in Path(outputs["comment-file"]).read_text()


@pytest.mark.slow
@BASH
def test_several_paths_and_strange_names(runner: Runner) -> None:
    """Paths are lines: spaces, quotes and shell characters in them are part of a name and nothing else."""
    strange = "serving $(touch pwned) 'x'; \"y\""
    shutil.copytree(runner.workspace / "plans", runner.workspace / strange)
    outputs = runner.run(paths=f"\n  plans\n{strange}\n")
    assert not runner.failed, runner.log
    assert not list(runner.workspace.rglob("pwned"))
    (runner.workspace / strange / "reviewed.yaml").write_text(PLAN.replace("method:", "metod:"))
    outputs = runner.run(paths=f"plans\n{strange}")
    results = json.loads(Path(outputs["sarif-file"]).read_text())["runs"][0]["results"]
    uris = {r["locations"][0]["physicalLocation"]["artifactLocation"]["uri"] for r in results}
    assert uris == {"serving%20%24%28touch%20pwned%29%20%27x%27%3B%20%22y%22/reviewed.yaml"}


@pytest.mark.slow
@BASH
@pytest.mark.parametrize("paths", ["--help", "nowhere"])
def test_paths_are_never_options_and_must_exist(runner: Runner, paths: str) -> None:
    """A path that looks like an option is a path, and one that is not there fails the action."""
    runner.run(paths=paths)
    assert runner.failed == ["Verdict"]
    assert "Usage:" not in runner.log


@BASH
@pytest.mark.parametrize("base", ["--output=pwned", "-h"])
def test_a_base_is_never_an_option(runner: Runner, base: str) -> None:
    """A base that begins with a dash is refused."""
    runner.run(base=base)
    assert runner.failed == ["Compare the plans"]
    assert not list(runner.workspace.rglob("pwned"))


@pytest.mark.slow
@BASH
def test_a_plan_cannot_give_the_runner_commands(runner: Runner) -> None:
    """Text of a plan that looks like a workflow command is not obeyed, wherever refkv repeats it."""
    evil = "x\\n::add-mask::secret\\n##[add-mask]secret"
    text = PLAN.replace("a test of plan review", f'"{evil}"').replace("interval: 4", "interval: 5")
    (runner.workspace / "plans" / "reviewed.yaml").write_text(text.replace("by: tests", f'by: "{evil}"'))
    runner.run(base="HEAD")
    assert all(line.startswith("::error title=") for line in runner.commands()), runner.log


@pytest.mark.slow
@BASH
def test_a_shallow_checkout_fetches_the_base(runner: Runner, git: Callable[..., str], tmp_path: Path) -> None:
    """With one commit checked out, as by default, the base of the pull request is fetched and compared with."""
    base = git(runner.workspace, "rev-parse", "HEAD")
    plan = runner.workspace / "plans" / "reviewed.yaml"
    plan.write_text(PLAN.replace("a test of plan review", "another reason"))
    git(runner.workspace, "commit", "--quiet", "--all", "--message", "change")
    git(runner.workspace, "config", "uploadpack.allowAnySHA1InWant", "true")
    git(tmp_path, "clone", "--quiet", "--depth=1", runner.workspace.as_uri(), "shallow")
    shallow = Runner(tmp_path / "shallow", tmp_path / "runner")
    shallow.known["github.event.pull_request.base.sha"] = base
    assert shallow.run()["verdict"] == "metadata", shallow.log
    assert not shallow.failed, shallow.log


@BASH
def test_a_long_difference_stays_out_of_the_comment(
    runner: Runner, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Beyond what a comment may hold, the comment says where the difference is; the summary has it whole."""
    stand_in = tmp_path / "refkv"
    stand_in.write_text(
        '#!/bin/sh\nif [ "$1" = diff ]; then head -c 70000 /dev/zero | tr "\\0" x; exit 3; fi\necho "{}"\n'
    )
    stand_in.chmod(0o755)
    monkeypatch.setitem(STEPS[1], "run", f'echo "refkv={stand_in}" >> "$GITHUB_OUTPUT"\n')
    outputs = runner.run(base="HEAD")
    assert not runner.failed, runner.log
    assert outputs["verdict"] == "behaviour"
    comment = Path(outputs["comment-file"]).read_text()
    assert comment.startswith("<!-- refkv -->\nPlans: sound.\nLocks: current.\n")
    assert comment.endswith("\nThe difference is too long for a comment; the job's summary has it.\n")
    assert "x" * 70_000 in runner.summary.read_text()


@BASH
@pytest.mark.slow
def test_the_action_installs_refkv(repository: Path, tmp_path: Path) -> None:
    """The install step makes an environment of its own from this tree, and the other steps run in it."""
    source = tmp_path / "refkv"
    ignored = shutil.ignore_patterns("__pycache__", "*.part*", "*.safetensors", "*.mp4")
    for name in ("refkv_policy", "plans", "schemas"):
        shutil.copytree(ROOT / name, source / name, ignore=ignored)
    for name in ("pyproject.toml", "README.md", "LICENSE"):
        shutil.copy(ROOT / name, source / name)
    runner = Runner(repository, tmp_path / "runner")
    outputs = runner.run(requirement=str(source), base="HEAD")
    assert not runner.failed, runner.log
    assert outputs["verdict"] == "unchanged"
    refkv = Path(runner.known["steps.install.outputs.refkv"])
    assert refkv.is_relative_to(tmp_path / "runner")
    explained = subprocess.run([refkv, "rule", "RKV302"], capture_output=True, text=True, cwd=tmp_path)
    assert "hint[shallow]" in explained.stdout, explained.stderr
