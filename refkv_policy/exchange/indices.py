"""vLLM-Omni's index selectors, such as "0-9,20,25-30": steps to skip, and layers.

The grammar is that of `parse_kv_cache_skip_selector` (vllm_omni/diffusion/data.py, 0.30.0): chunks between commas, each an
index or an inclusive range, spaces around any of them, empty chunks left out, no index below 0.
"""

from __future__ import annotations

import re
from collections.abc import Iterable

_CHUNK = re.compile(r"([0-9]{1,6})(?:\s*-\s*([0-9]{1,6}))?", re.ASCII)


def parse_indices(text: str) -> tuple[int, ...]:
    """The indices of a selector, ascending; none of an empty text. Raises ValueError with a sentence for another text.

    Stricter than theirs only where Python's `int` reads more than digits (`+1`, `1_0`), which nobody means.
    """
    found: set[int] = set()
    for chunk in filter(None, map(str.strip, text.split(","))):
        match = _CHUNK.fullmatch(chunk)
        if match is None:
            raise ValueError(f"{chunk!r} is neither an index nor a range such as 25-30")
        first, last = int(match[1]), int(match[2] or match[1])
        if last < first:
            raise ValueError(f"the range {chunk} runs backwards")
        if last - first > 10_000:
            raise ValueError(f"the range {chunk} is longer than any run or model")
        found.update(range(first, last + 1))
    return tuple(sorted(found))


def indices_text(indices: Iterable[int]) -> str:
    """The shortest selector of some indices, ascending: `0-2,10`. Plans' lists of steps and terms are written alike."""
    runs: list[list[int]] = []
    for index in sorted(set(indices)):
        if runs and index == runs[-1][1] + 1:
            runs[-1][1] = index
        else:
            runs.append([index, index])
    return ",".join(str(a) if a == b else f"{a}-{b}" for a, b in runs)
