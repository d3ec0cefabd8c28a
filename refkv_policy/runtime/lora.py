"""What LoRA adds to a model, as a value to compare: kept text K/V of other adapters are stale."""

from __future__ import annotations

from typing import Any

from torch import nn


class Adapters:
    """What LoRA adds to each layer at this moment, as a value to compare. Cheap where none is loaded."""

    def __init__(self, model: nn.Module) -> None:
        self._model = model
        self._layers: list[Any] | None = None

    def __call__(self) -> tuple[Any, ...]:
        """Merged flags, active adapters and their scalings, of every adapted layer."""
        if not getattr(self._model, "_hf_peft_config_loaded", False):
            self._layers = None
            return ()
        if self._layers is None:
            self._layers = [m for m in self._model.modules() if hasattr(m, "active_adapters") and hasattr(m, "scaling")]
        return tuple((layer.merged, *layer.active_adapters, *layer.scaling.values()) for layer in self._layers)
