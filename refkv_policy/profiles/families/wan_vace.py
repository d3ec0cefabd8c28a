"""Wan2.1 VACE: a Wan stack, and beside it a chain of VACE blocks whose hints are added to the stream after some main blocks.

VACE block j needs the state c_{j−1}; hint j is the projection of c_j. A block runs only for a hint that is computed.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import lru_cache
from typing import TYPE_CHECKING, Any

from refkv_policy.plan.selectors import Site
from refkv_policy.profiles.families import wan
from refkv_policy.profiles.families.wan import MAIN, clip_faults, tokens
from refkv_policy.profiles.sites import CFG, Cost, SiteFacts, Tree

if TYPE_CHECKING:
    from refkv_policy.profiles.cost import Workload
    from refkv_policy.profiles.profile import Profile

__all__ = ["NAME", "TITLE", "clip_faults", "costs", "facts", "layers_fault", "recognises", "tokens", "tree"]

NAME, TITLE = "wan-vace", "Wan VACE"


def recognises(config: Mapping[str, Any]) -> bool:
    """A Wan transformer with VACE layers."""
    return "vace_layers" in config


def facts(config: Mapping[str, Any]) -> dict[str, Any]:
    """The profile's fields that a `WanVACETransformer3DModel`'s config tells; `deep` is the last half of the hints."""
    vace_at = tuple(int(i) for i in config["vace_layers"])
    hints = len(vace_at)
    return {
        "vace_at": vace_at,
        "vace_in_channels": int(config["vace_in_channels"]),
        **wan.common_facts(config),
        **({"sets": {"hint": {"deep": f"{(hints + 1) // 2}-{hints - 1}"}}} if hints > 1 else {}),
    }


@lru_cache(maxsize=64)
def tree(main_blocks: int, vace_at: tuple[int, ...]) -> Tree:
    """Hint j lies inside the main block that it is added after, and is computed from VACE block j, on demand.

    It is obtained when that block is about to run, before any part of it.
    """
    found = list(wan.outer_facts())
    at = {main: j for j, main in enumerate(vace_at)}
    for i in range(main_blocks):
        block, *parts = wan.block_facts(Site("main", i), MAIN)
        found.append(block)
        if i in at:
            j = at[i]
            below = (Site("vace", j - 1),) if j else ()
            found += wan.block_facts(Site("vace", j), CFG, "hints", needs=below, on_demand=True, region=False)
            found.append(SiteFacts(Site("hint", j), block.site, (Site("vace", j),), added=True, component="hints"))
        found += parts
    return Tree(found)


def costs(profile: Profile, work: Workload) -> Mapping[Site, Cost]:
    """A VACE block is a Wan block and its output projection 2Nd², block 0 also an input projection 2Nd².

    Block 0 is charged with embedding the control, too: where no hint needs the chain from its start, nothing does. A control
    shorter than the latents is padded after its embedding; equal lengths are the usual case, and counted here.
    """
    n, d = work.tokens, profile.dim
    found = dict(wan.costs(profile, work))
    volume = profile.patch[0] * profile.patch[1] * profile.patch[2]
    for j in range(len(profile.vace_at)):
        own = 2 * n * d**2 if j else 4 * n * d**2 + 2 * n * profile.vace_in_channels * volume * d
        found.update(wan.block_costs(profile, work, Site("vace", j), own))
        found[Site("hint", j)] = Cost(0, work.batch * n * d)
    return found


def layers_fault(main_blocks: int, vace_at: tuple[int, ...]) -> str | None:
    """Hint 0 is added after main block 0, the others after deeper ones."""
    if list(vace_at) != sorted(set(vace_at)) or not vace_at or vace_at[0] != 0 or vace_at[-1] >= main_blocks:
        return f"`vace_at` must ascend from 0 and stay below main_blocks ({main_blocks})"
    return None
