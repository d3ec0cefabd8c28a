"""Caching methods, found by name: one file each in this package, or an entry point in `refkv_policy.methods`."""

from __future__ import annotations

import importlib
import pkgutil
from collections.abc import Iterable
from functools import cache

from refkv_policy.methods.method import (
    Grid,
    Lowered,
    Method,
    MethodError,
    Now,
    Observation,
    Online,
    Placement,
    Probe,
)

__all__ = [
    "ENTRY_POINTS",
    "Grid",
    "Lowered",
    "Method",
    "MethodError",
    "Now",
    "Observation",
    "Online",
    "Placement",
    "Probe",
    "get",
    "names",
]

ENTRY_POINTS = "refkv_policy.methods"


@cache
def _shipped() -> dict[str, Method]:
    """Methods of this package by name."""
    modules = (m.name for m in pkgutil.iter_modules(__path__) if m.name != "method")
    return _by_name((name, importlib.import_module(f"{__name__}.{name}").METHOD) for name in modules)


@cache
def _all() -> dict[str, Method]:
    """Shipped and installed methods by name. Apart from `_shipped` because scanning entry points costs time."""
    from importlib.metadata import entry_points  # here, since it is slow to import

    installed = ((f"entry point {point.value}", point.load()) for point in entry_points(group=ENTRY_POINTS))
    return _by_name((*_shipped().items(), *installed))


def _by_name(found: Iterable[tuple[str, object]]) -> dict[str, Method]:
    """Raises ValueError when something found is not a method, or two claim one name."""
    registry: dict[str, Method] = {}
    for origin, method in found:
        if not isinstance(method, Method):
            raise ValueError(f"{origin} is not a caching method")
        if method.name in registry:
            raise ValueError(f"{origin} claims the method name {method.name!r}, which is taken")
        registry[method.name] = method
    return registry


def names() -> tuple[str, ...]:
    """Every method's name, sorted."""
    return tuple(sorted(_all()))


def get(name: str) -> Method:
    """The method of that name. Raises KeyError when there is none."""
    return _shipped()[name] if name in _shipped() else _all()[name]
