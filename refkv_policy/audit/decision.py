"""One cache decision, as the runtime reports it and the audit log records it."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Decision:
    """What was done at one site in one call.

    action: what happened (`C . R F -`). planned: the table's cell; differs from `action` only in a departure.
    reason: why it departed (`no_state`, `budget`, `unknown_step`, `new_control`, `error`, `chain`), else None. `chain`
    is a block that the table did not reach but that a departed, deeper hint needs.
    age: steps, counted in evaluated ones, since the newest observation that a served value came from; else None.
    signal, threshold: of an online decision, else None.
    """

    site: str
    action: str
    planned: str
    reason: str | None = None
    age: int | None = None
    signal: float | None = None
    threshold: float | None = None
