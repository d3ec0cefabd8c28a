"""What was checked when a request began still holds: looked at again in each of its calls."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from operator import is_, itemgetter
from typing import Any

import torch
from torch import Tensor, nn

from refkv_policy.compiler.table import HookTable
from refkv_policy.runtime import checks, lora, schedulers
from refkv_policy.runtime.attention import TextKVProcessor
from refkv_policy.runtime.errors import RequestError
from refkv_policy.runtime.families import executor_of
from refkv_policy.runtime.watch import Watch, Weights

Note = Callable[..., None]
"""Told of a change that the plan allows: its name, then what changed as keyword arguments that JSON can hold."""
_PROCESSOR = itemgetter("processor")
_PROJECTIONS = ("to_k", "to_v", "to_kv", "norm_k")
_EMBEDDERS = ("text_embedder", "image_embedder")


class Held:
    """One request's surroundings, from its first call to its last.

    Raises RequestError when what it is to hold is not as the plan has it to begin with.
    """

    def __init__(
        self,
        model: Any,
        pipe: Any | None,
        scheduler: Any | None,
        table: HookTable,
        processors: Mapping[Any, TextKVProcessor],
        loads: lora.Loads,
        note: Note,
    ) -> None:
        self._model, self._pipe, self._scheduler, self._table = model, pipe, scheduler, table
        self._processors, self._note = processors, note
        self._attentions, self._mine = [vars(attention) for attention in processors], list(processors.values())
        self._step: int | None = -1
        self.weights = KeptWeights(model, table, loads)
        if scheduler is not None:
            self._call = vars(pipe)
            self._scale, self._guidance = self._call.get("_guidance_scale"), checks.guidance_of(pipe)
            self._timesteps = _watched(scheduler.timesteps)
            self._remember_sampler(scheduler)

    def check(self, step: int | None) -> None:
        """Raises RequestError when something is not as it was, nor otherwise as the plan allows.

        For each call, of the step with this ordinal, before it is served anything. Look-ups and comparisons of identities,
        about a microsecond; what the sampler alone reads, between steps, is looked at once a step.
        """
        checks.check_standing(self._model, self._pipe, self._scheduler)
        if self._mine and not all(map(is_, map(_PROCESSOR, self._attentions), self._mine)):
            checks.check_processors(self._processors)
        scheduler = self._scheduler
        if scheduler is None:
            return
        scale = self._call.get("_guidance_scale")
        if scale is not self._scale or isinstance(scale, Tensor):
            self._check_guidance(scale)
        if step != self._step:
            self._step = step
            if scheduler.config is not self._config or schedulers.settings_of(scheduler) != self._set:
                self._check_settings(scheduler)
            if self._sigmas.changed(scheduler.sigmas):
                schedulers.check_grid(scheduler, self._table)
            if self._timesteps.changed(scheduler.timesteps):
                raise RequestError(
                    "the scheduler's timesteps were changed in mid-run; leave them as `set_timesteps` made them"
                )

    def _check_guidance(self, scale: Any) -> None:
        before, now = self._guidance, checks.guidance_of(self._pipe)
        checks.check_guidance(now, self._table)
        if now != before:
            self._note("guidance", before=before, now=now)
        self._scale, self._guidance = scale, now

    def _check_settings(self, scheduler: Any) -> None:
        if (problem := schedulers.other_setting(scheduler, self._table)) is not None:
            raise RequestError(problem)
        self._remember_sampler(scheduler)

    def _remember_sampler(self, scheduler: Any) -> None:
        self._config, self._set, self._sigmas = (
            scheduler.config,
            schedulers.settings_of(scheduler),
            _watched(scheduler.sigmas),
        )


class KeptWeights:
    """The weights that kept values are computed with; called, it gives a value that is another one when they changed.

    Where only text K/V are kept, those are the text's embedder and projections, looked at in each call: the tier is
    lossless. Where hints are, they are all of the model's; then writes that PyTorch counts are looked for in each call and
    everything else once a step.
    """

    def __init__(self, model: Any, table: HookTable, loads: lora.Loads) -> None:
        kept = [row for row in table.rows if row.keeps]
        self._model, self._table, self._loads, self._loaded = model, table, loads, loads.count
        self._keeps, self._text_only = bool(kept), all(row.at.part == "text_kv" for row in kept)
        self._generation = 0
        self._step: int | None = -1
        if kept:
            self._look()

    def __call__(self, step: int | None) -> tuple[Any, ...]:
        """Weights, adapters and arithmetic of a call of this step (its ordinal)."""
        if not self._keeps:
            return ()
        whole = self._text_only or step != self._step
        self._step = step
        if self._loads.count != self._loaded or (self._weights.differ() if whole else self._weights.written()):
            self._generation, self._loaded = self._generation + 1, self._loads.count
            self._look()
        device = self._device
        arithmetic = torch.is_autocast_enabled(device), torch.get_autocast_dtype(device)
        return self._generation, *arithmetic, torch.get_float32_matmul_precision(), *lora.state_of(self._weights.layers)

    def _look(self) -> None:
        model = self._model
        self._device = next(model.parameters()).device.type
        if not self._text_only:
            self._weights = Weights([model])
            return
        executor = executor_of(model)
        attentions = executor.text_attentions(executor.stacks(model), self._table).values()
        self._weights = Weights(_text_modules(model, attentions))
        for attention in attentions:
            self._weights.owns(vars(attention), "fused_projections")
            for name in _PROJECTIONS:
                self._weights.owns(attention._modules, name)


def _text_modules(model: Any, attentions: Any) -> Iterator[nn.Module]:
    """What a prompt goes through until it is K and V."""
    for owner, names in ((model.condition_embedder, _EMBEDDERS), *((a, _PROJECTIONS) for a in attentions)):
        for name in names:
            if isinstance(module := getattr(owner, name, None), nn.Module):
                yield module


def _watched(grid: Tensor) -> Watch:
    """A watch of the sampler's sigmas or timesteps that waits for no device: by value only where nothing else tells."""
    return Watch(grid, copied=grid.is_inference() and grid.device.type == "cpu")
