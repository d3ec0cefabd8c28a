"""Folding decisions into ranges, and back."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from refkv_policy.audit import Decision, expand, fold
from refkv_policy.audit.fold import MAX_SITES
from refkv_policy.plan.selectors import site_named

SITES = st.one_of(
    st.sampled_from(["step", "main", "cfg"]),
    st.builds(
        lambda stack, n, part: f"{stack}[{n}]{part}",
        st.sampled_from(["main", "vace", "hint"]),
        st.integers(0, 12),
        st.sampled_from(["", ".text_kv", ".self"]),
    ),
)
DECISIONS = st.builds(
    Decision,
    SITES,
    st.sampled_from("C.RF-"),
    st.sampled_from("C.RF?-"),
    st.sampled_from([None, "no_state", "chain"]),
    st.one_of(st.none(), st.integers(1, 3)),
    st.one_of(st.none(), st.floats(0, 1)),
    st.one_of(st.none(), st.just(0.25)),
)


@given(st.lists(DECISIONS, max_size=40))
def test_folding_and_expanding_give_the_decisions_back(decisions):
    """Expanding a fold gives every decision back, each as often as it was there, ordered by stack, part and index."""
    folded = fold(decisions)
    back = expand([dict(entry) for entry in folded.entries])
    assert back == folded.decisions
    assert sorted(map(repr, back)) == sorted(map(repr, decisions))
    assert list(back) == sorted(back, key=lambda d: site_named(d.site).order)


def test_equal_neighbours_become_one_range():
    """Consecutive sites of a stack with equal decisions are one entry; `planned` is there only where it differs."""
    reused = [Decision(f"hint[{n}]", "R", "R", None, 2) for n in range(8, 15)]
    departed = Decision("hint[15]", "C", "R", "no_state")
    assert fold([*reversed(reused), departed]).entries == (
        {"site": "hint[8-14]", "action": "R", "age": 2},
        {"site": "hint[15]", "action": "C", "planned": "R", "reason": "no_state"},
    )


def test_a_stack_is_not_its_first_block():
    """`main` and `main[0]` are two sites and stay two entries."""
    assert [e["site"] for e in fold([Decision("main[0]", ".", "."), Decision("main", ".", ".")]).entries] == [
        "main",
        "main[0]",
    ]


def test_a_site_twice_stays_twice():
    """A site that is reported twice is logged twice, for replay to find."""
    assert len(fold([Decision("step", ".", "."), Decision("step", ".", ".")]).entries) == 2


@pytest.mark.parametrize(
    "site", ["blocks[1]", "main[01]", "main[1-3]", "main[]", "main[1].Self", "hint[99999]", "", "ma"]
)
def test_what_is_no_site_is_refused(site):
    """The writer refuses a name that is not that of one site."""
    with pytest.raises(ValueError, match="site"):
        fold([Decision(site, ".", ".")])


@pytest.mark.parametrize("action", ["?", "X", "", "CR"])
def test_what_cannot_have_happened_is_refused(action):
    """`?` and what is no action at all are refused as something that happened."""
    with pytest.raises(ValueError, match="action"):
        fold([Decision("step", action, ".")])


@pytest.mark.parametrize(
    "entries",
    [
        None,
        {},
        [None],
        [{}],
        [{"site": "step"}],
        [{"site": 3, "action": "."}],
        [{"site": "main[3-1]", "action": "."}],
        [{"site": "step", "action": "?"}],
        [{"site": "step", "action": ".", "planned": "x"}],
        [{"site": "step", "action": ".", "planned": None}],
        [{"site": "step", "action": ".", "reason": 1}],
        [{"site": "step", "action": ".", "age": True}],
        [{"site": "step", "action": ".", "age": 1.0}],
        [{"site": "step", "action": ".", "signal": "1"}],
        [{"site": f"main[0-{MAX_SITES}]", "action": "."}],
        [{"site": f"main[1-{MAX_SITES - 1}]", "action": "."}] * 2,
    ],
)
def test_what_is_no_list_of_decisions_is_refused_with_a_sentence(entries):
    """Expanding anything but decisions raises ValueError, and no other error."""
    with pytest.raises(ValueError, match=r"\w+ \w+"):
        expand(entries)
