"""The header of a request: what ran, on what, under which table."""

from __future__ import annotations

import datetime
import math
import platform
from collections.abc import Mapping
from typing import Any

from refkv_policy.audit.record import SCHEMA, AuditError, quoted
from refkv_policy.compiler.table import ACTIONS, BRANCHES, HookTable, Layout
from refkv_policy.profiles.families import names as family_names

RESERVED = frozenset({"kind", "schema", "request", "session", "table", "prev", "hash"})
"""Keys that the writer sets and a caller's header may not hold."""


MOST_BLOCKS = 1_000
"""Of a model: a log that names more is no log of one."""


def now() -> str:
    """The time, UTC, in ISO 8601 with milliseconds."""
    return datetime.datetime.now(datetime.timezone.utc).isoformat(timespec="milliseconds")


def request_record(request: str, session: str, header: Mapping[str, Any], table: HookTable) -> dict[str, Any]:
    """The `request` record, without its table.

    What the table tells is filled in (`digests.table`, `digests.plan`, `sampler`, `flow_shift`, `sigmas` of the nominal
    steps, `steps`, `evaluated`, `left_out`, `guidance`, `acknowledgements`); a value in `header` takes precedence, and
    replay compares it with the table. `header` must hold `branches`, the guidance branches to expect in their order
    (["cond"] or ["cond", "uncond"]); it should hold `digests` {profile, weights}, `versions` {refkv, torch, diffusers},
    `device`, `dtype`, `guidance`, `seed` and `shapes` {latent, tokens, batch}. Raises AuditError for a reserved key or
    wrong branches.
    """
    taken = sorted(RESERVED & set(header))
    if taken:
        raise AuditError(f"the header of request {quoted(request)} may not set {', '.join(taken)}: the writer does")
    if not is_branches(branches := _listed(header.get("branches"))):
        raise AuditError(f"the header of request {quoted(request)} must list its branches, not {quoted(branches)}")
    told: dict[str, Any] = {
        "sampler": table.sampler,
        "flow_shift": table.flow_shift,
        "sigmas": list(table.sigmas),
        "steps": table.steps,
        "evaluated": list(table.evaluated),
        "left_out": list(table.left_out),
        "guidance": list(table.guidance),
        "acknowledgements": [dict(a) for a in table.acknowledgements],
        "started": now(),
        **header,
        "branches": branches,
    }
    for name in ("digests", "versions"):
        if not isinstance(header.get(name, {}), Mapping):
            raise AuditError(f"the header of request {quoted(request)} holds {name} that is no mapping")
    told["digests"] = {"plan": table.plan_digest, **header.get("digests", {}), "table": table.digest}
    told["versions"] = {"python": platform.python_version(), **header.get("versions", {})}
    return {**told, "kind": "request", "schema": SCHEMA, "request": request, "session": session}


def is_branches(value: Any) -> bool:
    """Whether a value lists one or both guidance branches, in their order."""
    return value in (["cond"], ["uncond"], list(BRANCHES))


def table_of(value: Any) -> HookTable:
    """The table in a header. Raises ValueError for anything that is not one, whatever its shape or types."""
    try:
        table = HookTable.from_dict(value)
        wrong = _unsound(table) or (None if table.digest else "it has no digest")
    except RecursionError:
        wrong = "it is nested too deeply"
    except ValueError as error:
        wrong = str(error).encode("ascii", "backslashreplace").decode()[:200]
    if wrong:
        raise ValueError(f"not a hook table: {wrong}")
    return table


def disagreements(record: Mapping[str, Any], table: HookTable) -> list[str]:
    """What the header says otherwise than its table, as sentences."""
    digests = record.get("digests")
    said = digests.get("table") if isinstance(digests, dict) else None
    found = []
    if said != table.digest:
        found.append(f"its table has the digest {table.digest}, and the header says {quoted(said)}")
    for name, value in (
        ("steps", table.steps),
        ("evaluated", list(table.evaluated)),
        ("left_out", list(table.left_out)),
        ("sampler", table.sampler),
        ("flow_shift", table.flow_shift),
    ):
        if record.get(name) != value:
            found.append(f"the header says {name} {quoted(record.get(name))}, and its table {quoted(value)}")
    sigmas = record.get("sigmas")
    equal = isinstance(sigmas, list) and len(sigmas) == len(table.sigmas)
    if not equal or not all(same_sigma(a, b) for a, b in zip(sigmas or (), table.sigmas, strict=True)):
        found.append("the header's sigmas are not those of its table")
    return found


def same_sigma(left: Any, right: float) -> bool:
    """Whether two sigmas are one, up to the rounding of float32."""
    try:
        return type(left) in (int, float) and math.isclose(left, right, rel_tol=1e-4, abs_tol=1e-5)
    except OverflowError:
        return False


def _listed(value: Any) -> Any:
    return list(value) if isinstance(value, (list, tuple)) else value


def _unsound(table: HookTable) -> str | None:
    """Why a table that was read cannot be replayed against; its fields may hold any JSON value. May raise ValueError."""
    steps = table.steps
    if not _is_index(steps) or steps > 10_000:
        return f"steps is {quoted(steps)}"
    if not all(type(text) is str for text in (table.plan, table.plan_digest, table.profile, table.sampler)):
        return "its names are not texts"
    if not all(type(n) in (int, float) for n in (table.flow_shift, *table.guidance)):
        return "its flow shift or guidance is no number"
    layout = table.layout
    if not all(_is_index(n) and n for n in (layout.dim, *layout.patch)) or len(layout.patch) != 3:
        return "its layout has no width or patch size"
    if not all(_is_index(rule.history) for rule in table.rules):
        return "a rule's history is no number"
    evaluated = table.evaluated
    if not all(_is_index(s) and s < steps for s in evaluated) or list(evaluated) != sorted(set(evaluated)):
        return "the evaluated steps do not ascend within the step count"
    if len(table.sigmas) < steps or not all(type(s) in (int, float) for s in table.sigmas):
        return "it does not hold one sigma a step"
    if (wrong := _unsound_layout(table.layout)) is not None:
        return wrong
    for row in table.rows:
        site = row.at
        if type(site.stack) is not str or not (site.part is None or type(site.part) is str):
            return f"it has a row of stack {quoted(site.stack)} and part {quoted(site.part)}"
        if not all(number is None or _is_index(number) for number in (site.index, site.last)):
            return f"it has a row of index {quoted(site.index)}"
        if site not in table.tree:
            return f"{quoted(row.site)} is no site of a {quoted(table.layout.family)} model of these layers"
        for actions in (row.cond, row.uncond):
            if type(actions) is not str or len(actions) != steps or not set(actions) <= set(ACTIONS):
                return f"the row {row.site} does not hold one action a step"
        if row.rule is not None and not (_is_index(row.rule) and row.rule < len(table.rules)):
            return f"the row {row.site} names the rule {quoted(row.rule)}, which is not there"
    return None if len(table.by_at) == len(table.rows) else "it holds one site twice"


def _unsound_layout(layout: Layout) -> str | None:
    if type(layout.family) is not str or layout.family not in family_names():
        return f"no model family {quoted(layout.family)} is known"
    if not _is_index(layout.main_blocks) or layout.main_blocks > MOST_BLOCKS:
        return f"main_blocks is {quoted(layout.main_blocks)}"
    at = layout.vace_at
    if not all(_is_index(i) and i < layout.main_blocks for i in at) or list(at) != sorted(set(at)):
        return "its hints are added after no ascending main blocks"
    return None


def _is_index(value: Any) -> bool:
    return type(value) is int and value >= 0
