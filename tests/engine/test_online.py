"""Rules that decide in the run: decisions, bounds, branches, replay of what the log says, and rules that never fire."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from refkv_policy.audit import verify
from refkv_policy.audit.record import GENESIS, chained
from refkv_policy.compiler import BRANCHES, HookTable, Workload, predict
from refkv_policy.compiler.lock import table_text
from refkv_policy.profiles import Profile
from refkv_policy.runtime import attach
from tests import tiny

MODEL = tiny.transformer((5, (0, 1, 3)))
PROFILE = Profile.from_transformer(MODEL, text_tokens=tiny.TEXT_LENGTH)
WORK = Workload(8, tiny.TEXT_LENGTH)
STEPS = 8
TEXT = "  - {name: text, tier: P0, method: text_kv, at: ['main[all].text_kv', 'vace[all].text_kv']}\n"


def table_of(
    delta: float, *, more: str = "", params: str = "", branches: str = "together", at: str = "main[1..4]"
) -> HookTable:
    """A table of a rule that decides online."""
    rule = f"  - {{name: span, tier: S, method: dbcache, at: '{at}', branches: {branches}, params: {{delta: {delta}{params}}}}}\n"
    return tiny.compiled(MODEL, rule + more, steps=STEPS)


def calls(seed: int = 0) -> list[tuple[int, str, dict[str, Any]]]:
    """The calls of a request whose latents wander, so that the first block changes a little, or a lot."""
    fixed = tiny.inputs(seed=99)
    latents = tiny.noise(1, 16, 2, 4, 4, seed=seed)
    found = []
    for step in range(STEPS):
        latents = latents + (0.02, 0.02, 0.6, 0.02, 0.02, 0.02, 0.3, 0.02)[step] * tiny.noise(
            1, 16, 2, 4, 4, seed=100 + step
        )
        for n, branch in enumerate(BRANCHES):
            prompt = fixed["encoder_hidden_states"] + n
            found.append((step, branch, {**fixed, "hidden_states": latents, "encoder_hidden_states": prompt}))
    return found


def perform(table: HookTable, path: Path | None = None) -> tuple[list[Tensor], Any]:
    """The outputs of a request, and its summary."""
    outputs = []
    with torch.no_grad(), attach(MODEL, table, audit=path) as session:
        for step, branch, inputs in calls():
            with session.step(step, branch=branch):
                outputs.append(MODEL(**inputs)[0])
    return outputs, session.requests[0]


def first_residuals(branch: str) -> list[Tensor]:
    """What block 0 (and the hint after it) adds to the stream at each step, from the model itself."""
    seen: list[Tensor] = []
    given: list[Tensor] = []
    handles = [
        MODEL.blocks[0].register_forward_pre_hook(lambda module, args: given.append(args[0])),
        MODEL.blocks[1].register_forward_pre_hook(lambda module, args: seen.append(args[0] - given[-1])),
    ]
    try:
        with torch.no_grad():
            for _, of, inputs in calls():
                if of == branch:
                    MODEL(**inputs)
    finally:
        for handle in handles:
            handle.remove()
    return seen


def decided(branch: str, delta: float, k: int = 10**9) -> str:
    """The published rule on recorded residuals: reuse while L1rel to the newest computed step's is below δ, at most k times."""
    reference, run, found = None, 0, ""
    for residual in first_residuals(branch):
        small = reference is not None and float((residual - reference).abs().mean() / reference.abs().mean()) < delta
        if small and run < k:
            run, found = run + 1, found + "R"
        else:
            reference, run, found = residual, 0, found + "C"
    return found


def log_of(path: Path, site: str) -> dict[str, str]:
    """What was done at a site, by branch, from the log."""
    found = dict.fromkeys(BRANCHES, "")
    for line in map(json.loads, path.read_text().splitlines()):
        if line["kind"] == "step":
            action = next(d["action"] for d in line["decisions"] if d["site"] == site)
            found[line["branch"]] += "C" if action == "." else action
    return found


