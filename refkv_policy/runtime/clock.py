"""Which request, step and branch a forward belongs to: read from the scheduler or told by the caller, never inferred."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, NamedTuple

from torch import Tensor


class Moment(NamedTuple):
    """Where a forward stands. key: an object whose identity is the request's; None where there is none to belong to.

    step_index: ordinal of the step among those the sampler visits; None where it is not known. branch: None likewise.
    """

    key: object | None
    step_index: int | None
    branch: str | None


class PipelineClock:
    """Reads the pipeline's scheduler, without a device sync.

    The request is the identity of `scheduler.timesteps`, which every `set_timesteps` replaces. The index is
    `scheduler.step_index` (before the first step: the begin index, or 0), believed only if the `timestep` argument is a
    view of `scheduler.timesteps` at that offset; an argument with memory of its own is compared by value. The branch is
    the name of the `cache_context` that the call stands in.
    """

    def __init__(self, pipe: Any) -> None:
        self._pipe = pipe
        self.branch: str | None = None

    def read(self, timestep: Tensor) -> Moment:
        """The moment of a forward that is given this timestep."""
        scheduler = self._pipe.scheduler
        timesteps = scheduler.timesteps
        index = scheduler.step_index
        if index is None:
            index = scheduler.begin_index or 0
        if not 0 <= index < timesteps.numel() or not _is_element(timestep, timesteps, index):
            index = None
        return Moment(timesteps, index, self.branch)


class ToldClock:
    """Reads what the caller of a bare transformer says with `session.step`.

    A step earlier than the one before, or the request's first step and branch once more, begins a new request.
    """

    def __init__(self, evaluated: tuple[int, ...]) -> None:
        self._index = {step: index for index, step in enumerate(evaluated)}
        self._told: tuple[int | None, str] | None = None
        self._key: object | None = None
        self._first: tuple[int, str] | None = None
        self._latest = -1

    @contextmanager
    def at(self, step: int, branch: str) -> Iterator[None]:
        """Forwards inside belong to this nominal step and branch."""
        before, self._told = self._told, (self._index.get(step), branch)
        try:
            yield
        finally:
            self._told = before

    def read(self, timestep: Tensor) -> Moment:
        """The moment of a forward; the timestep is not looked at."""
        if self._told is None:
            return Moment(None, None, None)
        index, branch = self._told
        if index is None:
            return Moment(self._key, None, branch)
        if self._key is None or index < self._latest or (index, branch) == self._first:
            self._key, self._first = object(), (index, branch)
        self._latest = index
        return Moment(self._key, index, branch)


Clock = PipelineClock | ToldClock


def _is_element(timestep: Tensor, timesteps: Tensor, index: int) -> bool:
    """Whether a timestep argument is `timesteps[index]`, expanded over a batch or not."""
    offset, size = timestep.data_ptr() - timesteps.data_ptr(), timesteps.element_size()
    if 0 <= offset < timesteps.numel() * size:
        return offset == index * size
    return bool((timestep.to(timesteps.device) == timesteps[index]).all())
