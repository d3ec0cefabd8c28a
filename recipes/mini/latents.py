"""Training latents, encoded once: clips and their controls as `WanVACEPipeline` prepares them, in numbered shards."""

from __future__ import annotations

import os
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from diffusers import AutoencoderKLWan
from torch import Tensor

from recipes.mini.common import to_tensor
from recipes.mini.controls import KINDS, blank, edges, grey, rectangle
from recipes.mini.data import training_clip, training_scene
from recipes.mini.scenes import object_mask
from recipes.mini.train_vae import encode_mean, fast_training
from refkv_policy.mini.architecture import FRAMES, SIZE

SHARD = 100
SHARDS = 20
SYNTHETIC = 0.6
FIRST_SEED = 500_000  # of clips; the autoencoder's start at 0
KIND_SHARES = (0.7, 0.15, 0.15)  # of KINDS


@dataclass(frozen=True)
class Latents:
    """Normalised latents of n clips, with their captions and control kinds.

    `x`, `inactive`, `reactive`: float16 (n, 16, 5, 12, 12); `mask`: bool (n, 64, 5, 12, 12).
    """

    x: Tensor
    inactive: Tensor
    reactive: Tensor
    mask: Tensor
    captions: list[str]
    kinds: list[str]

    def control(self, index: Tensor) -> Tensor:
        """The 96 VACE input channels: inactive, reactive, mask."""
        parts = (self.inactive[index], self.reactive[index], self.mask[index])
        return torch.cat([p.float() for p in parts], dim=1)


def statistics(vae: AutoencoderKLWan) -> tuple[Tensor, Tensor]:
    """Latent mean and deviation from the configuration: float32 (1, 16, 1, 1, 1) each."""
    mean, std = (torch.tensor(v).view(1, -1, 1, 1, 1) for v in (vae.config.latents_mean, vae.config.latents_std))
    return mean, std


def mask_channels(mask: np.ndarray) -> Tensor:
    """`WanVACEPipeline.prepare_masks` for one clip: uint8 (T, H, W, 3) to bool (64, 1 + T // 4, H/8, W/8)."""
    t, h, w, _ = mask.shape
    m = torch.from_numpy(mask[..., 0] > 127).float().view(t, h // 8, 8, w // 8, 8)
    m = m.permute(2, 4, 0, 1, 3).flatten(0, 1)
    size = ((t + 3) // 4, h // 8, w // 8)
    return torch.nn.functional.interpolate(m[None], size=size, mode="nearest-exact")[0] > 0.5


def _control(frames: np.ndarray, kind: str, rng: np.random.Generator) -> tuple[np.ndarray, np.ndarray]:
    """Control video and mask, uint8 (T, H, W, 3) each."""
    if kind == "inpaint":
        mask = rectangle(rng, *frames.shape[:3])
        return blank(frames, mask), mask
    return (grey if kind == "grey" else edges)(frames), np.full_like(frames, 255)


@torch.no_grad()
def encode_shard(vae: AutoencoderKLWan, shard: int) -> dict[str, Any]:
    """The shard's latents, from clip seeds that depend on `shard` only: every transformer sees the same clips."""
    mean, std = statistics(vae)
    empty = torch.zeros(3, FRAMES, SIZE, SIZE)
    videos: list[Tensor] = [empty]
    rows: dict[str, list[Any]] = {k: [] for k in ("x", "inactive", "reactive", "mask", "captions", "kinds")}

    def add(video: Tensor) -> int:
        videos.append(video)
        return len(videos) - 1

    for i in range(shard * SHARD, (shard + 1) * SHARD):
        clip = training_clip(FIRST_SEED + i, FRAMES, SIZE, SYNTHETIC)
        rng = np.random.default_rng([5, 0, i])
        kind = str(rng.choice(KINDS, p=KIND_SHARES))
        control, mask = _control(clip.frames, kind, rng)
        video, hole = to_tensor(control), torch.from_numpy(mask > 127).movedim(-1, 0).float()
        rows["x"].append(add(to_tensor(clip.frames)))
        # Nothing of a clip stays unless it is painted into; what is to be painted is then as good as middle grey.
        rows["inactive"].append(add(video * (1 - hole)) if kind == "inpaint" else 0)
        rows["reactive"].append(0 if kind == "inpaint" else add(video))
        rows["mask"].append(mask_channels(mask))
        rows["captions"].append(clip.caption)
        rows["kinds"].append(kind)
    encoded = torch.cat([encode_mean(vae, torch.stack(videos[i : i + 4])) for i in range(0, len(videos), 4)])
    encoded = ((encoded - mean) / std).half()
    for part in ("x", "inactive", "reactive"):
        rows[part] = [encoded[i] for i in rows[part]]
    return {k: torch.stack(v) if isinstance(v[0], Tensor) else v for k, v in rows.items()}


def encode_all(vae: AutoencoderKLWan, folder: Path, shards: int = SHARDS) -> None:
    """Write every missing `folder/latents/NNN.pt`."""
    (folder / "latents").mkdir(parents=True, exist_ok=True)
    with fast_training():
        for shard in range(shards):
            path = folder / "latents" / f"{shard:03d}.pt"
            if path.is_file():
                continue
            began = time.monotonic()
            beside = path.with_suffix(".part")
            torch.save(encode_shard(vae, shard), beside)
            os.replace(beside, path)
            print(f"latents {shard + 1}/{shards}  {time.monotonic() - began:.0f} s", flush=True)


def object_maps(shard: int) -> Tensor:
    """Where a shard's scenes have an object: float32 (n, 1, 5, 12, 12) coverage, zero for real clips.

    Drawn again from the clips' seeds; a latent frame is taken at the middle of the frames it stands for.
    """
    side = SIZE // 8
    out = torch.zeros(SHARD, 1, (FRAMES + 3) // 4, side, side)
    for row in range(SHARD):
        scene = training_scene(FIRST_SEED + shard * SHARD + row, SYNTHETIC)
        if scene is None:
            continue
        for k in range(out.shape[2]):
            for thing in scene.things:
                cover = torch.from_numpy(object_mask(thing, max(4 * k - 2, 0), side, side))
                out[row, 0, k] = torch.maximum(out[row, 0, k], cover)
    return out


def load(folder: Path, shards: range) -> list[dict[str, Any]]:
    """Read shards, waiting for those that another process is still encoding."""
    out = []
    for shard in shards:
        path = folder / "latents" / f"{shard:03d}.pt"
        while not path.is_file():
            time.sleep(2)
        out.append(torch.load(path))
    return out


def join(parts: list[dict[str, Any]]) -> Latents:
    """Shards as one set."""
    tensors = {k: torch.cat([p[k] for p in parts]) for k in ("x", "inactive", "reactive", "mask")}
    texts = {k: [t for p in parts for t in p[k]] for k in ("captions", "kinds")}
    return Latents(**tensors, **texts)  # type: ignore[arg-type]
