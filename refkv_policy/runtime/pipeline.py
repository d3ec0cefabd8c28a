"""What a session wraps on a pipeline's instances: its call, the branch's name, the sampler's grid, the denoising loop."""

from __future__ import annotations

import functools
from collections.abc import Callable
from contextlib import AbstractContextManager, ExitStack
from threading import get_ident
from types import TracebackType
from typing import Any

from refkv_policy.compiler.table import BRANCHES, HookTable
from refkv_policy.runtime.clock import PipelineClock
from refkv_policy.runtime.errors import RequestError

LoopEnded = Callable[[BaseException | None], None]
"""Told how a denoising loop ended: with the exception that left it, or None."""

Refuse = Callable[[RequestError], None]
"""Told why a call of the pipeline cannot run under the table, before its first forward. Raises it, or lets the call go on."""


def bracketed(pipe: Any, around: Callable[[], AbstractContextManager[None]]) -> type:
    """A subclass of the pipeline's class whose calls run inside `around()`, those of this one instance only.

    Python looks `__call__` up on the class, so that an attribute of the instance would not be seen.
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
    """The model's `cache_context`, which also tells the clock the branch, on the clock's thread.

    A name that is no branch leaves it unknown, and so does a context within another: a second pipeline, called from a
    hook in the middle of a forward, enters one of its own.
    """
    original = model.cache_context

    def cache_context(name: str, **kwargs: Any) -> AbstractContextManager[None]:
        context: AbstractContextManager[None] = original(name, **kwargs)
        return context if clock.thread != get_ident() else _NamedContext(context, clock, name)

    return cache_context


class _NamedContext(AbstractContextManager[None]):
    """A context of the model's, in which the clock knows the branch."""

    __slots__ = ("_before", "_branch", "_clock", "_context")

    def __init__(self, context: AbstractContextManager[None], clock: PipelineClock, name: str) -> None:
        self._context, self._clock, self._branch = context, clock, name if name in BRANCHES else None

    def __enter__(self) -> None:
        clock = self._clock
        self._before = clock.branch
        clock.branch = None if clock.contexts else self._branch
        clock.contexts += 1
        self._context.__enter__()

    def __exit__(self, *raised: Any) -> bool | None:
        self._clock.contexts -= 1
        self._clock.branch = self._before
        return self._context.__exit__(*raised)


def guarded_grid(scheduler: Any, clock: PipelineClock, table: HookTable, refuse: Refuse) -> Callable[..., None]:
    """The scheduler's `set_timesteps`, which for the pipeline's own call and the table's step count leaves only the
    evaluated steps of its own grid.

    Sigmas and timesteps are those of the full grid, to the bit; the final sigma stays. Raises RequestError in the middle
    of a request, whose state it would reset: another pipeline shares the scheduler.
    """
    original = scheduler.set_timesteps
    evaluated = list(table.evaluated)

    @functools.wraps(original)
    def set_timesteps(num_inference_steps: int | None = None, *args: Any, **kwargs: Any) -> None:
        if clock.looping:
            raise RequestError(
                "the scheduler is in the middle of a request of the attached pipeline, which this would spoil; "
                "give the other pipeline one of its own: type(pipe.scheduler).from_config(pipe.scheduler.config)"
            )
        original(num_inference_steps, *args, **kwargs)
        if not table.left_out or clock.thread != get_ident() or kwargs.get("sigmas") is not None:
            return
        if num_inference_steps == table.steps:
            scheduler.sigmas = scheduler.sigmas[[*evaluated, -1]]
            scheduler.timesteps = scheduler.timesteps[evaluated]
            scheduler.num_inference_steps = len(evaluated)
        elif num_inference_steps == len(evaluated):
            refuse(
                RequestError(
                    f"the request asks for {num_inference_steps} steps, which is how many the plan runs of {table.steps}; "
                    f"ask for {table.steps} (`num_inference_steps={table.steps}`), and the plan leaves the others out"
                )
            )

    return set_timesteps


def watched_loop(pipe: Any, clock: PipelineClock, table: HookTable, ended: LoopEnded) -> Callable[..., Any]:
    """The pipeline's `progress_bar`, inside which it runs its denoising loop: leaving it, however, ends the request."""
    original = pipe.progress_bar

    @functools.wraps(original)
    def progress_bar(iterable: Any = None, total: int | None = None) -> Any:
        if iterable is not None:
            return original(iterable=iterable)
        return _Loop(original(total=len(table.evaluated) if total == table.steps else total), clock, ended)

    return progress_bar


class _Loop:
    """A progress bar whose `with` block is the denoising loop."""

    def __init__(self, bar: Any, clock: PipelineClock, ended: LoopEnded) -> None:
        self._bar, self._clock, self._ended = bar, clock, ended
        self._inside = ExitStack()

    def __enter__(self) -> Any:
        self._inside.enter_context(self._clock.inside(loop=True))
        return self._bar.__enter__()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> Any:
        with self._inside:
            try:
                self._ended(error)
            finally:
                self._bar.__exit__(kind, error, trace)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._bar, name)
