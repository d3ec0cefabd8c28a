"""The options that `drift`, `sweep` and `gate` share."""

from __future__ import annotations

import functools
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

import click

C = TypeVar("C", bound=Callable[..., Any])


def model_options(command: C) -> C:
    """Options on what runs: model, operating point, clips and seeds."""
    options = (
        click.option("--model", default="mini", envvar="REFKV_MODEL", metavar="mini|DIR|HUB_ID", show_envvar=True,
                     help="The embedded model, a WanVACEPipeline folder, or a hub id."),
        click.option("--clips", type=click.Path(path_type=Path), metavar="DIR",
                     help="Folder of input clips; x.txt beside x.mp4 is its prompt.  [default: the shipped clip]"),
        click.option("--prompt", help="Prompt of clips that have no text file."),
        click.option("--negative-prompt", default="", show_default=False, help="What no clip should show."),
        click.option("--control", type=click.Choice(["grey", "edges", "as-is"]), default="grey",
                     help="What of a clip the model is shown."),
        click.option("--seeds", type=click.IntRange(1), default=2, metavar="N", help="Seeds 0 to N-1 on every clip."),
        click.option("--steps", type=click.IntRange(1), help="Step count, one the plan lists."),
        click.option("--guidance", type=float, help="Guidance scale, one the plan lists."),
        click.option("--size", metavar="WxH", help="Pixels of the output.  [default: the model's, or the plan's first shape]"),
        click.option("--frames", type=click.IntRange(1), help="Frames of the output, rounded down to 4n+1."),
        click.option("--fps", type=click.FloatRange(0, 1000, min_open=True), metavar="F",
                     help="Rate the output plays at.  [default: the clip's]"),
        click.option("--dtype", type=click.Choice(["float32", "bfloat16", "float16"]),
                     help="Dtype of the transformer.  [default: bfloat16 on an accelerator, else float32]"),
        click.option("--device", metavar="D", help="Device, such as cuda:0 or cpu.  [default: the best there is]"),
        click.option("--offload", is_flag=True, help="Keep parts of the model in host memory while others run."),
        click.option("--json", "as_json", is_flag=True, help="One JSON object on stdout, everything else on stderr."),
    )  # fmt: skip
    return functools.reduce(lambda made, option: option(made), reversed(options), command)


def sweep_options(command: C) -> C:
    """Options on what is varied, measured and kept."""
    options = (
        click.option("--vary", "varies", multiple=True, metavar="PATH=V,V…",
                     help="Values of a rule to try, such as refresh.interval=1,2,4; may be repeated (all combinations)."),
        click.option("--rule", metavar="NAME", help="The rule that is varied.  [default: the only lossy one]"),
        click.option("--baselines", type=click.IntRange(2), default=6, metavar="N",
                     help="Step counts of the baselines, about; each is run plain and re-spaced twice."),
        click.option("--repeats", type=click.IntRange(0), default=3, metavar="N",
                     help="Timed pairs (uncached, planned) of every run; 0 takes speed from FLOPs."),
        click.option("--timed", type=click.Choice(["all", "plan"]), default="all",
                     help="Time every run, or the plan's alone; runs are then compared at equal FLOPs."),
        click.option("--clock", type=click.Choice(["wall", "cpu"]), default="wall",
                     help="What pairs are timed by: wall clock, or processor time where a CPU is shared."),
        click.option("--features", default="stand-in", metavar="stand-in|none|DIR|hub:ID",
                     help="Feature model: a DINOv2 folder or hub id; without one, a stand-in that gates nothing."),
        click.option("--metric", help="The metric that errors are of.  [default: pixel_difference]"),
        click.option("--results", type=click.Path(path_type=Path), default=Path("out/results"), metavar="DIR",
                     help="Where each task's result is kept; what is there is not run again."),
        click.option("--executor", type=click.Choice(["local", "ray"]), default="local", help="Where tasks run."),
        click.option("--workers", type=click.IntRange(1), default=2, metavar="N", help="Workers, of Ray."),
    )  # fmt: skip
    return functools.reduce(lambda made, option: option(made), reversed(options), command)
