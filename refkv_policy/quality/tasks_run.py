"""Executors: what carries tasks out, here or on a Ray cluster. What is done already is never run again."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any, Protocol

from refkv_policy.plan.diagnostic import RefkvError
from refkv_policy.quality.tasks import Store, Task

EXECUTORS = ("local", "ray")


class ExecutorError(RefkvError):
    """An executor that is not there, or whose worker died."""


class Worker(Protocol):
    """What performs tasks and writes their results into the store: a `Bench`."""

    def perform(self, task: Task) -> None:
        """Run one task."""


@dataclass(frozen=True, slots=True)
class Stage:
    """Tasks that may run in any order, after those of the stages before. alone: one at a time, nothing else running."""

    name: str
    tasks: tuple[Task, ...]
    alone: bool = False


Open = Callable[[], Worker]
"""Opens a worker: loads the model. For Ray it is sent to each worker, so it must be a plain function with plain arguments."""
OnDone = Callable[[Task], None]


def missing(stages: Sequence[Stage], store: Store) -> Iterator[tuple[Stage, list[Task]]]:
    """Of each stage the tasks without a result, each once however often it is asked for."""
    keep = {task.key for stage in stages for task in stage.tasks if task.keep}
    seen: set[str] = set()
    for stage in stages:
        once = {task.key: replace(task, keep=task.key in keep) for task in stage.tasks}
        yield stage, [task for key, task in once.items() if key not in seen and not store.done(task)]
        seen |= once.keys()


def run_stages(
    stages: Sequence[Stage],
    store: Store,
    open_worker: Open,
    *,
    executor: str = "local",
    workers: int = 2,
    gpus: int = 0,
    on_done: OnDone = lambda task: None,
) -> None:
    """Run what is missing. on_done is called after each task. No worker is opened when nothing is missing.

    workers, gpus: of Ray, how many there are and how many accelerators each is given. Raises what a worker raises, and
    ExecutorError for Ray.
    """
    todo = [(stage, tasks) for stage, tasks in missing(stages, store) if tasks]
    if not todo:
        return
    if executor == "ray":
        _on_ray(todo, open_worker, workers, gpus, on_done)
        return
    worker = open_worker()
    for _, tasks in todo:
        for task in tasks:
            worker.perform(task)
            on_done(task)


def _on_ray(todo: list[tuple[Stage, list[Task]]], open_worker: Open, workers: int, gpus: int, on_done: OnDone) -> None:
    """Each worker is an actor that opens the model once. The results folder must be one that all of them see."""
    try:
        import ray
    except ModuleNotFoundError as error:
        raise ExecutorError("--executor ray needs ray: pip install 'refkv-policy[ray]'") from error
    started = not ray.is_initialized()
    if started:
        ray.init(
            num_cpus=None if os.environ.get("RAY_ADDRESS") else workers, log_to_driver=False, configure_logging=False
        )
    remote = ray.remote(max_restarts=0, num_cpus=1, num_gpus=gpus)(_Actor)
    try:
        actors = [remote.remote(open_worker) for _ in range(workers)]
        for stage, tasks in todo:
            _drain(ray, actors[:1] if stage.alone else actors, tasks, on_done)
    finally:
        if started:
            ray.shutdown()


class _Actor:
    """A worker in a process of Ray's."""

    def __init__(self, open_worker: Open) -> None:
        self.worker = open_worker()

    def perform(self, task: Task) -> None:
        """Run one task."""
        self.worker.perform(task)


def _drain(ray: Any, actors: Sequence[Any], tasks: Sequence[Task], on_done: OnDone) -> None:
    """Hand tasks to whichever actor is free until none is left."""
    waiting, idle = list(tasks), list(actors)
    running: dict[Any, tuple[Any, Task]] = {}
    while waiting or running:
        while waiting and idle:
            actor, task = idle.pop(), waiting.pop(0)
            running[actor.perform.remote(task)] = actor, task
        done, _ = ray.wait(list(running), num_returns=1)
        actor, task = running.pop(done[0])
        try:
            ray.get(done[0])
        except ray.exceptions.RayTaskError as error:
            raise (error.cause if isinstance(error.cause, RefkvError) else ExecutorError(str(error.cause))) from error
        except ray.exceptions.RayError as error:
            raise ExecutorError(f"a Ray worker died on {task.label}: {str(error).splitlines()[0]}") from error
        on_done(task)
        idle.append(actor)
