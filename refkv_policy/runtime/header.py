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
from refkv_policy.runtime.call import Inputs
from refkv_policy.runtime.digest import weights_bytes, weights_digest

CHEAP_WEIGHTS = 50 * 2**20
"""Bytes of weights up to which their digest is worked out unasked, once a session (well under a second)."""


def static_header(model: nn.Module, table: HookTable, given: Mapping[str, Any]) -> dict[str, Any]:
    """What is the same for every request of a session. given: the caller's own fields, which take precedence.

    The digest of weights above 50 MB is left out unless the caller gives it (`digest.weights_digest` makes it).
    """
    digests: dict[str, Any] = {}
    with suppress(ProfileError):  # a profile of one's own is known by its layout, which the table holds
        digests["profile"] = load_profile(table.profile).digest
    given_digests = dict(given.get("digests", {}))
    if "weights" not in given_digests and weights_bytes(model) <= CHEAP_WEIGHTS:
        digests["weights"] = weights_digest(model)
    versions = {"refkv": __version__, "torch": version("torch"), "diffusers": version("diffusers")}
    return {
        **given,
        "digests": {**digests, **given_digests},
        "versions": {**versions, **given.get("versions", {})},
    }


def request_header(
    static: Mapping[str, Any], table: HookTable, inputs: Inputs, branches: tuple[str, ...], guidance: float | None
) -> dict[str, Any]:
    """The header of one request, from its first forward's inputs."""
    _, _, *sides = inputs.latents.shape
    tokens = math.prod(size // patch for size, patch in zip(sides, table.layout.patch, strict=True))
    header = {
        "device": str(inputs.latents.device),
        "dtype": str(inputs.latents.dtype).removeprefix("torch."),
        "branches": list(branches),
        "shapes": {
            "latent": list(inputs.latents.shape),
            "tokens": tokens,
            "text_tokens": inputs.prompt.shape[1],
            "batch": inputs.latents.shape[0],
        },
        **static,
    }
    return header if guidance is None else {**header, "guidance": guidance}
