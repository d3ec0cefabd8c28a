"""Model families that can be run, found by the names of `profiles.families`: one module of this package each."""

from __future__ import annotations

import importlib
from functools import cache
from typing import Any

from refkv_policy.profiles import families


@cache
def executors() -> tuple[Any, ...]:
    """The executors' modules."""
    names = (name.replace("-", "_") for name in families.names())
    return tuple(importlib.import_module(f"refkv_policy.runtime.{name}") for name in names)


def is_known(model: object) -> bool:
    """Whether some family executes a model."""
    return any(each.is_member(model) for each in executors())


def executor_of(model: object) -> Any:
    """The module that executes a model. Raises StopIteration where no family knows it."""
    return next(each for each in executors() if each.is_member(model))
