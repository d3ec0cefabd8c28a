"""What a plan predicts is what a run does: hits, misses and bytes, for every shipped plan, step count and branch setting."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
import torch

import refkv_policy as refkv
from refkv_policy.audit import read_log, verify
from refkv_policy.compiler import BRANCHES, compile_plan, predict
from refkv_policy.profiles import Profile
from refkv_policy.profiles.cost import Workload
from tests import tiny

PLANS = sorted((Path(__file__).parents[1] / "plans").glob("*.yaml"))
MAPS = {"1.3b": tiny.MAP_1_3B, "14b": tiny.MAP_14B, "mini": (12, tuple(range(0, 12, 2)))}
CASES = [(path, steps) for path in PLANS for steps in refkv.load_plan(path).run.steps]


@pytest.mark.parametrize("branches", [BRANCHES, BRANCHES[:1]], ids=["guided", "unguided"])
@pytest.mark.parametrize("layers", MAPS)
@pytest.mark.parametrize(("path", "steps"), CASES, ids=[f"{p.stem}-{s}" for p, s in CASES])
def test_predictions_equal_the_audit(
    path: Path, steps: int, layers: str, branches: tuple[str, ...], tmp_path: Path
) -> None:
    """A whole request on the model's layer map hits, misses and holds at its peak exactly what was predicted."""
    model = tiny.transformer(MAPS[layers])
    plan = replace(refkv.load_plan(path), models=("any",))
    table = compile_plan(plan, model, steps)
    forward = tiny.inputs()
    batch, _, frames, height, width = forward["hidden_states"].shape
    work = Workload(frames * height // 2 * width // 2, tiny.TEXT_LENGTH, batch)
    expected = predict(table, Profile.from_transformer(model), work, "float32", branches)
    log = tmp_path / "run.jsonl"
    with torch.no_grad(), refkv.attach(model, table, audit=log) as session:
        for step in table.evaluated:
            for branch in branches:
                with session.step(step, branch=branch):
                    model(**forward)
    summary = session.summary
    assert (summary.hits, summary.misses) == (expected.tally.hits, expected.tally.misses)
    assert summary.departures == 0
    assert summary.bytes_peak == expected.bytes_peak
    assert session.bytes_held == 0
    for site, by_branch in expected.sites.items():
        for branch, tally in by_branch.items():
            counted = summary.sites[site][branch]
            assert (counted.hits, counted.misses) == (tally.hits, tally.misses)
    (request,) = read_log(log).requests
    assert request.seal is not None
    assert request.seal["bytes_peak"] == expected.bytes_peak
    found = verify(log, table=table)
    if branches == BRANCHES:
        assert found.outcome == "ok", found.problems
