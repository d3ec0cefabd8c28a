"""What a session wraps on a pipeline's instances: the branch's name, the sampler's grid, the denoising loop."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from types import TracebackType
from typing import Any

import numpy as np

from refkv_policy.compiler.table import BRANCHES, HookTable
from refkv_policy.runtime.clock import PipelineClock

LoopEnded = Callable[[BaseException | None], None]
"""Told how a denoising loop ended: with the exception that left it, or None."""


def named_contexts(model: Any, clock: PipelineClock) -> Callable[..., AbstractContextManager[None]]:
    """The model's `cache_context`, which also tells the clock the branch. A name that is no branch leaves it unknown."""
    original = model.cache_context

    @contextmanager
    def cache_context(name: str, **kwargs: Any) -> Iterator[None]:
        before, clock.branch = clock.branch, name if name in BRANCHES else None
        try:
            with original(name, **kwargs):
                yield
        finally:
            clock.branch = before

    return cache_context


def thinned_grid(scheduler: Any, table: HookTable) -> Callable[..., None]:
    """The scheduler's `set_timesteps`, which for the table's step count takes the evaluated steps of that grid only.

    UniPC applies its flow shift to the sigmas it is given, so it is given unshifted ones: u_i = linspace(1, 1/T, steps + 1)
    without its end (diffusers `UniPCMultistepScheduler.set_timesteps`).
    """
    original = scheduler.set_timesteps
    unshifted = np.linspace(1, 1 / scheduler.config.num_train_timesteps, table.steps + 1)[:-1]

    @functools.wraps(original)
    def set_timesteps(num_inference_steps: int | None = None, device: Any = None, sigmas: Any = None, **others: Any) -> None:
        if num_inference_steps == table.steps and sigmas is None:
            original(device=device, sigmas=unshifted[list(table.evaluated)], **others)
        else:
            original(num_inference_steps, device=device, sigmas=sigmas, **others)

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

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> Any:
        try:
            self._ended(error)
        finally:
            self._bar.__exit__(kind, error, trace)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._bar, name)
