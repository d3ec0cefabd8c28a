"""What the three training stages share: steps and their random state, averages of weights, checkpoints, progress."""

from __future__ import annotations

import math
import os
import time
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn


def step_rng(seed: int, stage: int, step: int) -> np.random.Generator:
    """Random state of one step: the same whether a run was interrupted before it or not."""
    return np.random.default_rng([seed, stage, step])


def step_torch(seed: int, stage: int, step: int) -> torch.Generator:
    """The same for torch, on the CPU."""
    return torch.Generator().manual_seed(int(step_rng(seed, stage, step).integers(0, 2**62)))


def to_tensor(frames: np.ndarray) -> Tensor:
    """uint8 (…, T, H, W, 3) to float32 (…, 3, T, H, W) in −1..1."""
    return torch.from_numpy(np.ascontiguousarray(frames)).movedim(-1, -4).float() / 127.5 - 1.0


def cosine(step: int, steps: int, peak: float, warmup: int, floor: float = 0.02) -> float:
    """Learning rate: linear warm-up, then a half cosine down to `floor` × peak."""
    if step < warmup:
        return peak * (step + 1) / warmup
    u = min((step - warmup) / max(steps - warmup, 1), 1.0)
    return peak * (floor + (1 - floor) * 0.5 * (1 + math.cos(math.pi * u)))


class Average:
    """Exponential moving average of parameters; its decay warms up so that early weights are soon forgotten."""

    def __init__(self, parameters: Iterable[nn.Parameter], decay: float) -> None:
        self.parameters = list(parameters)
        self.decay = decay
        self.updates = 0
        self.values = [p.detach().clone() for p in self.parameters]

    @torch.no_grad()
    def update(self) -> None:
        """Take the current weights into the average."""
        self.updates += 1
        decay = min(self.decay, (1 + self.updates) / (10 + self.updates))
        torch._foreach_lerp_(self.values, [p.detach() for p in self.parameters], 1 - decay)

    @torch.no_grad()
    def swap(self) -> None:
        """Exchange averaged and current weights; call again to change back."""
        for p, v in zip(self.parameters, self.values, strict=True):
            kept = p.detach().clone()
            p.copy_(v)
            v.copy_(kept)


def save_checkpoint(path: Path, state: dict[str, Any]) -> None:
    """Write beside, then rename: an interrupted write leaves the earlier checkpoint whole."""
    path.parent.mkdir(parents=True, exist_ok=True)
    beside = path.with_suffix(".part")
    torch.save(state, beside)
    os.replace(beside, path)


class Progress:
    """A line of progress with smoothed loss, pace and time left, and the curve that the model card quotes."""

    def __init__(self, name: str, start: int, steps: int, every: int = 50) -> None:
        self.name, self.start, self.steps, self.every = name, start, steps, every
        self.began = time.monotonic()
        self.smooth: float | None = None
        self.curve: list[tuple[int, float]] = []

    def update(self, step: int, loss: float, note: str = "") -> None:
        """Take in the loss of a step just done; print where a line is due."""
        self.smooth = loss if self.smooth is None else 0.98 * self.smooth + 0.02 * loss
        if (step + 1) % self.every and step + 1 != self.steps:
            return
        pace = (time.monotonic() - self.began) / (step + 1 - self.start)
        left = pace * (self.steps - step - 1)
        self.curve.append((step + 1, round(self.smooth, 5)))
        print(
            f"{self.name} {step + 1}/{self.steps}  loss {self.smooth:.4f}  {pace:.2f} s a step  "
            f"{left / 60:.1f} min left  {note}",
            flush=True,
        )
