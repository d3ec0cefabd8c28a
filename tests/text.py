"""Comparing text that was broken to a width with the text as it was."""

from __future__ import annotations


def told(folded: str, whole: str) -> int:
    """The longest line of `folded`, which has to hold the words of `whole` in their order, none of them broken."""
    assert folded.split() == whole.split()
    return max(map(len, folded.splitlines()))
