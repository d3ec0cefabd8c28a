"""The header of a request in the audit log: what ran, on what."""

from __future__ import annotations

import math
from collections.abc import Mapping
from contextlib import suppress
from importlib.metadata import version
from typing import Any

from torch import nn

from refkv_policy import __version__
from refkv_policy.compiler.table import HookTable
from refkv_policy.profiles import ProfileError, load_profile
from refkv_policy.runtime import lora
from refkv_policy.runtime.call import Inputs
from refkv_policy.runtime.digest import weights_bytes, weights_digest, weights_form
from refkv_policy.runtime.watch import Weights

CHEAP_WEIGHTS = 50 * 2**20
"""Bytes of weights up to which their digest is worked out unasked, whenever they changed (well under a second)."""


class Headers:
    """Makes the header of each request of a session, whose weights and adapters are those of that request.

    given: the caller's own fields, which take precedence. The digest of weights above 50 MB is left out unless the caller
    gives it (`digest.weights_digest` makes it). Either is of the weights as they were; once they are others, or a hot swap
    may have made them others, a cheap digest is worked out anew and a given one is left out.
    """

    def __init__(self, model: nn.Module, table: HookTable, given: Mapping[str, Any], loads: lora.Loads) -> None:
        self._model, self._table, self._given, self._loads = model, table, given, loads
        self._known: str | None = given.get("digests", {}).get("weights")
        self._seen = loads.count, Weights([model]).fingerprint()

    def of(self, inputs: Inputs, branches: tuple[str, ...], guidance: float | None) -> dict[str, Any]:
        """The header of a request, from its first forward's inputs, inside that forward."""
        _, _, *sides = inputs.latents.shape
        tokens = math.prod(size // patch for size, patch in zip(sides, self._table.layout.patch, strict=True))
        weights = Weights([self._model])
        adapters = lora.describe(weights.layers)
        header = {
            "device": str(inputs.latents.device),
            "dtype": str(inputs.latents.dtype).removeprefix("torch."),
            "weights": weights_form(self._model),
            **({"adapters": adapters} if adapters else {}),
            "branches": list(branches),
            "shapes": {
                "latent": list(inputs.latents.shape),
                "tokens": tokens,
                "text_tokens": inputs.prompt.shape[1] + (0 if inputs.image is None else inputs.image.shape[1]),
                "batch": inputs.latents.shape[0],
            },
            **self._given,
            "digests": self._digests(weights),
            "versions": _versions() | self._given.get("versions", {}),
        }
        return header if guidance is None else {**header, "guidance": guidance}

    def _digests(self, weights: Weights) -> dict[str, Any]:
        digests: dict[str, Any] = {}
        with suppress(ProfileError):  # a profile of one's own is known by its layout, which the table holds
            digests["profile"] = load_profile(self._table.profile).digest
        digests |= self._given.get("digests", {})
        now = self._loads.count, weights.fingerprint()
        if now != self._seen:
            self._seen, self._known = now, None
        if self._known is None and not weights.absent and weights_bytes(self._model) <= CHEAP_WEIGHTS:
            self._known = weights_digest(self._model)
        digests.pop("weights", None)
        return digests if self._known is None else {**digests, "weights": self._known}


def _versions() -> dict[str, str]:
    return {"refkv": __version__, "torch": version("torch"), "diffusers": version("diffusers")}
