"""Whether a pipeline's scheduler is the sampler that a table was compiled for: its class, its settings, its grid."""

from __future__ import annotations

import inspect
from collections.abc import Mapping
from functools import cache
from types import MappingProxyType
from typing import Any

import diffusers

from refkv_policy.compiler.samplers import SAMPLERS
from refkv_policy.compiler.sigmas import TOLERANCE
from refkv_policy.compiler.table import HookTable
from refkv_policy.plan.model import Sampler
from refkv_policy.runtime.errors import AttachError, RequestError
from refkv_policy.runtime.placement import is_patched


def scheduler_for(sampler: Sampler, own: Any) -> Any:
    """The scheduler of a plan's sampler: a pipeline's own where it is that, else one of its class at the sampler's shift.

    Raises KeyError for a sampler that is not known.
    """
    kind = SAMPLERS[sampler.name]
    wanted, shift = getattr(diffusers, kind.scheduler), {kind.shift: sampler.flow_shift}
    if type(own) is not wanted:
        return wanted(**kind.settings, **shift)
    return own if own.config[kind.shift] == sampler.flow_shift else wanted.from_config(own.config, **shift)


def check_scheduler(scheduler: Any, table: HookTable) -> None:
    """Raises AttachError when the scheduler cannot give the sigmas that the table was compiled for."""
    if is_patched(scheduler):
        raise AttachError(
            "another session is attached to a pipeline with this scheduler; give each pipeline a scheduler of its own"
        )
    kind = SAMPLERS.get(table.sampler)
    if kind is None:
        raise AttachError(f"the table is for the sampler {table.sampler!r}, which is not known; compile the plan again")
    # The exact class: a subclass may have another grid, or evaluate the model more than once a step.
    if type(scheduler) is not getattr(diffusers, kind.scheduler) or scheduler.order != 1:
        made = ", ".join(f"{name}={value!r}" for name, value in {**kind.settings, kind.shift: table.flow_shift}.items())
        raise AttachError(
            f"the table is for the {table.sampler} sampler, and the pipeline has a {type(scheduler).__name__}; "
            f"set `pipe.scheduler` to a {kind.scheduler}, such as {kind.scheduler}({made})"
        )
    if (problem := other_setting(scheduler, table)) is not None:
        raise AttachError(problem)


def other_setting(scheduler: Any, table: HookTable) -> str | None:
    """The first setting by which a scheduler is not the table's sampler, as a sentence; None where there is none.

    The sampler is the one that evidence is measured with: flow matching, and all else as diffusers sets it (UniPC's is that
    of the Wan2.1 folders). A setting counts as the scheduler uses it: some are copied from its config to attributes.
    """
    kind = SAMPLERS[table.sampler]
    config, own = scheduler.config, vars(scheduler)
    for name, usual in _usual(table.sampler).items():
        wanted = table.flow_shift if name == kind.shift else usual
        for found in (config.get(name, usual), own.get(_attribute(own, name), wanted)):
            if not _equal(found, wanted):
                return (
                    f"the table is for the {table.sampler} sampler with {name} {_shown(wanted)}, and the scheduler has "
                    f"{_shown(found)}; make it with "
                    f"{kind.scheduler}.from_config(pipe.scheduler.config, {name}={wanted!r})"
                )
    return None


def settings_of(scheduler: Any) -> list[Any]:
    """The settings that the scheduler reads from attributes of its own and not from its config."""
    own, kind = vars(scheduler), type(scheduler).__name__
    found = [own[name] for name in _attributes(kind, tuple(own))]
    return [tuple(each) if isinstance(each, list) else each for each in found]


def check_grid(scheduler: Any, table: HookTable) -> None:
    """Raises RequestError when the sampler's steps or sigmas are not the table's."""
    sigmas, count = scheduler.sigmas.tolist(), len(table.evaluated)
    if len(scheduler.timesteps) != count:
        thinned = f" (of which {count} are run)" if table.left_out else ""
        raise RequestError(
            f"the request runs {len(scheduler.timesteps)} steps, and the table is for {table.steps}{thinned}; "
            "run with that step count, or compile the plan for this one"
        )
    for index, step in enumerate(table.evaluated):
        if not abs(sigmas[index] - table.sigmas[step]) <= TOLERANCE:
            raise RequestError(
                f"the sampler's sigma at step {step} is {sigmas[index]:.6f}, and the table's {table.sigmas[step]:.6f}; "
                "run with the sampler and flow_shift that the plan names"
            )
    if sigmas[count:] != [0.0]:
        raise RequestError(
            f"the sampler's sigmas end in {sigmas[-1]:.6f}, and the table's in 0 (`final_sigmas_type` zero); "
            "run with the sampler that the plan names"
        )


@cache
def _usual(sampler: str) -> Mapping[str, Any]:
    """The settings of a sampler: the defaults of the scheduler's class, but for those that the sampler must have."""
    kind = SAMPLERS[sampler]
    parameters = inspect.signature(getattr(diffusers, kind.scheduler).__init__).parameters.values()
    defaults = {p.name: p.default for p in parameters if p.default is not p.empty}
    return MappingProxyType({**defaults, **kind.settings})


@cache
def _attributes(kind: str, own: tuple[str, ...]) -> tuple[str, ...]:
    """Which attributes of a scheduler hold settings of its constructor, under their own name or one underscored."""
    names = inspect.signature(getattr(diffusers, kind).__init__).parameters
    return tuple(each for name in names if (each := _attribute(own, name)) in own)


def _attribute(own: Any, name: str) -> str:
    return name if name in own else f"_{name}"


def _equal(found: Any, wanted: Any) -> bool:
    if type(found) in (int, float) and type(wanted) in (int, float):
        return found == wanted or abs(found - wanted) < 1e-6
    return found is wanted or (type(found) is type(wanted) and bool(found == wanted))


def _shown(value: Any) -> str:
    return f"{value:g}" if isinstance(value, float) else str(value)
