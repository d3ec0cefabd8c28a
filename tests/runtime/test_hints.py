"""P1: hints of the table's sites are served, their blocks spared, and everything else is exact."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

from refkv_policy.audit import read_log, verify
from refkv_policy.compiler import HookTable, Workload, branches_of, predict
from refkv_policy.compiler.table import COMPUTED, SERVED
from refkv_policy.profiles import Profile
from refkv_policy.runtime import attach
from tests import tiny

BLOCKS_1_3B = tuple(f"vace_blocks.{j}" for j in range(15))


def reuse(at: str, refresh: str, more: str = "", method: str = "hint_reuse", name: str = "hints") -> str:
    """One P1 rule as plan text."""
    return f'  - {{name: {name}, tier: P1, method: {method}, at: "{at}", refresh: {{{refresh}}}{more}}}\n'


def planned_runs(table: HookTable, branches: tuple[str, ...]) -> dict[str, int]:
    """How often the table runs each VACE block."""
    return {
        f"vace_blocks.{row.at.index}": sum(row.actions(b)[s] in COMPUTED for b in branches for s in table.evaluated)
        for row in table.rows
        if row.at.kind == ("vace", None)
    }


CASES = {
    "deep": reuse("hint[deep]", "interval: 4"),
    "all": reuse("hint[all]", "interval: 3"),
    "listed": reuse("hint[3-14]", 'steps: "0,2,5"'),
    "spaced": reuse("hint[all]", "spacing: sigma, count: 3"),
    "window": reuse("hint[8-14]", "interval: 2", ', window: "1..4"'),
    "two intervals": reuse("hint[5-9]", "interval: 2") + reuse("hint[10-14]", "interval: 4", name="deeper"),
    "stale middle": reuse("hint[4-7]", "interval: 2", ", params: {chain: stale}"),
    "stale start": reuse("hint[0-6]", "interval: 3", ", params: {chain: stale}"),
    "cond only": reuse("hint[deep]", "interval: 3", ", branches: cond"),
    "forecast": reuse("hint[deep]", "interval: 2", method="hint_forecast"),
    "forecast stale": reuse("hint[0-6]", "interval: 2", ", params: {chain: stale}", method="hint_forecast"),
    "with text": reuse("hint[deep]", "interval: 3")
    + '  - {name: text, tier: P0, method: text_kv, at: ["main[all].text_kv", "vace[all].text_kv"]}\n',
    "thinned": reuse("hint[deep]", "interval: 2")
    + '  - {name: steps, tier: S, method: step_schedule, at: step, refresh: {steps: "0,2,3,5"}}\n',
}


@pytest.fixture(scope="module")
def pipe() -> Any:
    """A pipeline with the real layer map of the 1.3B."""
    return tiny.pipeline(tiny.transformer(tiny.MAP_1_3B))


@pytest.mark.parametrize(
    ("caches", "guidance"),
    **tiny.settings(
        {name: (caches, 5.0) for name, caches in CASES.items()}
        | {f"{name}, guidance 1": (CASES[name], 1.0) for name in ("deep", "cond only", "forecast stale")}
    ),
)
def test_work_hits_bytes_and_log_are_those_predicted(pipe: Any, caches: str, guidance: float, tmp_path: Path) -> None:
    """Blocks run exactly where the table says; hits, misses and peak bytes equal the compiler's prediction.

    The same figures are in the log, which verifies and replays without a departure.
    """
    model = pipe.transformer
    table = tiny.compiled(model, caches)
    branches = branches_of(table, guidance)
    path = tmp_path / "run.jsonl"
    with attach(pipe, table, audit=path) as session, tiny.counting(model, tiny.is_vace_block) as counts:
        tiny.run(pipe, guidance=guidance)
    expected = predict(
        table, Profile.from_transformer(model), Workload(2 * 2 * 2, tiny.TEXT_LENGTH), "float32", branches
    )
    request = session.requests[0]
    assert request.outcome == "finished"
    assert {name: counts.of(name) for name in BLOCKS_1_3B} == planned_runs(table, branches)
    assert (request.total.hits, request.total.misses) == (expected.tally.hits, expected.tally.misses)
    assert request.total.bytes_peak == expected.bytes_peak
    assert request.total.departures == 0
    for site, by_branch in expected.sites.items():
        for branch, tally in by_branch.items():
            ours = request.sites[site][branch]
            assert (ours.hits, ours.misses) == (tally.hits, tally.misses)
    verification = verify(path, table=table)
    assert (verification.outcome, verification.problems) == ("ok", ())
    seal = read_log(path).requests[0].seal
    assert seal is not None
    assert (seal["totals"]["hits"], seal["totals"]["misses"]) == (expected.tally.hits, expected.tally.misses)
    assert (seal["totals"]["departures"], seal["bytes_peak"]) == ({}, expected.bytes_peak)


def test_interval_of_one_keeps_nothing_and_is_bit_equal() -> None:
    """K = 1 stores nothing: no bytes, no hits, the same latents."""
    pipe = tiny.pipeline()
    before = tiny.run(pipe)
    table = tiny.written(pipe.transformer, 6, {"hint[1]": "......"}, rules=(tiny.rule(),))
    with attach(pipe, table) as session:
        assert torch.equal(tiny.run(pipe), before)
    assert (session.summary.bytes_peak, session.summary.hits) == (0, 0)


def test_reused_hint_is_added_once_and_only_it_differs() -> None:
    """A reuse step equals a forward in which the kept hint is put in the place of the fresh one, and nothing else."""
    model = tiny.transformer()
    table = tiny.compiled(model, reuse("hint[1]", "interval: 3"))
    first, second = tiny.inputs(seed=1), tiny.inputs(seed=1)
    second["hidden_states"] = tiny.noise(1, 16, 2, 4, 4, seed=50)
    scale = torch.tensor([0.9, 0.4])
    kept: list[torch.Tensor] = []
    with torch.no_grad():
        hook = model.vace_blocks[1].register_forward_hook(lambda _m, _i, out: kept.append(out[0]))
        model(**first)
        hook.remove()
        put_in = model.vace_blocks[1].register_forward_hook(lambda _m, _i, out: (kept[0], out[1]))
        expected = model(**second, control_hidden_states_scale=scale)[0]
        put_in.remove()
        with attach(model, table) as session:
            with session.step(0, branch="cond"):
                model(**first)
            with session.step(1, branch="cond"):
                ours = model(**second, control_hidden_states_scale=scale)[0]
        assert torch.equal(ours, expected)
        assert not torch.equal(ours, model(**second, control_hidden_states_scale=scale)[0])


@pytest.mark.parametrize(
    "caches", [CASES["all"], CASES["stale start"], CASES["with text"]], ids=["all", "stale", "text"]
)
def test_identical_inputs_on_a_reuse_step_give_exactly_the_uncached_output(caches: str) -> None:
    """The forced-skip test that peers fail by 27 %: same inputs, a reuse step, no difference at all."""
    model = tiny.transformer(tiny.MAP_1_3B)
    inputs = tiny.inputs()
    with torch.no_grad():
        native = model(**inputs)[0]
        with attach(model, tiny.compiled(model, caches)) as session:
            for step in range(2):
                with session.step(step, branch="cond"):
                    assert torch.equal(model(**inputs)[0], native)
        assert session.summary.hits > 0


def test_first_uncond_call_never_sees_conds_state() -> None:
    """Each branch is served its own hints: the same run with the branches' prompts exchanged exchanges the outputs."""
    model = tiny.transformer()
    table = tiny.compiled(model, reuse("hint[all]", "interval: 3"))
    inputs = {"cond": tiny.inputs(seed=1), "uncond": tiny.inputs(seed=8)}

    def outputs(of: dict[str, Any], order: tuple[str, str]) -> dict[tuple[str, int], torch.Tensor]:
        found = {}
        with attach(model, table) as session, torch.no_grad():
            for step in range(2):
                for branch in order:
                    with session.step(step, branch=branch):
                        found[branch, step] = model(**of[branch])[0]
        assert session.summary.departures == 0
        return found

    straight = outputs(inputs, ("cond", "uncond"))
    swapped = outputs({"cond": inputs["uncond"], "uncond": inputs["cond"]}, ("uncond", "cond"))
    with torch.no_grad():
        assert torch.equal(straight["uncond", 0], model(**inputs["uncond"])[0])
    for step in range(2):
        assert torch.equal(straight["cond", step], swapped["uncond", step])
        assert torch.equal(straight["uncond", step], swapped["cond", step])


