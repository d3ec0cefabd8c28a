"""FLOPs and bytes of a forward: sums over the family's sites, exact to the operation (`profiles.families`)."""

from __future__ import annotations

from dataclasses import dataclass

from refkv_policy.profiles.profile import Profile

ITEMSIZE = {"float32": 4, "bfloat16": 2, "float16": 2}
"""Bytes an element."""


@dataclass(frozen=True, slots=True)
class Workload:
    """What one forward is given: video tokens N (padding included), text tokens L, batch size."""

    tokens: int
    text_tokens: int
    batch: int = 1


def by_component(profile: Profile, work: Workload) -> dict[str, int]:
    """FLOPs of one uncached forward, by the component that its sites are counted under."""
    costs = profile.costs(work)
    found: dict[str, int] = {}
    for site, fact in profile.tree.facts.items():
        if fact.component:
            found[fact.component] = found.get(fact.component, 0) + costs[site].flops
    return found


def forward(profile: Profile, work: Workload) -> int:
    """A whole uncached forward."""
    return sum(cost.flops for cost in profile.costs(work).values())


def hint_share(profile: Profile, work: Workload) -> float:
    """The share of a forward that is computed for hints, 0 to 1: the ceiling of what reusing them can save."""
    costs, tree = profile.costs(work), profile.tree
    chain = {site for site, fact in tree.facts.items() if fact.on_demand}
    flops = sum(cost.flops for site, cost in costs.items() if site in chain or chain.intersection(tree.around[site]))
    return flops / forward(profile, work)
