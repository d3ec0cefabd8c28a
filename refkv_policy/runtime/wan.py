"""Wan2.1 text-to-video: the executor, which takes the place of `WanTransformer3DModel.forward`, and what Wan families share.

The computation is diffusers' (0.37 to 0.42, `transformer_wan.py`), operation for operation.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from functools import cache
from types import MethodType
from typing import Any

import torch
from diffusers import WanTransformer3DModel
from diffusers.models.modeling_outputs import Transformer2DModelOutput
from diffusers.utils import apply_lora_scale
from torch import Tensor, nn

from refkv_policy.compiler.lower import MAY_RUN, outer, unasked
from refkv_policy.compiler.table import (
    BRANCHES,
    COMPUTE,
    COMPUTE_KEEP,
    FORECAST,
    ONLINE,
    REUSE,
    SERVED,
    UNREACHED,
    HookTable,
)
from refkv_policy.plan.selectors import Site
from refkv_policy.profiles.sites import STEP
from refkv_policy.runtime.attention import unsupported
from refkv_policy.runtime.call import Call, Inputs, Run
from refkv_policy.runtime.cells import CallPlan, Cell
from refkv_policy.runtime.errors import TI2V, RequestError
from refkv_policy.runtime.stack import Added, own_forward, part_modules, run_region

FAMILY = "wan"
PIPELINES = "WanPipeline"
"""What a person attaches to."""

_EVERY = COMPUTE + COMPUTE_KEEP + REUSE + FORECAST + ONLINE + UNREACHED
_KEPT = COMPUTE + COMPUTE_KEEP + REUSE + UNREACHED
ACTIONS: Mapping[tuple[str, str | None], str] = {
    ("step", None): COMPUTE,
    ("cfg", None): COMPUTE + COMPUTE_KEEP + REUSE + FORECAST,
    ("main", "span"): _EVERY,
    ("main", None): _EVERY,
    ("main", "self"): _EVERY,
    ("main", "cross"): _EVERY,
    ("main", "ffn"): _EVERY,
    ("main", "text_kv"): _KEPT,
}
"""What the executor can do at each kind of site, at a step that the sampler visits."""


def is_member(model: object, kind: type[nn.Module] = WanTransformer3DModel) -> bool:
    """Whether this family's executor knows the model; one of a subclass only if it runs its class's own forward."""
    return isinstance(model, kind) and type(model).forward is kind.forward


def stacks(model: Any) -> dict[str, Any]:
    """The model's stacks of blocks by name."""
    return {"main": model.blocks}


def unsupported_cell(table: HookTable, actions: Mapping[tuple[str, str | None], str] = ACTIONS) -> str | None:
    """The first cell that the executor cannot do, in words; None when it can do them all."""
    tree, apart = table.tree, table.hints_apart
    for row, branch, step, action in table.cells(BRANCHES):
        around = None if row.at == STEP else table.by_at[outer(tree, table.by_at, row.at, apart)].actions(branch)[step]
        # No compiler writes these: a value that no rule keeps, a site left out although what it lies inside is computed.
        unruled = row.rule is None and action not in COMPUTE + UNREACHED
        dropped = action == UNREACHED and around in MAY_RUN and unasked(tree, row.at)
        if unruled or dropped or action not in actions.get(row.at.kind, ""):
            return f"{action!r} at {row.site}, step {step}, {branch}"
    return None


def text_attentions(named: Mapping[str, Any], table: HookTable) -> dict[str, Any]:
    """The cross-attentions whose text K/V the table keeps or serves, by site. named: the model's stacks."""
    return {
        row.site: named[row.at.stack][row.at.index].attn2
        for row in table.rows
        if row.at.part == "text_kv" and (set(row.cond) | set(row.uncond)) & (SERVED | {COMPUTE_KEEP})
    }


def parts(named: Mapping[str, Any], table: HookTable) -> dict[Site, nn.Module]:
    """The attentions and feed-forwards whose outputs the table keeps or serves. named: the model's stacks."""
    return part_modules(named, [row.at for row in table.rows if row.rule is not None])


def unsupported_attention(named: Mapping[str, Any], table: HookTable) -> str | None:
    """The first cross-attention whose text K/V cannot be kept, as a sentence without its end; None when there is none."""
    for site, attention in text_attentions(named, table).items():
        if (problem := unsupported(attention)) is not None:
            return f"the cross-attention at {site} {problem}"
    return None


def depends_on(table: HookTable) -> dict[str, tuple[int, ...]]:
    """Positions of the rows whose kept values depend on the prompt, and of those that depend on the control.

    The probes that online rules compare with are kept under the positions below 0.
    """
    probes = tuple(-1 - n for n in range(len(table.rules)))
    rows = tuple(enumerate(table.rows))
    return {
        "prompt": (*(position for position, _ in rows), *probes),
        "control": (*(position for position, row in rows if row.at.part != "text_kv"), *probes),
    }


