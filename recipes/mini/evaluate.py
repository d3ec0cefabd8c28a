"""`python -m recipes.mini.evaluate [--model DIR] [--json FILE]`: every number of the model card, measured anew.

All of it on clips kept out of training, with several noise seeds.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch
from diffusers import WanVACEPipeline, WanVACETransformer3DModel
from PIL import Image

from recipes.mini.controls import blank, edges, grey, luma, rectangle
from recipes.mini.data import Clip, held_out_photographs, held_out_real, held_out_scenes
from recipes.mini.measure import (
    GUIDANCE,
    STEPS,
    Request,
    burnt,
    generate,
    grey_request,
    hint_drift,
    luma_correlation,
    nearest_colour,
    swapped,
)
from recipes.mini.train_vae import psnr
from refkv_policy.mini import model_path
from refkv_policy.mini.architecture import FRAMES
from refkv_policy.mini.vocabulary import COLOURS


def load(model: Path, transformer: Path | None = None) -> WanVACEPipeline:
    """The pipeline in float32 on the CPU, with another folder's transformer in place of its own if given."""
    pipe = WanVACEPipeline.from_pretrained(model, torch_dtype=torch.float32)
    if transformer is not None:
        pipe.transformer = WanVACETransformer3DModel.from_pretrained(transformer, torch_dtype=torch.float32)
    pipe.set_progress_bar_config(disable=True)
    return pipe


def _round(values: Any, digits: int = 3) -> list[float]:
    return [round(float(v), digits) for v in values]


def _distance(videos: list[np.ndarray], others: list[np.ndarray]) -> float:
    return float(np.mean([np.abs(v - o).mean() for v, o in zip(videos, others, strict=True)]))


def reconstruction(pipe: WanVACEPipeline, real: list[Clip]) -> dict[str, Any]:
    """PSNR in dB of encode and decode, clip by clip, and for all pixels together."""
    values = {f"{clip.source} {i}": round(psnr(pipe.vae, clip.frames), 2) for i, clip in enumerate(real)}
    error = np.mean([10 ** (-v / 10) for v in values.values()])
    footage = [v for k, v in values.items() if "held-out" in k]
    return {
        "clips": values,
        "footage_mean": round(float(np.mean(footage)), 2),
        "mean": round(float(np.mean(list(values.values()))), 2),
        "pooled": round(float(-10 * np.log10(error)), 2),
    }


def control_following(pipe: WanVACEPipeline, real: list[Clip], seeds: int) -> dict[str, Any]:
    """Luma correlation with the own control, with the next clip's, and without hints (conditioning scale 0)."""
    own, other, without, ceiling = [], [], [], []
    controls = [grey(clip.frames) for clip in real]
    for i, clip in enumerate(real):
        # The next clip of another source: two clips of one shot are much alike.
        j = next(k % len(real) for k in range(i + 1, i + len(real)) if real[k % len(real)].source != clip.source)
        for seed in range(seeds):
            video = generate(pipe, grey_request(clip, seed))
            own.append(luma_correlation(video, controls[i]))
            other.append(luma_correlation(video, controls[j]))
        without.append(luma_correlation(generate(pipe, grey_request(clip, 0, scale=0.0)), controls[i]))
        ceiling.append(float(np.corrcoef(luma(clip.frames).ravel(), luma(controls[i]).ravel())[0, 1]))
    return {
        "own_control": {"mean": round(float(np.mean(own)), 3), "lowest": round(min(own), 3), "all": _round(own)},
        "another_clips_control": {"mean": round(float(np.mean(other)), 3), "all": _round(other)},
        "conditioning_scale_0": {"mean": round(float(np.mean(without)), 3), "all": _round(without)},
    }


def colour_following(pipe: WanVACEPipeline, scenes: list[Clip], seeds: int) -> dict[str, Any]:
    """Held-out (shape, colour) pairs: is the named colour what is seen, and another one after swapping the word?"""
    names = list(COLOURS)
    hits, swaps, missed = [], [], []
    for i, clip in enumerate(scenes):
        assert clip.scene is not None
        thing = clip.scene.things[0]
        taken = (thing.colour, clip.scene.background)
        new = [n for n in names if n not in taken][i % (len(names) - 2)]
        for seed in range(seeds):
            seen = nearest_colour(generate(pipe, grey_request(clip, seed)), clip)
            prompt = swapped(clip.caption, thing.colour, new)
            then = nearest_colour(generate(pipe, grey_request(clip, seed, prompt=prompt)), clip)
            hits.append(seen == thing.colour)
            swaps.append(then == new)
            missed += [f"{thing.colour} {thing.shape} seen {seen}"] if seen != thing.colour else []
            missed += [f"{new} {thing.shape} (swapped) seen {then}"] if then != new else []
    return {
        "samples": len(hits),
        "named_colour_nearest": round(float(np.mean(hits)), 3),
        "swapped_colour_nearest": round(float(np.mean(swaps)), 3),
        "missed": missed,
    }


