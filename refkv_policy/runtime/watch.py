"""Noticing that the prompt, the control or the weights changed under a request."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from operator import attrgetter, is_
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor, nn
from torch.utils._python_dispatch import is_traceable_wrapper_subclass

from refkv_policy.runtime import lora

_BITS = {1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64}
"""An integer type of each element size: NaN equals itself in it, and -0 is not 0."""
_SAMPLES = 16
_VERSION, _FORM = attrgetter("_version"), attrgetter("dtype", "device")
_MOVERS = ("group_offloading", "lazy_prefetch_group_offloading", "layerwise_casting")
"""diffusers' hooks that give a module's tensors other memory around each of its forwards."""


class Watch:
    """Remembers a tensor (or a plain value) and tells whether that of the next call holds something else.

    PyTorch counts writes to a tensor, but not those through `.data` or memory that NumPy shares, and none to a tensor
    made under `torch.inference_mode`. So on the CPU the bits are compared with a copy: one pass over what the forward
    multiplies by a matrix. On an accelerator the count is believed, which waits for nothing; only a tensor without one
    is compared with a copy there, and that waits for the device. To take it for changed instead would be exact too, but
    would compute everything anew at each step; under `torch.no_grad` nothing is waited for.
    copied: whether to compare with a copy, where the caller knows better.
    """

    __slots__ = ("_copied", "_last", "_version")

    def __init__(self, content: Any, copied: bool | None = None) -> None:
        if copied is None:
            copied = isinstance(content, Tensor) and (content.device.type == "cpu" or content.is_inference())
        self._copied = copied
        self._remember(content)

    def changed(self, content: Any) -> bool:
        """Whether the content differs from the last call's."""
        last = self._last
        if self._copied:
            changed = not same(last, content)
        else:
            changed = _version(last) != self._version or not (content is last or same(last, content))
        if changed or not (self._copied or content is last):
            self._remember(content)
        return changed

    def _remember(self, content: Any) -> None:
        self._last = content.clone() if self._copied else content
        self._version = _version(content)


def same(one: Any, other: Any) -> bool:
    """Whether two contents are equal: tensors bit by bit, in form and on their device too."""
    if not isinstance(one, Tensor) or not isinstance(other, Tensor):
        return not isinstance(one, Tensor) and not isinstance(other, Tensor) and bool(one == other)
    if one.shape != other.shape or one.dtype != other.dtype or one.device != other.device:
        return False
    bits = _BITS.get(one.element_size(), one.dtype)
    return torch.equal(one.view(bits), other.view(bits))


class Weights:
    """The weights below some modules, as they are now. `differ` tells whether they are others, without a device sync.

    Seen are: modules, parameters and buffers that were exchanged; tensors that were given other memory (`.to`, `.data =`,
    `swap_tensors`); every write that PyTorch counts; on the CPU also one that it does not count (`.data.copy_`, to
    weights made under `torch.inference_mode`), if it touches one of 16 elements spread over each tensor. On an accelerator
    that last kind is not seen. Memory of modules that hooks move or cast at each forward says nothing, so only the
    counted writes are seen there.
    """

    def __init__(self, roots: Iterable[nn.Module]) -> None:
        self.layers: list[Any] = []
        self._owners: list[dict[str, Any]] = []
        self._names: list[str] = []
        self._owned: list[Any] = []
        self._counted: list[Tensor] = []
        self._resting: list[Tensor] = []
        self._moved: list[Tensor] = []
        for root in roots:
            self._visit(root, False)
        self._samples = _samples(self._resting)
        self._versions = self.versions()
        self._places = list(map(Tensor.data_ptr, self._resting))
        self._values = self._sampled()

    @property
    def absent(self) -> bool:
        """Whether some are not in memory at all: accelerate's sequential offload takes them out between forwards."""
        return any(tensor.is_meta for tensor in self._moved)

    def owns(self, owner: dict[str, Any], name: str) -> None:
        """Watch an entry of a dictionary for another object in its place."""
        self._owners.append(owner)
        self._names.append(name)
        self._owned.append(owner.get(name))

    def written(self) -> bool:
        """Whether a counted write came to one of them: the cheap half of `differ`."""
        return self.versions() != self._versions

    def differ(self) -> bool:
        """Whether they are others than when this was made."""
        return (
            self.written()
            or not all(map(is_, map(dict.get, self._owners, self._names), self._owned))
            or list(map(Tensor.data_ptr, self._resting)) != self._places
            or self._sampled() != self._values
        )

    def versions(self) -> list[int]:
        """Writes counted so far, by tensor."""
        return list(map(_VERSION, self._counted))

    def fingerprint(self) -> tuple[Any, ...]:
        """All of it as a value to compare with another model's, or another time's; holds on to no weights."""
        forms = map(_FORM, (*self._resting, *self._moved))
        return tuple(self._versions), tuple(self._places), *forms, *self._values, lora.state_of(self.layers)

    def _sampled(self) -> list[bytes]:
        return [np.concatenate(views).tobytes() for views in self._samples]

    def _visit(self, module: nn.Module, moved: bool) -> None:
        moved = moved or _is_moved(module)
        if lora.is_layer(module):
            self.layers.append(module)
        for held in (module._parameters, module._buffers):
            for name, tensor in held.items():
                if not moved:
                    self.owns(held, name)
                for plain in () if tensor is None else plain_tensors(tensor):
                    if not plain.is_inference():
                        self._counted.append(plain)
                    (self._moved if moved or plain.is_meta else self._resting).append(plain)
        for name, child in module._modules.items():
            self.owns(module._modules, name)
            if child is not None:
                self._visit(child, moved)


def plain_tensors(tensor: Tensor) -> Iterator[Tensor]:
    """The tensors that hold a tensor's memory: itself, or those inside a wrapper (torchao's quantized ones are such)."""
    whole: Any = tensor
    if is_traceable_wrapper_subclass(whole):
        for name in whole.__tensor_flatten__()[0]:
            yield from plain_tensors(getattr(whole, name))
    else:
        yield tensor


def _samples(tensors: Iterable[Tensor]) -> list[list[npt.NDArray[Any]]]:
    """Views of up to 16 elements of each tensor on the CPU, as integers, in one list an element size.

    NumPy's, which joins many small strided views some nine times as fast as torch's.
    """
    views: dict[int, list[npt.NDArray[Any]]] = {}
    for tensor in tensors:
        count, size = tensor.numel(), tensor.element_size()
        if tensor.device.type != "cpu" or not count or size not in _BITS:
            continue
        start, storage = tensor.storage_offset(), tensor.untyped_storage()
        if (start + count) * size > storage.nbytes():
            continue  # an expanded tensor, with less memory than elements
        stride = max(1, (count - 1) // (_SAMPLES - 1))
        form = (min(_SAMPLES, count),), (stride,)
        views.setdefault(size, []).append(torch.empty(0, dtype=_BITS[size]).set_(storage, start, *form).numpy())
    return list(views.values())


def _is_moved(module: nn.Module) -> bool:
    """Whether hooks give the tensors below a module other memory around each forward."""
    hook = getattr(module, "_hf_hook", None)
    if any(getattr(h, "offload", False) for h in (hook, *getattr(hook, "hooks", ()))):
        return True
    registry = getattr(module, "_diffusers_hook", None)
    return registry is not None and any(registry.get_hook(name) is not None for name in _MOVERS)


def _version(content: Any) -> int:
    """Counts in-place writes; -1 where torch does not (plain values, inference tensors)."""
    return content._version if isinstance(content, Tensor) and not content.is_inference() else -1
