"""Dataclasses from plain values: each annotation that documents use, built as its class says."""

from __future__ import annotations

import datetime
from collections.abc import Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any, Literal

import pytest

from refkv_policy.plain import from_plain


@dataclass(frozen=True, slots=True)
class Inner:
    """A part."""

    name: str
    share: float = 0.5


@dataclass(frozen=True, slots=True)
class Outer:
    """A whole with one field of each kind."""

    kind: Literal["a", "b"]
    inner: Inner
    many: tuple[Inner, ...] = ()
    patch: tuple[int, int] = (1, 2)
    maybe: Inner | None = None
    day: datetime.date | None = None
    path: tuple[str | int, ...] = ()
    named: Mapping[str, Mapping[str, float]] = field(default_factory=lambda: MappingProxyType({}))
    anything: Any = None


def test_every_part_is_of_its_class() -> None:
    """Nested dataclasses, tuples, dates, floats and read-only mappings are made from lists, texts and whole numbers."""
    built = from_plain(
        Outer,
        {
            "kind": "b",
            "inner": {"name": "x", "share": 1},
            "many": [{"name": "y"}, {"name": "z", "share": 2}],
            "patch": [3, 4],
            "maybe": {"name": "w"},
            "day": "2026-12-01",
            "path": ["caches", 0],
            "named": {"hint": {"deep": 3}},
            "anything": [1],
        },
    )
    assert built == Outer(
        "b",
        Inner("x", 1.0),
        (Inner("y"), Inner("z", 2.0)),
        (3, 4),
        Inner("w"),
        datetime.date(2026, 12, 1),
        ("caches", 0),
        MappingProxyType({"hint": MappingProxyType({"deep": 3.0})}),
        [1],
    )
    assert type(built.inner.share) is type(built.named["hint"]["deep"]) is float
    with pytest.raises(TypeError):
        built.named["hint"]["deep"] = 4.0  # type: ignore[index]


def test_what_is_left_out_has_its_default_and_other_keys_do_not_count() -> None:
    """Fields that the mapping lacks keep their defaults; keys that are no field, such as a verdict, are left out."""
    assert from_plain(Outer, {"kind": "a", "inner": {"name": "x", "verdict": "green"}, "version": 1}) == Outer(
        "a", Inner("x")
    )


def test_one_entry_stands_for_its_list_and_a_built_part_for_itself() -> None:
    """`at: x` is `at: [x]`; a part that is already of its class, and a null where one may stand, are taken as they are."""
    inner = Inner("x")
    built = from_plain(Outer, {"kind": "a", "inner": inner, "many": {"name": "y"}, "maybe": None, "day": None})
    assert built.inner is inner
    assert built.many == (Inner("y"),)
    assert built.maybe is built.day is None


@pytest.mark.parametrize(
    "value",
    [{"inner": {"name": "x"}}, {"kind": "a", "inner": 3}, {"kind": "a", "inner": {"name": "x"}, "day": "tomorrow"}],
)
def test_what_does_not_fit_raises(value: dict[str, Any]) -> None:
    """A missing field, a number for a part and a word for a date raise: a schema is to have refused them."""
    with pytest.raises((TypeError, ValueError)):
        from_plain(Outer, value)
