"""Stage `vae`: train the autoencoder and set its latent statistics.

Images (single frames) three steps of four, later one of two, five-frame clips on the others: full-resolution
convolutions are what costs, and on a single first frame the causal 3×3×3 one is a 3×3 one over its last slice.
"""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from unittest import mock

import numpy as np
import torch
import torch.nn.functional as F
from diffusers import AutoencoderKLWan
from diffusers.models.autoencoders import autoencoder_kl_wan as wan
from torch import Tensor

from recipes.mini.common import Average, Progress, cosine, save_checkpoint, step_rng, step_torch, to_tensor
from recipes.mini.data import held_out_real, training_clip
from recipes.mini.vae_init import linear_start
from refkv_policy.mini.architecture import VAE

STAGE = 1
STEPS = 3100
LATE = 2500  # from here on every second step is a clip: motion is what is still coded worst
PEAK_RATE = 1.0e-3
POOL = 1100
POOL_SIDE = 96
SYNTHETIC = 0.3
CROP = 64
IMAGES, CLIPS, CLIP_FRAMES = 8, 2, 5
LATENT_NOISE = 0.05
DECODER_STAGE = 11
DECODER_STEPS = 3000
DECODER_RATE = 5e-4
DECODER_NOISE = 0.03
KL_LIKE = 1e-4


class _Normalize(torch.autograd.Function):
    """RMS norm over channels with a written-out gradient: a third of the memory traffic of the composed one."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, gain: Tensor) -> Tensor:
        inverse = torch.linalg.vector_norm(x, dim=1, keepdim=True).clamp_min_(1e-6).reciprocal_()
        unit = x * inverse
        ctx.save_for_backward(unit, inverse, gain)
        return unit * gain

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, Tensor]:
        unit, inverse, gain = ctx.saved_tensors
        product = grad * unit
        other = [d for d in range(grad.dim()) if d != 1]
        grad_gain = product.sum(other).reshape(gain.shape)
        along = product.mul_(gain).sum(1, keepdim=True)
        return (grad * gain).addcmul_(unit, along, value=-1.0).mul_(inverse), grad_gain


@contextmanager
def fast_training() -> Iterator[None]:
    """Within it, two of the autoencoder's layers run in a cheaper form with equal results (to rounding)."""
    original = wan.WanCausalConv3d.forward

    def convolve(self: wan.WanCausalConv3d, x: Tensor, cache_x: Tensor | None = None) -> Tensor:
        if x.shape[2] == 1 and cache_x is None and self.stride[0] == 1:
            pad = (self._padding[2], self._padding[0])
            return F.conv2d(x[:, :, 0], self.weight[:, :, -1], self.bias, padding=pad)[:, :, None]
        return original(self, x, cache_x)

    def normalize(self: wan.WanRMS_norm, x: Tensor) -> Tensor:
        return _Normalize.apply(x, self.gamma * self.scale)

    with (
        mock.patch.object(wan.WanCausalConv3d, "forward", convolve),
        mock.patch.object(wan.WanRMS_norm, "forward", normalize),
    ):
        yield


def encode_mean(vae: AutoencoderKLWan, x: Tensor) -> Tensor:
    """Mode of the posterior, with gradients: (B, 3, 1 + 4n, H, W) to (B, 16, 1 + n, H/8, W/8)."""
    return vae._encode(x)[:, : vae.config.z_dim]


def decode_open(vae: AutoencoderKLWan, z: Tensor) -> Tensor:
    """`vae.decode` without its final clamp, whose gradient is zero exactly where training has to push."""
    vae.clear_cache()
    x = vae.post_quant_conv(z)
    out = []
    for i in range(z.shape[2]):
        vae._conv_idx = [0]
        frame = x[:, :, i : i + 1]
        out.append(vae.decoder(frame, feat_cache=vae._feat_map, feat_idx=vae._conv_idx, first_chunk=i == 0))
    vae.clear_cache()
    return torch.cat(out, dim=2)


@torch.no_grad()
def psnr(vae: AutoencoderKLWan, clip: np.ndarray) -> float:
    """Peak signal-to-noise ratio in dB of uint8 (T, H, W, 3) through the model's own encode and decode, 8-bit."""
    x = to_tensor(clip)[None]
    out = vae.decode(vae.encode(x).latent_dist.mode()).sample
    out = ((out + 1) * 127.5).round().clamp(0, 255)
    return float(10 * torch.log10(255.0**2 / (out - (x + 1) * 127.5).square().mean()))


def _pool(seed: int, count: int) -> list[np.ndarray]:
    began = time.monotonic()
    pool = [training_clip(seed * 1_000_000 + i, 9, POOL_SIDE, SYNTHETIC).frames for i in range(count)]
    print(f"vae: {count} clips in {time.monotonic() - began:.0f} s", flush=True)
    return pool


def _batch(pool: list[np.ndarray], rng: np.random.Generator, step: int) -> Tensor:
    count, frames = (CLIPS, CLIP_FRAMES) if step % 4 == 3 or (step >= LATE and step % 2) else (IMAGES, 1)
    out = []
    for _ in range(count):
        clip = pool[int(rng.integers(len(pool)))]
        t = int(rng.integers(0, len(clip) - frames + 1))
        y, x = (int(rng.integers(0, POOL_SIDE - CROP + 1)) for _ in range(2))
        out.append(clip[t : t + frames, y : y + CROP, x : x + CROP])
    return to_tensor(np.stack(out))


