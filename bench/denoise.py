"""A denoising loop without text encoder and VAE: what the benchmarks of the denoiser share."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import torch
from diffusers import UniPCMultistepScheduler, WanVACEPipeline, WanVACETransformer3DModel
from torch import Tensor

from refkv_policy.profiles import Profile

SHIFT, GUIDANCE = 3.0, 5.0
BRANCHES = ("cond", "uncond")


def transformer(profile: Profile, dtype: torch.dtype, device: str) -> WanVACETransformer3DModel:
    """A model of a profile's shape with seeded random weights."""
    torch.manual_seed(0)
    with torch.device(device):
        model = WanVACETransformer3DModel(
            patch_size=profile.patch,
            num_attention_heads=profile.heads,
            attention_head_dim=profile.head_dim,
            in_channels=profile.in_channels,
            out_channels=profile.out_channels,
            text_dim=profile.text_dim,
            freq_dim=profile.freq_dim,
            ffn_dim=profile.ffn_dim,
            num_layers=profile.main_blocks,
            cross_attn_norm=True,
            vace_layers=list(profile.vace_at),
            vace_in_channels=profile.vace_in_channels,
        )
    for name, value in model.named_parameters():  # as `from_pretrained` does
        kept = any(part in name.split(".") for part in model._keep_in_fp32_modules)
        value.data = value.data.to(torch.float32 if kept else dtype)
    return model.eval().requires_grad_(False)


def twin(model: WanVACETransformer3DModel) -> WanVACETransformer3DModel:
    """Another instance on the same weights, for a session of its own."""
    with torch.device("meta"):
        other = type(model)(**{k: v for k, v in model.config.items() if not k.startswith("_")})
    other.load_state_dict(model.state_dict(), assign=True)
    for name, buffer in model.named_buffers():
        owner, _, leaf = name.rpartition(".")
        setattr(other.get_submodule(owner), leaf, buffer)
    return other.eval().requires_grad_(False)


def pipeline(model: WanVACETransformer3DModel) -> WanVACEPipeline:
    """A pipeline that holds the transformer and a scheduler, and nothing that the loop does not need."""
    scheduler = UniPCMultistepScheduler(use_flow_sigmas=True, prediction_type="flow_prediction", flow_shift=SHIFT)
    pipe = WanVACEPipeline(tokenizer=None, text_encoder=None, vae=None, scheduler=scheduler, transformer=model)
    pipe.set_progress_bar_config(disable=True)
    pipe._guidance_scale = GUIDANCE
    return pipe


@dataclass(frozen=True)
class Conditions:
    """What the denoiser is given: latents (1, 16, T, H, W), control (1, 96, T, H, W), text of each branch (1, L, D)."""

    latents: Tensor
    control: Tensor
    text: dict[str, Tensor]


def conditions(profile: Profile, size: tuple[int, int], frames: int, dtype: torch.dtype, device: str) -> Conditions:
    """Seeded random ones for a video of `size` (width, height) pixels."""
    temporal, spatial = profile.vae_scale
    sides = (1 + (frames - 1) // temporal, size[1] // spatial, size[0] // spatial)
    noise = torch.Generator("cpu").manual_seed(0)

    def draw(*shape: int) -> Tensor:
        return torch.randn(shape, generator=noise).to(device, dtype)

    return Conditions(
        latents=draw(1, profile.in_channels, *sides),
        control=draw(1, profile.vace_in_channels, *sides),
        text={branch: draw(1, profile.text_tokens, profile.text_dim) for branch in BRANCHES},
    )


@torch.no_grad()
def denoise(
    pipe: WanVACEPipeline, given: Conditions, steps: int, after_call: Callable[[], Any] = lambda: None
) -> Iterator[None]:
    """The pipeline's own denoising loop; yields after each step, so that several can be run in turn."""
    model, scheduler, latents = pipe.transformer, pipe.scheduler, given.latents.float()
    scale = torch.ones(len(model.config.vace_layers), dtype=given.control.dtype, device=given.control.device)
    scheduler.set_timesteps(steps, device=latents.device)
    with pipe.progress_bar(total=steps):
        for t in scheduler.timesteps:
            predicted = {}
            for branch, text in given.text.items():
                with model.cache_context(branch):
                    predicted[branch] = model(
                        hidden_states=latents.to(given.control.dtype),
                        timestep=t.expand(1),
                        encoder_hidden_states=text,
                        control_hidden_states=given.control,
                        control_hidden_states_scale=scale,
                        return_dict=False,
                    )[0]
                after_call()
            guided = predicted["uncond"] + GUIDANCE * (predicted["cond"] - predicted["uncond"])
            latents = scheduler.step(guided, t, latents, return_dict=False)[0]
            yield