def test_table_for_one_branch_leaves_the_other_exact() -> None:
    """With reuse on cond alone, the uncond calls of a bare loop are uncached outputs."""
    model = tiny.transformer()
    table = tiny.compiled(model, reuse("hint[all]", "interval: 3", ", branches: cond"))
    inputs = tiny.inputs()
    with torch.no_grad(), attach(model, table) as session:
        for step in range(3):
            inputs["hidden_states"] = tiny.noise(1, 16, 2, 4, 4, seed=60 + step)
            for branch in ("cond", "uncond"):
                with session.step(step, branch=branch):
                    last = model(**inputs)[0]
    with torch.no_grad():
        assert torch.equal(last, model(**inputs)[0])
    assert "uncond" not in {b for site in session.summary.sites.values() for b, t in site.items() if t.hits}


def test_control_is_not_embedded_where_the_chain_does_not_start() -> None:
    """On a step whose hints are all served neither the VACE blocks nor the control's embedding run."""
    model = tiny.transformer()
    table = tiny.compiled(model, reuse("hint[all]", "interval: 2"))
    wanted = ("vace_patch_embedding", "vace_blocks.0", "vace_blocks.1", "vace_blocks.0.proj_in")
    with attach(model, table) as session, torch.no_grad(), tiny.counting(model, wanted.__contains__) as counts:
        for step in range(2):
            with session.step(step, branch="cond"):
                model(**tiny.inputs())
    assert sorted(counts.calls) == sorted(wanted)


