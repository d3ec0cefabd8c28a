"""The VACE chain: which blocks a step must run for the hints it computes.

Block j needs c_{j−1}, so a fresh hint k needs every block up to k, unless a rule with `chain: stale` kept the state of a
shallower block to go on from.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache

from refkv_policy.compiler.table import COMPUTE, COMPUTE_KEEP, REUSE, SERVED, UNREACHED, retained


@dataclass(frozen=True, slots=True)
class Chain:
    """vace: one action string a block. wasted: (hint, step) pairs that are served although their block runs anyway."""

    vace: tuple[str, ...]
    wasted: tuple[tuple[int, int], ...]


def resolve_chain(hints: Sequence[str], stale: Sequence[bool], evaluated: Sequence[int]) -> Chain:
    """Actions of the VACE blocks, derived from the hints' (one string a hint; stale[j]: its rule keeps c_j)."""
    return _resolve(tuple(hints), tuple(stale), tuple(evaluated))


@lru_cache(maxsize=256)
def _resolve(hints: tuple[str, ...], stale: tuple[bool, ...], evaluated: tuple[int, ...]) -> Chain:
    blocks = [[UNREACHED] * len(hints[0]) for _ in hints]
    wasted: list[tuple[int, int]] = []
    for step in evaluated:
        needed = False
        for j in reversed(range(len(hints))):
            served = hints[j][step] in SERVED
            if not served:
                blocks[j][step] = COMPUTE_KEEP if stale[j] else COMPUTE
                needed = True
            elif needed and stale[j]:
                blocks[j][step] = REUSE
                needed = False
            elif needed:
                blocks[j][step] = COMPUTE
                wasted.append((j, step))
    return Chain(tuple(keep_only_read("".join(b), 1) for b in blocks), tuple(sorted(wasted)))


@lru_cache(maxsize=1024)
def keep_only_read(actions: str, history: int) -> str:
    """`actions` with every `C` that no later cell reads turned into `.`."""
    return "".join(
        COMPUTE if a == COMPUTE_KEEP and not retained(actions, step, history) else a for step, a in enumerate(actions)
    )


@lru_cache(maxsize=1024)
def spent(hint: str, block: str) -> tuple[int, ...]:
    """The steps at which a hint is served though its block runs, from the actions of both."""
    pairs = enumerate(zip(hint, block, strict=True))
    return tuple(step for step, (a, b) in pairs if a in SERVED and b not in (UNREACHED, REUSE))
