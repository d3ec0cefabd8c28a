"""Frozen dataclasses from plain values, those that YAML and JSON hold. Nothing is judged here: a schema did that before."""

from __future__ import annotations

import datetime
from collections.abc import Callable, Mapping
from dataclasses import fields, is_dataclass
from functools import cache
from types import MappingProxyType, NoneType, UnionType
from typing import Any, TypeVar, Union, get_args, get_origin, get_type_hints

T = TypeVar("T")


def from_plain(kind: type[T], value: Mapping[str, Any]) -> T:
    """The dataclass of a mapping of its fields' names, read by their annotations; other keys are left out.

    A list, or one entry without its list, becomes a tuple, a mapping read-only, an ISO text a date, a whole number a float;
    what is already of its class stays. May raise anything for a mapping that does not fit.
    """
    hashable: Any = kind
    built: T = _reader(hashable)(value)
    return built


@cache
def _reader(kind: Any) -> Callable[[Any], Any]:
    """What makes a value of an annotated type; worked out once, since a document has thousands of values of a few types."""
    origin, inner = get_origin(kind), get_args(kind)
    if origin in (Union, UnionType):
        some = [each for each in inner if each is not NoneType]
        if len(some) > 1:
            return _as_it_is
        read = _reader(some[0])
        return lambda value: None if value is None else read(value)
    if origin is tuple:
        read = _reader(inner[0])
        return lambda value: tuple(
            [read(each) for each in value] if isinstance(value, (list, tuple)) else [read(value)]
        )
    if origin is Mapping:
        read = _reader(inner[1])
        return lambda value: MappingProxyType({key: read(each) for key, each in value.items()})
    if kind is datetime.date:
        return datetime.date.fromisoformat
    if is_dataclass(kind):
        return _dataclass_reader(kind)
    return float if kind is float else _as_it_is


def _dataclass_reader(kind: Any) -> Callable[[Any], Any]:
    hints = get_type_hints(kind)
    readers = [(field.name, _reader(hints[field.name])) for field in fields(kind)]

    def read(value: Any) -> Any:
        if isinstance(value, kind):
            return value
        return kind(**{name: reader(value[name]) for name, reader in readers if name in value})

    return read


def _as_it_is(value: Any) -> Any:
    return value
