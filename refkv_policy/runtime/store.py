"""The cache store of one request: kept values by branch and site, counted to the byte and held to each rule's budget."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from refkv_policy.compiler.table import TableRule
from refkv_policy.methods import Observation
from refkv_policy.runtime.cells import Cell

BUDGET, NO_STATE = "budget", "no_state"


@dataclass(frozen=True, slots=True)
class Kept:
    """One observation as it is held: in the rule's dtype and on its device, with what it was before."""

    step: int
    sigma: float
    held: tuple[Tensor, ...]
    bytes: int
    dtypes: tuple[torch.dtype, ...]
    device: torch.device

    def restored(self, writable: bool = False) -> tuple[Tensor, ...]:
        """The tensors in the dtype and on the device they were kept from.

        To be read only: where nothing differs they are the held ones themselves. writable: copies in any case, for what
        may write to them, such as a block that is given a chain state as its input.
        """
        pairs = zip(self.held, self.dtypes, strict=True)
        return tuple(t.to(device=self.device, dtype=d, copy=writable) for t, d in pairs)

    def observation(self) -> Observation:
        """The value as a method reads it: in the dtype it is held in, on the device it was kept from."""
        probe = self.held[1].to(self.device) if len(self.held) > 1 else None
        return Observation(self.sigma, self.held[0].to(self.device), self.step, probe)


@dataclass(slots=True)
class Level:
    """Bytes held now, and the most there were."""

    now: int = 0
    peak: int = 0

    def add(self, count: int) -> None:
        """Count bytes that came (or went, below 0)."""
        self.now += count
        self.peak = max(self.peak, self.now)


class Store:
    """Kept values of one request. Every observation counts from when it is added to when it is dropped.

    What is older than the `retained` newest is dropped before a new one is added, so the peak never counts more than
    later cells read. Values own their memory, which nobody else writes to.
    """

    def __init__(self, rules: Sequence[TableRule]) -> None:
        self._rules = rules
        self._kept: dict[tuple[str, int], list[Kept]] = {}
        self._cells: dict[tuple[str, int], Cell] = {}
        self._why: dict[tuple[str, int], str] = {}
        self.total = Level()
        self.by_branch: defaultdict[str, Level] = defaultdict(Level)
        self.by_site: defaultdict[tuple[str, int], Level] = defaultdict(Level)
        self.by_rule: defaultdict[int, Level] = defaultdict(Level)

    @property
    def bytes(self) -> int:
        """Bytes held now, all branches and devices."""
        return self.total.now

    @property
    def empty(self) -> bool:
        """Whether nothing is held."""
        return not self._kept

    def history(self, cell: Cell) -> Sequence[Kept] | None:
        """The observations that a served cell reads, newest first; None where one of them is missing.

        An observation older than the one the table names does not do: serving it would depart away from exactness.
        """
        kept = self._kept.get((cell.branch, cell.position), ())
        needed = cell.sources
        if not needed or len(kept) < len(needed):
            return None
        return kept if all(k.step >= s for k, s in zip(kept, needed, strict=False)) else None

    def newest(self, cell: Cell) -> Sequence[Kept]:
        """All that is held at the cell's site, newest first; what an online decision is served from."""
        return self._kept.get((cell.branch, cell.position), ())

    def missing(self, cell: Cell) -> str:
        """Why a served cell has nothing to read."""
        return self.dropped(cell) or NO_STATE

    def dropped(self, cell: Cell) -> str | None:
        """Why what was kept at the cell's site was dropped; None where nothing was, or something is held."""
        return self._why.get((cell.branch, cell.position))

    def trim(self, cell: Cell, count: int) -> None:
        """Drop all but the `count` newest observations of the cell's site."""
        key = cell.branch, cell.position
        kept = self._kept.get(key)
        if kept is None:
            return
        for old in kept[count:]:
            self._count(key, -old.bytes)
        del kept[count:]
        if not kept:
            del self._kept[key], self._cells[key]

    def keep(self, cell: Cell, *parts: Tensor) -> bool:
        """Hold a fresh value (a hint, a chain state, or K and V) as the newest observation.

        What later cells will not read beside it is trimmed first.
        Returns False when the rule's budget cannot take it: the shallowest hints are given up first, and the value that
        comes may be the shallowest.
        """
        if cell.rule is None:
            raise ValueError(f"{cell.site} is kept by no rule")
        rule, key = self._rules[cell.rule], (cell.branch, cell.position)
        self.trim(cell, cell.retained - 1)
        kept = _kept(cell, parts, rule)
        if rule.budget is not None and not self._make_room(cell, kept.bytes, rule.budget):
            self._give_up(key, cell, BUDGET)
            return False
        self._kept.setdefault(key, []).insert(0, kept)
        self._cells[key] = cell
        self._why.pop(key, None)
        self._count(key, kept.bytes)
        return True

    def drop(self, branch: str, positions: Iterable[int], reason: str) -> None:
        """Drop what a branch holds at the sites, noting why later cells will find nothing."""
        for position in positions:
            key = branch, position
            if key in self._kept:
                self._give_up(key, self._cells[key], reason)

    def clear(self) -> None:
        """Drop everything; the peaks stay."""
        for key in list(self._kept):
            self.trim(self._cells[key], 0)

    def _make_room(self, cell: Cell, size: int, budget: int) -> bool:
        rule = cell.rule
        assert rule is not None
        while self.by_rule[rule].now + size > budget:
            held = [(c.rank, key) for key, c in self._cells.items() if c.rule == rule]
            shallowest = min(held, default=(cell.rank, None))
            if shallowest[1] is None or shallowest[0] >= cell.rank:
                return False
            self._give_up(shallowest[1], self._cells[shallowest[1]], BUDGET)
        return True

    def _give_up(self, key: tuple[str, int], cell: Cell, reason: str) -> None:
        self.trim(cell, 0)
        self._why[key] = reason

    def _count(self, key: tuple[str, int], count: int) -> None:
        rule = self._cells[key].rule
        for level in (
            self.total,
            self.by_branch[key[0]],
            self.by_site[key],
            self.by_rule[-1 if rule is None else rule],
        ):
            level.add(count)


def _kept(cell: Cell, parts: tuple[Tensor, ...], rule: TableRule) -> Kept:
    # A residual is made for the store, and nobody else holds it.
    own = cell.residual or cell.position < 0
    held = tuple(_held(part.detach(), rule, copy=not own) for part in parts)
    return Kept(
        step=cell.step,
        sigma=cell.sigma,
        held=held,
        bytes=sum(t.numel() * t.element_size() for t in held),
        dtypes=tuple(part.dtype for part in parts),
        device=parts[0].device,
    )


def _held(value: Tensor, rule: TableRule, copy: bool) -> Tensor:
    """The value in the rule's dtype and place, a copy unless it was made to be kept.

    A block's output may be memory that it writes again: a buffer of its own, the input of the next block
    that works in place, a CUDA graph's (`compile_repeated_blocks(mode="reduce-overhead")`), part of a larger tensor.
    One copy a refresh, against the matrix products that made the value.
    """
    dtype = value.dtype if rule.store_dtype == "native" else getattr(torch, rule.store_dtype)
    device = value.device if rule.store_device == "model" else torch.device(rule.store_device)
    return value.to(device=device, dtype=dtype, copy=copy)
