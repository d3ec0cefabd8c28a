"""Write the clips that the shipped evidence is measured on: `python bench/evidence_clips.py [FOLDER [COUNT [FRAMES]]]`.

All are held out of the embedded model's training: Big Buck Bunny's last frames, the kept shot of `bikes`, a photograph
under a moving crop, and scenes of held-out shape and colour. 17 frames of 96 × 96 each, a text file with the prompt
beside; nothing is drawn at random that is not seeded, so the digests in the evidence can be met again. The real footage
that was held out is too short for other lengths than 17: longer clips are scenes and photographs.
"""

from __future__ import annotations

import sys
from pathlib import Path

from recipes.mini.data import HELD_OUT_PHOTOGRAPHS, held_out_photographs, held_out_real, held_out_scenes
from refkv_policy.video import write_clip

NAMES = ("bunny-0", "scene-0", "bikes-0", "scene-1", "flower", "bunny-1")
"""In this order, so that the first three or four are of both kinds, real and drawn."""
REAL = {"bunny-0": 0, "bikes-0": 1, "bunny-1": 2, "flower": 7}
SCENES = {"scene-0": 0, "scene-1": 5}
LONG = ("scene-0", "flower", "scene-1")
FRAMES = 17
FPS = 16.0
"""Wan's own rate."""


def write(folder: Path, count: int = len(NAMES), frames: int = FRAMES) -> list[Path]:
    """The first `count` clips; those already there are left as they are. What is measured is the file: H.264 is lossy."""
    folder.mkdir(parents=True, exist_ok=True)
    scenes = held_out_scenes(max(SCENES.values()) + 1, frames)
    if frames == FRAMES:
        found = held_out_real()
        clips = {name: found[REAL[name]] if name in REAL else scenes[SCENES[name]] for name in NAMES}
    else:
        photographs = dict(zip(HELD_OUT_PHOTOGRAPHS, held_out_photographs(frames), strict=True))
        clips = {name: scenes[SCENES[name]] if name in SCENES else photographs[f"{name}.jpg"] for name in LONG}
    paths = []
    for name, clip in list(clips.items())[:count]:
        path = folder / f"{name}.mp4"
        if not path.is_file():
            write_clip(path, clip.frames, FPS, quality=8)
            path.with_suffix(".txt").write_text(clip.caption + "\n")
        paths.append(path)
    return paths


if __name__ == "__main__":
    where, *counted = sys.argv[1:] or ["out/evidence-clips"]
    for written in write(Path(where), *map(int, counted)):
        print(written)
