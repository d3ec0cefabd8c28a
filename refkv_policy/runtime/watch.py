"""Noticing that the prompt or the control changed under a request, without comparing values at each step."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor


class Watch:
    """Remembers a tensor (or a plain value) and tells whether that of the next call holds something else.

    The same object, unmodified since, is the same content. Only another object is compared by value; an object that was
    written to in place has lost what it held, so it counts as changed.
    """

    __slots__ = ("_last", "_version")

    def __init__(self, content: Any) -> None:
        self._last, self._version = content, _version(content)

    def changed(self, content: Any) -> bool:
        """Whether the content differs from the last call's."""
        last = self._last
        written = _version(last) != self._version
        self._last, self._version = content, _version(content)
        return written or not (content is last or _same(last, content))


def _version(content: Any) -> int:
    """Counts in-place writes; -1 where torch does not (plain values, inference tensors)."""
    return content._version if isinstance(content, Tensor) and not content.is_inference() else -1


def _same(one: Any, other: Any) -> bool:
    if not isinstance(one, Tensor) or not isinstance(other, Tensor):
        return not isinstance(one, Tensor) and not isinstance(other, Tensor) and bool(one == other)
    alike = one.shape == other.shape and one.dtype == other.dtype and one.device == other.device
    return alike and torch.equal(one, other)
