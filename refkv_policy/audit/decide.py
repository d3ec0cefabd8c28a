"""Deciding again: an online rule's own state machine, run over the signals that a log holds."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

from refkv_policy import methods
from refkv_policy.audit.decision import Decision
from refkv_policy.audit.record import quoted
from refkv_policy.compiler.placement import placement_of
from refkv_policy.compiler.table import BRANCHES, COMPUTED, ONLINE, SERVED, UNREACHED, HookTable

WITHHELD = frozenset({"error", "unknown_step"})
"""Why a whole call was computed without the cache."""


class Decider:
    """One rule of a table that decides online, over the calls of one request.

    The calls of a step go together, unless the rule has each branch decide for itself: then what the first branch decided
    holds for the second, with the same signal.
    """

    def __init__(self, table: HookTable, rule: int, branches: Sequence[str]) -> None:
        self.table, self.rule, self.name = table, rule, table.rules[rule].name
        self.served = self.looked = 0
        self._sites = frozenset(row.site for row in table.governed(rule))
        self._online: methods.Online | None = None
        try:
            method = methods.get(table.rules[rule].method)
            self._online = method.online(placement_of(table, rule, branches[0]))
        except (KeyError, NotImplementedError, TypeError, ValueError):
            # Not installed here, or another version of it: what it would have decided is not known.
            self._online = None
        self._states: dict[str, Any] = {}
        self._last: tuple[int, bool, float | None] | None = None

    def step(self, step: int, branch: str, decisions: Sequence[Decision]) -> list[str]:
        """Whether the rule decided this call as it does from the signal logged; what is wrong, as sentences."""
        mine = [d for d in decisions if d.site in self._sites]
        undecided = [d for d in mine if d.planned == ONLINE]
        found = self._alike(undecided)
        # Where none of its sites was reached, or nothing of the call was cached, the rule was not asked.
        asked = any(d.action != UNREACHED and d.reason not in WITHHELD for d in mine)
        if self._online is None or not asked:
            return found
        signal = undecided[0].signal if undecided else None
        if signal is not None and not math.isfinite(signal):
            return [*found, f"{undecided[0].site}: the signal {quoted(signal)} is no finite number"]
        together = not self.table.rules[self.rule].apart and branch != BRANCHES[0]
        if together and self._last is not None and self._last[0] == step:
            serves, before = self._last[1:]
            if undecided and signal != before:
                found.append(
                    f"{undecided[0].site}: it goes with {BRANCHES[0]}, whose signal was {before}, and the line says {signal}"
                )
        else:
            key = BRANCHES[0] if together else branch
            state = self._states[key] if key in self._states else self._online.begin()
            decided, state = self._online.decide(state, signal)
            serves = decided and bool(undecided) and signal is not None
            if not any(d.action in SERVED for d in undecided) and any(d.action in COMPUTED for d in mine):
                state = self._online.computed(state)
            self._states[key], self._last = state, (step, serves, signal)
        self.looked += bool(undecided)
        self.served += any(d.action in SERVED for d in undecided)
        for d in undecided:
            if d.action in SERVED and not serves:
                found.append(
                    f"{d.site}: the rule says compute at the signal {quoted(signal)}, and the run did {d.action}"
                )
            elif d.action in COMPUTED and serves and d.reason is None:
                found.append(
                    f"{d.site}: the rule says serve at the signal {quoted(signal)}, and the run did {d.action}"
                )
            if d.threshold is not None and d.threshold != self._online.threshold:
                found.append(f"{d.site}: the threshold is {self._online.threshold}, and the line says {d.threshold}")
        return found

    def notes(self) -> list[str]:
        """What is legal and worth telling: a rule that never served, a method that is not installed."""
        if self._online is None:
            return [f"rule {self.name} was not decided again: its method is not installed here"]
        if self.looked and not self.served:
            return [f"rule {self.name} decided {self.looked} times, and never to serve: it saved nothing"]
        return []

    def _alike(self, undecided: Sequence[Decision]) -> list[str]:
        """All cells of a rule are decided as one, from one signal."""
        signals = {d.signal for d in undecided if d.action in SERVED or d.reason is None}
        return [f"rule {self.name}: its sites were decided from different signals"] if len(signals) > 1 else []
