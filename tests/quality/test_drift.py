"""Drift: distances against numpy, hooks that change nothing, and the rule by which a refresh is suggested."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from refkv_policy.compiler import compile_plan
from refkv_policy.profiles import load_profile
from refkv_policy.quality.drift import Distance, Drift, Schedule, Trail, distance, watching
from refkv_policy.quality.drift_suggest import candidates, plan_fresh, series, suggest
from refkv_policy.report.drift import drift_of
from tests import sweeps, tiny

BOTH = ("cond", "uncond")


def test_distances_are_numpys() -> None:
    """Relative L2, cosine and norm ratio of random tensors, in bf16 too; nan from a reference of zero."""
    v, r = tiny.noise(2, 3, 5, seed=1), tiny.noise(2, 3, 5, seed=2)
    for dtype in (torch.float32, torch.bfloat16):
        a, b = (x.to(dtype).double().numpy().ravel() for x in (v, r))
        expected = (
            np.linalg.norm(a - b) / np.linalg.norm(b),
            a @ b / np.linalg.norm(a) / np.linalg.norm(b),
            np.linalg.norm(a) / np.linalg.norm(b),
        )
        assert distance(v.to(dtype), r.to(dtype)) == pytest.approx(expected, rel=1e-6)
    assert np.isnan(distance(v, torch.zeros_like(v))).all()


def test_a_trail_compares_with_first_previous_and_fresh() -> None:
    """Values 1, 2, 4, 8 …: each reference is the right one, and a fresh step is compared with no fresh value."""
    trail = Trail("cond", [Schedule("fresh", {"cond": frozenset({0, 3})})])
    for step in range(5):
        trail.see(step, torch.tensor([2.0**step]))
    ratios = {name: {s: d.norm_ratio for s, d in by_step.items()} for name, by_step in trail.distances.items()}
    assert ratios == {
        "first": {1: 2, 2: 4, 3: 8, 4: 16},
        "previous": {1: 2, 2: 2, 3: 2, 4: 2},
        "fresh": {1: 2, 2: 4, 4: 2},
    }


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_watching_changes_no_output_and_leaves_nothing_behind(dtype: torch.dtype) -> None:
    """Latents of a run that is watched are bit-equal to those of one that is not; afterwards no hook is left."""
    pipe = tiny.pipeline(tiny.transformer(dtype=dtype))
    before = tiny.run(pipe, steps=3)
    drift = Drift([])
    with watching(pipe, drift.take, main=True):
        watched = tiny.run(pipe, steps=3)
    assert torch.equal(before, watched)
    assert not any(m._forward_hooks or m._forward_pre_hooks for m in pipe.transformer.modules())
    assert "cache_context" not in vars(pipe.transformer)
    sites = {"hint[0]", "hint[1]", "main[0]", "main[1]", "main[2]", "main[3]", "main"}
    assert set(drift.trails) == {(site, branch) for site in sites for branch in BOTH}


def test_the_values_are_the_models_own() -> None:
    """Hints are what proj_out gives, unscaled; block outputs come before the hint; the residual is output minus input."""
    pipe = tiny.pipeline()
    seen: dict[tuple[str, str, int], torch.Tensor] = {}
    projected, entered = [], []
    block = pipe.transformer.vace_blocks[1]
    handles = [
        block.proj_out.register_forward_hook(lambda m, a, o: projected.append(o.clone())),
        pipe.transformer.blocks[0].register_forward_pre_hook(lambda m, a: entered.append(a[0].clone())),
    ]
    with watching(pipe, lambda site, branch, step, v: seen.update({(site, branch, step): v.clone()}), main=True):
        tiny.run(pipe, steps=2, conditioning_scale=0.5)
    for handle in handles:
        handle.remove()
    calls = [(step, branch) for step in range(2) for branch in BOTH]
    for (step, branch), hint, x in zip(calls, projected, entered, strict=True):
        assert torch.equal(seen["hint[1]", branch, step], hint)
        # Hints follow main blocks 0 and 2 of four, so the last block's output ends the stack.
        residual = seen["main[3]", branch, step].float() - x.float()
        assert torch.equal(seen["main", branch, step], residual)


def _sample(drift: Callable[[int, float], float], table: Any) -> dict[Any, Any]:
    """A made-up request: drift(hint, gap) from a value that is older by that gap in sigma."""
    found: dict[Any, Any] = {}
    for j in range(len(table.layout.vace_at)):
        by: dict[str, dict[int, Distance]] = {}
        for name, fresh, _ in candidates(table):
            newest = 0
            for step in range(table.steps):
                newest = step if step in fresh else newest
                if step != newest:
                    by.setdefault(name, {})[step] = Distance(
                        drift(j, table.sigmas[newest] - table.sigmas[step]), 1.0, 1.0
                    )
        found.update({(f"hint[{j}]", branch): by for branch in BOTH})
    return found


def test_the_suggestion_follows_its_rule() -> None:
    """Deep hints that drift by half a gap in sigma keep to 0.1 up to 0.2: the fewest refreshes that leave no wider gap."""
    table = compile_plan(sweeps.plan("wan2.1-vace-mini", 24), load_profile("wan2.1-vace-mini"), 24)
    found = suggest([_sample(lambda j, gap: 0.5 * gap if j >= 4 else 1.0, table)], table, candidates(table), 0.1)
    assert found is not None
    gaps = {form["count"]: widest(fresh, table.sigmas) for _, fresh, form in candidates(table)}
    fewest = min(count for count, gap in gaps.items() if gap <= 0.2)
    assert (found.hints, found.refresh) == ((4, 5), {"spacing": "sigma", "count": fewest})
    assert found.worst == pytest.approx(0.5 * gaps[fewest])
    assert found.spared == pytest.approx(2 / 6 * (24 - fewest) / 24)
    assert 'at: "hint[4-5]"' in found.fragment()
    # A shallow hint between unstable deep ones is no suffix.
    assert suggest([_sample(lambda j, gap: 1.0 if j == 5 else 0.0, table)], table, candidates(table), 0.1) is None
    # One sample of two drifts three times as much: the mean of both is a gap itself.
    both = [_sample(lambda j, gap, f=f: 0.5 * f * gap if j >= 4 else 1.0, table) for f in (1, 3)]
    found = suggest(both, table, candidates(table), 0.1)
    assert found is not None
    assert found.refresh["count"] == min(count for count, gap in gaps.items() if gap <= 0.1) > fewest


def widest(fresh: frozenset[int], sigmas: Sequence[float]) -> float:
    """The widest gap in sigma between a step and the newest fresh one."""
    return max(sigmas[max(f for f in fresh if f <= step)] - sigmas[step] for step in range(len(sigmas)))


def test_a_suggested_rule_compiles_once_somebody_accepts_its_risk() -> None:
    """The fragment, in the place of a plan's rules and acknowledgements, forecasts; it is refused until it is signed."""
    plan = sweeps.plan("wan2.1-vace-mini", 24)
    table = compile_plan(plan, load_profile("wan2.1-vace-mini"), 24)
    found = suggest([_sample(lambda j, gap: 0.01, table)], table, candidates(table), 0.1)
    assert found is not None
    from refkv_policy.plan import parse_plan

    head, rest = plan.document.text.split("caches:")
    assert rest.count("acknowledgements:") == 1
    text = head + found.fragment()
    unsigned, faults = parse_plan(text, "typed.yaml")
    assert unsigned is None
    assert sorted(text.splitlines()[d.span.line - 1].split(":")[0].strip() for d in faults if d.span) == [
        "by",
        "reason",
    ]
    signed = text.replace("by: #", "by: tests #").replace("reason: #", "reason: a test #")
    typed, faults = parse_plan(signed, "typed.yaml")
    assert typed is not None, faults
    assert any("F" in row.cond for row in compile_plan(typed, load_profile("wan2.1-vace-mini"), 24).rows)


