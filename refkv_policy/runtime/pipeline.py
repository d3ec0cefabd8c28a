"""What a session wraps on a pipeline's instances: the branch's name, the sampler's grid, the denoising loop."""

from __future__ import annotations

import functools
import sys
from collections.abc import Callable
from contextlib import AbstractContextManager
from threading import get_ident
from types import FrameType, MethodType, TracebackType
from typing import Any, Protocol

from diffusers import DiffusionPipeline

from refkv_policy.compiler.table import BRANCHES, HookTable
from refkv_policy.runtime.clock import BUSY, PipelineClock
from refkv_policy.runtime.errors import RequestError


class Loop(Protocol):
    """Told of the pipeline's denoising loop."""

    def began(self) -> None:
        """It is entered. May raise RequestError."""

    def ended(self, error: BaseException | None) -> None:
        """It is left: with the exception that left it, or None."""


class StandIn:
    """A callable in the place of an instance's method. A deep copy of the instance gets its own method back.

    A function would be shared by the copy, which would then act on the original.
    """

    def __init__(self, owner: Any, name: str, call: Callable[..., Any]) -> None:
        self._owner, self._name, self._call = owner, name, call
        functools.update_wrapper(self, getattr(owner, name))

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """What the method is to do."""
        return self._call(*args, **kwargs)

    def __deepcopy__(self, memo: dict[int, Any]) -> Any:
        copied = memo.get(id(self._owner))
        return self if copied is None else MethodType(getattr(type(self._owner), self._name), copied)


def named_contexts(model: Any, clock: PipelineClock) -> StandIn:
    """The model's `cache_context`, which also tells the clock the branch. A name that is no branch leaves it unknown."""
    original = model.cache_context

    def cache_context(name: str, **kwargs: Any) -> AbstractContextManager[None]:
        return _NamedContext(original(name, **kwargs), clock, name if name in BRANCHES else None)

    return StandIn(model, "cache_context", cache_context)


class _NamedContext(AbstractContextManager[None]):
    """A context of the model's, in which the clock knows the branch; in the pipeline's own thread only."""

    __slots__ = ("_before", "_branch", "_clock", "_context", "_mine")

    def __init__(self, context: AbstractContextManager[None], clock: PipelineClock, branch: str | None) -> None:
        self._context, self._clock, self._branch = context, clock, branch

    def __enter__(self) -> None:
        self._mine = self._clock.thread == get_ident()
        if self._mine:
            self._before, self._clock.branch = self._clock.branch, self._branch
        self._context.__enter__()

    def __exit__(self, *raised: Any) -> bool | None:
        if self._mine:
            self._clock.branch = self._before
        return self._context.__exit__(*raised)


def guarded_grid(pipe: Any, table: HookTable, clock: PipelineClock) -> StandIn:
    """The scheduler's `set_timesteps`, which leaves a run that is going on alone, and thins the grid of the pipeline's own.

    For the table's step count, asked for by the attached pipeline, only the evaluated steps of the scheduler's own grid are
    left. Sigmas and timesteps are those of the full grid, to the bit; the final sigma stays.
    """
    scheduler = pipe.scheduler
    original = scheduler.set_timesteps
    evaluated = list(table.evaluated)

    def set_timesteps(num_inference_steps: int | None = None, *args: Any, **kwargs: Any) -> None:
        own = _asked_by(pipe)
        if clock.thread is not None:
            raise RequestError(BUSY if own else SHARED)
        original(num_inference_steps, *args, **kwargs)
        if own and table.left_out and num_inference_steps == table.steps and kwargs.get("sigmas") is None:
            scheduler.sigmas = scheduler.sigmas[[*evaluated, -1]]
            scheduler.timesteps = scheduler.timesteps[evaluated]
            scheduler.num_inference_steps = len(evaluated)

    return StandIn(scheduler, "set_timesteps", set_timesteps)


SHARED = (
    "this scheduler is in the middle of a run of the pipeline that a table is attached to; "
    "give each pipeline a scheduler of its own"
)


def _asked_by(pipe: Any) -> bool:
    """Whether the nearest pipeline in the callers of `set_timesteps` is this one: another may share the scheduler."""
    frame: FrameType | None = sys._getframe(3)
    while frame is not None:
        owner = frame.f_locals.get("self")
        if isinstance(owner, DiffusionPipeline):
            return owner is pipe
        frame = frame.f_back
    return False


def tracked_loop(pipe: Any, table: HookTable, loop: Loop) -> StandIn:
    """The pipeline's `progress_bar`, inside which it runs its denoising loop: leaving it, however, ends the request."""
    original = pipe.progress_bar

    def progress_bar(iterable: Any = None, total: int | None = None) -> Any:
        if iterable is not None:
            return original(iterable=iterable)
        return _Bar(original(total=len(table.evaluated) if total == table.steps else total), loop)

    return StandIn(pipe, "progress_bar", progress_bar)


class _Bar:
    """A progress bar that tells when its `with` block is entered and left."""

    def __init__(self, bar: Any, loop: Loop) -> None:
        self._bar, self._loop = bar, loop

    def __enter__(self) -> Any:
        self._loop.began()
        return self._bar.__enter__()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> Any:
        try:
            self._loop.ended(error)
        finally:
            self._bar.__exit__(kind, error, trace)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._bar, name)
