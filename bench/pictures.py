"""The README's pictures, from what refkv prints and writes.

`python bench/pictures.py` makes docs/images/table.svg; with `--run out/wan21_p1_k4`, after
`refkv run --plan wan21_p1_k4 --baseline`, also result.jpg.
"""

from __future__ import annotations

import argparse
from io import StringIO
from pathlib import Path

import refkv_policy as refkv
from refkv_policy.compiler.picture import render_map

IMAGES = Path(__file__).resolve().parents[1] / "docs" / "images"
COLOURS = {"C": "bold green", "R": "yellow", "F": "cyan", "-": "bright_black", ".": "white"}


def table_picture(plan: str, profile: str, steps: int, path: Path) -> None:
    """The step × site map of a plan as an SVG of the terminal's text."""
    from rich.console import Console
    from rich.text import Text

    table = refkv.compile_plan(refkv.load_plan(plan), profile, steps)
    console = Console(record=True, width=76, file=StringIO())
    for line in render_map(table).splitlines():
        text = Text(line)
        label, _, actions = line.partition("  ")
        if set(actions.strip()) <= set(COLOURS):
            for index in range(len(label), len(line)):
                text.stylize(COLOURS.get(line[index], ""), index, index + 1)
        console.print(text)
    path.write_text(console.export_svg(title=f"refkv explain {Path(plan).stem} ({profile}, {steps} steps)"), "utf-8")


def result_picture(run: Path, path: Path, frames: tuple[int, ...] = (0, 8, 16)) -> None:
    """Frames of a run's compare.mp4 above each other: input | uncached | planned."""
    import av
    import numpy as np
    from PIL import Image

    with av.open(str(run / "compare.mp4")) as clip:
        shown = [f.to_ndarray(format="rgb24") for i, f in enumerate(clip.decode(video=0)) if i in frames]
    stacked = Image.fromarray(np.concatenate(shown))
    stacked.resize((2 * stacked.width, 2 * stacked.height), Image.Resampling.BICUBIC).save(path, quality=88)


def main() -> None:
    """Make the pictures asked for."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--run", type=Path, help="folder of a run with --baseline")
    args = parser.parse_args()
    IMAGES.mkdir(parents=True, exist_ok=True)
    plans = IMAGES.parents[1] / "plans"
    table_picture(str(plans / "wan21_p1_sigma11.yaml"), "wan2.1-vace-1.3b", 30, IMAGES / "table.svg")
    if args.run:
        result_picture(args.run, IMAGES / "result.jpg")


if __name__ == "__main__":
    main()