@pytest.mark.parametrize(("delta", "params"), [(0.05, ""), (0.2, ""), (0.2, ", k: 2"), (5.0, ", k: 3"), (5.0, "")])
def test_decisions_are_those_of_the_published_rule(tmp_path: Path, delta: float, params: str) -> None:
    """Each branch for itself: the log's decisions equal an independent computation from recorded residuals."""
    path = tmp_path / "a.jsonl"
    perform(table_of(delta, params=params, branches="apart"), path)
    k = int(params.rpartition(" ")[2]) if params else 10**9
    assert log_of(path, "main[1..4]") == {branch: decided(branch, delta, k) for branch in BRANCHES}


def test_branches_together_decide_once(tmp_path: Path) -> None:
    """The uncond branch does as the cond branch did at the step, with its signal; each has a residual of its own."""
    path = tmp_path / "a.jsonl"
    perform(table_of(0.2), path)
    done = log_of(path, "main[1..4]")
    assert done["cond"] == done["uncond"] == decided("cond", 0.2)
    assert "R" in done["cond"]
    lines = [json.loads(line) for line in path.read_text().splitlines()]
    signals = {
        branch: [
            d.get("signal")
            for line in lines
            if line.get("branch") == branch
            for d in line["decisions"]
            if "signal" in d
        ]
        for branch in BRANCHES
    }
    assert signals["cond"] == signals["uncond"]


@pytest.mark.parametrize("delta", [1e-6, 0.05, 0.2, 5.0])
@pytest.mark.parametrize("branches", ["together", "apart"])
@pytest.mark.parametrize("more", ["", TEXT])
def test_what_is_counted_lies_within_the_bounds(delta: float, branches: str, more: str) -> None:
    """Misses, bytes and computed blocks lie between the best and the worst case that the lock shows."""
    table = table_of(delta, more=more, branches=branches, params=", k: 3")
    cases = {case: predict(table, PROFILE, WORK, "float32", BRANCHES, case) for case in ("best", "worst")}
    with tiny.counting(MODEL, lambda name: name.startswith("blocks.") and name.count(".") == 1) as blocks:
        _, request = perform(table)
    assert cases["best"].tally.misses <= request.total.misses <= cases["worst"].tally.misses
    assert request.total.bytes_peak <= cases["worst"].bytes_peak
    assert (
        cases["best"].flops_planned
        <= cases["worst"].flops_planned
        == cases["worst"].flops_uncached
        - (0 if not more else cases["worst"].flops_uncached - cases["worst"].flops_planned)
    )
    served = STEPS * len(BRANCHES) * 5 - len(blocks.calls)
    assert served % 4 == 0
    assert request.outcome == "finished"
    assert request.total.departures == 0


def test_never_served_is_the_uncached_output() -> None:
    """Below every change nothing is served, and each velocity is the model's own, to the bit."""
    outputs, request = perform(table_of(1e-9))
    with torch.no_grad():
        assert all(torch.equal(out, MODEL(**inputs)[0]) for out, (_, _, inputs) in zip(outputs, calls(), strict=True))
    assert request.total.hits == 0


def test_a_lock_shows_both_cases() -> None:
    """The lock of a table with `?` cells tells what they are, and predicts the worst and the best."""
    from tests.plans import plan_of

    plan = plan_of(
        "  - {name: span, tier: S, method: dbcache, at: 'main[1..11]', params: {delta: 0.1, k: 2}}\n",
        rest="acknowledgements:\n  - {risk: lossy-main-cache, by: tests, date: 2026-01-01, reason: a test}\n",
    )
    from refkv_policy.compiler import compile_plan
    from refkv_policy.compiler.lock import lock_text
    from refkv_policy.profiles import load_profile

    mini = load_profile("wan2.1-vace-mini")
    text = table_text(plan, compile_plan(plan, mini, 12), mini)
    assert "main[1..11]" in text
    assert "C???????????" in text
    assert "longest=2" in text
    lines = {line.split()[1]: line for line in text.splitlines() if line.startswith("predicted")}
    assert set(lines) == {"worst", "best"}
    assert "saved=0.00%" in lines["worst"]
    assert "saved=0.00%" not in lines["best"]
    assert "? decided online" in lock_text(plan)