def test_fresh_is_what_the_plan_computes() -> None:
    """Every second step of an interval of 2, by branch; none for a plan that caches no hint."""
    table = compile_plan(sweeps.plan("wan2.1-vace-mini", 6), load_profile("wan2.1-vace-mini"), 6)
    assert plan_fresh(table) == dict.fromkeys(BOTH, frozenset({0, 2, 4}))


def test_curves_are_means_with_their_spread() -> None:
    """By step the mean, least and most over samples; a step that is not a number in one of them is left out."""

    def sample(*values: float) -> dict[Any, Any]:
        return {("hint[0]", "cond"): {"first": {i + 1: Distance(v, 1.0, 1.0) for i, v in enumerate(values)}}}

    (curve, *_), nan = series([sample(1.0, 2.0), sample(3.0, 6.0)], ("first",)), float("nan")
    assert (curve["measure"], curve["steps"], curve["mean"]) == ("relative_l2", [1, 2], [2.0, 4.0])
    assert (curve["low"], curve["high"]) == ([1.0, 2.0], [3.0, 6.0])
    (curve, *_) = series([sample(1.0, nan), sample(3.0, 6.0)], ("first",))
    assert curve["steps"] == [1]


def test_the_command_measures_and_writes_what_a_report_reads(
    refkv: Callable[..., Any], tiny_folder: Path, plan_file: Path, clips: Path, tmp_path: Path
) -> None:
    """Two clips and a seed on a tiny model: JSON that `refkv report` takes, first drift by independent hooks."""
    out = tmp_path / "drift.json"
    common = (
        "--model",
        tiny_folder,
        "--clips",
        clips,
        "--device",
        "cpu",
        "--seeds",
        "1",
        "--size",
        "16x16",
        "--frames",
        "5",
    )
    result = refkv("drift", plan_file, *common, "--tolerance", "0.9", "--out", out, "--json")
    assert result.exit_code == 0, result.output
    value = json.loads(result.stdout)
    assert value == json.loads(out.read_text())
    drift = drift_of(value, "drift.json")
    assert {c.against for c in drift.curves} == {"first", "previous", "fresh"}
    assert value["fresh_steps"] == {"cond": [0, 2], "uncond": [0, 2]}
    assert value["suggestion"].startswith("caches:")
    assert "hint[1]" in result.stderr
    refused = refkv("drift", plan_file, *common[:2], "--clips", plan_file)
    assert (refused.exit_code, "is not a folder" in refused.stderr) == (2, True)
    before = plan_file.read_bytes()
    for place, told in (
        (plan_file, "would overwrite"),
        (plan_file / "x.json", "is not a folder"),
        ("/dev/null", "device"),
    ):
        refused = refkv("drift", plan_file, *common, "--out", place)
        assert (refused.exit_code, told in refused.stderr, refused.stdout) == (2, True, "")
    assert plan_file.read_bytes() == before
