"""DBCache and FBCache: bounds, purity, and diffusers' FirstBlockCache."""

from __future__ import annotations

from collections.abc import Set
from copy import deepcopy
from typing import Any

import pytest
import torch
from diffusers import FirstBlockCacheConfig
from hypothesis import given
from hypothesis import strategies as st

from refkv_policy import methods
from refkv_policy.methods import MethodError, Online, Probe
from refkv_policy.plan.selectors import Site
from tests.methods.placements import MAIN, SPAN, place
from tests.methods.stubs import Block, Stack, cached, decisions

DBCACHE, FIRSTBLOCK = methods.get("dbcache"), methods.get("firstblock")


def online(**params: Any) -> Online:
    """The decider of `dbcache`."""
    return DBCACHE.online(place(site=SPAN, params=params))


def run(decider: Online, signals: list[float | None], refused: Set[int] = frozenset()) -> list[bool]:
    """Which calls are served. refused: calls that are computed for another reason though the decider would serve them."""
    state, found = decider.begin(), []
    for n, signal in enumerate(signals):
        serves, state = decider.decide(state, signal)
        serves = serves and n not in refused
        if not serves:
            state = decider.computed(state)
        found.append(serves)
    return found


signals = st.lists(st.sampled_from([0.0, 0.02, 0.05, 0.0999, 0.1, 0.2, None]), max_size=60)
bounds = st.none() | st.integers(1, 6)


@given(signals, bounds, bounds, st.sets(st.integers(0, 59)))
def test_a_call_is_served_below_the_threshold_and_within_both_bounds(
    given: list[float | None], k: int | None, most: int | None, refused: set[int]
) -> None:
    """Counted from what was really served: at most k in a row and `most` in all, and every call that may be."""
    params = {"delta": 0.1} | ({"k": k} if k else {}) | ({"most": most} if most else {})
    served = run(online(**params), given, refused)
    for n, signal in enumerate(given):
        row = next((i for i, was in enumerate(reversed(served[:n])) if not was), n)
        may = (
            signal is not None and signal < 0.1 and (k is None or row < k) and (most is None or sum(served[:n]) < most)
        )
        assert served[n] == (may and n not in refused)


@given(signals, bounds, bounds, st.sets(st.integers(0, 59)))
def test_a_decider_is_pure(given: list[float | None], k: int | None, most: int | None, refused: set[int]) -> None:
    """The same state and signal give the same answer, a state is never changed in place, and a replay repeats the run."""
    decider = online(**({"delta": 0.1} | ({"k": k} if k else {}) | ({"most": most} if most else {})))
    state = decider.begin()
    for n, signal in enumerate(given):
        before = deepcopy(state)
        first = decider.decide(state, signal)
        assert decider.decide(state, signal) == first
        assert state == before
        computed = decider.computed(first[1])
        assert decider.computed(first[1]) == computed
        state = computed if n in refused or not first[0] else first[1]
    assert run(decider, given, refused) == run(decider, given, refused)


def test_a_call_that_departed_is_not_counted() -> None:
    """Call 1 was to be served and was computed: two more may be served in all, and two in a row."""
    still = [None, 0.0, 0.0, 0.0, 0.0, 0.0]
    assert run(online(delta=0.1, most=2), still, {1}) == [False, False, True, True, False, False]
    assert run(online(delta=0.1, k=2), still, {1}) == [False, False, True, True, False, True]


def test_a_change_equal_to_the_threshold_computes() -> None:
    """As in cache-dit; diffusers reuses there."""
    assert run(online(delta=0.25), [None, 0.25, 0.125, 0.25]) == [False, False, True, False]


def test_a_signal_that_is_no_number_computes() -> None:
    """A probe of zeros compares as NaN, which is below nothing."""
    decider = online(delta=0.1)
    zero = torch.zeros(4)
    signal = float(DBCACHE.measure(zero, zero, place(site=SPAN)))
    assert signal != signal
    assert decider.decide(decider.begin(), signal)[0] is False
    assert decider.decide(decider.begin(), 0.0)[0] is True


@pytest.mark.parametrize("threshold", [0.035, 0.08, 0.2])
@pytest.mark.parametrize("seed", range(4))
def test_firstblock_decides_as_diffusers_does(threshold: float, seed: int) -> None:
    """A stack under FirstBlockCache runs its other blocks at the calls at which the decider computes, the last like any."""
    generator = torch.Generator().manual_seed(seed)
    added = (10 + (0.3 + 0.2 * torch.randn(30, 1, 2, 4, generator=generator)).cumsum(0)).unbind(0)
    stack = Stack(Block(added), Block(), Block())
    with cached(stack, FirstBlockCacheConfig(threshold=threshold)):
        (theirs,) = decisions(stack, len(added)).values()
    at = place(30, site=SPAN, params={"delta": threshold})
    decider, probe = FIRSTBLOCK.online(at), FIRSTBLOCK.probe(at)
    assert probe == Probe(0, 0, "computed")
    state, reference, found = decider.begin(), None, ""
    for value in added:
        signal = None if reference is None else float(FIRSTBLOCK.measure(value, reference, at))
        serves, state = decider.decide(state, signal)
        if not serves:
            state, reference = decider.computed(state), value
        found += "R" if serves else "C"
    assert found == theirs
    assert "R" in found
    assert found.count("C") > 1


@pytest.mark.parametrize(
    ("params", "actions", "longest"),
    [
        ({}, "C-????-???", None),
        ({"k": 3}, "C-????-???", 3),
        ({"retain": 3, "most": 2}, "C-CC??-???", 2),
        ({"retain": 9, "k": 4, "most": 6}, "C-CCCC-CCC", 4),
    ],
)
def test_all_but_the_first_steps_are_decided_in_the_run(
    params: dict[str, int], actions: str, longest: int | None
) -> None:
    """The last step too, as diffusers and cache-dit leave it; the smaller bound is the longest run."""
    at = place(10, site=SPAN, params={"delta": 0.1, **params}, evaluated=[0, 2, 3, 4, 5, 7, 8, 9])
    lowered = DBCACHE.lower(at)
    assert (lowered.actions, lowered.longest, lowered.history) == (actions, longest, 1)


@pytest.mark.parametrize(
    ("site", "last"), [(SPAN, 0), (Site("main", 8, None, 25), 7), (Site("main", 29, None, 29), 28)]
)
def test_the_blocks_before_the_span_are_the_probe(site: Site, last: int) -> None:
    """Their residual, against that of the newest computed call; it is not kept for `predict`."""
    assert DBCACHE.probe(place(site=site, params={"delta": 0.1})) == Probe(0, last, "computed", keep=False)


@pytest.mark.parametrize(
    ("name", "site"),
    [
        ("dbcache", MAIN),
        ("dbcache", Site("main", 0, None, 8)),
        ("firstblock", MAIN),
        ("firstblock", Site("main", 2, None, 29)),
    ],
)
def test_a_site_with_the_wrong_blocks_before_it_is_refused(name: str, site: Site) -> None:
    """There must be some to look at; for `firstblock`, block 0 alone."""
    with pytest.raises(MethodError) as caught:
        methods.get(name).lower(place(site=site, params={"delta": 0.1}))
    assert caught.value.field == "at"
    assert str(site) in caught.value.message
