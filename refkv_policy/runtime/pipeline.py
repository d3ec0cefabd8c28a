"""What a session wraps on a pipeline's instances: the branch's name, the sampler's grid, the denoising loop."""

from __future__ import annotations

import functools
from collections.abc import Callable
from contextlib import AbstractContextManager
from types import TracebackType
from typing import Any

from refkv_policy.compiler.table import BRANCHES, HookTable
from refkv_policy.runtime.clock import PipelineClock

LoopEnded = Callable[[BaseException | None], None]
"""Told how a denoising loop ended: with the exception that left it, or None."""


def named_contexts(model: Any, clock: PipelineClock) -> Callable[..., AbstractContextManager[None]]:
    """The model's `cache_context`, which also tells the clock the branch. A name that is no branch leaves it unknown."""
    original = model.cache_context

    def cache_context(name: str, **kwargs: Any) -> AbstractContextManager[None]:
        return _NamedContext(original(name, **kwargs), clock, name if name in BRANCHES else None)

    return cache_context


class _NamedContext(AbstractContextManager[None]):
    """A context of the model's, in which the clock knows the branch."""

    __slots__ = ("_before", "_branch", "_clock", "_context")

    def __init__(self, context: AbstractContextManager[None], clock: PipelineClock, branch: str | None) -> None:
        self._context, self._clock, self._branch = context, clock, branch

    def __enter__(self) -> None:
        self._before, self._clock.branch = self._clock.branch, self._branch
        self._context.__enter__()

    def __exit__(self, *raised: Any) -> bool | None:
        self._clock.branch = self._before
        return self._context.__exit__(*raised)


def thinned_grid(scheduler: Any, table: HookTable) -> Callable[..., None]:
    """The scheduler's `set_timesteps`, which for the table's step count leaves only the evaluated steps of its own grid.

    Sigmas and timesteps are those of the full grid, to the bit; the final sigma stays.
    """
    original = scheduler.set_timesteps
    evaluated = list(table.evaluated)

    @functools.wraps(original)
    def set_timesteps(num_inference_steps: int | None = None, *args: Any, **kwargs: Any) -> None:
        original(num_inference_steps, *args, **kwargs)
        if num_inference_steps == table.steps and kwargs.get("sigmas") is None:
            scheduler.sigmas = scheduler.sigmas[[*evaluated, -1]]
            scheduler.timesteps = scheduler.timesteps[evaluated]
            scheduler.num_inference_steps = len(evaluated)

    return set_timesteps


def watched_loop(pipe: Any, table: HookTable, ended: LoopEnded) -> Callable[..., Any]:
    """The pipeline's `progress_bar`, inside which it runs its denoising loop: leaving it, however, ends the request."""
    original = pipe.progress_bar

    @functools.wraps(original)
    def progress_bar(iterable: Any = None, total: int | None = None) -> Any:
        if iterable is not None:
            return original(iterable=iterable)
        return _Loop(original(total=len(table.evaluated) if total == table.steps else total), ended)

    return progress_bar


class _Loop:
    """A progress bar that tells when its `with` block is left."""

    def __init__(self, bar: Any, ended: LoopEnded) -> None:
        self._bar, self._ended = bar, ended

    def __enter__(self) -> Any:
        return self._bar.__enter__()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> Any:
        try:
            self._ended(error)
        finally:
            self._bar.__exit__(kind, error, trace)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._bar, name)
