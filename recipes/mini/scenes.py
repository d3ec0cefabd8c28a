"""Synthetic clips: coloured shapes moving over a coloured background, with captions that name every colour.

The caption decides hue, the brightness pattern is drawn at random: a model that sees the grey clip and the caption
has everything it needs, and cannot guess a colour from brightness alone.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from refkv_policy.mini.vocabulary import COLOURS, HELD_OUT_PAIRS, SHAPES

LUMA = np.array([0.299, 0.587, 0.114], dtype=np.float32)  # Rec. 601, as in PIL's "L"
_DIRECTIONS = ("left", "right", "up", "down", "still")


@dataclass(frozen=True)
class Thing:
    """One moving object. `at` and `speed` (a frame) in units of the clip's side, `size` its radius in the same."""

    shape: str
    colour: str
    luma: float
    at: tuple[float, float]
    speed: tuple[float, float]
    size: float
    spin: float


@dataclass(frozen=True)
class Scene:
    """What a synthetic clip shows; `texture` is the seed and kind of the background's brightness pattern."""

    things: tuple[Thing, ...]
    background: str
    background_luma: float
    texture: tuple[str, int]
    caption: str


def tone(colour: str, luma: np.ndarray | float) -> np.ndarray:
    """The palette colour brought to a Rec. 601 luma in 0..1, towards white or black, hue kept: float32 (…, 3)."""
    base = np.asarray(COLOURS[colour], dtype=np.float32) / 255.0
    own = float(base @ LUMA)
    y = np.asarray(luma, dtype=np.float32)[..., None]
    lighter = base + (1.0 - base) * np.clip((y - own) / (1.0 - own), 0.0, 1.0)
    darker = base * np.clip(y / own, 0.0, 1.0)
    return np.where(y > own, lighter, darker)


def _mask(shape: str, x: np.ndarray, y: np.ndarray, soft: float) -> np.ndarray:
    """Coverage 0..1 of a unit shape at points x, y (in radii, y downwards); `soft` is the edge's width in radii."""
    r, angle = np.hypot(x, y), np.arctan2(x, -y)
    if shape == "circle":
        distance = r - 0.9
    elif shape == "square":
        distance = np.maximum(abs(x), abs(y)) - 0.8
    elif shape == "diamond":
        distance = (abs(x) * 1.3 + abs(y)) / 1.5 - 0.66
    elif shape == "triangle":
        distance = np.maximum(y - 0.65, abs(x) * 0.87 - (y + 0.95) * 0.5)
    elif shape == "ring":
        distance = abs(r - 0.68) - 0.27
    elif shape == "cross":
        a, b = np.minimum(abs(x), abs(y)), np.maximum(abs(x), abs(y))
        distance = np.maximum(a - 0.3, b - 0.95)
    elif shape == "star":
        fold = abs((angle + np.pi / 5) % (2 * np.pi / 5) - np.pi / 5)
        distance = r * np.cos(fold) + 0.72 * r * np.sin(fold) * 1.9 - 0.98 + 0.0 * r
    elif shape == "heart":
        u, v = abs(x) * 1.05, -y * 1.05 + 0.2
        distance = (u * u + v * v - 0.72 * np.sqrt(u + 1e-6) * 1.2 * v - 0.5) * 0.6
    else:
        raise ValueError(f"no shape called {shape!r}: choose from {', '.join(SHAPES)}")
    return np.clip(0.5 - distance / soft, 0.0, 1.0).astype(np.float32)


def object_mask(thing: Thing, frame: int, height: int, width: int) -> np.ndarray:
    """Coverage of the object at a frame: float32 (height, width) in 0..1."""
    side = min(height, width)
    yy, xx = np.mgrid[0:height, 0:width].astype(np.float32) + 0.5
    cx = (thing.at[0] + thing.speed[0] * frame) * width
    cy = (thing.at[1] + thing.speed[1] * frame) * height
    dx, dy = (xx - cx) / (thing.size * side), (yy - cy) / (thing.size * side)
    c, s = np.cos(thing.spin * frame), np.sin(thing.spin * frame)
    return _mask(thing.shape, c * dx + s * dy, -s * dx + c * dy, soft=1.4 / (thing.size * side))


