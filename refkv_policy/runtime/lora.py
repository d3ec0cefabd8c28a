"""What LoRA adds to a model: as a value to compare, and as the audit log tells it."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterable
from typing import Any

from torch import nn


def is_layer(module: nn.Module) -> bool:
    """Whether a module is one that PEFT put in the place of a layer, to add adapters to it."""
    return hasattr(module, "active_adapters") and hasattr(module, "scaling")


def state_of(layers: Iterable[Any]) -> tuple[Any, ...]:
    """Merged and disabled flags, active adapters and scalings of adapted layers, as a value to compare."""
    return tuple(
        (*layer.merged_adapters, layer.disable_adapters, *layer.active_adapters, *layer.scaling.values())
        for layer in layers
    )


def describe(layers: Iterable[Any]) -> list[dict[str, Any]]:
    """The adapters for the log: name, whether active, whether fused into the weights, and their scale.

    scale: what multiplies B·A (the adapter's weight times alpha/r); the least and the most, where layers differ.
    """
    found: dict[str, dict[str, Any]] = {}
    for layer in layers:
        for name, scaling in layer.scaling.items():
            told = found.setdefault(name, {"name": name, "active": False, "fused": False, "scale": [scaling, scaling]})
            told["active"] |= name in layer.active_adapters and not layer.disable_adapters
            told["fused"] |= name in layer.merged_adapters
            told["scale"] = [min(told["scale"][0], scaling), max(told["scale"][1], scaling)]
    for told in found.values():
        least, most = map(float, told["scale"])
        told["scale"] = least if least == most else [least, most]
    return list(found.values())


class Loads:
    """Counts what is loaded with a model's `load_lora_adapter`.

    A hot swap writes the new adapter through `.data` into the old one's memory, which neither PyTorch's count of writes
    nor a look at the memory's place tells; on an accelerator nothing else would.
    """

    def __init__(self) -> None:
        self.count = 0

    def counted(self, load: Callable[..., Any]) -> Callable[..., Any]:
        """The method, counting. One that fails half-way counts."""

        @functools.wraps(load)
        def load_lora_adapter(*args: Any, **kwargs: Any) -> Any:
            self.count += 1
            return load(*args, **kwargs)

        return load_lora_adapter
