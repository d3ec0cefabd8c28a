"""Placements that the tests of methods lower at: fixed ones, and random ones for properties."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from hypothesis import strategies as st

from refkv_policy.methods import Grid, Placement
from refkv_policy.plan.selectors import Site

MAIN, SPAN = Site("main"), Site("main", 1, None, 29)

SITES = {
    ("main", "span"): SPAN,
    ("main", None): Site("main", 7),
    ("hint", None): Site("hint", 3),
    ("cfg", None): Site("cfg"),
    ("step", None): Site("step"),
    **{
        (stack, part): Site(stack, 2, part)
        for stack in ("main", "vace")
        for part in ("self", "cross", "ffn", "text_kv")
    },
}
"""A site of each kind on which a method may stand."""


def shifted(steps: int, shift: float = 3.0) -> tuple[float, ...]:
    """The sigmas of flow matching with a shift: s·u/(1 + (s − 1)·u), u from 1 down."""
    return tuple(shift * u / (1 + (shift - 1) * u) for u in (1 - i / (steps + 1) for i in range(steps)))


def place(
    steps: int = 12,
    fresh: Iterable[int] = (),
    params: Mapping[str, Any] | None = None,
    *,
    site: Site = MAIN,
    branch: str = "uncond",
    evaluated: Iterable[int] | None = None,
    shift: float = 3.0,
) -> Placement:
    """A placement; every step is reached unless `evaluated` says otherwise."""
    reached = tuple(range(steps)) if evaluated is None else tuple(evaluated)
    return Placement(params or {}, site, branch, Grid(steps, reached, shifted(steps, shift)), frozenset(fresh))


@st.composite
def placements(draw: st.DrawFn, *, site: Site = MAIN, most: int = 60, refreshed: bool = True) -> Placement:
    """Random steps, some not reached, some fresh. refreshed: the first that is reached is fresh, as a refresh has it."""
    steps = draw(st.integers(1, most))
    reached = draw(st.sets(st.integers(0, steps - 1), min_size=1) | st.just(set(range(steps))))
    fresh = draw(st.sets(st.sampled_from(sorted(reached))))
    shift = draw(st.floats(0.5, 10))
    branch = draw(st.sampled_from(["cond", "uncond"]))
    first = {min(reached)} if refreshed else set()
    return place(steps, fresh | first, site=site, branch=branch, evaluated=sorted(reached), shift=shift)
