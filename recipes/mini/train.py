"""The whole recipe: `python -m recipes.mini.train --stage vae|text|transformer|all [--resume] [--out DIR]`.

Needs a checkout with the extra `train` (`pip install -e '.[train]'`). What the shipped weights were made
with is what this runs by default; the model card says how long each stage took.
"""

from __future__ import annotations

import argparse
import multiprocessing
from pathlib import Path

import torch
from diffusers import AutoencoderKLWan
from transformers import UMT5EncoderModel

from recipes.mini import latents, train_text, train_transformer, train_vae

STAGES = ("vae", "text", "latents", "transformer", "decoder", "export", "all")


def _encode_shards(folder: Path) -> None:
    torch.set_num_threads(1)
    vae = AutoencoderKLWan.from_pretrained(folder / "vae").eval()
    latents.encode_all(vae, folder)


def _transformer(folder: Path, source: Path, seed: int, resume: bool, steps: int) -> None:
    """Train on the latents of `source` while a second process encodes those still missing."""
    vae = AutoencoderKLWan.from_pretrained(source / "vae")
    text = UMT5EncoderModel.from_pretrained(source / "text_encoder").eval()
    encoder = multiprocessing.get_context("spawn").Process(target=_encode_shards, args=(source,), daemon=True)
    encoder.start()
    train_transformer.train(folder, text, latents.statistics(vae)[1], seed, resume, steps, source)
    encoder.join()


def main(argv: list[str] | None = None) -> None:
    """Run the stages asked for, one after the other."""
    parser = argparse.ArgumentParser(prog="python -m recipes.mini.train", description=__doc__.split("\n")[0])
    parser.add_argument("--stage", choices=STAGES, default="all", help="decoder: refine it for the finished encoder")
    parser.add_argument("--resume", action="store_true", help="continue from the stage's last checkpoint")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--out", type=Path, default=Path("mini-training"), help="checkpoints, latents and weights")
    parser.add_argument("--latents", type=Path, help="use the autoencoder, text encoder and latents of this folder")
    parser.add_argument("--steps", type=int, default=train_transformer.STEPS, help="of the transformer")
    parser.add_argument("--threads", type=int, default=1)
    args = parser.parse_args(argv)
    torch.set_num_threads(args.threads)
    args.out.mkdir(parents=True, exist_ok=True)
    wanted = STAGES[:-1] if args.stage == "all" else (args.stage,)
    source = args.latents or args.out
    for stage in wanted:
        if stage == "vae":
            train_vae.train(args.out, args.seed, args.resume)
        elif stage == "text":
            train_text.train(args.out, args.seed)
        elif stage == "latents":
            _encode_shards(args.out)
        elif stage == "transformer":
            _transformer(args.out, source, args.seed, args.resume, args.steps)
        elif stage == "decoder":
            train_vae.train_decoder(args.out, args.seed, args.resume)
        else:
            from recipes.mini.export import export

            export(args.out, args.out / "wan2.1-vace-mini")


if __name__ == "__main__":
    main()
