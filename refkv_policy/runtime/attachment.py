"""Attaching a plan to a pipeline or its transformer, and detaching it: what is asked for is checked before anything changes."""

from __future__ import annotations

from collections.abc import Mapping
from os import PathLike
from typing import Any

from refkv_policy.audit import AuditWriter
from refkv_policy.audit.header import RESERVED
from refkv_policy.audit.record import checked
from refkv_policy.audit.writer import NullWriter
from refkv_policy.compiler import compile_plan
from refkv_policy.compiler.table import HookTable
from refkv_policy.plan import Plan, load_plan
from refkv_policy.runtime import checks
from refkv_policy.runtime.errors import AttachError
from refkv_policy.runtime.placement import find_place
from refkv_policy.runtime.schedulers import check_scheduler
from refkv_policy.runtime.session import ATTACHED, OnError, Session


def attach(
    target: Any,
    plan: HookTable | Plan | str | PathLike[str],
    *,
    steps: int | None = None,
    audit: str | PathLike[str] | AuditWriter | None = None,
    on_error: OnError = "raise",
    header: Mapping[str, Any] | None = None,
) -> Session:
    """Apply a plan to a diffusers pipeline of a known family, or to its bare transformer, until the session is detached.

    Best used as a context manager. Many requests may follow one another; each has its own store and clock.
    plan: a compiled table; or a `Plan`, a plan's file, or the name of a shipped plan, which is compiled for the model at
    `steps` (which may be left out where the plan lists one count).
    audit: where to write the log (a path that does not exist yet), or a writer that stays the caller's to close.
    on_error: `raise`, or `uncached`: a request that differs from the table, or whose caching fails, is finished without
    the cache, which a `RefkvWarning` and the log say. header: further fields of each request's log header, such as `seed`.
    Raises AttachError, with nothing changed, for a target that the table cannot be applied to; PlanError for a plan that is
    not sound or not for the model; AuditError for the log.
    """
    model, pipe = checks.transformer_of(target)
    if model in ATTACHED:
        raise AttachError("a table is attached to this model already; detach that session first (`refkv.detach`)")
    if on_error not in ("raise", "uncached"):
        raise AttachError(f"on_error is {on_error!r}; it is 'raise' or 'uncached'")
    _check_log(audit, header)
    table = _table_of(plan, model, steps)
    checks.check_model(model, table)
    find_place(model)
    if pipe is not None:
        check_scheduler(pipe.scheduler, table)
    owned = None if audit is None or isinstance(audit, NullWriter) else AuditWriter(audit)
    session = Session(model, pipe, table, audit if owned is None else owned, on_error, header or {})
    session._owned = owned
    try:
        session._install()
    except BaseException:
        session.detach()
        raise
    return session


def detach(target: Any) -> None:
    """Detach the session that is attached to a pipeline or transformer. Raises AttachError when none is."""
    sessions = [session for reference in list(ATTACHED.values()) if (session := reference()) is not None]
    parts = target, getattr(target, "transformer", None)
    found = [s for s in sessions if s._pipe is target or any(s._model is part for part in parts)]
    if not found:
        raise AttachError(f"no table is attached to this {type(target).__name__}")
    for session in found:
        session.detach()


def _check_log(audit: Any, header: Any) -> None:
    """Raises AttachError for a log or header that no request could begin with; AuditError for values that JSON has not."""
    if not (audit is None or isinstance(audit, (str, PathLike, NullWriter))):
        raise AttachError(f"audit is {audit!r}; give a path for the log, or an AuditWriter")
    if not (header is None or isinstance(header, Mapping)):
        raise AttachError(f"header is {header!r}; give a mapping of names to values")
    if taken := sorted(RESERVED & set(header or ())):
        raise AttachError(f"`header` may not set {', '.join(taken)}: the audit log does")
    checked(header or {})


def _table_of(plan: HookTable | Plan | str | PathLike[str], model: Any, steps: int | None) -> HookTable:
    """The table that is asked for."""
    if isinstance(plan, HookTable):
        if steps not in (None, plan.steps):
            raise AttachError(
                f"the table is for {plan.steps} steps, and steps={steps} is asked for; compile it for these"
            )
        return plan
    if isinstance(plan, (str, PathLike)):
        plan = load_plan(plan)
    if not isinstance(plan, Plan):
        kind = type(plan).__name__  # type: ignore[unreachable]  # callers may be untyped
        raise AttachError(f"a {kind} cannot be attached; give a table, a plan, a plan's file, or a shipped plan's name")
    if not (steps is None or type(steps) is int):
        raise AttachError(f"steps is {steps!r}; give the integer that the pipeline gets as num_inference_steps")
    if steps is None and len(plan.run.steps) > 1:
        listed = ", ".join(map(str, plan.run.steps))
        raise AttachError(f"plan {plan.name} is for several step counts; say which with steps= (one of {listed})")
    return compile_plan(plan, model, plan.run.steps[0] if steps is None else steps)