def forged(path: Path, change: Any) -> Path:
    """The log with its step lines changed and every hash made anew."""
    prev, lines = GENESIS, []
    for line in map(json.loads, path.read_text().splitlines()):
        record = {key: value for key, value in line.items() if key not in ("hash", "prev")}
        change(record)
        data, prev = chained(record, prev)
        lines.append(data)
    target = path.with_name("forged.jsonl")
    target.write_bytes(b"".join(lines))
    return target


def test_a_forged_signal_is_found(tmp_path: Path) -> None:
    """A signal that would have been decided otherwise, or a decision that its signal does not give, breaks the replay."""
    path = tmp_path / "a.jsonl"
    table = table_of(0.2)
    perform(table, path)
    assert verify(path, table=table).outcome == "ok"

    def raised(record: dict[str, Any]) -> None:
        for d in record.get("decisions", ()):
            if d.get("planned") == "?" and d["action"] == "R":
                d["signal"] = 0.9

    found = verify(forged(path, raised), table=table)
    assert found.outcome == "broken"
    assert any("the rule says compute at the signal 0.9" in str(problem) for problem in found.problems)

    def lowered(record: dict[str, Any]) -> None:
        for d in record.get("decisions", ()):
            if d.get("planned") == "?" and d["action"] in "C." and "signal" in d:
                d["signal"] = 0.001

    found = verify(forged(path, lowered), table=table)
    assert found.outcome == "broken"
    assert any("the rule says serve at the signal 0.001" in str(problem) for problem in found.problems)

    def easier(record: dict[str, Any]) -> None:
        for d in record.get("decisions", ()):
            if "threshold" in d:
                d["threshold"] = 0.5

    assert verify(forged(path, easier), table=table).outcome == "broken"


def test_a_rule_that_never_fires_is_reported(tmp_path: Path) -> None:
    """A threshold that nothing meets costs time and saves none: the log's verification says so, and the session does."""
    path = tmp_path / "a.jsonl"
    table = table_of(1e-9)
    _, request = perform(table, path)
    assert any("rule span decided" in note and "never to serve" in note for note in verify(path, table=table).notes)
    assert request.never_served == ("span",)
    _, fires = perform(table_of(5.0))
    assert fires.never_served == ()


def test_a_new_prompt_in_mid_run_departs_towards_computing(tmp_path: Path) -> None:
    """What a rule would serve is computed where the prompt changed; the log gives the reason, and replays."""
    path = tmp_path / "a.jsonl"
    table = table_of(5.0)
    with torch.no_grad(), attach(MODEL, table, audit=path) as session:
        for step, branch, inputs in calls():
            given = dict(inputs)
            if step >= 4:
                given["encoder_hidden_states"] = inputs["encoder_hidden_states"] * 0.5
            with session.step(step, branch=branch):
                (out,) = MODEL(**given)
            if step == 4:
                plain = tiny.transformer((5, (0, 1, 3)))
                assert torch.equal(out, plain(**given)[0])
    request = session.requests[0]
    assert set(request.reasons) == {"new_control"}
    assert verify(path, table=table).outcome == "ok"


def test_calls_that_are_not_the_plans_are_not_decided(tmp_path: Path) -> None:
    """A forward outside any step is computed and does not move a rule's state."""
    path = tmp_path / "a.jsonl"
    table = table_of(0.2)
    with torch.no_grad(), attach(MODEL, table, audit=path) as session:
        for step, branch, inputs in calls():
            MODEL(**inputs)
            with session.step(step, branch=branch):
                MODEL(**inputs)
    assert log_of(path, "main[1..4]")["cond"] == decided("cond", 0.2)
    assert session.summary.unplanned == 2 * STEPS
