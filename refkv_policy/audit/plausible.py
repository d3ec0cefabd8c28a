"""Whether a header's operating point is one of its table's, and whether the bytes of its lines can be true."""

from __future__ import annotations

import math
from collections.abc import Mapping
from itertools import accumulate
from typing import Any

from refkv_policy.audit.header import same_sigma
from refkv_policy.audit.read import Header, StepLine
from refkv_policy.audit.record import quoted
from refkv_policy.compiler.table import BRANCHES, COMPUTE_KEEP, SERVED, HookTable, Row
from refkv_policy.compiler.walk import online_rules
from refkv_policy.profiles.sites import CFG

_NARROWEST = 4
"""Elements a byte, of the narrowest form in which a value may be held (two bits an element)."""
_LONGEST_TEXT = 1 << 20
"""Tokens of a text whose length the header does not tell, at most."""


class Plausible:
    """What a request's header and lines say about the run, held against each other and the table.

    Bytes are bounded and not worked out, for a dtype depends on the model: from above by everything kept so far, each
    value in the widest form; from below by the values that later lines serve from them, in the narrowest.
    """

    def __init__(self, header: Header) -> None:
        self._table, self._record = header.table, header.record
        self._elements = _elements(header.record.get("shapes"), header.table)
        self._width = 8 if header.record.get("dtype") == "float64" else 4
        self._kept: dict[tuple[str | None, str], int] = {}
        self._online = set(online_rules(header.table))
        # A rule that decides online may hold what it looked at, and what it compares that with.
        probes = 2 * len(BRANCHES) * len(self._online)
        self._most = probes * self._elements.get("stream", (0, 0))[1] * self._width
        self._bytes: list[int] = []
        self._needed: list[int] = []
        self._told = False

    def step(self, line: StepLine) -> list[str]:
        """Take a step line; what is wrong with it, and before the first that has a place in the table, with the header."""
        found = []
        if line.step is not None and not self._told:
            self._told = True
            found = operating_point(self._record, self._table)
        now = len(self._bytes)
        self._bytes.append(line.bytes_held)
        self._needed.append(0)
        for d in line.decisions:
            key, row = (line.branch, d.site), self._table.by_site.get(d.site)
            if row is None:
                continue
            least, most = self._elements.get(_kind(row), (_NARROWEST, 0))
            if d.action in SERVED and key in self._kept:
                # Held from where it was kept, or last served, to the line before this one.
                self._needed[self._kept[key]] += least
                self._needed[now] -= least
                self._kept[key] = now
            elif d.action == COMPUTE_KEEP:
                if key not in self._kept:
                    with_probe = 2 if row.rule in self._online else 1
                    self._most += with_probe * self._table.history(row) * most * self._width
                self._kept[key] = now
        return found + self._over("this line", line.bytes_held)

    def end(self, peak: Any) -> list[str]:
        """Take the end of the request, and the seal's peak where there is one."""
        found = []
        for number, (held, needed) in enumerate(zip(self._bytes, accumulate(self._needed), strict=True), 1):
            if held * _NARROWEST < needed:
                found.append(
                    f"its step line {number} says {held} bytes are held, and what later lines serve from them is larger"
                )
        return found + (self._over("the seal", peak) if type(peak) is int else [])

    def _over(self, subject: str, held: int) -> list[str]:
        if not self._elements or held <= self._most:
            return []
        return [f"{subject} says {held} bytes are held, and what was kept so far takes {self._most} at most"]


def operating_point(record: Mapping[str, Any], table: HookTable) -> list[str]:
    """What a header says of guidance, branches and shapes that cannot be of a run under its table, as sentences.

    A request that was refused may say anything: it has no line with a place in the table.
    """
    found: list[str] = []
    guidance: Any = record.get("guidance")
    reviewed = list(table.guidance)
    if isinstance(guidance, list):  # a bare transformer's: the caller guides, at one of these
        if guidance != reviewed:
            found.append(f"the header lists guidance {quoted(guidance)}, and its table {quoted(reviewed)}")
    elif not any(same_sigma(guidance, g) for g in reviewed):
        found.append(f"the header says guidance {quoted(guidance)}, and its table is reviewed for {quoted(reviewed)}")
    elif record.get("branches") != (expected := list(BRANCHES if guidance > 1 else BRANCHES[:1])):
        found.append(
            f"the header lists branches {quoted(record.get('branches'))}, and guidance {quoted(guidance)} has {expected}"
        )
    if "shapes" in record and not _elements(record["shapes"], table):
        patch = "x".join(map(str, table.layout.patch))
        found.append(
            f"the header's shapes {quoted(record['shapes'])} do not agree with each other and the patch {patch}"
        )
    return found


def _kind(row: Row) -> str:
    """Which of `_elements` a row's value is."""
    return "text" if row.at.part == "text_kv" else "velocity" if row.at == CFG else "stream"


def _elements(shapes: Any, table: HookTable) -> dict[str, tuple[int, int]]:
    """Elements of one kept value, least and most: of the stream, of text K and V, of a velocity.

    Empty where the shapes are not sound.
    """
    if not isinstance(shapes, dict):
        return {}
    latent, patch = shapes.get("latent"), table.layout.patch
    if not isinstance(latent, list) or len(latent) != 5 or not all(type(n) is int and n > 0 for n in latent):
        return {}
    batch, _, *sides = latent
    tokens = math.prod(side // p for side, p in zip(sides, patch, strict=True))
    if any(side % p for side, p in zip(sides, patch, strict=True)):
        return {}
    text = shapes.get("text_tokens")
    known = type(text) is int and text > 0
    if shapes.get("tokens") != tokens or shapes.get("batch") != batch or not (known or text is None):
        return {}
    stream, pair, velocity = batch * tokens * table.layout.dim, 2 * batch * table.layout.dim, math.prod(latent)
    return {
        "stream": (stream, stream),
        "text": (pair * text, pair * text) if known else (_NARROWEST, pair * _LONGEST_TEXT),
        "velocity": (velocity, velocity),
    }
