"""Stage `text`: teach the small text encoder which colour belongs to which thing.

The transformer's cross-attention sees no order of words: that "red circle on blue background" is not "blue circle on
red background" has to be in the token states already. Linear heads, thrown away afterwards, ask every colour word for
its owner, every shape for its colour, and every token for itself.
"""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from transformers import UMT5EncoderModel

from recipes.mini.common import Progress, cosine, step_rng
from recipes.mini.data import real_captions
from recipes.mini.scenes import random_scene
from refkv_policy.mini.architecture import MAX_SEQUENCE_LENGTH, TEXT_DIM, build_tokenizer, text_encoder_config
from refkv_policy.mini.vocabulary import COLOURS, SHAPES, WORDS

STAGE = 2
STEPS = 800
BATCH = 64
PEAK_RATE = 2e-3
IGNORE = -100


def _targets(words: list[str], facts: dict[str, str]) -> tuple[list[int], list[int]]:
    """For each word: index of its colour (shapes and `background`), index of its owner (colours)."""
    names, owners = list(COLOURS), [*SHAPES, "background"]
    colour, owner = [], []
    for i, word in enumerate(words):
        colour.append(names.index(facts[word]) if word in facts else IGNORE)
        after = words[i + 1] if i + 1 < len(words) else ""
        owner.append(owners.index(after) if word in COLOURS and after in owners else IGNORE)
    return colour, owner


def _batch(rng: np.random.Generator, real: list[str]) -> tuple[list[str], list[dict[str, str]]]:
    """Captions: three quarters synthetic, with the facts each states; the rest real ones or shuffled known words."""
    captions, facts = [], []
    for _ in range(BATCH):
        kind = rng.random()
        if kind < 0.75:
            scene = random_scene(rng)
            shapes = [thing.shape for thing in scene.things]
            stated = {t.shape: t.colour for t in scene.things if shapes.count(t.shape) == 1}
            captions.append(scene.caption)
            facts.append({**stated, "background": scene.background})
        else:
            words = [w for w in WORDS if w not in COLOURS and w not in SHAPES]
            few = rng.choice(words, int(rng.integers(1, 9)))
            captions.append(str(rng.choice(real)) if kind < 0.88 else " ".join(few))
            facts.append({})
    return captions, facts


def train(folder: Path, seed: int = 0, steps: int = STEPS) -> UMT5EncoderModel:
    """Train and write `folder/text_encoder` and `folder/tokenizer`. A minute or two: there is no resuming."""
    torch.manual_seed(seed + STAGE)
    tokenizer = build_tokenizer()
    model = UMT5EncoderModel(text_encoder_config())
    heads = nn.ModuleList([nn.Linear(TEXT_DIM, n) for n in (len(COLOURS), len(SHAPES) + 1, len(tokenizer))])
    parameters = [*model.parameters(), *heads.parameters()]
    optimizer = torch.optim.AdamW(parameters, lr=PEAK_RATE, betas=(0.9, 0.98), weight_decay=0.01)
    progress = Progress("text", 0, steps, every=200)
    real = real_captions()
    for step in range(steps):
        for group in optimizer.param_groups:
            group["lr"] = cosine(step, steps, PEAK_RATE, warmup=100)
        captions, facts = _batch(step_rng(seed, STAGE, step), real)
        tokens = tokenizer(
            captions, padding="max_length", max_length=MAX_SEQUENCE_LENGTH, truncation=True, return_tensors="pt"
        )
        pairs = [
            _targets(tokenizer.convert_ids_to_tokens(row), fact)
            for row, fact in zip(tokens.input_ids.tolist(), facts, strict=True)
        ]
        targets = [torch.tensor([p[i] for p in pairs]) for i in range(2)]
        targets.append(tokens.input_ids.masked_fill(tokens.attention_mask == 0, IGNORE))
        states = model(tokens.input_ids, tokens.attention_mask).last_hidden_state
        losses: list[Tensor] = [
            F.cross_entropy(head(states).flatten(0, 1), target.flatten(), ignore_index=IGNORE)
            for head, target in zip(heads, targets, strict=True)
        ]
        loss = torch.stack(losses).sum()
        optimizer.zero_grad(set_to_none=True)
        loss.backward()
        nn.utils.clip_grad_norm_(parameters, 1.0)
        optimizer.step()
        progress.update(step, float(loss.detach()), " ".join(f"{float(part.detach()):.3f}" for part in losses))
    model.eval().save_pretrained(folder / "text_encoder")
    tokenizer.save_pretrained(folder / "tokenizer")
    (folder / "text-curve.json").write_text(json.dumps(progress.curve) + "\n")
    return model


@torch.no_grad()
def embed(model: UMT5EncoderModel, captions: list[str]) -> Tensor:
    """Token states as `WanVACEPipeline` hands them over, padding zeroed: float32 (captions, 32, width)."""
    tokens = build_tokenizer()(
        captions, padding="max_length", max_length=MAX_SEQUENCE_LENGTH, truncation=True, return_tensors="pt"
    )
    states = model(tokens.input_ids, tokens.attention_mask).last_hidden_state
    return states * tokens.attention_mask[..., None]
