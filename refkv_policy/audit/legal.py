"""What a run may do otherwise than its table says: only towards exactness, and only for a reason."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from refkv_policy.audit.decision import Decision
from refkv_policy.audit.fold import Place, place
from refkv_policy.audit.record import quoted
from refkv_policy.compiler.table import COMPUTE, COMPUTE_KEEP, COMPUTED, ONLINE, SERVED, UNREACHED

REASONS = frozenset({"no_state", "budget", "unknown_step", "new_control", "error"})
"""Why a cell that was to be served may be computed instead."""
DROPPED = frozenset({"no_state", "budget", "new_control"})
"""Reasons that say nothing is kept at the site any more, unless the departure itself keeps (`C`)."""
CHAIN = "chain"
"""Why a block that the table does not reach may be computed: a departed site needs it."""


def faults(decisions: Iterable[Decision]) -> list[str]:
    """What is illegal in one step of one branch, each decision's `planned` being the table's cell; as sentences.

    Legal are: what the table says, without a reason; `R`, `F` or `?` computed, for one of REASONS; `?` decided either
    way; `C` computed but not kept, for one of REASONS; `-` computed and not kept (`.`), for one of REASONS or `chain`,
    when a departed site needs it; and anything not reached, when a site around it was served online.
    """
    told = list(decisions)
    departed = [place(d.site) for d in told if d.action in COMPUTED and d.planned not in COMPUTED and d.reason]
    online = [place(d.site) for d in told if d.planned == ONLINE and d.action in SERVED]
    found = []
    for d in told:
        if d.action == d.planned and d.reason is None:
            continue
        fault = _fault(d, departed, online)
        if fault is not None:
            found.append(f"{d.site}: {fault}")
    if departed:
        found.extend(_broken_chain(departed, {d.site: d for d in told}))
    return found


def needs(outer: Place, inner: Place) -> bool:
    """Whether computing the site `outer` needs `inner` computed: what it contains, and the chain below a hint."""
    if outer == inner or inner.stack in ("step", "cfg"):
        return False
    if outer.stack in ("step", "main") and outer.number < 0 and not outer.part:
        return True
    if outer.part:
        return False
    if outer.stack == "main":
        return inner.stack == "main" and inner.number == outer.number
    if inner.stack != "vace":
        return False
    last = outer.number if outer.stack == "hint" or inner.part else outer.number - 1
    return outer.stack in ("vace", "hint") and inner.number <= last


def _fault(d: Decision, departed: list[Place], online: list[Place]) -> str | None:
    done = f"the table says {d.planned} and the run did {d.action}"
    if d.action == d.planned:
        return f"it gives the reason {quoted(d.reason)} for doing what the table says"
    if d.action == UNREACHED:
        at = place(d.site)
        if d.reason is None and d.planned != ONLINE and any(needs(outer, at) for outer in online):
            return None
        return f"{done}: it was skipped, and the table computes it or serves it"
    if d.action in SERVED:
        if d.planned == ONLINE and d.reason is None:
            return None
        return f"{done}: a run may only depart towards computing"
    if d.planned == ONLINE and d.reason is None:
        return None
    if d.reason is None:
        return f"{done}, without a reason"
    if d.planned == UNREACHED:
        if d.action != COMPUTE or d.reason not in REASONS | {CHAIN}:
            return f"{done}, for {quoted(d.reason)}; a site that is not reached may only be computed and not kept"
        at = place(d.site)
        return None if any(needs(outer, at) for outer in departed) else f"{done}, and no departed site needs it"
    if d.reason not in REASONS:
        return f"{done}, for {quoted(d.reason)}, which is no reason to depart"
    if d.planned in SERVED or d.planned == ONLINE or (d.planned == COMPUTE_KEEP and d.action == COMPUTE):
        return None
    return f"{done}: it keeps a value that the table does not"


def _broken_chain(departed: list[Place], by_site: Mapping[str, Decision]) -> list[str]:
    """A departed hint or VACE block that was computed although the block it is computed from was not reached."""
    found = []
    for at in departed:
        if at.part or at.stack not in ("vace", "hint"):
            continue
        below = f"vace[{at.number if at.stack == 'hint' else at.number - 1}]"
        if below in by_site and by_site[below].action == UNREACHED:
            found.append(
                f"{at.stack}[{at.number}]: it was computed, yet {below}, which it is computed from, was not reached"
            )
    return found
