"""Two runs that take turns, step by step, so that a slow spell of the machine hits both alike.

On a shared machine the pace changes from second to second. Runs timed one after the other differ by that; runs whose steps
alternate differ by what they compute.
"""

from __future__ import annotations

import copy
import itertools
import threading
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, TypeVar

if TYPE_CHECKING:
    from diffusers import WanVACEPipeline
    from torch import nn

T = TypeVar("T")
Pause = Callable[[], None]
"""What a run calls after a step: it returns when it is the run's turn again."""
Runner = Callable[[Pause], T]


class Stopped(BaseException):
    """Raised in a run that is not to go on, since the other one, or the caller, was interrupted."""


class Turns:
    """Lets one of two runs work at a time: the one that is less far, or the first where they are level.

    totals: the steps of each. first: which begins.
    """

    def __init__(self, totals: Sequence[int], first: int = 0) -> None:
        self._totals, self._first, self._turn = tuple(totals), first, first
        self._done, self._left = [0] * len(totals), [False] * len(totals)
        self._stopped = False
        self._changed = threading.Condition()

    def begin(self, me: int) -> None:
        """Wait for the first turn."""
        with self._changed:
            self._await(me)

    def pause(self, me: int) -> None:
        """A step is done: let the other go on, until this one is less far. Raises Stopped."""
        with self._changed:
            self._done[me] += 1
            self._hand_on()
            self._await(me)

    def leave(self, me: int) -> None:
        """No more steps: the other need not wait any longer."""
        with self._changed:
            self._left[me] = True
            self._hand_on()

    def stop(self) -> None:
        """Raise Stopped in whoever waits, or pauses next."""
        with self._changed:
            self._stopped = True
            self._changed.notify_all()

    def _hand_on(self) -> None:
        running = [i for i, left in enumerate(self._left) if not left]
        if running:
            self._turn = min(running, key=lambda i: (self._done[i] / self._totals[i], i != self._first))
        self._changed.notify_all()

    def _await(self, me: int) -> None:
        self._changed.wait_for(lambda: self._stopped or self._turn == me)
        if self._stopped:
            raise Stopped


def take_turns(runners: Sequence[Runner[T]], totals: Sequence[int], first: int = 0) -> list[T]:
    """What two runs give that take turns. Each is called with the pause that it makes after every step but its last.

    Only one of them works at any time. Raises what a run raises, once both have ended.
    """
    turns = Turns(totals, first)
    found: list[Any] = [None] * len(runners)
    errors: list[BaseException] = []

    def work(me: int) -> None:
        try:
            turns.begin(me)
            found[me] = runners[me](lambda: turns.pause(me))
        except Stopped:
            pass
        except BaseException as error:
            errors.append(error)
            turns.stop()
        finally:
            turns.leave(me)
            ended[me].set()

    ended = [threading.Event() for _ in runners]
    threads = [threading.Thread(target=work, args=(me,), name=f"turns-{me}") for me in range(len(runners))]
    started: list[int] = []
    try:
        for me, thread in enumerate(threads):
            started.append(me)
            thread.start()
        # Not by `join`, which, interrupted, takes a thread that runs for one that has ended (CPython, bpo-45274).
        for event in ended:
            event.wait()
    except BaseException:
        turns.stop()
        for me in started:
            if threads[me].ident is not None:
                ended[me].wait()
        raise
    finally:
        for me in started:
            if threads[me].ident is not None:
                threads[me].join()
    if errors:
        raise errors[0]
    return found


def twin_of(pipe: WanVACEPipeline) -> WanVACEPipeline:
    """A second pipeline on the same weights: transformer and VAE are modules of its own that share every tensor.

    A session attaches to one of them and leaves the other as it is. Not for a pipeline whose parts are offloaded.
    """
    twin = copy.copy(pipe)
    twin.transformer, twin.vae = _twin(pipe.transformer), _twin(pipe.vae)
    twin.scheduler = type(pipe.scheduler).from_config(pipe.scheduler.config)
    return twin


def _twin(module: nn.Module) -> Any:
    shared: dict[int, Any] = {id(tensor): tensor for tensor in itertools.chain(module.parameters(), module.buffers())}
    return copy.deepcopy(module, shared)
