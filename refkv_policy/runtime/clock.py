"""Which request, step and branch a forward belongs to: proven from the pipeline's own loop or told by the caller."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from threading import Lock, get_ident
from typing import Any, NamedTuple

from torch import Tensor

from refkv_policy.runtime.errors import RequestError


class CallPosition(NamedTuple):
    """Where a forward stands. key: an object whose identity is the request's; None where it belongs to none.

    step_index: ordinal of the step among those the sampler visits; None where it is not known. branch: None likewise.
    moved: whether the timestep lies in memory of its own, as where a hook brought it from another device.
    """

    key: object | None
    step_index: int | None
    branch: str | None
    moved: bool = False


NOWHERE = CallPosition(None, None, None)
"""Of a forward that is not proven to be the attached pipeline's own."""


class PipelineClock:
    """Reads the pipeline's loop and its scheduler, without a device sync.

    A forward is the attached pipeline's own only if that is proven: it comes from the thread that is in the pipeline's
    denoising loop, the pipeline stands at the element of `scheduler.timesteps` that `scheduler.step_index` names (before the
    first step: the begin index, or 0), and the `timestep` argument is a view of that element; one with memory of its own
    (a hook copied it to another device) is compared by value. Another pipeline over the same transformer, in a callback or in
    a thread, meets none of these: in a callback the scheduler has gone on, and the pipeline has not. The request is the
    identity of `scheduler.timesteps`, which every `set_timesteps` replaces. The branch is the name of the `cache_context`
    that the call stands in; in a context within another it is unknown.
    """

    def __init__(self, pipe: Any) -> None:
        self._pipe = pipe
        self._lock = Lock()
        self.branch: str | None = None
        self.contexts = 0
        self.thread: int | None = None
        self.caller: int | None = None
        """The thread that is in a call of the pipeline, of which the loop is a part."""

    @contextmanager
    def call(self) -> Iterator[None]:
        """A call of the pipeline. Raises RequestError when another thread is in one, or when it comes from inside the loop."""
        with self._lock:
            self._check_free()
            before, self.caller = self.caller, get_ident()
        try:
            yield
        finally:
            self.caller = before

    def open(self) -> None:
        """The pipeline enters its loop. Raises RequestError when it is in one already."""
        with self._lock:
            self._check_free()
            self.thread, self.branch, self.contexts = get_ident(), None, 0

    def _check_free(self) -> None:
        if self.thread is not None or self.caller not in (None, get_ident()):
            raise RequestError(BUSY)

    def close(self) -> None:
        """The pipeline has left its loop."""
        self.thread = self.branch = None

    def read(self, timestep: Tensor) -> CallPosition:
        """The position of a forward that is given this timestep."""
        if self.thread != get_ident():
            return NOWHERE
        pipe = self._pipe
        scheduler, current = pipe.scheduler, pipe._current_timestep
        timesteps, index = scheduler.timesteps, scheduler.step_index
        if index is None:
            index = scheduler.begin_index or 0
        first, size = timesteps.data_ptr(), timesteps.element_size()
        if current is None or current.data_ptr() != first + index * size or not 0 <= index < timesteps.numel():
            return NOWHERE
        offset = timestep.data_ptr() - first
        if offset != index * size and (0 <= offset < timesteps.numel() * size or not _equal(timestep, current)):
            return NOWHERE
        return CallPosition(timesteps, index, self.branch, offset != index * size)


class ManualClock:
    """Reads what the caller of a bare transformer says with `session.step`.

    A step earlier than the one before begins a new request, as does the first step and branch once more after a request
    that has ended, and a call that is said to. Once more within a request it is a second call there.
    """

    def __init__(self, evaluated: tuple[int, ...]) -> None:
        self._index = {step: index for index, step in enumerate(evaluated)}
        self._told: tuple[int | None, str] | None = None
        self._key: object | None = None
        self._first: tuple[int, str] | None = None
        self._latest = -1
        self._thread: int | None = None
        self._anew = False
        self._ended: object | None = None

    @contextmanager
    def at(self, step: int, branch: str, anew: bool = False) -> Iterator[None]:
        """Forwards inside belong to this nominal step and branch. anew: the first of them begins a new request.

        Raises RequestError when another thread is in a step.
        """
        mine = get_ident()
        if self._thread not in (None, mine):
            raise RequestError(
                "another thread is inside a step of this session; use one session, and one model, a thread"
            )
        before, self._told, self._thread = self._told, (self._index.get(step), branch), mine
        self._anew = self._anew or anew
        try:
            yield
        finally:
            self._told = before
            if before is None:
                self._thread = None

    def read(self, timestep: Tensor) -> CallPosition:
        """The position of a forward; the timestep is not looked at."""
        if self._told is None or self._thread != get_ident():
            return NOWHERE
        index, branch = self._told
        if index is None:
            return CallPosition(self._key, None, branch)
        again = (index, branch) == self._first and self._ended is self._key
        if self._key is None or index < self._latest or again or self._anew:
            self._key, self._first, self._anew = object(), (index, branch), False
        self._latest = index
        return CallPosition(self._key, index, branch)

    def end(self, key: object) -> None:
        """A request has ended."""
        self._ended = key


BUSY = (
    "the attached pipeline is generating already, in another thread or around this call; "
    "wait for it, or use another pipeline with a transformer and a scheduler of its own"
)


def _equal(timestep: Tensor, current: Tensor) -> bool:
    """Whether a copied timestep argument is the current one, expanded over a batch or not."""
    return bool((timestep.to(current.device) == current).all())