def guidance(pipe: WanVACEPipeline, clips: list[Clip]) -> dict[str, Any]:
    """For guidance 1, 3 and 5: values at the ends of the range, luma correlation, difference from guidance 3."""
    out: dict[str, Any] = {"input_burnt": round(float(np.mean([burnt(c.frames / 255.0) for c in clips])), 4)}
    base = [generate(pipe, grey_request(clip)) for clip in clips]
    for scale in (1.0, 3.0, 5.0):
        videos = base if scale == GUIDANCE else [generate(pipe, grey_request(c, guidance=scale)) for c in clips]
        pairs = list(zip(videos, clips, strict=True))
        out[f"guidance_{scale:g}"] = {
            "burnt": round(float(np.mean([burnt(v) for v in videos])), 4),
            "luma_correlation": round(float(np.mean([luma_correlation(v, grey(c.frames)) for v, c in pairs])), 3),
            "mean_abs_to_guidance_3": round(_distance(videos, base), 4),
            "mean_abs_to_input": round(_distance(videos, [c.frames / 255.0 for c in clips]), 4),
        }
    return out


def fewer_steps(pipe: WanVACEPipeline, clips: list[Clip], seeds: int) -> dict[str, Any]:
    """Mean absolute pixel difference (0..1) from the 30-step run, the same noise and shift."""
    errors: dict[int, list[float]] = {26: [], 24: [], 20: []}
    for clip in clips:
        for seed in range(seeds):
            full = generate(pipe, grey_request(clip, seed))
            for steps, values in errors.items():
                values.append(float(np.abs(generate(pipe, grey_request(clip, seed, steps=steps)) - full).mean()))
    return {str(k): {"mean": round(float(np.mean(v)), 5), "largest": round(max(v), 5)} for k, v in errors.items()}


def drift(pipe: WanVACEPipeline, clips: list[Clip]) -> dict[str, Any]:
    """Hint drift from the first step, averaged over clips, and from the step before."""
    values = np.mean([hint_drift(pipe, grey_request(clip)) for clip in clips], axis=0)
    return {
        "from_first_step": {str(s): _round(values[s]) for s in (1, 5, 7, 10, 14, 20, 25, 29)},
        "mean_over_layers": _round(values.mean(1)),
        "last_step_mean": round(float(values[-1].mean()), 3),
    }


def other_kinds(pipe: WanVACEPipeline, real: list[Clip]) -> dict[str, Any]:
    """Edge control (luma correlation with the input) and in-painting (error inside and outside the mask)."""
    lines = [luma_correlation(generate(pipe, Request(edges(c.frames), c.caption)), c.frames) for c in real]
    inside, outside = [], []
    for i, clip in enumerate(real):
        mask = rectangle(np.random.default_rng([6, i]), *clip.frames.shape[:3])
        kept = blank(clip.frames, mask)
        result = pipe(
            video=[Image.fromarray(f) for f in kept],
            mask=[Image.fromarray(m[..., 0]) for m in mask],
            prompt=clip.caption,
            height=96,
            width=96,
            num_frames=17,
            num_inference_steps=STEPS,
            guidance_scale=GUIDANCE,
            max_sequence_length=32,
            generator=torch.Generator().manual_seed(0),
        )
        error = np.abs(np.asarray(result.frames[0]) - clip.frames / 255.0)
        inside.append(float(error[mask > 127].mean()))
        outside.append(float(error[mask <= 127].mean()))
    return {
        "edges_luma_correlation": round(float(np.mean(lines)), 3),
        "inpaint_mean_abs_outside": round(float(np.mean(outside)), 4),
        "inpaint_mean_abs_inside": round(float(np.mean(inside)), 4),
    }


