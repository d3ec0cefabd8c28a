"""Stage `transformer`: flow matching on encoded clips, with VACE control.

x_t = (1 − σ) x₀ + σ ε, the model predicts ε − x₀ (what `UniPCMultistepScheduler` calls flow prediction), σ logit-normal
and then shifted as the scheduler shifts its own. In float32: at this size bfloat16 was measured to be slower on a CPU.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import torch
from diffusers import WanVACETransformer3DModel
from torch import Tensor
from transformers import UMT5EncoderModel

from recipes.mini import latents as store
from recipes.mini.common import Average, Progress, cosine, save_checkpoint, step_torch
from recipes.mini.train_text import embed
from refkv_policy.mini.architecture import FLOW_SHIFT, TRANSFORMER

STAGE = 3
STEPS = 5000
OBJECT_WEIGHT = 4.0  # beside 1 elsewhere: objects are small, and their colour is what a prompt is judged by
BATCH = 8
PEAK_RATE = 1.0e-3
WARMUP = 100
TEXT_DROP = 0.1
SIGMA_MEAN, SIGMA_DEVIATION = 0.2, 1.2
FIRST_SHARDS, STEPS_A_SHARD = 2, 110  # the pool grows while training runs, by step count and so repeatably
SNAPSHOT = 200
RESTART = 0.6  # of the steps: the learning rate has come down once by then, and goes on as if it had not
# What is learnt last is which colour goes where: from these shares of the steps, this many times the scenes, more noise.
FOCUS = ((0.438, 3.0), (0.64, 6.0))
FOCUS_SIGMA_MEAN = 1.0


def sigmas(count: int, generator: torch.Generator, mean: float = SIGMA_MEAN) -> Tensor:
    """Noise levels in 0..1: float32 (count,)."""
    u = torch.sigmoid(mean + SIGMA_DEVIATION * torch.randn(count, generator=generator))
    return FLOW_SHIFT * u / (1 + (FLOW_SHIFT - 1) * u)


def channel_weights(std: Tensor) -> Tensor:
    """Weights of latent channels in the loss, mean 1: the fourth root of variance (shape of `std`).

    Latent channels are normalised to one deviation each, while a picture's colour and brightness sit in the few that
    vary most: equal weights would spend the model on detail, variance weights would leave detail noisy.
    """
    w = std.sqrt()
    return w / w.mean()


def build(seed: int) -> WanVACETransformer3DModel:
    """The transformer at step 0: diffusers' initialisation, hint projections at zero so that no hint is added yet."""
    torch.manual_seed(seed + STAGE)
    model = WanVACETransformer3DModel(**TRANSFORMER)
    for block in model.vace_blocks:
        torch.nn.init.zeros_(block.proj_out.weight)
        torch.nn.init.zeros_(block.proj_out.bias)
    return model


def rate(step: int, steps: int) -> float:
    """Learning rate of a step: one cosine to `RESTART`, then the rest of a cosine over all steps."""
    first = int(RESTART * steps)
    return cosine(step, first if step < first else steps, PEAK_RATE, WARMUP)


def scene_share(step: int, steps: int) -> float:
    """How many times as often as a real clip a synthetic scene is drawn at a step."""
    return max((times for share, times in FOCUS if step >= share * steps), default=1.0)


def shards_at(step: int) -> int:
    """How many latent shards the pool holds at a step."""
    return min(store.SHARDS, FIRST_SHARDS + step // STEPS_A_SHARD)


def save_transformer(model: WanVACETransformer3DModel, average: Average, folder: Path) -> None:
    """Write the averaged weights as diffusers does, float16."""
    average.swap()
    state = {k: v.detach().half() for k, v in model.state_dict().items()}
    half = WanVACETransformer3DModel(**TRANSFORMER).half()
    half.load_state_dict(state)
    half.save_pretrained(folder)
    average.swap()


def train(
    folder: Path,
    text: UMT5EncoderModel,
    std: Tensor,
    seed: int = 0,
    resume: bool = False,
    steps: int = STEPS,
    latents: Path | None = None,
) -> None:
    """Train and write `folder/transformer`; a snapshot of the average every `SNAPSHOT` steps, with a checkpoint.

    `latents` is the folder whose shards are used (default `folder`), `std` the latents' deviation (1, 16, 1, 1, 1).
    """
    source = latents or folder
    model = build(seed)
    for block in [*model.blocks, *model.vace_blocks]:
        block.compile(dynamic=False)
    parameters = list(model.parameters())
    optimizer = torch.optim.AdamW(parameters, lr=PEAK_RATE, betas=(0.9, 0.98), weight_decay=0.01)
    average = Average(parameters, decay=0.998)
    checkpoint, first = folder / "transformer.pt", 0
    if resume and checkpoint.is_file():
        state = torch.load(checkpoint)
        model.load_state_dict(state["model"])
        optimizer.load_state_dict(state["optimizer"])
        average.values, average.updates, first = state["average"], state["updates"], state["step"]
    weights = channel_weights(std)
    empty = embed(text, [""])
    parts: list[dict[str, Any]] = []
    pool: store.Latents | None = None
    states, maps = empty, torch.zeros(1)
    progress = Progress("transformer", first, steps)
    for step in range(first, steps):
        if len(parts) < shards_at(step):
            parts += store.load(source, range(len(parts), shards_at(step)))
            pool = store.join(parts)
            states = torch.cat([embed(text, part["captions"]) for part in parts])
            maps = torch.cat([store.object_maps(shard) for shard in range(len(parts))])
        assert pool is not None
        for group in optimizer.param_groups:
            group["lr"] = rate(step, steps)
        g = step_torch(seed, STAGE, step)
        times = scene_share(step, steps)
        share = 1 + (times - 1) * (maps.flatten(1).amax(1) > 0)
        index = torch.multinomial(share, BATCH, generator=g)
        x0, control = pool.x[index].float(), pool.control(index)
        keep = torch.rand(BATCH, 1, 1, generator=g) >= TEXT_DROP
        words = torch.where(keep, states[index], empty)
        sigma = sigmas(BATCH, g, FOCUS_SIGMA_MEAN if times > 1 else SIGMA_MEAN)
        s, noise = sigma.view(-1, 1, 1, 1, 1), torch.randn(x0.shape, generator=g)
        out = model((1 - s) * x0 + s * noise, sigma * 1000, words, control_hidden_states=control, return_dict=False)
        area = 1 + OBJECT_WEIGHT * maps[index]
        loss = ((out[0].float() - (noise - x0)).square() * weights * (area / area.mean())).mean()
        optimizer.zero_grad(set_to_none=True)
        loss.backward()
        torch.nn.utils.clip_grad_norm_(parameters, 1.0)
        optimizer.step()
        average.update()
        if (step + 1) % SNAPSHOT == 0 or step + 1 == steps:
            state = {"model": model.state_dict(), "optimizer": optimizer.state_dict(), "average": average.values}
            save_checkpoint(checkpoint, {**state, "updates": average.updates, "step": step + 1})
            save_transformer(model, average, folder / "transformer")
        progress.update(step, float(loss.detach()), f"pool {len(pool.captions)}")
    (folder / "transformer-curve.json").write_text(json.dumps(progress.curve) + "\n")
