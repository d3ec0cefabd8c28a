"""Drift: how far each hint moves, step by step, on the uncached run. Through forward hooks, which change no output.

Of a value v against a reference r: relative L2 ‖v − r‖ / ‖r‖, cosine ⟨v, r⟩ / (‖v‖ ‖r‖), norm ratio ‖v‖ / ‖r‖. References
are the first step's value, that of the step before, and the newest fresh one of each schedule of refreshes.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple

import torch
from torch import Tensor

from refkv_policy.runtime.clock import PipelineClock
from refkv_policy.runtime.generate import OnStep, Request, generate
from refkv_policy.runtime.pipeline import named_contexts
from refkv_policy.runtime.placement import Patches

if TYPE_CHECKING:
    from diffusers import WanVACEPipeline

FIRST, PREVIOUS, FRESH = "first", "previous", "fresh"
MAIN = "main"
"""The site of the main stack's residual: its output minus its input, hints included."""

Take = Callable[[str, str, int, Tensor], None]
"""Is given site, branch, step and value."""


class Distance(NamedTuple):
    """Of a value from a reference."""

    relative_l2: float
    cosine: float
    norm_ratio: float


def distance(value: Tensor, reference: Tensor) -> Distance:
    """Of two tensors of one shape; sums in float64. All nan where the reference is zero."""
    v, r = value.float(), reference.float()
    length = _norm(r)
    if length == 0:
        return Distance(*(float("nan"),) * 3)
    own = _norm(v)
    along = float(torch.sum(v * r, dtype=torch.float64))
    return Distance(_norm(v - r) / length, along / (own * length) if own else float("nan"), own / length)


@dataclass(frozen=True, slots=True)
class Schedule:
    """Steps at which a value is computed afresh, by branch."""

    name: str
    fresh: Mapping[str, frozenset[int]]


class Trail:
    """One site and branch of one request, step after step. Holds no more values than it still compares with."""

    def __init__(self, branch: str, schedules: Sequence[Schedule]) -> None:
        self.distances: dict[str, dict[int, Distance]] = {}
        self._branch, self._schedules = branch, schedules
        self._held: dict[str, Tensor] = {}

    def see(self, step: int, value: Tensor) -> None:
        """Compare a step's value with every reference, and keep it as what it becomes a reference of."""
        fresh = {s.name for s in self._schedules if step in s.fresh[self._branch]}
        for name, reference in self._held.items():
            if name not in fresh:
                self.distances.setdefault(name, {})[step] = distance(value, reference)
        kept = value.detach().clone()
        self._held.setdefault(FIRST, kept)
        self._held.update(dict.fromkeys((PREVIOUS, *fresh), kept))


@contextmanager
def watching(pipe: WanVACEPipeline, take: Take, *, main: bool = False) -> Iterator[None]:
    """Gives every hint of every forward inside the block, unscaled, in the order they are computed.

    main: every main block's output too (before the hint that follows it is added), and the residual of the whole stack.
    Step and branch come from the pipeline's scheduler and `cache_context`, as a session reads them.
    """
    model, clock, patches = pipe.transformer, PipelineClock(pipe), Patches()
    moment: list[tuple[str, int] | None] = [None]
    start: list[Tensor | None] = [None]

    def begin(_: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        _, index, branch, _ = clock.read(kwargs["timestep"] if "timestep" in kwargs else args[1])
        moment[0] = None if index is None or branch is None else (branch, index)

    def tell(site: str, value: Tensor) -> None:
        if moment[0] is not None:
            take(site, *moment[0], value)

    def hint(j: int) -> Callable[..., None]:
        return lambda module, args, output: tell(f"hint[{j}]", output[0])

    def block(i: int) -> Callable[..., None]:
        return lambda module, args, output: tell(f"main[{i}]", output)

    def entered(_: Any, args: tuple[Any, ...]) -> None:
        start[0] = args[0]

    def left(_: Any, args: tuple[Any, ...]) -> None:
        if start[0] is not None:
            tell(MAIN, args[0].float() - start[0].float())
            start[0] = None

    patches.set(model, "cache_context", named_contexts(model, clock))
    handles = [model.register_forward_pre_hook(begin, with_kwargs=True)]
    handles += [module.register_forward_hook(hint(j)) for j, module in enumerate(model.vace_blocks)]
    if main:
        handles += [module.register_forward_hook(block(i)) for i, module in enumerate(model.blocks)]
        handles += [model.blocks[0].register_forward_pre_hook(entered), model.norm_out.register_forward_pre_hook(left)]
    clock.open()
    try:
        yield
    finally:
        clock.close()
        for handle in handles:
            handle.remove()
        patches.undo()


class Drift:
    """The distances of one request: `take` is what `watching` is given. trails: by site and branch."""

    def __init__(self, schedules: Sequence[Schedule]) -> None:
        self.trails: dict[tuple[str, str], Trail] = {}
        self._schedules = schedules

    def take(self, site: str, branch: str, step: int, value: Tensor) -> None:
        """See one value."""
        key = site, branch
        if key not in self.trails:
            self.trails[key] = Trail(branch, self._schedules)
        self.trails[key].see(step, value)

    def distances(self) -> dict[tuple[str, str], dict[str, dict[int, Distance]]]:
        """By site and branch, then reference, then step; the values themselves are let go."""
        return {key: trail.distances for key, trail in self.trails.items()}


def measure(
    pipe: WanVACEPipeline,
    request: Request,
    schedules: Sequence[Schedule],
    *,
    main: bool = False,
    on_step: OnStep = lambda: None,
) -> dict[tuple[str, str], dict[str, dict[int, Distance]]]:
    """Run one uncached request and give its distances: by site and branch, then reference, then step."""
    drift = Drift(schedules)
    with watching(pipe, drift.take, main=main):
        generate(pipe, request, on_step)
    return drift.distances()


def _norm(value: Tensor) -> float:
    return float(torch.linalg.vector_norm(value, dtype=torch.float64))
