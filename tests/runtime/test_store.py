"""The store: bytes to the byte, budgets held, nothing older than planned."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from refkv_policy.plan.selectors import Site
from refkv_policy.runtime import attach
from refkv_policy.runtime.cells import Cell, plan_calls
from refkv_policy.runtime.store import Store
from tests import tiny


def cell(position: int = 0, *, branch: str = "cond", step: int = 0, retained: int = 1, rank: int | None = None) -> Cell:
    """A cell that keeps."""
    return Cell(
        f"hint[{position}]", position, branch, step, "C", position if rank is None else rank, retained, (), 0.5, 0
    )


def reading(position: int = 0, *sources: int, branch: str = "cond") -> Cell:
    """A cell that reads observations of the given steps."""
    return Cell(f"hint[{position}]", position, branch, 9, "R", position, 0, sources or (0,), 0.5, 0)


def test_bytes_count_what_is_held() -> None:
    """Held bytes are element size times elements; the peak stays when the values go."""
    store = Store((tiny.rule(),))
    assert store.keep(cell(0), torch.zeros(3, 5))
    assert store.keep(cell(1, branch="uncond"), torch.zeros(7, dtype=torch.bfloat16))
    assert (store.bytes, store.by_branch["uncond"].now) == (60 + 14, 14)
    store.clear()
    assert (store.bytes, store.total.peak, store.empty) == (0, 74, True)


def test_views_are_copied_to_their_own_memory() -> None:
    """A view would keep the whole of a larger tensor alive: what is held owns exactly its bytes."""
    store = Store((tiny.rule(),))
    wide = torch.randn(4, 6)
    store.keep(cell(), *wide.chunk(2, dim=-1))
    kept = store.history(reading())
    assert kept is not None
    assert sum(t.untyped_storage().nbytes() for t in kept[0].held) == store.bytes == 96
    assert all(torch.equal(a, b) for a, b in zip(kept[0].held, wide.chunk(2, dim=-1), strict=True))


def test_older_ones_go_before_a_new_one_counts() -> None:
    """With two retained the third observation replaces the first, and the peak is two."""
    store = Store((tiny.rule(history=2),))
    for step in range(3):
        store.keep(cell(step=step, retained=2), torch.full((4,), float(step)))
    kept = store.history(reading(0, 2, 1))
    assert kept is not None
    assert [k.step for k in kept] == [2, 1]
    assert store.total.peak == 2 * 16


def test_history_is_never_older_than_planned() -> None:
    """A cell that reads steps 4 and 2 is not served 2 and 0, nor 4 alone; newer ones do."""
    store = Store((tiny.rule(history=2),))
    for step in (0, 2):
        store.keep(cell(step=step, retained=2), torch.zeros(1))
    assert store.history(reading(0, 4, 2)) is None
    assert store.history(reading(0, 2, 0)) is not None
    assert store.history(reading(0, 1)) is not None
    assert store.history(reading(1, 0)) is None
    assert store.history(reading(0, 0, branch="uncond")) is None


@pytest.mark.parametrize("dtype", ["bfloat16", "float16", "float32"])
def test_store_dtype_and_device(dtype: str) -> None:
    """Values are held in the rule's dtype and place, and served in their own."""
    store = Store((tiny.rule(store_dtype=dtype, store_device="cpu"),))
    value = torch.randn(6, dtype=torch.float32)
    store.keep(cell(), value)
    kept = store.history(reading())
    assert kept is not None
    held = value.to(getattr(torch, dtype))
    assert store.bytes == 6 * held.element_size()
    (restored,) = kept[0].restored()
    assert restored.dtype == torch.float32
    assert torch.equal(restored, held.float())


def test_kept_values_are_nobody_elses() -> None:
    """What is held is a copy, so that a block may write to its own output again; readers are given the held one itself."""
    store = Store((tiny.rule(),))
    value = torch.randn(6)
    was = value.clone()
    store.keep(cell(), value)
    value.zero_()
    kept = store.history(reading())
    assert kept is not None
    (restored,) = kept[0].restored()
    assert torch.equal(restored, was)
    assert restored.data_ptr() == kept[0].held[0].data_ptr()
    kept[0].restored(writable=True)[0].zero_()
    assert torch.equal(kept[0].held[0], was)


def test_kept_values_carry_no_graph() -> None:
    """A value computed with gradients is kept without them."""
    store = Store((tiny.rule(),))
    store.keep(cell(), torch.randn(3, requires_grad=True) * 2)
    kept = store.history(reading())
    assert kept is not None
    assert not kept[0].held[0].requires_grad


