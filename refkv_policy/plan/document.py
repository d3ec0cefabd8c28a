"""A YAML document with the position of every key and value."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from refkv_policy.plan.diagnostic import Span


@dataclass(frozen=True, slots=True)
class Document:
    """One parsed file: its text, its plain value (dict, list, str, int, float, bool, None) and where things stand.

    `keys` and `values` map a path such as ("caches", 0, "at") to the span of the key and of the value.
    """

    file: str
    text: str = field(repr=False)
    value: Any = field(repr=False)
    keys: Mapping[tuple[str | int, ...], Span] = field(repr=False)
    values: Mapping[tuple[str | int, ...], Span] = field(repr=False)

    def span(self, path: tuple[str | int, ...], *, key: bool = False) -> Span:
        """The span of the value at `path` (of its key when `key`), or of the nearest enclosing node that exists."""
        if key and path in self.keys:
            return self.keys[path]
        while path not in self.values and path:
            path = path[:-1]
        return self.values.get(path, Span.point(1, 1))
