"""Wan2.1 text-to-video: one stack of blocks. FLOPs and elements, exact to the operation.

A multiply-add counts 2, as `torch.utils.flop_counter` counts; normalisations, activations and additions count nothing.
Formulas: N video tokens, L text tokens, width d, feed-forward width f (reference: dimensions of diffusers'
`WanTransformer3DModel`; the tests compare every sum with torch's own counter on the real model).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from functools import lru_cache
from typing import TYPE_CHECKING, Any

from refkv_policy.plan.selectors import Site
from refkv_policy.profiles.families import ClipError
from refkv_policy.profiles.sites import BRANCHES, CFG, STEP, Cost, SiteFacts, Tree

if TYPE_CHECKING:
    from refkv_policy.profiles.cost import Workload
    from refkv_policy.profiles.profile import Profile

NAME, TITLE = "wan", "Wan"
MAIN = Site("main")
OUTSIDE, TEXT = "embeddings_and_head", "text_kv"


def recognises(config: Mapping[str, Any]) -> bool:
    """A Wan transformer without VACE layers."""
    return "vace_layers" not in config and "num_layers" in config and "ffn_dim" in config


def facts(config: Mapping[str, Any]) -> dict[str, Any]:
    """The profile's fields that a `WanTransformer3DModel`'s config tells."""
    if config.get("image_dim") is not None or config.get("added_kv_proj_dim") is not None:
        raise NotImplementedError("attends to an image besides the text (image-to-video), which is not supported yet")
    return common_facts(config)


def common_facts(config: Mapping[str, Any]) -> dict[str, Any]:
    """The fields that every Wan transformer's config tells."""
    return {
        "main_blocks": int(config["num_layers"]),
        "heads": int(config["num_attention_heads"]),
        "head_dim": int(config["attention_head_dim"]),
        "ffn_dim": int(config["ffn_dim"]),
        "text_dim": int(config["text_dim"]),
        "in_channels": int(config["in_channels"]),
        "out_channels": int(config["out_channels"] or config["in_channels"]),
        "freq_dim": int(config["freq_dim"]),
        "patch": tuple(int(p) for p in config["patch_size"]),
    }


@lru_cache(maxsize=64)
def tree(main_blocks: int, vace_at: tuple[int, ...] = ()) -> Tree:
    """`step ⊃ cfg ⊃ main ⊃ main[i] ⊃ .self, .cross ⊃ .text_kv, .ffn`."""
    return Tree((*outer_facts(), *(f for i in range(main_blocks) for f in block_facts(Site("main", i), MAIN))))


def outer_facts() -> Iterator[SiteFacts]:
    """A step, a branch's forward, and the main stack as a whole."""
    yield SiteFacts(STEP, None)
    # The cond call is what a served uncond call is made from, so that only the second can be served.
    yield SiteFacts(CFG, STEP, region=True, component=OUTSIDE, branches=BRANCHES[1:])
    yield SiteFacts(MAIN, CFG, region=True, component="main")


def block_facts(block: Site, inside: Site, component: str = "main", **more: Any) -> Iterator[SiteFacts]:
    """One Wan block and its parts. more: further facts of the block itself."""
    yield SiteFacts(block, inside, component=component, **{"region": True, **more})
    parts = {part: Site(block.stack, block.index, part) for part in ("self", "cross", "text_kv", "ffn")}
    yield SiteFacts(parts["self"], block, component=component)
    yield SiteFacts(parts["cross"], block, component=component)
    # K and V go in and out of a block with its text: they are kept when it has returned.
    yield SiteFacts(parts["text_kv"], parts["cross"], component=TEXT, passes_with=block)
    yield SiteFacts(parts["ffn"], block, component=component)


def costs(profile: Profile, work: Workload) -> Mapping[Site, Cost]:
    """What each site costs; a span's own work is nothing, as the stack's."""
    found = dict(outer_costs(profile, work))
    for index in range(profile.main_blocks):
        found.update(block_costs(profile, work, Site("main", index)))
    return found


def outer_costs(profile: Profile, work: Workload) -> Iterator[tuple[Site, Cost]]:
    """Outside the blocks: patch, time and text embeddings and the output projection, which a call computes as a whole.

    The value of a call is its velocity, of the latents' shape.
    """
    n, d, volume = work.tokens, profile.dim, profile.patch[0] * profile.patch[1] * profile.patch[2]
    patches = 2 * n * profile.in_channels * volume * d
    time = 2 * profile.freq_dim * d + 2 * d * d + 2 * d * 6 * d
    text = 2 * work.text_tokens * (profile.text_dim * d + d * d)
    out = 2 * n * d * profile.out_channels * volume
    yield STEP, Cost(0, 0)
    yield CFG, Cost(work.batch * (patches + time + text + out), work.batch * n * volume * profile.out_channels)
    yield MAIN, Cost(0, work.batch * n * d)


def block_costs(profile: Profile, work: Workload, block: Site, own: int = 0) -> Iterator[tuple[Site, Cost]]:
    """Self-attention 8Nd² + 4N²d; cross-attention 4Nd² + 4NLd and K and V of the text 4Ld²; feed-forward 4Ndf.

    own: FLOPs of the block that none of its parts has.
    """
    n, length, d, f, batch = work.tokens, work.text_tokens, profile.dim, profile.ffn_dim, work.batch
    stream = batch * n * d
    yield block, Cost(batch * own, stream)
    yield part(block, "self"), Cost(batch * (8 * n * d**2 + 4 * n**2 * d), stream)
    yield part(block, "cross"), Cost(batch * (4 * n * d**2 + 4 * n * length * d), stream)
    yield part(block, "text_kv"), Cost(batch * 4 * length * d**2, batch * 2 * length * d)
    yield part(block, "ffn"), Cost(batch * 4 * n * d * f, stream)


def part(block: Site, name: str) -> Site:
    """A part of a block."""
    return Site(block.stack, block.index, name)


def tokens(profile: Profile, width: int, height: int, frames: int, references: int = 0) -> int:
    """Frames are causal (1 + 4n give 1 + n latent frames); a reference image adds one latent frame."""
    step_w, step_h = _grid(profile)
    latent_frames = (1 + (frames - 1) // profile.vae_scale[0] + references) // profile.patch[0]
    return latent_frames * (height // step_h) * (width // step_w)


def clip_faults(profile: Profile, width: int, height: int, frames: int) -> Iterator[ClipError]:
    """The VAE keeps the first frame and compresses the rest in time and all in space; a patch takes two positions a side."""
    temporal, (step_w, step_h) = profile.vae_scale[0], _grid(profile)
    if width % step_w or height % step_h or width <= 0 or height <= 0:
        near = f"{_nearest(width, step_w)}x{_nearest(height, step_h)}"
        yield ClipError("size", f"{width}x{height}", f"multiples of {step_w}x{step_h}", (near,))
    if frames < 1 or (frames - 1) % temporal:
        below = max(frames - 1, 0) // temporal * temporal + 1
        yield ClipError("frames", str(frames), f"{temporal}n+1", (str(below), str(below + temporal)))


def layers_fault(main_blocks: int, vace_at: tuple[int, ...]) -> str | None:
    """A plain Wan model has no hints."""
    return "`vace_at` is for models with hints, and the family `wan` has none" if vace_at else None


def _grid(profile: Profile) -> tuple[int, int]:
    """Pixels of one token, in width and in height."""
    return profile.vae_scale[1] * profile.patch[2], profile.vae_scale[1] * profile.patch[1]


def _nearest(pixels: int, step: int) -> int:
    return max(1, (pixels + step // 2) // step) * step
