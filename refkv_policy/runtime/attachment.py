"""Attaching a plan to a pipeline or transformer, and detaching it."""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import Any
from weakref import WeakKeyDictionary, ref

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
from refkv_policy.runtime.session import OnError, Session

_SESSIONS: WeakKeyDictionary[Any, ref[Session]] = WeakKeyDictionary()
"""The newest session of each transformer."""


def attach(
    target: Any,
    plan: HookTable | Plan | str | os.PathLike[str],
    *,
    steps: int | None = None,
    audit: str | os.PathLike[str] | AuditWriter | None = None,
    on_error: OnError = "raise",
    header: Mapping[str, Any] | None = None,
) -> Session:
    """Apply a plan to a pipeline (such as `WanVACEPipeline`), or to its bare transformer, until the session is detached.

    Best used as a context manager. Many requests may follow one another; each has its own store and clock.
    plan: a compiled table; or a plan, the path of one or the name of a shipped one, which is compiled for the model.
    steps: the step count to compile for, where the plan lists several.
    audit: where to write the log (a path that does not exist yet), or a writer that stays the caller's to close.
    on_error: `raise`, or `uncached`: a request that differs from the table, or whose caching fails, is finished without
    the cache, with a `RefkvWarning`, and the log says why. header: further fields of each request's log header, such as
    `seed` or `digests`.
    Raises AttachError, with nothing changed, for a target that the plan cannot be applied to and for arguments of the
    wrong type; PlanError for a plan that is unsound or not for the model and step count; AuditError for the log.
    """
    model, pipe = checks.transformer_of(target)
    if on_error not in ("raise", "uncached"):
        raise AttachError(f"on_error is {on_error!r}; it is 'raise' or 'uncached'")
    _check_log(audit, header)
    if _session_of(model) is not None:
        raise AttachError(
            "a table is attached to this model already; detach that session first (`refkv.detach` finds it)"
        )
    if pipe is not None and any(session._scheduler is pipe.scheduler for session in _open()):
        raise AttachError(
            "the scheduler is that of another pipeline with a session; give each pipeline a scheduler of its own"
        )
    table = _table_of(plan, model, steps)
    checks.check_model(model, table)
    find_place(model)
    if pipe is not None:
        checks.check_scheduler(pipe.scheduler, table)
    owned = None if audit is None or isinstance(audit, NullWriter) else AuditWriter(audit)
    session = Session(model, pipe, table, audit if owned is None else owned, on_error, header or {})
    session._owned = owned
    _SESSIONS[model] = ref(session)
    try:
        session._install()
    except BaseException:
        session.detach()
        raise
    return session


def detach(target: Any) -> None:
    """Detach whatever session is attached to a pipeline or transformer; for one that was not kept in a variable.

    Raises AttachError where there is none.
    """
    found = [s for s in _open() if s._pipe is target or s._model in (target, getattr(target, "transformer", None))]
    if not found:
        raise AttachError(f"no session is attached to this {type(target).__name__}")
    for session in found:
        session.detach()


def _open() -> list[Session]:
    sessions = (reference() for reference in list(_SESSIONS.values()))
    return [session for session in sessions if session is not None and not session.closed]


def _session_of(model: Any) -> Session | None:
    return next((session for session in _open() if session._model is model), None)


def _table_of(plan: Any, model: Any, steps: int | None) -> HookTable:
    """The table that is meant. Raises AttachError for what is none, PlanError for a plan that does not compile."""
    if isinstance(plan, HookTable):
        if steps not in (None, plan.steps):
            raise AttachError(f"the table is for {plan.steps} steps, not {steps}; compile the plan for that count")
        return plan
    if isinstance(plan, (str, os.PathLike)):
        plan = load_plan(plan)
    if not isinstance(plan, Plan):
        raise AttachError(
            f"there is no plan in {_article(plan)}; give the name of a shipped plan, a path, a Plan (`load_plan`) "
            "or a HookTable (`compile_plan`)"
        )
    if steps is None:
        if len(plan.run.steps) != 1:
            listed = ", ".join(map(str, plan.run.steps))
            raise AttachError(f"the plan {plan.name} is for {listed} steps; say which with `steps=`")
        (steps,) = plan.run.steps
    if not isinstance(steps, int) or isinstance(steps, bool):
        raise AttachError(f"steps is {_article(steps)}; give the integer that the pipeline gets as num_inference_steps")
    return compile_plan(plan, model, steps)


def _check_log(audit: Any, header: Any) -> None:
    """Raises AttachError for a log or header that no request could begin with; AuditError for values JSON has no form of."""
    if not (audit is None or isinstance(audit, (str, os.PathLike, NullWriter))):
        raise AttachError(f"audit is {_article(audit)}; give a path for the log, or an AuditWriter")
    if header is None:
        return
    if not isinstance(header, Mapping):
        raise AttachError(f"header is {_article(header)}; give a mapping of names to values")
    if taken := sorted(RESERVED & {key for key in header if isinstance(key, str)}):
        raise AttachError(f"the header may not set {', '.join(taken)}: the log's writer does")
    checked(header)


def _article(value: Any) -> str:
    name = type(value).__name__
    return f"{'an' if name[0] in 'aeiouAEIOU' else 'a'} {name}"
