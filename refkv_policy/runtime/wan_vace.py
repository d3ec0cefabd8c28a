"""Wan VACE: the executor, which takes the place of `WanVACETransformer3DModel.forward`, and what it supports.

The computation is diffusers' (0.42, `transformer_wan_vace.py`), operation for operation; the order is not. Where diffusers
computes every hint before the main stack, a hint is obtained when the main block that adds it is about to run.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from types import MethodType
from typing import Any, NamedTuple

import torch
from diffusers import WanVACETransformer3DModel
from diffusers.models.modeling_outputs import Transformer2DModelOutput
from diffusers.utils import apply_lora_scale
from torch import Tensor

from refkv_policy.compiler.table import COMPUTE, SERVED, UNREACHED, HookTable
from refkv_policy.plan.selectors import Site
from refkv_policy.runtime import wan
from refkv_policy.runtime.call import Call, Inputs, Run
from refkv_policy.runtime.cells import CallPlan, Cell, Region
from refkv_policy.runtime.stack import Added, own_forward, run_region
from refkv_policy.runtime.wan import depends_on, parts, text_attentions, unsupported_attention

__all__ = [
    "FAMILY",
    "PIPELINES",
    "depends_on",
    "is_member",
    "make_forward",
    "parts",
    "stacks",
    "text_attentions",
    "unsupported_attention",
    "unsupported_cell",
    "view",
]

FAMILY = "wan-vace"
PIPELINES = "WanVACEPipeline"

ACTIONS: Mapping[tuple[str, str | None], str] = {
    **wan.ACTIONS,
    ("vace", None): wan.ACTIONS["main", "text_kv"],
    ("hint", None): wan.ACTIONS["main", None].replace("?", ""),
    **{("vace", part): wan.ACTIONS["main", part] for part in ("self", "cross", "ffn", "text_kv")},
}


def is_member(model: object) -> bool:
    """Whether this family's executor knows the model."""
    return wan.is_member(model, WanVACETransformer3DModel)


def stacks(model: WanVACETransformer3DModel) -> dict[str, Any]:
    """The model's stacks of blocks by name."""
    return {"main": model.blocks, "vace": model.vace_blocks}


def unsupported_cell(table: HookTable) -> str | None:
    """The first cell that the executor cannot do, in words; None when it can do them all."""
    return wan.unsupported_cell(table, ACTIONS)


class View(NamedTuple):
    """The cells of a call as this executor reads them, by number. A text cell is None where no rule governs it.

    around[j]: the cells of the regions that hint j lies inside, and is not reached in where one of them is served.
    served_states: numbers of the vace cells that are served. plain[j]: nothing is served or kept at hint j or in its block.
    """

    hint: tuple[Cell, ...]
    vace: tuple[Cell, ...]
    main_text: tuple[Cell | None, ...]
    vace_text: tuple[Cell | None, ...]
    around: tuple[tuple[Cell, ...], ...]
    served_states: tuple[int, ...]
    plain: tuple[bool, ...]


def view(plan: CallPlan) -> View:
    """See `View`."""
    count = sum(site.stack == "hint" for site in plan.cells)
    hints = [plan.cells[Site("hint", j)] for j in range(count)]
    positions = {cell.position: j for j, cell in enumerate(hints)}
    around: list[list[Cell]] = [[] for _ in hints]

    def note(region: Region) -> None:
        if region.cell is not None and not region.cell.apart:
            for position in region.cell.inner:
                if position in positions:
                    around[positions[position]].append(region.cell)
        for each in region.within:
            if isinstance(each, Region):
                note(each)

    note(plan.main)
    states = tuple(plan.cells[Site("vace", j)] for j in range(count))
    texts = wan.text_cells(plan, "vace")
    return View(
        hint=tuple(hints),
        vace=states,
        main_text=wan.text_cells(plan, "main"),
        vace_text=texts,
        around=tuple(map(tuple, around)),
        served_states=tuple(k for k, cell in enumerate(states) if cell.action in SERVED),
        plain=tuple(
            hint.action == state.action == COMPUTE and text is None
            for hint, state, text in zip(hints, states, texts, strict=True)
        ),
    )


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

    return MethodType(own_forward(forward, model), model)


def denoise(model: WanVACETransformer3DModel, call: Call, inputs: Inputs, hint_after: Sequence[int | None]) -> Tensor:
    """One forward under the call's plan. Returns the velocity, of the latents' shape.

    hint_after[i]: the hint that main block i is followed by.
    """
    scales = _scales(inputs, len(model.vace_blocks))
    stream, temb, timestep_proj, text, rotary_emb = wan.embed(model, inputs)
    chain = Chain(model, call, stream, inputs.control, text, timestep_proj, rotary_emb)
    text_cells, blocks = call.plan.view.main_text, tuple(model.blocks)

    def run(indexes: tuple[int, ...], stream: Tensor, added: Added | None) -> Tensor:
        for i in indexes:
            j, cell = hint_after[i], text_cells[i]
            if j is not None:
                hint = chain.hint(j, stream)
            if cell is None:
                stream = blocks[i](stream, text, timestep_proj, rotary_emb)
            else:
                stream = wan.run_block(blocks[i], call, cell, stream, text, timestep_proj, rotary_emb)
            if j is not None:
                stream = _add(hint, scales[j], stream, added)
        return stream

    def add_after(i: int, stream: Tensor) -> Tensor:
        j = hint_after[i]
        return stream if j is None else _add(chain.hint(j, stream), scales[j], stream, None)

    stream = run_region(call, call.plan.main, stream, run, add_after)
    if call.plan.looking:
        chain.note_idle()
    return wan.head(model, stream, temb, inputs.latents)


