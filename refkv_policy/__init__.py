"""refkv: a declarative policy engine for diffusion-model caches.

    plan = refkv.load_plan("plans/wan21_p1_k4.yaml")
    table = refkv.compile_plan(plan, profile="wan2.1-vace-mini", steps=30)
    with refkv.attach(pipe, table, audit="run.jsonl") as session:
        frames = pipe(...).frames
    session.summary

Importing this package imports no torch; `attach` does, when first used.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from refkv_policy.plan.diagnostic import Diagnostic, PlanError, RefkvError, RefkvWarning

if TYPE_CHECKING:
    from refkv_policy.compiler import HookTable as HookTable
    from refkv_policy.compiler import compile_plan as compile_plan
    from refkv_policy.plan import Plan as Plan
    from refkv_policy.plan import load_plan as load_plan
    from refkv_policy.profiles import Profile as Profile
    from refkv_policy.runtime import AttachError as AttachError
    from refkv_policy.runtime import RequestError as RequestError
    from refkv_policy.runtime import Session as Session
    from refkv_policy.runtime import attach as attach
    from refkv_policy.runtime import detach as detach

__version__ = "0.1.0"

_HOMES = {
    "HookTable": "compiler",
    "compile_plan": "compiler",
    "Plan": "plan",
    "load_plan": "plan",
    "Profile": "profiles",
    "AttachError": "runtime",
    "RequestError": "runtime",
    "Session": "runtime",
    "attach": "runtime",
    "detach": "runtime",
}

__all__ = ["Diagnostic", "PlanError", "RefkvError", "RefkvWarning", "__version__", *_HOMES]


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    import importlib

    if _HOMES[name] == "runtime":
        from importlib.util import find_spec

        if find_spec("torch") is None or find_spec("diffusers") is None:
            raise RefkvError(
                f"refkv.{name} needs torch and diffusers; install them with `pip install 'refkv-policy[run]'`"
            )
    return getattr(importlib.import_module(f"{__name__}.{_HOMES[name]}"), name)
