"""A digest of weights in memory, for the header of an audit log."""

from __future__ import annotations

import hashlib

import torch
from torch import nn


def weights_digest(module: nn.Module) -> str:
    """`sha256:…` of the module's state: names in order, dtypes, shapes and bytes, wherever the tensors are.

    Values count, not storage: the same weights on another device or with other strides give the same digest. Reads every
    byte (about a second a gigabyte on the CPU): work it out once, not for each request.
    """
    digest = hashlib.sha256()
    for name, tensor in sorted(module.state_dict().items()):
        digest.update(f"{name}\0{tensor.dtype}\0{tuple(tensor.shape)}\0".encode())
        value = tensor.detach().to("cpu").contiguous()
        digest.update(value.reshape(-1).view(torch.uint8).numpy().data)
    return "sha256:" + digest.hexdigest()


def weights_bytes(module: nn.Module) -> int:
    """Bytes of the parameters and buffers."""
    return sum(t.numel() * t.element_size() for t in (*module.parameters(), *module.buffers()))