def _pattern(kind: str, seed: int, frame: int, height: int, width: int) -> np.ndarray:
    """Background brightness offset in about ±1, float32 (height, width)."""
    rng = np.random.default_rng(seed)
    yy, xx = np.mgrid[0:height, 0:width].astype(np.float32)
    xx, yy = xx / width, yy / height
    if kind == "plain":
        return np.zeros((height, width), dtype=np.float32)
    if kind == "gradient":
        a = rng.uniform(0, 2 * np.pi)
        return (((xx - 0.5) * np.cos(a) + (yy - 0.5) * np.sin(a)) * 1.6).astype(np.float32)
    drift = rng.uniform(-0.01, 0.01) * frame
    total = np.zeros((height, width), dtype=np.float32)
    for _ in range(4):
        f, a, phase = rng.uniform(1, 5), rng.uniform(0, 2 * np.pi), rng.uniform(0, 2 * np.pi)
        total += np.sin(2 * np.pi * f * ((xx + drift) * np.cos(a) + yy * np.sin(a)) + phase).astype(np.float32)
    return np.sign(total) * 0.5 if kind == "patches" else total * 0.4


def render(scene: Scene, frames: int, height: int, width: int) -> np.ndarray:
    """The clip: uint8 (frames, height, width, 3)."""
    out = np.empty((frames, height, width, 3), dtype=np.uint8)
    for t in range(frames):
        offset = _pattern(*scene.texture, t, height, width) * 0.18
        picture = tone(scene.background, np.clip(scene.background_luma + offset, 0.06, 0.92))
        for thing in scene.things:
            cover = object_mask(thing, t, height, width)[..., None]
            shade = np.clip(thing.luma + 0.08 * (0.5 - np.linspace(0, 1, height, dtype=np.float32)), 0.08, 0.9)
            colour = np.broadcast_to(tone(thing.colour, shade)[:, None, :], picture.shape)
            picture = picture * (1 - cover) + colour * cover
        out[t] = np.clip(picture * 255.0 + 0.5, 0, 255).astype(np.uint8)
    return out


def _luma(rng: np.random.Generator, colour: str) -> float:
    """Half the time the palette's own brightness, else anything at which its hue can still be seen."""
    if rng.random() < 0.5:
        base = np.asarray(COLOURS[colour], dtype=np.float32) / 255.0
        return float(base @ LUMA)
    return float(rng.uniform(0.22, 0.78))


def _caption(rng: np.random.Generator, things: list[tuple[str, str, str]], background: str) -> str:
    parts = [f"a {colour} {shape}" + (f" moving {way}" if way else "") for shape, colour, way in things]
    ground = f"{background} background"
    form = int(rng.integers(0, 5))
    if form == 0:
        return f"shapes, {ground}, " + ", ".join(p[2:] for p in parts)
    if form == 1:
        return f"{ground} with " + " and ".join(parts)
    article = "" if form == 2 else "a "
    return " and ".join(p if article else p[2:] for p in parts) + f" on {article}{ground}"


def random_scene(rng: np.random.Generator, pair: tuple[str, str] | None = None) -> Scene:
    """A scene drawn from `rng`. Without `pair` it never shows a held-out (shape, colour); with it, only that object."""
    names = list(COLOURS)
    background = str(rng.choice(names))
    count = 1 if pair else int(rng.choice([1, 2], p=[0.65, 0.35]))
    if pair and background == pair[1]:
        background = str(rng.choice([n for n in names if n != pair[1]]))
    background_luma = _luma(rng, background)
    chosen: list[Thing] = []
    described: list[tuple[str, str, str]] = []
    while len(chosen) < count:
        shape, colour = pair or (str(rng.choice(SHAPES)), str(rng.choice(names)))
        if pair is None and ((shape, colour) in HELD_OUT_PAIRS or colour == background):
            continue
        luma = _luma(rng, colour)
        if abs(luma - background_luma) < 0.1:
            luma = background_luma + (0.2 if background_luma < 0.5 else -0.2)
        way = str(rng.choice(_DIRECTIONS))
        speed = float(rng.uniform(0.006, 0.02))
        step = {"left": (-1, 0), "right": (1, 0), "up": (0, -1), "down": (0, 1), "still": (0, 0)}[way]
        slot = 0.5 if count == 1 else (0.28, 0.72)[len(chosen)]
        middle = (slot + float(rng.uniform(-0.1, 0.1)), float(rng.uniform(0.35, 0.65)))
        at = (middle[0] - step[0] * speed * 8, middle[1] - step[1] * speed * 8)
        size = float(rng.uniform(0.2, 0.36)) * (1.0 if count == 1 else 0.75)
        spin = float(rng.choice([0.0, rng.uniform(-0.08, 0.08)]))
        chosen.append(Thing(shape, colour, luma, at, (step[0] * speed, step[1] * speed), size, spin))
        described.append((shape, colour, way if way != "still" and rng.random() < 0.5 else ""))
    texture = (str(rng.choice(["plain", "gradient", "waves", "patches"])), int(rng.integers(0, 2**31)))
    return Scene(tuple(chosen), background, background_luma, texture, _caption(rng, described, background))