def test_stale_chain_restarts_from_the_kept_state() -> None:
    """A restart equals a forward in which the kept control stream replaces the fresh one after that block."""
    model = tiny.transformer((6, (0, 2, 4)))
    table = tiny.compiled(model, reuse("hint[0-1]", "interval: 2", ", params: {chain: stale}"))
    first, second = tiny.inputs(seed=1), tiny.inputs(seed=1)
    second["hidden_states"] = tiny.noise(1, 16, 2, 4, 4, seed=51)
    kept: dict[int, Any] = {}
    with torch.no_grad():
        hooks = [
            model.vace_blocks[j].register_forward_hook(lambda _m, _i, out, j=j: kept.__setitem__(j, out))
            for j in (0, 1)
        ]
        model(**first)
        for hook in hooks:
            hook.remove()
        was = dict(kept)
        hooks = [model.vace_blocks[j].register_forward_hook(lambda _m, _i, _o, j=j: was[j]) for j in (0, 1)]
        expected = model(**second)[0]
        for hook in hooks:
            hook.remove()
        with attach(model, table) as session, tiny.counting(model, tiny.is_vace_block) as counts:
            with session.step(0, branch="cond"):
                model(**first)
            counts.calls.clear()
            with session.step(1, branch="cond"):
                assert torch.equal(model(**second)[0], expected)
        assert counts.calls == ["vace_blocks.2"]


def test_blocks_run_just_before_the_main_block_that_adds_their_hint() -> None:
    """Lazy order: each VACE block directly before its main block, none earlier."""
    model = tiny.transformer()
    blocks = [name for name, _ in model.named_modules() if name.count(".") == 1 and "blocks." in name]
    with (
        torch.no_grad(),
        attach(model, tiny.written(model, 6)) as session,
        tiny.counting(model, blocks.__contains__) as counts,
        session.step(0, branch="cond"),
    ):
        model(**tiny.inputs())
    assert counts.calls == ["vace_blocks.0", "blocks.0", "blocks.1", "vace_blocks.1", "blocks.2", "blocks.3"]


def test_new_control_in_mid_run_is_noticed() -> None:
    """Another control drops hints and chain states: exact until the next refresh, departures named `new_control`."""
    model = tiny.transformer()
    table = tiny.compiled(model, reuse("hint[all]", "interval: 4"))
    inputs = tiny.inputs()
    with torch.no_grad(), attach(model, table) as session:
        with session.step(0, branch="cond"):
            model(**inputs)
        inputs["control_hidden_states"] = tiny.noise(1, 96, 2, 4, 4, seed=70)
        with session.step(1, branch="cond"):
            ours = model(**inputs)[0]
    with torch.no_grad():
        assert torch.equal(ours, model(**inputs)[0])
    assert session.summary.reasons == {"new_control": 2, "chain": 2}


def test_served_by_nothing_that_is_older_than_planned() -> None:
    """A skipped refresh is not made up for by an older value: the cells after it are computed, `no_state`."""
    model = tiny.transformer()
    table = tiny.compiled(model, reuse("hint[all]", "interval: 3"))
    inputs = tiny.inputs()
    with torch.no_grad(), attach(model, table) as session:
        for step in (0, 1, 4):
            inputs["hidden_states"] = tiny.noise(1, 16, 2, 4, 4, seed=80 + step)
            with session.step(step, branch="cond"):
                ours = model(**inputs)[0]
    with torch.no_grad():
        assert torch.equal(ours, model(**inputs)[0])
    assert session.summary.reasons == {"no_state": 2, "chain": 2}


@pytest.mark.parametrize("case", CASES)
def test_every_served_cell_is_a_block_saved(case: str) -> None:
    """No VACE block runs in a call whose hints from it on are all served; with an exact chain, every earlier one does."""
    model = tiny.transformer(tiny.MAP_1_3B)
    table = tiny.compiled(model, CASES[case])
    with attach(model, table) as session, torch.no_grad():
        for step in table.evaluated:
            for branch in ("cond", "uncond"):
                with tiny.counting(model, tiny.is_vace_block) as counts, session.step(step, branch=branch):
                    model(**tiny.inputs())
                rows = [table.by_site[f"hint[{j}]"].actions(branch) for j in range(15)]
                deepest = max((j for j, row in enumerate(rows) if row[step] not in SERVED), default=-1)
                needed = [f"vace_blocks.{j}" for j in range(deepest + 1)]
                assert set(counts.calls) <= set(needed)
                if "stale" not in CASES[case]:
                    assert counts.calls == needed