def speed(pipe: WanVACEPipeline, clip: Clip) -> dict[str, Any]:
    """Whether a request repeats bit for bit, and the seconds it takes here."""
    began = time.monotonic()
    first = generate(pipe, grey_request(clip))
    seconds = time.monotonic() - began
    again = generate(pipe, grey_request(clip))
    return {
        "repeats_bit_for_bit": bool(np.array_equal(first, again)),
        "seconds_a_clip": round(seconds, 1),
        "threads": torch.get_num_threads(),
    }


def length(pipe: WanVACEPipeline) -> dict[str, Any]:
    """How samples of the frames that were trained on, and of many more, agree with their clips.

    Of two held-out scenes and a photograph under a moving crop, each as long as asked: mean PSNR in dB of the sample
    against the clip, over its first and last 17 frames, and the correlation of its brightness with the control's.
    """
    found = {}
    for frames in (FRAMES, LONG):
        clips = [*held_out_scenes(2, frames), held_out_photographs(frames)[1]]
        videos = [generate(pipe, grey_request(clip)) for clip in clips]
        ends = {"first_17": slice(0, FRAMES), "last_17": slice(-FRAMES, None)}
        found[f"{frames}_frames"] = {
            **{name: _round([np.mean([_psnr(v, c, part) for v, c in zip(videos, clips, strict=True)])], 2)[0]
               for name, part in ends.items()},
            "luma_correlation": _round(
                [np.mean([luma_correlation(v, c.frames) for v, c in zip(videos, clips, strict=True)])]
            )[0],
        }  # fmt: skip
    return found


def _psnr(video: np.ndarray, clip: Clip, part: slice) -> float:
    return float(-10 * np.log10(np.mean((video[part] - clip.frames[part].astype(np.float32) / 255) ** 2)))


SECTIONS = (
    "repeat",
    "reconstruction",
    "control",
    "colour",
    "guidance",
    "fewer_steps",
    "hint_drift",
    "other_controls",
    "length",
)
LONG = 81
"""Frames: just over five seconds at Wan's 16 a second, and a whole number of latent frames."""


def evaluate(pipe: WanVACEPipeline, seeds: int = 2, scenes: int = 16, only: tuple[str, ...] = ()) -> dict[str, Any]:
    """The measurements of `SECTIONS`, or those named in `only`, each printed as soon as it is there."""
    real, synthetic = held_out_real(), held_out_scenes(scenes)
    few = [real[0], real[1], real[6], synthetic[0]]
    runs: dict[str, Callable[[], dict[str, Any]]] = {
        "repeat": lambda: speed(pipe, real[0]),
        "reconstruction": lambda: reconstruction(pipe, real),
        "control": lambda: control_following(pipe, real, seeds),
        "colour": lambda: colour_following(pipe, synthetic, seeds),
        "guidance": lambda: guidance(pipe, few),
        "fewer_steps": lambda: fewer_steps(pipe, few, seeds),
        "hint_drift": lambda: drift(pipe, few),
        "other_controls": lambda: other_kinds(pipe, real[:2] + real[6:]),
        "length": lambda: length(pipe),
    }
    settings = {"seeds": seeds, "scenes": scenes, "steps": STEPS, "guidance": GUIDANCE}
    report: dict[str, Any] = {"settings": settings}
    began = time.monotonic()
    for name in only or SECTIONS:
        report[name] = runs[name]()
        print(f"{name} ({time.monotonic() - began:.0f} s): {json.dumps(report[name])}", file=sys.stderr, flush=True)
    return report


def main(argv: list[str] | None = None) -> None:
    """Measure and print; see the module."""
    parser = argparse.ArgumentParser(prog="python -m recipes.mini.evaluate", description=__doc__.split("\n")[0])
    parser.add_argument("--model", type=Path, help="a pipeline folder; the shipped one by default")
    parser.add_argument("--transformer", type=Path, help="a transformer folder to use in its place (second control)")
    parser.add_argument("--json", type=Path, help="write the numbers here")
    parser.add_argument("--seeds", type=int, default=2, help="noise seeds a clip (default 2)")
    parser.add_argument("--scenes", type=int, default=16, help="synthetic test clips (default 16)")
    parser.add_argument("--only", choices=SECTIONS, action="append", default=[], help="this section; may be repeated")
    args = parser.parse_args(argv)
    report = evaluate(load(args.model or model_path(), args.transformer), args.seeds, args.scenes, tuple(args.only))
    print(json.dumps(report, indent=2))
    if args.json:
        args.json.write_text(json.dumps(report, indent=2) + "\n")


if __name__ == "__main__":
    main()
