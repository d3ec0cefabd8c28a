"""Wan VACE: the executor, which takes the place of `WanVACETransformer3DModel.forward`, and what it supports.

The computation is diffusers' (0.42, `transformer_wan_vace.py`), operation for operation; the order is not. Where diffusers
computes every hint before the main stack, a hint is obtained when the main block that adds it is about to run.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from types import MethodType
from typing import Any

import torch
from diffusers import WanVACETransformer3DModel
from diffusers.models.modeling_outputs import Transformer2DModelOutput
from diffusers.utils import apply_lora_scale
from torch import Tensor

from refkv_policy.compiler.table import (
    BRANCHES,
    COMPUTE,
    COMPUTE_KEEP,
    FORECAST,
    REUSE,
    SERVED,
    UNREACHED,
    HookTable,
    Layout,
)
from refkv_policy.runtime.attention import unsupported
from refkv_policy.runtime.call import Call, Inputs, Run

FAMILY = "wan-vace"

_ACTIONS = {
    ("step", None): COMPUTE,
    ("main", None): COMPUTE,
    ("vace", None): COMPUTE + COMPUTE_KEEP + REUSE + UNREACHED,
    ("hint", None): COMPUTE + COMPUTE_KEEP + REUSE + FORECAST,
    ("main", "text_kv"): COMPUTE + COMPUTE_KEEP + REUSE,
    ("vace", "text_kv"): COMPUTE + COMPUTE_KEEP + REUSE + UNREACHED,
}
"""What the executor can do at each kind of site, at a step that the sampler visits."""


def is_member(model: object) -> bool:
    """Whether this family's executor knows the model."""
    return isinstance(model, WanVACETransformer3DModel)


def layout_of(model: WanVACETransformer3DModel) -> Layout:
    """The layout of a model, from its config."""
    config = model.config
    return Layout(
        family=FAMILY,
        main_blocks=config.num_layers,
        vace_at=tuple(config.vace_layers),
        dim=config.num_attention_heads * config.attention_head_dim,
        ffn_dim=config.ffn_dim,
        heads=config.num_attention_heads,
        patch=tuple(config.patch_size),
    )


def unsupported_cell(table: HookTable) -> str | None:
    """The first cell that the executor cannot do, in words; None when it can do them all."""
    for row, branch, step, action in table.cells(BRANCHES):
        if action not in _ACTIONS.get((row.stack, row.part), ""):
            return f"{action!r} at {row.site}, step {step}, {branch}"
    return None


def text_attentions(model: WanVACETransformer3DModel, table: HookTable) -> dict[str, Any]:
    """The cross-attentions whose text K/V the table keeps or serves, by site."""
    stacks = {"main": model.blocks, "vace": model.vace_blocks}
    return {
        row.site: stacks[row.stack][row.index].attn2
        for row in table.rows
        if row.part == "text_kv" and (set(row.cond) | set(row.uncond)) & (SERVED | {COMPUTE_KEEP})
    }


def unsupported_attention(model: WanVACETransformer3DModel, table: HookTable) -> str | None:
    """The first cross-attention whose text K/V cannot be kept, as a sentence without its end; None when there is none."""
    for site, attention in text_attentions(model, table).items():
        if (problem := unsupported(attention)) is not None:
            return f"the cross-attention at {site} {problem}"
    return None


def depends_on(table: HookTable) -> dict[str, tuple[int, ...]]:
    """Positions of the rows whose kept values depend on the prompt, and of those that depend on the control."""
    rows = tuple(enumerate(table.rows))
    return {
        "prompt": tuple(position for position, _ in rows),
        "control": tuple(position for position, row in rows if row.part != "text_kv"),
    }


def make_forward(model: WanVACETransformer3DModel, run: Run) -> Callable[..., Any]:
    """A stand-in for the model's forward, with its signature, its LoRA scaling and its two forms of output.

    run: is given the inputs of a forward and its body, decides what call this is, and runs the body under it.
    """
    hint_after: list[int | None] = [None] * model.config.num_layers
    for j, i in enumerate(model.config.vace_layers):
        hint_after[i] = j

    @apply_lora_scale("attention_kwargs")
    def forward(
        self: WanVACETransformer3DModel,
        hidden_states: Tensor,
        timestep: Tensor,
        encoder_hidden_states: Tensor,
        encoder_hidden_states_image: Tensor | None = None,
        control_hidden_states: Tensor = None,  # type: ignore[assignment]  # as diffusers declares it
        control_hidden_states_scale: Tensor | None = None,
        return_dict: bool = True,
        attention_kwargs: dict[str, Any] | None = None,
    ) -> Transformer2DModelOutput | tuple[Tensor]:
        """The model's forward, with the sites that the attached hook table names served from the cache."""
        inputs = Inputs(
            hidden_states,
            timestep,
            encoder_hidden_states,
            encoder_hidden_states_image,
            control_hidden_states,
            control_hidden_states_scale,
        )
        sample = run(inputs, lambda call: denoise(self, call, inputs, hint_after))
        return Transformer2DModelOutput(sample=sample) if return_dict else (sample,)

    return MethodType(forward, model)


