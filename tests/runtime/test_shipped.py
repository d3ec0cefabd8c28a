"""Every shipped plan, on every model and step count it lists: what is counted is what was predicted.

Blocks are stubs that only take part in what a session watches, so that 50 steps of the real layer maps cost little.
"""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from refkv_policy.audit import read_log, verify
from refkv_policy.compiler import BRANCHES, HookTable, Workload, compile_all, predict
from refkv_policy.plan import load_plan
from refkv_policy.profiles import load_profile
from refkv_policy.runtime import attach
from tests import tiny

PLANS = sorted((Path(__file__).parents[2] / "plans").glob("wan21_*.yaml"))
TOKENS = 8
"""Of the request in `tiny.inputs`."""


class StubMain(nn.Module):
    """A main block: its cross-attention where text K/V are kept or served, nothing else."""

    def __init__(self, attention: nn.Module) -> None:
        super().__init__()
        self.attn2 = attention

    def forward(self, hidden_states: Tensor, text: Any, *_: Any) -> Tensor:
        """The main stream."""
        return hidden_states if isinstance(text, Tensor) else hidden_states + self.attn2(hidden_states, text)


class StubVACE(nn.Module):
    """A VACE block, likewise."""

    def __init__(self, attention: nn.Module) -> None:
        super().__init__()
        self.attn2 = attention

    def forward(self, hidden_states: Tensor, text: Any, control: Tensor, *_: Any) -> tuple[Tensor, Tensor]:
        """Hint and control stream, each with memory of its own."""
        if not isinstance(text, Tensor):
            control = control + self.attn2(control, text)
        return control + 1, control + 2


def stubbed(layers: tuple[int, tuple[int, ...]]) -> Any:
    """A transformer of a layer map whose blocks are stubs."""
    model = tiny.transformer(layers)
    model.blocks = nn.ModuleList(StubMain(block.attn2) for block in model.blocks)
    model.vace_blocks = nn.ModuleList(StubVACE(block.attn2) for block in model.vace_blocks)
    return model


def cases() -> list[Any]:
    """Table, profile and branches; without guidance at the plan's first step count only, to save time."""
    found = []
    for path in PLANS:
        plan = load_plan(path)
        for (profile, steps), table in compile_all(plan).items():
            for branches in (BRANCHES, BRANCHES[:1]) if steps == plan.run.steps[0] else (BRANCHES,):
                name = f"{path.stem} {profile} {steps} {'+'.join(branches)}"
                found.append(pytest.param(table, profile, branches, id=name))
    return found


@pytest.mark.parametrize(("table", "profile", "branches"), cases())
def test_counted_is_predicted(table: HookTable, profile: str, branches: tuple[str, ...], tmp_path: Path) -> None:
    """Hits, misses and peak bytes of session and log equal the prediction exactly, and the log verifies."""
    model = stubbed((table.layout.main_blocks, table.layout.vace_at))
    narrow = {"heads": 2, "ffn_dim": 32}
    table = dataclasses.replace(
        table,
        layout=dataclasses.replace(table.layout, dim=24, **narrow),
        guidance=table.guidance if len(branches) > 1 else (1.0,),
    )
    shape = dataclasses.replace(load_profile(profile), head_dim=12, **narrow)
    expected = predict(table, shape, Workload(TOKENS, tiny.TEXT_LENGTH), "float32", branches)
    inputs = tiny.inputs()
    with torch.no_grad(), attach(model, table, audit=tmp_path / "run.jsonl") as session:
        for step in table.evaluated:
            for branch in branches:
                with session.step(step, branch=branch):
                    model(**inputs)
        assert session.bytes_held == 0
    (request,) = session.requests
    assert (request.outcome, request.total.departures) == ("finished", 0)
    assert (request.total.hits, request.total.misses) == (expected.tally.hits, expected.tally.misses)
    assert request.total.bytes_peak == expected.bytes_peak
    verification = verify(tmp_path / "run.jsonl", table=table)
    assert (verification.outcome, verification.problems) == ("ok", ())
    seal = read_log(tmp_path / "run.jsonl").requests[0].seal
    assert seal is not None
    assert (seal["totals"]["hits"], seal["totals"]["misses"]) == (expected.tally.hits, expected.tally.misses)
    assert seal["bytes_peak"] == expected.bytes_peak
