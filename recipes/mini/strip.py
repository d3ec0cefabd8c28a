"""`python -m recipes.mini.strip --out FILE`: held-out clips, controls and what the model makes, side by side."""

from __future__ import annotations

import argparse
from pathlib import Path

import numpy as np
from diffusers import WanVACEPipeline
from PIL import Image, ImageDraw

from recipes.mini.controls import edges, grey
from recipes.mini.data import Clip, held_out_real, held_out_scenes
from recipes.mini.evaluate import load
from recipes.mini.measure import Request, generate, grey_request, swapped
from refkv_policy.mini import model_path
from refkv_policy.mini.vocabulary import COLOURS

_SHOWN = (2, 8, 14)  # frames of each clip
_LABEL = 14


def _bytes(video: np.ndarray) -> np.ndarray:
    return video if video.dtype == np.uint8 else (video * 255 + 0.5).clip(0, 255).astype(np.uint8)


def row(cells: list[tuple[str, np.ndarray]]) -> Image.Image:
    """One row: each cell a label over three frames of its clip."""
    tiles = []
    for label, video in cells:
        frames = np.concatenate([_bytes(video)[t] for t in _SHOWN], axis=1)
        tile = Image.new("RGB", (frames.shape[1] + 6, frames.shape[0] + _LABEL), "white")
        tile.paste(Image.fromarray(frames), (0, _LABEL))
        ImageDraw.Draw(tile).text((2, 1), label, fill="black")
        tiles.append(np.asarray(tile))
    return Image.fromarray(np.concatenate(tiles, axis=1))


def strip(model: Path, transformer: Path | None = None, quick: bool = False) -> Image.Image:
    """Real clips and scenes: input, grey control, output, then a swapped colour word, another seed or edges."""
    pipe = load(model, transformer)
    real, scenes = held_out_real(), held_out_scenes(8)
    rows = []
    for clip in [real[0], real[6], real[7]][: 2 if quick else 3]:
        cells = _cells(pipe, clip)
        cells.append(("edges", edges(clip.frames)))
        cells.append(("from edges", generate(pipe, Request(edges(clip.frames), clip.caption))))
        rows.append(row(cells))
    for i, clip in enumerate(scenes[: 2 if quick else 4]):
        assert clip.scene is not None
        old = clip.scene.things[0].colour
        new = [c for c in COLOURS if c not in (old, clip.scene.background)][2 * i]
        cells = _cells(pipe, clip)
        cells.append((f"{old} -> {new}", generate(pipe, grey_request(clip, prompt=swapped(clip.caption, old, new)))))
        cells.append(("guidance 1", generate(pipe, grey_request(clip, guidance=1.0))))
        rows.append(row(cells))
    return Image.fromarray(np.concatenate([np.asarray(r) for r in rows], axis=0))


def _cells(pipe: WanVACEPipeline, clip: Clip) -> list[tuple[str, np.ndarray]]:
    out = generate(pipe, grey_request(clip))
    return [("input: " + clip.caption[:44], clip.frames), ("grey control", grey(clip.frames)), ("output", out)]


def main(argv: list[str] | None = None) -> None:
    """Write the picture."""
    parser = argparse.ArgumentParser(prog="python -m recipes.mini.strip", description=__doc__)
    parser.add_argument("--model", type=Path)
    parser.add_argument("--transformer", type=Path)
    parser.add_argument("--quick", action="store_true")
    parser.add_argument("--out", type=Path, required=True)
    args = parser.parse_args(argv)
    strip(args.model or model_path(), args.transformer, args.quick).save(args.out, quality=90)


if __name__ == "__main__":
    main()
