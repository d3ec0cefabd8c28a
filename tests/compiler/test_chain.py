"""The VACE chain against a brute-force simulation of what a step must run."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from refkv_policy.compiler.chain import keep_only_read, resolve_chain
from refkv_policy.compiler.table import retained


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
    chain = resolve_chain(hints, stale, range(steps + 1))
    for step in range(steps + 1):
        needed = needed_blocks(hints, stale, step)
        for j in range(count):
            expected = {"run": "C.", "kept": "R"}.get(needed.get(j, ""), "-")
            assert chain.vace[j][step] in expected
            wasted = needed.get(j) == "run" and hints[j][step] == "R"
            assert ((j, step) in chain.wasted) == wasted


def test_a_suffix_spares_its_blocks_and_a_prefix_does_not() -> None:
    """Reusing the deepest hints leaves their blocks unreached; reusing the shallow ones is wasted, unless stale."""
    assert resolve_chain(["..", "..", "CR"], [False] * 3, range(2)).vace == ("..", "..", ".-")
    prefix = resolve_chain(["CR", "..", ".."], [False] * 3, range(2))
    assert prefix.vace == ("..", "..", "..")
    assert prefix.wasted == ((0, 1),)
    assert resolve_chain(["CR", "..", ".."], [True, False, False], range(2)).vace == ("CR", "..", "..")


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
