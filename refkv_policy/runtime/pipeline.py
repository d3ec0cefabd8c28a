"""What a session wraps on a pipeline's instances: the branch's name, the sampler's grid, the denoising loop."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable
from contextlib import AbstractContextManager
from threading import get_ident
from types import TracebackType
from typing import Any, Protocol

from refkv_policy.compiler.table import BRANCHES, HookTable
from refkv_policy.runtime.clock import PipelineClock
from refkv_policy.runtime.errors import RequestError


class Loop(Protocol):
    """Told of the pipeline's denoising loop."""

    def began(self) -> None:
        """It is entered. May raise RequestError."""

    def ended(self, error: BaseException | None) -> None:
        """It is left: with the exception that left it, or None."""


def bracketed(pipe: Any, around: Callable[[], AbstractContextManager[None]]) -> type:
    """A subclass of the pipeline's class whose calls run inside `around()`, those of this one instance only.

    Python looks `__call__` up on the class: an attribute of the instance would not be seen.
    """
    base = type(pipe)

    @functools.wraps(base.__call__)
    def call(self: Any, *args: Any, **kwargs: Any) -> Any:
        if self is not pipe:
            return base.__call__(self, *args, **kwargs)
        with around():
            return base.__call__(self, *args, **kwargs)

    names = {name: getattr(base, name) for name in ("__module__", "__qualname__", "__doc__")}
    return type(base.__name__, (base,), {**names, "__call__": call})


def named_contexts(model: Any, clock: PipelineClock) -> Callable[..., AbstractContextManager[None]]:
    """The model's `cache_context`, which also tells the clock the branch. A name that is no branch leaves it unknown.

    So does a context within another: a second pipeline that a hook calls in the middle of a forward enters its own.
    """
    original = model.cache_context

    def cache_context(name: str, **kwargs: Any) -> AbstractContextManager[None]:
        return _NamedContext(original(name, **kwargs), clock, name if name in BRANCHES else None)

    return cache_context


class _NamedContext(AbstractContextManager[None]):
    """A context of the model's, in which the clock knows the branch; in the pipeline's own thread only."""

    __slots__ = ("_before", "_branch", "_clock", "_context", "_mine")

    def __init__(self, context: AbstractContextManager[None], clock: PipelineClock, branch: str | None) -> None:
        self._context, self._clock, self._branch = context, clock, branch

    def __enter__(self) -> None:
        self._mine = self._clock.thread == get_ident()
        if self._mine:
            clock = self._clock
            self._before, clock.branch = clock.branch, None if clock.contexts else self._branch
            clock.contexts += 1
        self._context.__enter__()

    def __exit__(self, *raised: Any) -> bool | None:
        if self._mine:
            self._clock.branch = self._before
            self._clock.contexts -= 1
        return self._context.__exit__(*raised)


def guarded_grid(
    scheduler: Any, table: HookTable, clock: PipelineClock, refuse: Callable[[RequestError], None]
) -> Callable[..., None]:
    """The scheduler's `set_timesteps`, which leaves a run that is going on alone, and thins the grid of the pipeline's own.

    For the table's step count, asked for by the attached pipeline, only the evaluated steps of the scheduler's own grid are
    left. Sigmas and timesteps are those of the full grid, to the bit; the final sigma stays. refuse: told where the call
    asks for the number of evaluated steps instead.
    """
    original = scheduler.set_timesteps
    asked, evaluated = inspect.signature(original), list(table.evaluated)

    @functools.wraps(original)
    def set_timesteps(num_inference_steps: int | None = None, *args: Any, **kwargs: Any) -> None:
        if clock.thread is not None:
            raise RequestError(SHARED)
        original(num_inference_steps, *args, **kwargs)
        given = asked.bind(num_inference_steps, *args, **kwargs).arguments
        custom = any(given.get(name) is not None for name in ("sigmas", "timesteps"))
        own = clock.caller == get_ident()
        if own and table.left_out and num_inference_steps == table.steps and not custom:
            scheduler.sigmas = scheduler.sigmas[[*evaluated, -1]]
            scheduler.timesteps = scheduler.timesteps[evaluated]
            scheduler.num_inference_steps = len(evaluated)
        elif own and table.left_out and num_inference_steps == len(evaluated):
            refuse(
                RequestError(
                    f"the request asks for {num_inference_steps} steps, which is how many the plan runs of {table.steps}; "
                    f"ask for {table.steps} (`num_inference_steps={table.steps}`), and the plan leaves the others out"
                )
            )

    return set_timesteps


SHARED = (
    "this scheduler is in the middle of a run of the pipeline that a table is attached to; "
    "give each pipeline a scheduler of its own"
)


def tracked_loop(pipe: Any, table: HookTable, loop: Loop) -> Callable[..., Any]:
    """The pipeline's `progress_bar`, inside which it runs its denoising loop: leaving it, however, ends the request."""
    original = pipe.progress_bar

    @functools.wraps(original)
    def progress_bar(iterable: Any = None, total: int | None = None) -> Any:
        if iterable is not None:
            return original(iterable=iterable)
        return _Bar(original(total=len(table.evaluated) if total == table.steps else total), loop)

    return progress_bar


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