def _add(hint: Tensor, scale: Tensor, stream: Tensor, added: Added | None) -> Tensor:
    """The stream and a hint, which may be the kept one and is only read."""
    if hint.device != stream.device:
        hint = hint.to(stream.device)
    scaled = hint * scale
    if added is not None:
        added.add(scaled)
    return stream + scaled


def _scales(inputs: Inputs, count: int) -> tuple[Tensor, ...]:
    """The conditioning scale of each hint, 1 unless given."""
    assert inputs.control is not None
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
        control: Tensor | None,
        text: Tensor,
        timestep_proj: Tensor,
        rotary_emb: Any,
    ) -> None:
        self.model, self.call, self.blocks = model, call, tuple(model.vace_blocks)
        self.view: View = call.plan.view
        self.text, self.timestep_proj, self.rotary_emb = text, timestep_proj, rotary_emb
        self.position = -1
        self.first_run = len(self.blocks)
        self.states = {k: call.serve(self.view.vace[k]) for k in self.view.served_states}
        starts = self._starts_at_block_0()
        # Main blocks that run before block 0 may work in place on their input, which block 0 reads.
        first = bool(self.view.around[0]) or call.servable(self.view.hint[0])
        late = starts and (first or model.config.vace_layers[0] > 0)
        self.latents: Any = latents.clone() if late else latents if starts else None
        self.control: Any = control if starts else None

    def hint(self, j: int, hidden_states: Tensor) -> Tensor:
        """Hint j, unscaled (batch, tokens, width). hidden_states: the main stream, at the block that will add it."""
        hint: Tensor
        if self.view.plain[j] and self.position == j - 1 >= 0:
            hint, self.control = self.blocks[j](
                hidden_states, self.text, self.control, self.timestep_proj, self.rotary_emb
            )
            self.position = j
            return hint
        cell = self.view.hint[j]
        action = cell.action
        if action in SERVED and (served := self.call.serve(cell)) is not None:
            return served
        if self.position < j - 1:
            self._restart(j)
        if self.position < 0:
            self._embed()
        for m in range(self.position + 1, j + 1):
            text_cell, state_cell = self.view.vace_text[m], self.view.vace[m]
            given = self.text if text_cell is None else self.call.text(text_cell, self.text)
            # Only block 0 reads the latents; diffusers passes them to each, which would keep them alive.
            source, self.latents = hidden_states if m else self.latents, None
            hint, self.control = self.blocks[m](source, given, self.control, self.timestep_proj, self.rotary_emb)
            if text_cell is not None:
                self.call.keep_text(text_cell, given)
            if state_cell.action != COMPUTE:
                self.call.keep(state_cell, self.control)
        self.first_run, self.position = min(self.first_run, self.position + 1), j
        if action != COMPUTE:
            self.call.keep(cell, hint)
        return hint

    def _restart(self, j: int) -> None:
        """Take the deepest kept state between the chain's position and block j, where there is one."""
        for k in range(j - 1, self.position, -1):
            state = self.states.get(k)
            if state is not None:
                # A block may work in place on its input; the last reader may have the kept memory itself.
                self.position, self.control = k, state.clone() if self.view.vace[k].retained else state
                self.states.clear()
                return

    def _embed(self) -> None:
        """The control, embedded and zero-padded to the latents' length."""
        control = self.model.vace_patch_embedding(self.control).flatten(2).transpose(1, 2)
        padding = control.new_zeros(self.latents.size(0), self.latents.size(1) - control.size(1), control.size(2))
        # Joined where nothing is missing too, as diffusers does: it makes the memory contiguous, on which bits depend.
        self.control = torch.cat([control, padding], dim=1)

    def note_idle(self) -> None:
        """Tell the call which blocks did not run, where the table leaves that to the run."""
        ran = range(self.first_run, self.position + 1)
        for m in range(len(self.blocks)):
            if m not in ran:
                self.call.idle(Site("vace", m))

    def _starts_at_block_0(self) -> bool:
        """Whether the first hint that is computed needs the chain from its start."""
        call = self.call
        for j, cell in enumerate(self.view.hint):
            hidden = cell.action == UNREACHED and any(map(call.servable, self.view.around[j]))
            if not hidden and not call.servable(cell):
                return all(self.states.get(k) is None for k in range(j))
        return False
