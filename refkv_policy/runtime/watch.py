"""Noticing that the prompt or the control changed under a request, without comparing values at each step."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor


class Watch:
    """Remembers some tensors (and plain values) and tells whether those of the next call hold something else.

    The same object, unmodified since, is the same content. Only another object is compared by value; an object that was
    written to in place has lost what it held, so it counts as changed.
    """

    def __init__(self) -> None:
        self._last: tuple[Any, ...] | None = None
        self._versions: tuple[int, ...] = ()

    def changed(self, *contents: Any) -> bool:
        """Whether the contents differ from the last call's. The first call has nothing to differ from."""
        last, versions = self._last, tuple(map(_version, contents))
        self._last = contents
        if last is None:
            self._versions = versions
            return False
        written = tuple(map(_version, last)) != self._versions
        self._versions = versions
        return written or not all(map(_same, last, contents))

    def forget(self) -> None:
        """Let go of what is remembered."""
        self._last, self._versions = None, ()


def _version(content: Any) -> int:
    """Counts in-place writes; -1 where torch does not (plain values, inference tensors)."""
    return content._version if isinstance(content, Tensor) and not content.is_inference() else -1


def _same(one: Any, other: Any) -> bool:
    if one is other:
        return True
    if not isinstance(one, Tensor) or not isinstance(other, Tensor):
        return not isinstance(one, Tensor) and not isinstance(other, Tensor) and bool(one == other)
    alike = one.shape == other.shape and one.dtype == other.dtype and one.device == other.device
    return alike and torch.equal(one, other)