def view(plan: CallPlan) -> tuple[Cell | None, ...]:
    """The text cells of the main blocks; None where no rule governs one."""
    return text_cells(plan, "main")


def text_cells(plan: CallPlan, stack: str) -> tuple[Cell | None, ...]:
    """The text cells of a stack's blocks, by number; None where no rule governs one."""
    count = 1 + max((site.index or 0 for site in plan.cells if site.stack == stack), default=-1)
    return tuple(plan.cells.get(Site(stack, index, "text_kv")) for index in range(count))


def make_forward(model: WanTransformer3DModel, run: Run) -> Callable[..., Any]:
    """A stand-in for the model's forward, with its signature, its LoRA scaling and its two forms of output.

    run: is given the inputs of a forward and its body, decides what call this is, and runs the body under it.
    """

    @apply_lora_scale("attention_kwargs")
    def forward(
        self: WanTransformer3DModel,
        hidden_states: Tensor,
        timestep: Tensor,
        encoder_hidden_states: Tensor,
        encoder_hidden_states_image: Tensor | None = None,
        return_dict: bool = True,
        attention_kwargs: dict[str, Any] | None = None,
    ) -> Transformer2DModelOutput | tuple[Tensor]:
        """The model's forward, with the sites that the attached hook table names served from the cache."""
        if timestep.ndim > 1:
            raise RequestError(TI2V + "detach to run it")
        inputs = Inputs(hidden_states, timestep, encoder_hidden_states, encoder_hidden_states_image)
        sample = run(inputs, lambda call: denoise(self, call, inputs))
        return Transformer2DModelOutput(sample=sample) if return_dict else (sample,)

    return MethodType(own_forward(forward, model), model)


def denoise(model: WanTransformer3DModel, call: Call, inputs: Inputs) -> Tensor:
    """One forward under the call's plan. Returns the velocity, of the latents' shape."""
    stream, temb, timestep_proj, text, rotary_emb = embed(model, inputs)
    cells, blocks = call.plan.view, tuple(model.blocks)

    def run(indexes: tuple[int, ...], stream: Tensor, added: Added | None) -> Tensor:
        for i in indexes:
            stream = run_block(blocks[i], call, cells[i], stream, text, timestep_proj, rotary_emb)
        return stream

    stream = run_region(call, call.plan.main, stream, run, lambda i, stream: stream)
    return head(model, stream, temb, inputs.latents)


def embed(model: Any, inputs: Inputs) -> tuple[Tensor, Tensor, Tensor, Tensor, Any]:
    """The stream, the time embedding, the blocks' modulation, the text and the rotary embedding that a forward begins with."""
    rotary_emb = model.rope(inputs.latents)
    stream = model.patch_embedding(inputs.latents).flatten(2).transpose(1, 2)
    if makes_contiguous(type(model).forward):
        stream = stream.contiguous()
    temb, timestep_proj, text, image = model.condition_embedder(inputs.timestep, inputs.prompt, inputs.image)
    if image is not None:
        text = torch.concat([image, text], dim=1)
    return stream, temb, timestep_proj.unflatten(1, (6, -1)), text, rotary_emb


@cache
def makes_contiguous(forward: Callable[..., Any]) -> bool:
    """Whether a class's own forward makes the stream contiguous before its blocks: bits depend on strides.

    The plain class does so in diffusers 0.42 and not in 0.37, the VACE one in neither. The compiled code tells, without source.
    """
    return "contiguous" in inspect.unwrap(forward).__code__.co_names


def run_block(
    block: nn.Module,
    call: Call,
    cell: Cell | None,
    stream: Tensor,
    text: Tensor,
    timestep_proj: Tensor,
    rotary_emb: Any,
) -> Tensor:
    """One Wan block on the stream. cell: of its text K and V, None where no rule governs them."""
    given = text if cell is None else call.text(cell, text)
    output: Tensor = block(stream, given, timestep_proj, rotary_emb)
    if cell is not None:
        call.keep_text(cell, given)
    return output


def head(model: Any, stream: Tensor, temb: Tensor, latents: Tensor) -> Tensor:
    """Norm, projection and unpatchifying: the velocity, of the latents' shape."""
    batch_size, _, num_frames, height, width = latents.shape
    p_t, p_h, p_w = model.config.patch_size
    shift, scale = (model.scale_shift_table.to(temb.device) + temb.unsqueeze(1)).chunk(2, dim=1)
    shift, scale = shift.to(stream.device), scale.to(stream.device)
    stream = (model.norm_out(stream.float()) * (1 + scale) + shift).type_as(stream)
    stream = model.proj_out(stream)
    stream = stream.reshape(batch_size, num_frames // p_t, height // p_h, width // p_w, p_t, p_h, p_w, -1)
    return stream.permute(0, 7, 1, 4, 2, 5, 3, 6).flatten(6, 7).flatten(4, 5).flatten(2, 3)