def test_budget_gives_up_the_shallowest_first() -> None:
    """Over budget the shallowest goes; a newcomer that is the shallowest is not kept; branches share the budget."""
    store = Store((tiny.rule(budget=48),))
    one = torch.zeros(4)
    for position in (0, 1, 2):
        assert store.keep(cell(position), one)
    assert store.keep(cell(3), one)
    assert store.history(reading(0)) is None
    assert store.missing(reading(0)) == "budget"
    assert not store.keep(cell(1, branch="uncond"), one)
    assert store.keep(cell(3, branch="uncond"), one)
    assert store.history(reading(1)) is None
    assert store.history(reading(2)) is not None
    assert store.bytes == store.by_rule[0].peak == 48


def test_budget_of_one_rule_leaves_another_alone() -> None:
    """Each rule has its own budget."""
    store = Store((tiny.rule(budget=16), tiny.rule()))
    other = Cell("hint[1]", 1, "cond", 0, "C", 1, 1, (), 0.5, 1)
    assert store.keep(cell(0), torch.zeros(4))
    assert store.keep(other, torch.zeros(100))
    assert store.history(reading(0)) is not None


def test_value_larger_than_the_budget_is_never_kept() -> None:
    """A single value over the budget empties nothing else of its rule in vain but is not held itself."""
    store = Store((tiny.rule(budget=8),))
    assert not store.keep(cell(0), torch.zeros(4))
    assert store.empty


def test_dropped_state_says_why() -> None:
    """After a drop the reason is told until a fresh value comes."""
    store = Store((tiny.rule(),))
    store.keep(cell(), torch.zeros(1))
    store.drop("cond", (0, 1), "new_control")
    assert (store.missing(reading(0)), store.missing(reading(1))) == ("new_control", "no_state")
    store.keep(cell(), torch.zeros(1))
    assert store.missing(reading(0)) == "no_state"


def test_ages_and_sources_of_a_thinned_table() -> None:
    """Ages count evaluated steps; sources are the newest kept steps, in nominal numbers."""
    model = tiny.transformer()
    caches = (
        '  - {name: hints, tier: P1, method: hint_reuse, at: "hint[1]", refresh: {interval: 3}}\n'
        '  - {name: steps, tier: S, method: step_schedule, at: step, refresh: {steps: "0,2,3,5"}}\n'
    )
    table = tiny.compiled(model, caches)
    plans = plan_calls(table)
    assert table.by_site["hint[1]"].cond == "C-RR-."
    told = [(plans["cond", i].cells[Site("hint", 1)].sources, plans["cond", i].step) for i in range(4)]
    assert told == [((), 0), ((0,), 2), ((0,), 3), ((), 5)]
    position = [row.site for row in table.rows].index("hint[1]")
    assert [plans["cond", i].decisions[position].age for i in range(4)] == [None, 1, 2, None]


BUDGETED = (
    '  - {name: hints, tier: P1, method: hint_reuse, at: "hint[all]", refresh: {interval: 3}, store: {budget: %dB}}\n'
)
HINT = 8 * 24 * 4
"""Bytes of one hint of the tiny pipeline's default request."""


@pytest.mark.parametrize("hints", [0, 1, 4, 7, 8])
def test_over_budget_a_run_finishes_and_says_so(hints: int) -> None:
    """Whatever the budget it is never exceeded; what it cannot hold is computed; deep hints are the ones kept."""
    pipe = tiny.pipeline(tiny.transformer((8, (0, 2, 4, 6))))
    table = tiny.compiled(pipe.transformer, BUDGETED % max(hints * HINT, 1))
    with attach(pipe, table) as session:
        result = tiny.run(pipe)
    request = session.requests[0]
    assert result.isfinite().all()
    assert request.total.bytes_peak <= max(hints * HINT, 1)
    if hints == 8:
        assert (request.outcome, request.reasons) == ("finished", {})
    else:
        assert request.outcome == "incomplete"
        assert set(request.reasons) <= {"budget", "chain"}
    served = sorted(int(s[5:-1]) for s, by_branch in request.sites.items() if s.startswith("hint") and _hits(by_branch))
    assert served == list(range(4 - len(served), 4))
    assert len(served) == (hints + 1) // 2


def _hits(by_branch: Any) -> int:
    return sum(tally.hits for tally in by_branch.values())


def test_without_room_for_anything_the_run_is_the_uncached_one() -> None:
    """A budget of one byte gives exactly the uncached latents."""
    pipe = tiny.pipeline()
    before = tiny.run(pipe)
    with attach(pipe, tiny.compiled(pipe.transformer, BUDGETED % 1)) as session:
        assert torch.equal(tiny.run(pipe), before)
    assert session.summary.hits == 0
