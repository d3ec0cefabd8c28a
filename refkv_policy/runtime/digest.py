"""What weights are in memory, for the header of an audit log: their digest, their dtypes, how they are quantized."""

from __future__ import annotations

import hashlib
from collections import Counter
from typing import Any

import torch
from torch import nn

from refkv_policy.runtime.watch import plain_tensors

QUANTIZERS = frozenset(
    {"torchao", "bitsandbytes", "optimum", "gguf", "gptqmodel", "auto_gptq", "awq", "nunchaku", "diffusers.quantizers"}
)
"""Packages whose modules and tensors hold quantized weights."""


def weights_digest(module: nn.Module) -> str:
    """`sha256:…` of the module's state: names in order, dtypes, shapes and bytes, wherever the tensors are.

    Values count, not storage: the same weights on another device or with other strides give the same digest. Reads every
    byte (about a second a gigabyte on the CPU): work it out once, not for each request.
    """
    digest = hashlib.sha256()
    for name, tensor in sorted(module.state_dict().items()):
        digest.update(f"{name}\0{tensor.dtype}\0{tuple(tensor.shape)}\0".encode())
        for part in plain_tensors(tensor.detach()):
            value = part.to("cpu").contiguous()
            digest.update(value.reshape(-1).view(torch.uint8).numpy().data)
    return "sha256:" + digest.hexdigest()


def weights_bytes(module: nn.Module) -> int:
    """Bytes of the parameters and buffers."""
    tensors = (plain for t in (*module.parameters(), *module.buffers()) for plain in plain_tensors(t))
    return sum(t.numel() * t.element_size() for t in tensors)


def weights_form(module: nn.Module) -> dict[str, Any]:
    """Dtypes of the weights, the one of most elements first; where they are quantized, by what: names of types, counted.

    Told by the types' names, of modules and of tensors, so that no library is imported to look.
    """
    dtypes: Counter[str] = Counter()
    kinds: Counter[str] = Counter()
    for tensor in (*module.parameters(), *module.buffers()):
        for plain in plain_tensors(tensor):
            dtypes[str(plain.dtype).removeprefix("torch.")] += plain.numel()
        kinds.update(_quantized(type(tensor)))
    for part in module.modules():
        kinds.update(_quantized(type(part)))
    form: dict[str, Any] = {"dtypes": [name for name, _ in dtypes.most_common()]}
    return {**form, "quantized": dict(sorted(kinds.items()))} if kinds else form


def _quantized(kind: type) -> list[str]:
    """The name of a type that comes from a quantization library, or derives from one that does."""
    for base in kind.__mro__:
        library = ".".join(base.__module__.split(".")[: 2 if base.__module__.startswith("diffusers.") else 1])
        if library in QUANTIZERS:
            return [f"{library}.{kind.__name__}"]
    return []
