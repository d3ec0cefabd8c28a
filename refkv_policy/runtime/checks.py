"""What is checked at attach, and at the first forward of each request. Each refusal says what to do."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from diffusers import DiffusionPipeline
from torch import nn

from refkv_policy.compiler import Layout, layout_of
from refkv_policy.compiler.table import HookTable
from refkv_policy.profiles import Profile
from refkv_policy.profiles.families import family
from refkv_policy.runtime.attention import TextKVProcessor
from refkv_policy.runtime.call import Inputs
from refkv_policy.runtime.errors import TI2V, AttachError, RequestError
from refkv_policy.runtime.families import executor_of, executors, is_known
from refkv_policy.runtime.schedulers import check_grid, other_setting


def transformer_of(target: Any) -> tuple[nn.Module, Any | None]:
    """The transformer of a target, and the pipeline that the target is, or None. Raises AttachError."""
    pipe = target if isinstance(target, DiffusionPipeline) else None
    model = target
    if pipe is not None:
        model = getattr(pipe, "transformer", None)
        if getattr(pipe, "transformer_2", None) is not None or pipe.config.get("boundary_ratio") is not None:
            raise AttachError(
                "the pipeline switches between two transformers (Wan2.2), which is not supported yet; "
                "attach to a pipeline without `transformer_2` and `boundary_ratio`"
            )
        if pipe.config.get("expand_timesteps"):
            raise AttachError(TI2V + "attach to a pipeline without `expand_timesteps`")
    if isinstance(getattr(model, "_orig_mod", None), nn.Module):
        raise AttachError(COMPILED)
    if not is_known(model):
        known = " or ".join(each.PIPELINES for each in executors())
        raise AttachError(
            f"{type(model).__name__} is no transformer that refkv knows; attach to a {known}, or to its transformer"
        )
    return model, pipe


def check_model(model: Any, table: HookTable) -> None:
    """Raises AttachError when the table is for another model, or the model is in a state the executor cannot keep."""
    executor = executor_of(model)
    mine, theirs = _layout(model), table.layout
    for name in theirs.__dataclass_fields__:
        if getattr(mine, name) != getattr(theirs, name):
            raise AttachError(
                f"the table is for {table.profile} with {name} = {getattr(theirs, name)}, and this model has "
                f"{getattr(mine, name)}; compile the plan for this model"
            )
    if (problem := family(mine.family).layers_fault(mine.main_blocks, mine.vace_at)) is not None:
        raise AttachError(f"the model has another layer map than its family ({problem}), which is not supported")
    if table.attention_dtype != "native":
        raise AttachError(
            f"the table asks for {table.attention_dtype} attention, which no backend here has; "
            "set the plan's `quantization.attention.dtype` to native"
        )
    if (cell := executor.unsupported_cell(table)) is not None:
        raise AttachError(f"the runtime cannot do {cell}; compile the plan again with this version of refkv")
    if (problem := unfit_state(model)) is not None:
        raise AttachError(problem)
    if model.training and model.gradient_checkpointing:
        raise AttachError("the model is in training with gradient checkpointing; call `transformer.eval()` first")
    if (problem := executor.unsupported_attention(executor.stacks(model), table)) is not None:
        raise AttachError(
            f"{problem}, so its text K/V cannot be kept; take the text_kv rule out, or restore the processor"
        )
    if executor.parts(executor.stacks(model), table) and any(
        getattr(m, "_compiled_call_impl", None) is not None for m in model.modules()
    ):
        raise AttachError(
            "the model's blocks are compiled, and the table has rules at parts of blocks, which a compiled block does not "
            "ask for; attach to a model that is not compiled, or take those rules out"
        )
    if _streams(model):
        raise AttachError(_STREAMS + "attach with `use_stream=False`")


def _layout(model: Any) -> Layout:
    """The layout of a model. Raises AttachError for a variant that is not supported."""
    try:
        return layout_of(Profile.from_transformer(model))
    except ValueError as error:
        raise AttachError(str(error)) from error


def check_request(model: Any, pipe: Any | None, scheduler: Any | None, table: HookTable, inputs: Inputs) -> None:
    """Raises RequestError when a request is not one that the table was compiled for.

    scheduler: the pipeline's when the table was attached; None for a bare transformer, which has none to check.
    """
    _, _, *sides = inputs.latents.shape
    for name, size, patch in zip(("frames", "height", "width"), sides, table.layout.patch, strict=True):
        if size % patch:
            raise RequestError(
                f"the latents' {name} {size} is not a multiple of the patch size {patch}; choose another size of video"
            )
    check_standing(model, pipe, scheduler)
    if _streams(model):
        raise RequestError(_STREAMS + "use `use_stream=False`")
    if pipe is None:
        return
    if (problem := other_setting(scheduler, table)) is not None:
        raise RequestError(problem)
    check_grid(scheduler, table)
    check_guidance(guidance_of(pipe), table)


def check_standing(model: Any, pipe: Any | None, scheduler: Any | None) -> None:
    """Raises RequestError when the model or its place in the pipeline is not what it was at attach. Cheap: for each call."""
    if (problem := unfit_state(model)) is not None:
        raise RequestError(problem)
    if model.gradient_checkpointing and torch.is_grad_enabled():
        raise RequestError("the forward runs with gradients and gradient checkpointing; run it under `torch.no_grad()`")
    if pipe is not None and (pipe.scheduler is not scheduler or pipe.transformer is not model):
        if isinstance(getattr(pipe.transformer, "_orig_mod", None), nn.Module):
            raise RequestError(COMPILED)
        part = "transformer" if pipe.scheduler is scheduler else "scheduler"
        raise RequestError(f"the pipeline's {part} was replaced after the table was attached; detach, and attach again")


def check_transformer(model: Any, pipe: Any) -> None:
    """Raises RequestError when a pipeline that enters its loop has another transformer: no call of it would be seen."""
    if pipe.transformer is not model:
        check_standing(model, pipe, pipe.scheduler)


def unfit_state(model: Any) -> str | None:
    """Why the executor cannot run the model as it is now, as a sentence; None where it can."""
    if model._compiled_call_impl is not None:
        return COMPILED
    if model.is_cache_enabled:
        return "diffusers' own cache is enabled on the model; call `transformer.disable_cache()` first"
    if getattr(model, "_parallel_config", None) is not None:
        return "the model runs under context parallelism, which is not supported yet; run without it"
    return None


def check_guidance(guidance: float | None, table: HookTable) -> None:
    """Raises RequestError when a request's guidance is not among those that the plan is reviewed for."""
    if guidance is not None and not any(abs(guidance - g) < 1e-6 for g in table.guidance):
        listed = ", ".join(f"{g:g}" for g in table.guidance)
        raise RequestError(
            f"the request runs at guidance {guidance:g}, and the plan is reviewed for {listed}; "
            "run with that, or add it to the plan's `run.guidance` and compile"
        )


def check_processors(processors: Mapping[Any, TextKVProcessor]) -> None:
    """Raises RequestError when a cross-attention no longer has the processor that the session installed."""
    if any(attention.processor is not mine for attention, mine in processors.items()):
        raise RequestError("an attention processor was replaced after the table was attached; detach, and attach again")


def guidance_of(pipe: Any) -> float | None:
    """The guidance scale of the pipeline's call; None outside one."""
    scale = getattr(pipe, "_guidance_scale", None)
    return None if scale is None else float(scale)


COMPILED = (
    "the transformer is compiled as a whole, which would compile the table away; "
    "compile its blocks instead (`transformer.compile_repeated_blocks`)"
)
_STREAMS = "the model is offloaded in groups with streams, whose prefetching follows diffusers' own order of blocks; "


def _streams(model: nn.Module) -> bool:
    for module in model.modules():
        registry = getattr(module, "_diffusers_hook", None)
        hook = registry.get_hook("group_offloading") if registry is not None else None
        if hook is not None and hook.group.stream is not None:
            return True
    return False
