"""A start for the autoencoder that already works: a linear transform fitted to data, written into its layers.

Trained from diffusers' own initialisation the small autoencoder spends its whole budget on learning to average. Here
the second convolution of every residual block starts at zero, so that each block is its shortcut; the downsampling
convolutions hold principal components of the patches they see, the upsampling ones a least-squares fit to the
encoder's own features. RMS norm and SiLU before the last convolutions are passed linearly: a large constant channel
fixes the norm, and silu(x) − silu(−x) = x undoes the other. Only images (first frames) are fitted; in time the layers
start as averages and repeats.
"""

from __future__ import annotations

from typing import cast

import torch
import torch.nn.functional as F
from diffusers import AutoencoderKLWan
from diffusers.models.autoencoders.autoencoder_kl_wan import WanAttentionBlock, WanResample, WanResidualBlock
from torch import Tensor, nn

_CONSTANT = 8.0
_NOISE = 0.02


def _quiet(conv: nn.Conv2d | nn.Conv3d) -> None:
    nn.init.normal_(conv.weight, std=_NOISE / (conv.weight[0].numel() ** 0.5))
    if conv.bias is not None:
        nn.init.zeros_(conv.bias)


def _pass_through(conv: nn.Conv3d) -> None:
    """Make a stride-1 causal convolution copy its channels (the current frame, the centre tap)."""
    _quiet(conv)
    kt, kh, kw = conv.kernel_size
    for i in range(min(conv.in_channels, conv.out_channels)):
        conv.weight[i, i, kt - 1, kh // 2, kw // 2] = 1.0


def _principal(x: Tensor, count: int) -> Tensor:
    """Top components of 2×2 patches of x (N, C, H, W): weights (count, C, 2, 2)."""
    patches = F.unfold(x, 2, stride=2).transpose(1, 2).reshape(-1, x.shape[1] * 4).double()
    # Uncentred: a mean cannot be subtracted without moving zero padding away from the picture's middle grey.
    _, vectors = torch.linalg.eigh(patches.T @ patches / len(patches))
    return vectors.flip(1)[:, :count].T.float().reshape(-1, x.shape[1], 2, 2)


def _least_squares(x: Tensor, target: Tensor) -> Tensor:
    """3×3 weights (O, C, 3, 3) that best map nearest-upsampled x to target (N, O, 2H, 2W)."""
    up = F.interpolate(x, scale_factor=2, mode="nearest-exact")
    size = up.shape[1] * 9
    xx = torch.zeros(size, size, dtype=torch.float64)
    xy = torch.zeros(size, target.shape[1], dtype=torch.float64)
    for a, b in zip(up.split(8), target.split(8), strict=True):
        rows = F.unfold(a, 3, padding=1).transpose(1, 2).reshape(-1, size).double()
        xx += rows.T @ rows
        xy += rows.T @ b.flatten(2).transpose(1, 2).reshape(-1, b.shape[1]).double()
    ridge = 1e-5 * xx.diagonal().mean() * torch.eye(size, dtype=torch.float64)
    return torch.linalg.solve(xx + ridge, xy).T.float().reshape(-1, up.shape[1], 3, 3)


def _signed(conv: nn.Conv2d, weights: Tensor, used: int) -> None:
    """Write ±weights into the first 2·len(weights) outputs and the constant into channel `used`."""
    _quiet(conv)
    n = len(weights)
    conv.weight[:n, : weights.shape[1], : weights.shape[2], : weights.shape[3]] = weights
    conv.weight[n : 2 * n, : weights.shape[1], : weights.shape[2], : weights.shape[3]] = -weights
    conv.weight[used] = 0.0
    assert conv.bias is not None
    conv.bias[used] = _CONSTANT


def _read_signed(norm: nn.Module, conv: nn.Conv3d, pairs: int, outputs: int, used: int) -> None:
    """Undo norm and SiLU: output i of `conv` is signed channel i."""
    gamma, scale = cast("Tensor", norm.gamma), cast("float", norm.scale)
    gamma.fill_(0.1)
    gamma[: 2 * pairs] = _CONSTANT / scale
    gamma[used] = 0.1
    _quiet(conv)
    for i in range(outputs):
        conv.weight[i, i, -1, 1, 1] = 1.0
        conv.weight[i, pairs + i, -1, 1, 1] = -1.0


@torch.no_grad()
def linear_start(vae: AutoencoderKLWan, images: Tensor) -> None:
    """Initialise `vae` in place from images (N, 3, H, W) in −1..1. Uses torch's current random state for noise."""
    for module in vae.modules():
        if isinstance(module, WanResidualBlock):
            nn.init.zeros_(module.conv2.weight)
            nn.init.zeros_(module.conv2.bias)
            if isinstance(module.conv_shortcut, nn.Conv3d):
                _pass_through(module.conv_shortcut)
        elif isinstance(module, WanAttentionBlock):
            nn.init.zeros_(module.proj.weight)
            nn.init.zeros_(module.proj.bias)
    encoder, decoder = vae.encoder, vae.decoder
    features = [images]
    _pass_through(encoder.conv_in)
    x = F.pad(images, (0, 0, 0, 0, 0, encoder.conv_in.out_channels - 3))
    downs = [m for m in encoder.down_blocks if isinstance(m, WanResample)]
    last = downs[-1].resample[1].out_channels - 1
    pairs = last // 2
    for down in downs:
        conv = down.resample[1]
        x = F.pad(x, (0, 0, 0, 0, 0, conv.in_channels - x.shape[1]))
        weights = _principal(x, pairs if down is downs[-1] else conv.out_channels)
        if down is downs[-1]:
            _signed(conv, weights, last)
        else:
            _quiet(conv)
            conv.weight[:, :, :2, :2] = weights
        x = F.conv2d(x, weights, stride=2)
        features.append(x)
        if hasattr(down, "time_conv"):
            _quiet(down.time_conv)
            for i in range(down.dim):
                down.time_conv.weight[i, i, 1:, 0, 0] = 0.5
    _read_signed(encoder.norm_out, encoder.conv_out, pairs, vae.config.z_dim, last)
    _pass_through(vae.quant_conv)
    vae.quant_conv.weight[vae.config.z_dim :] = 0.0
    vae.quant_conv.bias[vae.config.z_dim :] = -10.0
    _pass_through(vae.post_quant_conv)

    _pass_through(decoder.conv_in)
    x = x[:, : vae.config.z_dim]
    ups = [b.upsamplers[0] for b in decoder.up_blocks if b.upsamplers is not None]
    for up, target in zip(ups, features[-2::-1], strict=True):
        conv = up.resample[1]
        weights = _least_squares(x, target[:, : conv.out_channels])
        if up is ups[-1]:
            _signed(conv, weights, 6)
        else:
            _quiet(conv)
            conv.weight[: len(weights), : x.shape[1]] = weights
        x = F.conv2d(F.interpolate(x, scale_factor=2, mode="nearest-exact"), weights, padding=1)
        if hasattr(up, "time_conv"):
            _quiet(up.time_conv)
            for i in range(up.dim):
                up.time_conv.weight[i, i, -1, 0, 0] = 1.0
                up.time_conv.weight[up.dim + i, i, -1, 0, 0] = 1.0
    _read_signed(decoder.norm_out, decoder.conv_out, 3, 3, 6)
