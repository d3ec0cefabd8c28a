"""What a run may do otherwise than its table says: only towards exactness, and only for a reason."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from refkv_policy.audit.decision import Decision
from refkv_policy.audit.record import quoted
from refkv_policy.compiler.table import COMPUTE, COMPUTE_KEEP, COMPUTED, ONLINE, SERVED, UNREACHED, HookTable
from refkv_policy.plan.selectors import Site, site_named
from refkv_policy.profiles.sites import Tree

REASONS = frozenset({"no_state", "budget", "unknown_step", "new_control", "error"})
"""Why a cell that was to be served may be computed instead."""
DROPPED = frozenset({"no_state", "budget", "new_control"})
"""Reasons that say nothing is kept at the site any more, unless the departure itself keeps (`C`)."""
CHAIN = "chain"
"""Why a block that the table does not reach may be computed: a departed site needs it."""


def faults(decisions: Iterable[Decision], table: HookTable) -> list[str]:
    """What is illegal in one step of one branch, each decision's `planned` being the table's cell; as sentences.

    Legal are: what the table says, without a reason; `R`, `F` or `?` computed, for one of REASONS; `?` decided either
    way; `C` computed but not kept, for one of REASONS; `-` computed and not kept (`.`), for one of REASONS or `chain`,
    when a departed site needs it; and anything not reached, when a site around it was served online.
    """
    told = list(decisions)
    line = _Line(table.tree, {site_named(d.site): d for d in told})
    found = []
    for d in told:
        if d.action == d.planned and d.reason is None:
            continue
        fault = _fault(d, line)
        if fault is not None:
            found.append(f"{d.site}: {fault}")
    found.extend(_broken_chain(line))
    return found


class _Line:
    """One call's decisions beside the site tree. departed: computed though not planned. online: served though undecided."""

    def __init__(self, tree: Tree, decisions: Mapping[Site, Decision]) -> None:
        self.tree, self.decisions = tree, decisions
        told = decisions.items()
        self.departed = [s for s, d in told if d.action in COMPUTED and d.planned not in COMPUTED and d.reason]
        self.online = [s for s, d in told if d.planned == ONLINE and d.action in SERVED]

    def needed(self, inner: Site) -> bool:
        """Whether computing a departed site needs `inner` computed."""
        return any(inner in self.tree.required(outer) for outer in self.departed)

    def skipped(self, inner: Site) -> bool:
        """Whether `inner` is not reached because what it lies inside, or all that needs it, was served online."""
        if any(self.tree.encloses(outer, inner) for outer in self.online):
            return True
        asked = next((s for s in (inner, *self.tree.around[inner]) if self.tree[s].on_demand), None)
        users = () if asked is None or not self.online else self.tree.needed_by[asked]
        return bool(users) and all(self.decisions[u].action not in COMPUTED for u in users if u in self.decisions)


def _fault(d: Decision, line: _Line) -> str | None:
    done = f"the table says {d.planned} and the run did {d.action}"
    if d.action == d.planned:
        return f"it gives the reason {quoted(d.reason)} for doing what the table says"
    if d.action == UNREACHED:
        if d.reason is None and line.skipped(site_named(d.site)):
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
        needed = line.needed(site_named(d.site))
        return None if needed else f"{done}, and no departed site needs it"
    if d.reason not in REASONS:
        return f"{done}, for {quoted(d.reason)}, which is no reason to depart"
    if d.planned in SERVED or d.planned == ONLINE or (d.planned == COMPUTE_KEEP and d.action == COMPUTE):
        return None
    return f"{done}: it keeps a value that the table does not"


def _broken_chain(line: _Line) -> list[str]:
    """A departed site that was computed although what it is computed from was not reached."""
    return [
        f"{at}: it was computed, yet {source}, which it is computed from, was not reached"
        for at in line.departed
        for source in line.tree[at].needs
        if source in line.decisions and line.decisions[source].action == UNREACHED
    ]