@torch.no_grad()
def set_statistics(vae: AutoencoderKLWan, pool: list[np.ndarray], count: int = 48) -> None:
    """Per-channel mean and deviation of the latents of whole training clips, into the configuration."""
    z = torch.cat([encode_mean(vae, to_tensor(clip)[None]) for clip in pool[:count]])
    mean = [round(v, 4) for v in z.mean((0, 2, 3, 4)).tolist()]
    std = [round(v, 4) for v in z.std((0, 2, 3, 4)).tolist()]
    vae.register_to_config(latents_mean=mean, latents_std=std)


def train_decoder(folder: Path, seed: int = 0, resume: bool = False, steps: int = DECODER_STEPS) -> None:
    """Train the decoder on, for the encoder as it is, and write `folder/vae-decoder`.

    Latents do not change, so this may run while a transformer trains on them. Four steps of five see clips.
    """
    torch.manual_seed(seed)
    pool = _pool(seed + 7, POOL)
    vae = AutoencoderKLWan.from_pretrained(folder / "vae")
    vae.encoder.requires_grad_(False)
    vae.quant_conv.requires_grad_(False)
    parameters = [p for p in vae.parameters() if p.requires_grad]
    optimizer = torch.optim.AdamW(parameters, lr=DECODER_RATE, betas=(0.9, 0.98), weight_decay=0.0)
    average = Average(parameters, decay=0.998)
    checkpoint, first = folder / "decoder.pt", 0
    if resume and checkpoint.is_file():
        state = torch.load(checkpoint)
        vae.load_state_dict(state["model"])
        optimizer.load_state_dict(state["optimizer"])
        average.values, average.updates, first = state["average"], state["updates"], state["step"]
    test = held_out_real()
    progress = Progress("decoder", first, steps)
    with fast_training():
        for step in range(first, steps):
            for group in optimizer.param_groups:
                group["lr"] = cosine(step, steps, DECODER_RATE, warmup=50)
            x = _batch(pool, step_rng(seed, DECODER_STAGE, step), LATE + 1 if step % 5 else 0)
            with torch.no_grad():
                z = encode_mean(vae, x)
            scale = z.std((0, 2, 3, 4), keepdim=True)
            noise = torch.randn(z.shape, generator=step_torch(seed, DECODER_STAGE, step))
            out = decode_open(vae, z + DECODER_NOISE * scale * noise)
            squared = (out - x).square().mean()
            optimizer.zero_grad(set_to_none=True)
            (squared + 0.05 * (out - x).abs().mean()).backward()
            torch.nn.utils.clip_grad_norm_(parameters, 0.5)
            optimizer.step()
            average.update()
            note = ""
            if (step + 1) % 500 == 0 or step + 1 == steps:
                average.swap()
                note = "held-out PSNR " + " ".join(f"{psnr(vae, clip.frames):.1f}" for clip in test)
                vae.save_pretrained(folder / "vae-decoder")
                average.swap()
                state = {"model": vae.state_dict(), "optimizer": optimizer.state_dict(), "average": average.values}
                save_checkpoint(checkpoint, {**state, "updates": average.updates, "step": step + 1})
            progress.update(step, float(squared.detach()), note)
    (folder / "decoder-curve.json").write_text(json.dumps(progress.curve) + "\n")


def train(folder: Path, seed: int = 0, resume: bool = False, steps: int = STEPS) -> AutoencoderKLWan:
    """Train and write `folder/vae`. Checkpoints every 500 steps; `resume` continues from the last one."""
    torch.manual_seed(seed)
    pool = _pool(seed, POOL)
    vae = AutoencoderKLWan(**VAE)
    linear_start(vae, to_tensor(np.stack([clip[:1] for clip in pool[:160]]))[:, :, 0])
    parameters = list(vae.parameters())
    optimizer = torch.optim.AdamW(parameters, lr=PEAK_RATE, betas=(0.9, 0.98), weight_decay=0.0)
    average = Average(parameters, decay=0.998)
    checkpoint, first = folder / "vae.pt", 0
    if resume and checkpoint.is_file():
        state = torch.load(checkpoint)
        vae.load_state_dict(state["model"])
        optimizer.load_state_dict(state["optimizer"])
        average.values, average.updates, first = state["average"], state["updates"], state["step"]
    test = held_out_real()
    progress = Progress("vae", first, steps)
    with fast_training():
        for step in range(first, steps):
            for group in optimizer.param_groups:
                group["lr"] = cosine(step, steps, PEAK_RATE, warmup=100)
            x = _batch(pool, step_rng(seed, STAGE, step), step)
            z = encode_mean(vae, x)
            scale = z.detach().std((0, 2, 3, 4), keepdim=True)
            noise = torch.randn(z.shape, generator=step_torch(seed, STAGE, step))
            out = decode_open(vae, z + LATENT_NOISE * scale * noise)
            squared = (out - x).square().mean()
            loss = squared + 0.05 * (out - x).abs().mean() + KL_LIKE * z.square().mean()
            optimizer.zero_grad(set_to_none=True)
            loss.backward()
            torch.nn.utils.clip_grad_norm_(parameters, 0.5)
            optimizer.step()
            average.update()
            note = ""
            if (step + 1) % 500 == 0 or step + 1 == steps:
                average.swap()
                note = "held-out PSNR " + " ".join(f"{psnr(vae, clip.frames):.1f}" for clip in test)
                average.swap()
                state = {"model": vae.state_dict(), "optimizer": optimizer.state_dict(), "average": average.values}
                save_checkpoint(checkpoint, {**state, "updates": average.updates, "step": step + 1})
            progress.update(step, float(squared.detach()), note)
    average.swap()
    set_statistics(vae, pool)
    vae.save_pretrained(folder / "vae")
    (folder / "vae-curve.json").write_text(json.dumps(progress.curve) + "\n")
    return vae.eval()
