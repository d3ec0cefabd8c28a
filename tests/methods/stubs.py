"""A stack of counting blocks under diffusers' own caches, to compare decisions with."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from diffusers.hooks._helpers import TransformerBlockMetadata, TransformerBlockRegistry
from diffusers.models.cache_utils import CacheMixin
from torch import Tensor, nn


class Block(nn.Module):
    """Adds a number to the stream; `added` gives one a call where it is set. calls: how often it has run."""

    def __init__(self, added: Sequence[Tensor] = ()) -> None:
        super().__init__()
        self.added, self.calls = added, 0

    def forward(self, hidden_states: Tensor) -> Tensor:
        self.calls += 1
        return hidden_states + (self.added[self.calls - 1] if len(self.added) else 1.0)


class Stack(nn.Module, CacheMixin):
    """Blocks one after another."""

    def __init__(self, *blocks: Block) -> None:
        super().__init__()
        self.blocks = nn.ModuleList(blocks)

    @property
    def device(self) -> torch.device:
        return torch.device("cpu")

    def forward(self, hidden_states: Tensor) -> Tensor:
        for block in self.blocks:
            hidden_states = block(hidden_states=hidden_states)
        return hidden_states


@contextmanager
def cached(stack: Stack, config: Any) -> Iterator[None]:
    """The stack under a cache of diffusers, which is told what its blocks take and give."""
    TransformerBlockRegistry.register(Block, TransformerBlockMetadata(return_hidden_states_index=0))
    try:
        stack.enable_cache(config)
        yield
    finally:
        TransformerBlockRegistry._registry.pop(Block)


def decisions(stack: Stack, calls: int, contexts: Sequence[str] = ("cond",)) -> dict[str, str]:
    """By context: `C` where the last block ran in a call, `R` where it was served."""
    last, found = stack.blocks[-1], dict.fromkeys(contexts, "")
    for _ in range(calls):
        for context in contexts:
            before = last.calls
            with stack.cache_context(context):
                stack(torch.zeros(1, 2, 4))
            found[context] += "C" if last.calls > before else "R"
    return found
