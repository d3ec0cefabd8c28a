"""Text K/V of a block's cross-attention: computed and handed out once, then taken back in instead of being projected.

The block gets `KeepText` or `KeptText` in the place of the text and passes it on unread. The processors hold no state of
the run, so that a block compiled with `fullgraph=True` sees constants only.
"""

from __future__ import annotations

import copy
from typing import Any, NamedTuple

from diffusers.models.attention_dispatch import dispatch_attention_fn
from diffusers.models.transformers.transformer_wan import WanAttnProcessor
from torch import Tensor


class Sink:
    """Takes K and V out of a block's forward. Opaque on purpose: device hooks move tuples and lists, and copy them."""

    __slots__ = ("value",)

    def __init__(self) -> None:
        self.value: tuple[Tensor, Tensor] | None = None


class KeepText(NamedTuple):
    """Attend to this text (batch, length, width), and leave its K and V in the sink."""

    text: Tensor
    sink: Sink


class KeptText(NamedTuple):
    """Attend to these K (after norm_k) and V, each (batch, length, width)."""

    key: Tensor
    value: Tensor


class TextKVProcessor:
    """diffusers' `WanAttnProcessor` for a cross-attention whose text K and V may be kept; bit-exact with it.

    Carries the settings of the processor it stands in for: what is set on one (attention backend) is set on the other.
    """

    def __init__(self, original: WanAttnProcessor) -> None:
        self.original = original

    def __deepcopy__(self, memo: dict[int, Any]) -> WanAttnProcessor:
        """A copy of the processor that it stands in for: no session is attached to a copied model."""
        return copy.deepcopy(self.original, memo)

    @property
    def _attention_backend(self) -> Any:
        return self.original._attention_backend

    @_attention_backend.setter
    def _attention_backend(self, backend: Any) -> None:
        self.original._attention_backend = backend

    @property
    def _parallel_config(self) -> Any:
        return self.original._parallel_config

    @_parallel_config.setter
    def _parallel_config(self, config: Any) -> None:
        self.original._parallel_config = config

    def __call__(
        self,
        attn: Any,
        hidden_states: Tensor,
        encoder_hidden_states: Tensor | KeepText | KeptText | None = None,
        attention_mask: Tensor | None = None,
        rotary_emb: tuple[Tensor, Tensor] | None = None,
    ) -> Tensor:
        """Attention output (batch, tokens, width)."""
        if isinstance(encoder_hidden_states, KeptText):
            key, value = encoder_hidden_states
        elif isinstance(encoder_hidden_states, KeepText):
            key, value = project_text(attn, encoder_hidden_states.text)
            encoder_hidden_states.sink.value = (key, value)
        else:
            return self.original(attn, hidden_states, encoder_hidden_states, attention_mask, rotary_emb)
        query = attn.norm_q(attn.to_q(hidden_states))
        attended = dispatch_attention_fn(
            query.unflatten(2, (attn.heads, -1)),
            key.unflatten(2, (attn.heads, -1)),
            value.unflatten(2, (attn.heads, -1)),
            attn_mask=attention_mask,
            dropout_p=0.0,
            is_causal=False,
            backend=self._attention_backend,
            parallel_config=None,  # as diffusers: the text is not sharded
        )
        attended = attended.flatten(2, 3).type_as(query)
        return attn.to_out[1](attn.to_out[0](attended))


def project_text(attn: Any, text: Tensor) -> tuple[Tensor, Tensor]:
    """K after norm_k, and V, as `WanAttnProcessor` makes them, through fused projections where they are fused."""
    if attn.fused_projections:
        key, value = attn.to_kv(text).chunk(2, dim=-1)
    else:
        key, value = attn.to_k(text), attn.to_v(text)
    return attn.norm_k(key), value


def unsupported(attn: Any) -> str | None:
    """Why the text K/V of this attention cannot be kept, as the end of a sentence; None when it can."""
    if attn.add_k_proj is not None:
        return "attends to an image besides the text"
    if type(attn.processor) is not WanAttnProcessor:
        return f"uses {type(attn.processor).__name__}, not diffusers' WanAttnProcessor"
    return None