def denoise(model: WanVACETransformer3DModel, call: Call, inputs: Inputs, hint_after: Sequence[int | None]) -> Tensor:
    """One forward under the call's plan. Returns the velocity, of the latents' shape.

    hint_after[i]: the hint that main block i is followed by.
    """
    batch_size, _, num_frames, height, width = inputs.latents.shape
    p_t, p_h, p_w = model.config.patch_size
    scales = _scales(inputs, len(model.vace_blocks))

    rotary_emb = model.rope(inputs.latents)
    hidden_states = model.patch_embedding(inputs.latents).flatten(2).transpose(1, 2)
    temb, timestep_proj, text, image = model.condition_embedder(inputs.timestep, inputs.prompt, inputs.image)
    timestep_proj = timestep_proj.unflatten(1, (6, -1))
    if image is not None:
        text = torch.concat([image, text], dim=1)

    chain = Chain(model, call, hidden_states, inputs.control, text, timestep_proj, rotary_emb)
    text_cells = call.plan.main_text
    for i, block in enumerate(model.blocks):
        j = hint_after[i]
        hint = None if j is None else chain.hint(j, hidden_states)
        cell = text_cells[i]
        given = text if cell is None else call.text(cell, text)
        hidden_states = block(hidden_states, given, timestep_proj, rotary_emb)
        if cell is not None:
            call.keep_text(cell, given)
        if j is not None and hint is not None:
            if hint.device != hidden_states.device:
                hint = hint.to(hidden_states.device)
            hidden_states = hidden_states + hint * scales[j]  # only reads the hint, which may be the kept one

    shift, scale = (model.scale_shift_table.to(temb.device) + temb.unsqueeze(1)).chunk(2, dim=1)
    shift, scale = shift.to(hidden_states.device), scale.to(hidden_states.device)
    hidden_states = (model.norm_out(hidden_states.float()) * (1 + scale) + shift).type_as(hidden_states)
    hidden_states = model.proj_out(hidden_states)
    hidden_states = hidden_states.reshape(batch_size, num_frames // p_t, height // p_h, width // p_w, p_t, p_h, p_w, -1)
    return hidden_states.permute(0, 7, 1, 4, 2, 5, 3, 6).flatten(6, 7).flatten(4, 5).flatten(2, 3)


def _scales(inputs: Inputs, count: int) -> tuple[Tensor, ...]:
    """The conditioning scale of each hint, 1 unless given."""
    scale = inputs.scale if inputs.scale is not None else inputs.control.new_ones(count)
    scales = torch.unbind(scale)
    if len(scales) != count:
        raise ValueError(f"Length of `control_hidden_states_scale` {len(scales)} should be equal to {count}.")
    return scales


class Chain:
    """The VACE blocks of one forward, run only as far as the hints that are computed need.

    `control` is c_position, the control stream after the newest block that ran or was taken from the store. The noisy
    latents x and the control itself are let go of as soon as no block 0 will need them.
    """

    def __init__(
        self,
        model: WanVACETransformer3DModel,
        call: Call,
        latents: Tensor,
        control: Tensor,
        text: Tensor,
        timestep_proj: Tensor,
        rotary_emb: Any,
    ) -> None:
        self.model, self.call, self.blocks = model, call, tuple(model.vace_blocks)
        self.text, self.timestep_proj, self.rotary_emb = text, timestep_proj, rotary_emb
        self.position = -1
        starts = self._starts_at_block_0()
        # Main blocks run before block 0 where hint 0 is served and a deeper one is not; they may work in place on x.
        late = starts and call.servable(call.plan.hint[0])
        self.latents: Any = latents.clone() if late else latents if starts else None
        self.control: Any = control if starts else None

    def hint(self, j: int, hidden_states: Tensor) -> Tensor:
        """Hint j, unscaled (batch, tokens, width). hidden_states: the main stream, at the block that will add it."""
        cell = self.call.plan.hint[j]
        if cell.action in SERVED and (served := self.call.serve(cell)) is not None:
            return served
        if self.position < j - 1:
            self._restart(j)
        if self.position < 0:
            self._embed()
        for m in range(self.position + 1, j + 1):
            hint = self._run(m, hidden_states)
        self.position = j
        if cell.action != COMPUTE:
            self.call.keep(cell, hint)
        return hint

    def _run(self, m: int, hidden_states: Tensor) -> Tensor:
        """Run block m on the control stream. Returns its hint."""
        call = self.call
        text_cell, state_cell = call.plan.vace_text[m], call.plan.vace[m]
        given = self.text if text_cell is None else call.text(text_cell, self.text)
        # Only block 0 reads the latents; diffusers passes them to each, which would keep them alive.
        source = self.latents if m == 0 else hidden_states
        self.latents = None
        hint: Tensor
        hint, self.control = self.blocks[m](source, given, self.control, self.timestep_proj, self.rotary_emb)
        if text_cell is not None:
            call.keep_text(text_cell, given)
        if state_cell.action != COMPUTE:
            call.keep(state_cell, self.control)
        return hint

    def _restart(self, j: int) -> None:
        """Take the deepest kept state between the chain's position and block j, where there is one."""
        for k in range(j - 1, self.position, -1):
            state = self.call.serve(self.call.plan.vace[k], writable=True)  # a block may work in place on its input
            if state is not None:
                self.position, self.control = k, state
                return

    def _embed(self) -> None:
        """The control, embedded and zero-padded to the latents' length."""
        control = self.model.vace_patch_embedding(self.control).flatten(2).transpose(1, 2)
        padding = control.new_zeros(self.latents.size(0), self.latents.size(1) - control.size(1), control.size(2))
        # Joined where nothing is missing too, as diffusers does: it makes the memory contiguous, on which bits depend.
        self.control = torch.cat([control, padding], dim=1)

    def _starts_at_block_0(self) -> bool:
        """Whether the first hint that is computed needs the chain from its start."""
        call = self.call
        for j, cell in enumerate(call.plan.hint):
            if not call.servable(cell):
                return not any(call.servable(state) for state in call.plan.vace[:j])
        return False
