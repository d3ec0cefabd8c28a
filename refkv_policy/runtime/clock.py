"""Which request, step and branch a forward belongs to: read from the scheduler or told by the caller, never inferred."""

from __future__ import annotations

import operator
from collections.abc import Iterator
from contextlib import contextmanager
from threading import Lock, get_ident
from typing import Any, NamedTuple

from torch import Tensor

from refkv_policy.runtime.errors import RequestError


class Moment(NamedTuple):
    """Where a forward stands. key: an object whose identity is the request's; None where there is none to belong to.

    step_index: ordinal of the step among those the sampler visits; None where it is not known. branch: None likewise.
    moved: whether the timestep lies in memory of its own, to which an offloading hook moved it.
    """

    key: object | None
    step_index: int | None
    branch: str | None
    moved: bool = False


NOWHERE = Moment(None, None, None)


class PipelineClock:
    """Reads the pipeline and its scheduler, without a device sync.

    The request is the identity of `scheduler.timesteps`, which every `set_timesteps` replaces. The index is
    `scheduler.step_index` (before the first step: the begin index, or 0), believed only if the pipeline says itself that
    it stands there: its `_current_timestep`, which its loop takes out of `scheduler.timesteps`, is that element. The
    `timestep` argument must be a view of it; one with memory of its own is compared by value. So another pipeline's call
    is no step of this one, nor is one by hand between steps, when the scheduler has moved on. The branch is the name of
    the `cache_context` that the call stands in; in a context within another it is unknown.
    """

    def __init__(self, pipe: Any) -> None:
        self._pipe = pipe
        self._lock = Lock()
        self.branch: str | None = None
        self.contexts = 0
        self.thread: int | None = None
        """The thread that is inside a call or loop of the pipeline."""
        self.looping = False
        self._timesteps: Tensor | None = None
        self._places = range(0)
        """Where in memory the elements of the timesteps lie."""

    def read(self, timestep: Tensor) -> Moment:
        """The moment of a forward that is given this timestep; nowhere, unless the pipeline's call or loop is on its thread."""
        if self.thread != get_ident():
            return NOWHERE
        pipe = self._pipe
        scheduler, current = pipe.scheduler, getattr(pipe, "_current_timestep", None)
        timesteps = scheduler.timesteps
        index = scheduler.step_index
        if index is None:
            index = scheduler.begin_index or 0
        if timesteps is not self._timesteps:
            self._timesteps = timesteps
            start, size = timesteps.data_ptr(), timesteps.element_size()
            self._places = range(start, start + len(timesteps) * size, size)
        places = self._places
        if current is not None and 0 <= index < len(places):
            here = places[index]
            if current.data_ptr() == here:
                given = timestep.data_ptr()
                if given == here:
                    return Moment(timesteps, index, self.branch)
                elsewhere = not places.start <= given < places.stop
                if elsewhere and bool((timestep.to(timesteps.device) == current).all()):
                    return Moment(timesteps, index, self.branch, True)
        return Moment(timesteps, None, self.branch)

    @contextmanager
    def inside(self, loop: bool) -> Iterator[None]:
        """A call of the pipeline, or the denoising loop in it. Raises RequestError where another is under way."""
        with self._lock:
            if self.thread not in (None, get_ident()):
                raise RequestError(
                    "another thread is in a call of this pipeline, whose scheduler and state serve one call at a time; "
                    "put a lock around the calls, or give each thread a pipeline and a transformer of its own"
                )
            if self.looping:
                raise RequestError(
                    "the pipeline is in the middle of a request, and a second call would reset its scheduler; "
                    "call it when the first has returned, or use another pipeline with a scheduler of its own"
                )
            before, self.thread, self.looping = self.thread, get_ident(), loop
        try:
            yield
        finally:
            self.thread, self.looping = before, False


class ToldClock:
    """Reads what the caller of a bare transformer says with `session.step`.

    A step earlier than the one before begins a new request, as does the first step and branch once more after a request
    that has ended, and a call that is said to.
    """

    def __init__(self, steps: int, evaluated: tuple[int, ...]) -> None:
        self._steps = steps
        self._index = {step: index for index, step in enumerate(evaluated)}
        self._told: tuple[int | None, str] | None = None
        self._thread: int | None = None
        self._key: object | None = None
        self._first: tuple[int, str] | None = None
        self._latest = -1
        self._anew = False
        self._ended: object | None = None

    @contextmanager
    def at(self, step: int, branch: str, anew: bool = False) -> Iterator[None]:
        """Forwards inside, on this thread, belong to this nominal step and branch. anew: the first begins a new request.

        Raises RequestError for a step outside the table, and while another thread is inside.
        """
        index = self._index.get(self._nominal(step))
        if self._thread not in (None, get_ident()):
            raise RequestError(
                "another thread is in a step of this session, which serves one generation at a time; "
                "put a lock around each generation, or give each thread a transformer of its own"
            )
        before = self._thread, self._told
        self._thread, self._told = get_ident(), (index, branch)
        self._anew = self._anew or anew
        try:
            yield
        finally:
            self._thread, self._told = before

    def read(self, timestep: Tensor) -> Moment:
        """The moment of a forward; the timestep is not looked at."""
        if self._told is None or self._thread != get_ident():
            return NOWHERE
        index, branch = self._told
        if index is None:
            return Moment(self._key, None, branch)
        again = (index, branch) == self._first and self._ended is self._key
        if self._key is None or index < self._latest or again or self._anew:
            self._key, self._first, self._anew = object(), (index, branch), False
        self._latest = index
        return Moment(self._key, index, branch)

    def end(self, key: object) -> None:
        """Take note that a request has ended."""
        self._ended = key

    def _nominal(self, step: int) -> int:
        try:
            number = -1 if isinstance(step, bool) else operator.index(step)
        except TypeError:
            number = -1
        if 0 <= number < self._steps:
            return number
        raise RequestError(f"there is no step {step!r}; the table's steps are the integers 0 to {self._steps - 1}")


Clock = PipelineClock | ToldClock
