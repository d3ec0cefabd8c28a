"""What a plan predicts is what a run does: hits, misses and bytes, for every shipped plan, step count and branch setting.

Counting needs no arithmetic: the blocks are stubs that keep the real cross-attention (whose K and V are counted) and the
real shapes, so that all combinations run in seconds.
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
import torch
from diffusers import WanVACETransformer3DModel
from torch import Tensor, nn

import refkv_policy as refkv
from refkv_policy.audit import read_log, verify
from refkv_policy.compiler import BRANCHES, compile_plan, predict
from refkv_policy.profiles import Profile
from refkv_policy.profiles.cost import Workload
from tests import tiny

PLANS = sorted((Path(__file__).parents[1] / "plans").glob("wan21_*.yaml"))
MAPS = {"1.3b": tiny.MAP_1_3B, "14b": tiny.MAP_14B, "mini": (12, tuple(range(0, 12, 2)))}
CASES = [(path, steps) for path in PLANS for steps in refkv.load_plan(path).run.steps]


class MainStub(nn.Module):
    """A main block with nothing but its cross-attention."""

    def __init__(self, block: nn.Module, attends: bool) -> None:
        super().__init__()
        self.attn2, self.attends = block.attn2, attends

    def forward(self, hidden_states: Tensor, text: Tensor, timestep_proj: Tensor, rotary_emb: Tensor) -> Tensor:
        return hidden_states + self.attn2(hidden_states, text, None, None) if self.attends else hidden_states + 1


class VaceStub(MainStub):
    """A VACE block with nothing but its cross-attention."""

    def forward(  # type: ignore[override]
        self, hidden_states: Tensor, text: Tensor, control: Tensor, timestep_proj: Tensor, rotary_emb: Tensor
    ) -> tuple[Tensor, Tensor]:
        after = super().forward(control, text, timestep_proj, rotary_emb)
        return after * 2, after


def stubbed(layers: tuple[int, tuple[int, ...]], attends: bool) -> WanVACETransformer3DModel:
    """A transformer of a layer map whose blocks are stubs."""
    model = tiny.transformer(layers)
    for blocks, stub in ((model.blocks, MainStub), (model.vace_blocks, VaceStub)):
        for index, block in enumerate(blocks):
            blocks[index] = stub(block, attends)
    return model


@pytest.mark.parametrize("branches", [BRANCHES, BRANCHES[:1]], ids=["guided", "unguided"])
@pytest.mark.parametrize("layers", MAPS)
@pytest.mark.parametrize(("path", "steps"), CASES, ids=[f"{p.stem}-{s}" for p, s in CASES])
def test_predictions_equal_the_audit(
    path: Path, steps: int, layers: str, branches: tuple[str, ...], tmp_path: Path
) -> None:
    """A whole request on the model's layer map hits, misses and holds at its peak exactly what was predicted."""
    plan = replace(refkv.load_plan(path), models=("any",))
    model = stubbed(MAPS[layers], attends=any(rule.method == "text_kv" for rule in plan.caches))
    table = compile_plan(plan, model, steps)
    if branches != BRANCHES:
        table = replace(table, guidance=(1.0,))
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
    assert request.seal["outcome"] == "finished"
    totals = request.seal["totals"]
    assert (totals["hits"], totals["misses"]) == (expected.tally.hits, expected.tally.misses)
    assert request.seal["bytes_peak"] == expected.bytes_peak
    found = verify(log, table=table)
    assert found.outcome == "ok", found.problems
