"""The VACE chain against a brute-force simulation of what a step must run."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from refkv_policy.compiler.effects import spent
from refkv_policy.compiler.lower import demand, keep_only_read
from refkv_policy.compiler.table import retained
from refkv_policy.plan.selectors import Site
from refkv_policy.profiles.families.wan_vace import tree


def blocks(hints: list[str], stale: list[bool]) -> tuple[str, ...]:
    """The actions of the VACE blocks that hints need. stale[j]: c_j is kept."""
    sites = tree(len(hints), tuple(range(len(hints))))
    chain = [Site("vace", j) for j in range(len(hints))]
    actions = {Site("hint", j): row for j, row in enumerate(hints)}
    kept = [site for site, keeps in zip(chain, stale, strict=True) if keeps]
    return tuple(demand(sites, actions, chain, kept, range(len(hints[0])))[site] for site in chain)


def needed_blocks(hints: list[str], stale: list[bool], step: int) -> dict[int, str]:
    """Which blocks run (`run`) or are gone on from (`kept`) at a step, by following each fresh hint up the chain."""
    found: dict[int, str] = {}
    for hint, actions in enumerate(hints):
        if actions[step] in "RF":
            continue
        found[hint] = "run"
        for above in reversed(range(hint)):
            if hints[above][step] in "RF" and stale[above]:
                found.setdefault(above, "kept")
                break
            found[above] = "run"
            if hints[above][step] not in "RF":
                break
    return found


@given(st.data())
def test_a_step_runs_exactly_the_blocks_its_fresh_hints_need(data: st.DataObject) -> None:
    """Whatever the hints' actions, a block runs if and only if following a fresh hint up the chain leads to it."""
    count = data.draw(st.integers(1, 6))
    steps = data.draw(st.integers(1, 8))
    hints = ["C" + data.draw(st.text("CR", min_size=steps, max_size=steps)) for _ in range(count)]
    stale = data.draw(st.lists(st.booleans(), min_size=count, max_size=count))
    chain = blocks(hints, stale)
    for step in range(steps + 1):
        needed = needed_blocks(hints, stale, step)
        for j in range(count):
            expected = {"run": "C.", "kept": "R"}.get(needed.get(j, ""), "-")
            assert chain[j][step] in expected
            wasted = needed.get(j) == "run" and hints[j][step] == "R"
            assert (step in spent(hints[j], chain[j])) == wasted


def test_a_suffix_spares_its_blocks_and_a_prefix_does_not() -> None:
    """Reusing the deepest hints leaves their blocks unreached; reusing the shallow ones is wasted, unless stale."""
    assert blocks(["..", "..", "CR"], [False] * 3) == ("..", "..", ".-")
    prefix = blocks(["CR", "..", ".."], [False] * 3)
    assert prefix == ("..", "..", "..")
    assert spent("CR", prefix[0]) == (1,)
    assert blocks(["CR", "..", ".."], [True, False, False]) == ("CR", "..", "..")


@given(st.text("C.RF-", min_size=1, max_size=14), st.integers(1, 3))
def test_what_is_retained_is_exactly_what_is_read_later(actions: str, history: int) -> None:
    """Serving a row from a store trimmed to `retained` never lacks an observation, and every one kept is read."""
    held: list[int] = []
    kept = keep_only_read(actions, history)
    read: set[int] = set()
    unlimited: list[int] = []
    for step, action in enumerate(kept):
        if action in "RF":
            depth = history if action == "F" else 1
            assert held[:depth] == unlimited[:depth]
            read.update(held[:depth])
        if action == "C":
            held, unlimited = [step, *held], [step, *unlimited]
        held = held[: retained(kept, step, history)]
    # Each observation still held after its last reader would be waste; each `C` that nobody reads would be too.
    assert not held
    assert {s for s, a in enumerate(kept) if a == "C"} == read
