"""A method of another distribution, found by its entry point, at the main stack, a span and parts: from plan to replay."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

PACKAGE = Path(__file__).parent / "package"
ROOT = Path(__file__).parents[2]

HEAD = """version: 1
kind: plan
name: third-party
models: [{models}]
run:
  steps: [6]
  sampler: {{name: unipc, flow_shift: 3.0}}
  guidance: 5.0
  shapes: [{{size: 32x32, frames: 5}}]
caches:
{caches}acknowledgements:
  - {{risk: sample-risk, by: tests, date: 2026-01-01, reason: a test}}
"""

RUN = """
import sys
from tests import tiny
from refkv_policy.compiler import Workload, compile_plan, predict
from refkv_policy.plan import load_plan
from refkv_policy.profiles import Profile
from refkv_policy.runtime import attach
pipe = tiny.pipeline(tiny.transformer((5, (0, 1, 3))))
table = compile_plan(load_plan(sys.argv[1]), pipe.transformer, 6)
with attach(pipe, table, audit=sys.argv[2]) as session:
    tiny.run(pipe)
total = session.requests[0].total
told = predict(table, Profile.from_transformer(pipe.transformer), Workload(8, tiny.TEXT_LENGTH), "float32")
print(total.hits, total.misses, total.departures, total.bytes_peak, told.tally.hits, told.tally.misses, told.bytes_peak)
"""


def call(*words: str, path: str = f"{ROOT}{os.pathsep}{PACKAGE}") -> subprocess.CompletedProcess[str]:
    """A process of its own, in which the package is installed or not."""
    environment = {**os.environ, "PYTHONPATH": path, "OMP_NUM_THREADS": "1"}
    return subprocess.run(
        [sys.executable, *words], env=environment, cwd=ROOT, capture_output=True, text=True, check=False
    )


def rule(at: str, params: str = "") -> str:
    """One rule of the method."""
    return f"  - {{name: mine, tier: S, method: sample_cache, at: {at}, params: {{{params}}}}}\n"


@pytest.mark.parametrize(
    ("at", "params"),
    [
        ("main", ""),
        ("'main[1..4]'", ""),
        ("'main[1..4]'", "below: 0.9"),
        ("'main[0-2].ffn'", ""),
        ("'vace[all].self'", ""),
    ],
)
def test_from_plan_to_replay(tmp_path: Path, at: str, params: str) -> None:
    """Validated, locked, explained, run as predicted, and its log replayed, without a line changed anywhere else."""
    plan = tmp_path / "plan.yaml"
    plan.write_text(HEAD.format(models="wan2.1-vace-mini", caches=rule(at, params)))
    refkv = ("-m", "refkv_policy.cli")
    found = call(*refkv, "validate", str(plan))
    assert found.returncode == 0, found.stdout + found.stderr
    assert call(*refkv, "compile", str(plan)).returncode == 0
    assert call(*refkv, "compile", "--check", str(plan)).returncode == 0
    assert "sample_cache" in plan.with_suffix(".lock").read_text()
    explained = json.loads(call(*refkv, "explain", "--json", str(plan)).stdout)
    (figures,) = explained["predicted"].values()
    assert (figures["flops_saved"] > 0) == (not params)  # in the worst case an online rule saves nothing

    any_plan, log = tmp_path / "any.yaml", tmp_path / "run.jsonl"
    any_plan.write_text(HEAD.format(models="any", caches=rule(at, params)))
    ran = call("-c", RUN, str(any_plan), str(log))
    assert ran.returncode == 0, ran.stderr
    hits, misses, departures, held, *told = map(int, ran.stdout.split())
    assert hits > 0
    assert departures == 0
    if params:
        assert held <= told[2]
        assert hits + misses == told[0] + told[1]
    else:
        assert [hits, misses, held] == told
    verified = call(*refkv, "audit", "verify", str(log))
    assert verified.returncode == 0, verified.stdout + verified.stderr


def test_where_it_is_not_installed(tmp_path: Path) -> None:
    """Its name is unknown to `validate`; a log of it still verifies, and says that nothing was decided again."""
    plan, log = tmp_path / "any.yaml", tmp_path / "run.jsonl"
    plan.write_text(HEAD.format(models="any", caches=rule("'main[1..4]'", "below: 0.9")))
    assert call("-c", RUN, str(plan), str(log)).returncode == 0
    without = str(ROOT)
    found = call("-m", "refkv_policy.cli", "validate", str(plan), path=without)
    assert found.returncode == 1
    assert "sample_cache" in found.stdout + found.stderr
    verified = call("-m", "refkv_policy.cli", "audit", "verify", str(log), path=without)
    assert verified.returncode == 0, verified.stdout + verified.stderr
    assert "was not decided again" in verified.stdout + verified.stderr
