"""FLOPs and bytes of a Wan VACE forward, exact to the operation.

A multiply-add counts 2, as `torch.utils.flop_counter` counts; normalisations, activations and additions count nothing.
Formulas: N video tokens, L text tokens, width d, feed-forward width f (reference: dimensions of diffusers'
`WanVACETransformer3DModel`; the tests compare every sum with torch's own counter on the real model).
"""

from __future__ import annotations

from dataclasses import dataclass

from refkv_policy.profiles.profile import Profile

ITEMSIZE = {"float32": 4, "bfloat16": 2, "float16": 2}
"""Bytes an element."""


@dataclass(frozen=True, slots=True)
class Workload:
    """What one forward is given: video tokens N (padding included), text tokens L, batch size."""

    tokens: int
    text_tokens: int
    batch: int = 1


def text_kv(profile: Profile, work: Workload) -> int:
    """Projecting the text to K and V of one cross-attention: 2 · 2Ld²."""
    return work.batch * 4 * work.text_tokens * profile.dim**2


def main_block(profile: Profile, work: Workload) -> int:
    """One Wan block: self-attention 8Nd² + 4N²d, cross-attention 4Nd² + 4Ld² + 4NLd, feed-forward 4Ndf."""
    n, length, d, f = work.tokens, work.text_tokens, profile.dim, profile.ffn_dim
    attention = 8 * n * d**2 + 4 * n**2 * d
    cross = 4 * n * d**2 + 4 * length * d**2 + 4 * n * length * d
    return work.batch * (attention + cross + 4 * n * d * f)


def vace_block(profile: Profile, work: Workload, index: int) -> int:
    """One VACE block: a Wan block and its output projection 2Nd²; block 0 also an input projection 2Nd²."""
    projections = 2 if index == 0 else 1
    return main_block(profile, work) + work.batch * projections * 2 * work.tokens * profile.dim**2


def frame(profile: Profile, work: Workload) -> int:
    """What every forward computes outside the blocks: patch, time and text embeddings and the output projection."""
    n, d, volume = work.tokens, profile.dim, profile.patch[0] * profile.patch[1] * profile.patch[2]
    control = n  # a control shorter than the latent is padded after its embedding; equal lengths are the usual case
    patches = 2 * n * profile.in_channels * volume * d + 2 * control * profile.vace_in_channels * volume * d
    time = 2 * profile.freq_dim * d + 2 * d * d + 2 * d * 6 * d
    text = 2 * work.text_tokens * (profile.text_dim * d + d * d)
    out = 2 * n * d * profile.out_channels * volume
    return work.batch * (patches + time + text + out)


def forward(profile: Profile, work: Workload) -> int:
    """A whole uncached forward."""
    vace = sum(vace_block(profile, work, j) for j in range(len(profile.vace_at)))
    return frame(profile, work) + profile.main_blocks * main_block(profile, work) + vace


def hint_share(profile: Profile, work: Workload) -> float:
    """The VACE chain's share of a forward, 0 to 1: the ceiling of what reusing hints can save."""
    vace = sum(vace_block(profile, work, j) for j in range(len(profile.vace_at)))
    return vace / forward(profile, work)


def value_bytes(profile: Profile, work: Workload, part: str | None, itemsize: int) -> int:
    """Bytes of one kept observation of a site: a hint or a chain state (N × d), or K and V of the text (2 × L × d)."""
    rows = 2 * work.text_tokens if part == "text_kv" else work.tokens
    return work.batch * rows * profile.dim * itemsize
