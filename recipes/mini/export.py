"""Assemble trained parts into a diffusers folder: float16, swapped into place only when whole."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import torch
from diffusers import AutoencoderKLWan, WanVACEPipeline, WanVACETransformer3DModel
from transformers import PreTrainedTokenizerFast, UMT5EncoderModel

from refkv_policy.mini.architecture import build_scheduler, write_settings

_KEPT = ("README.md", "strip.jpg", "evaluation.json")  # written by hand or by `evaluate`, not by training


def _edit_json(path: Path, key: str, value: object) -> None:
    document = json.loads(path.read_text())
    document[key] = value
    path.write_text(json.dumps(document, indent=2) + "\n")


def _swap(beside: Path, target: Path) -> None:
    """Put `beside` where `target` is: a reader finds the old folder or the new one, whole."""
    for file in beside.rglob("*.safetensors"):
        file.chmod(0o644)  # written readable by their maker only, which a wheel would carry on
    old = target.with_name(target.name + ".old")
    shutil.rmtree(old, ignore_errors=True)
    if target.exists():
        for name in _KEPT:
            if (target / name).is_file():
                shutil.copy2(target / name, beside / name)
        target.rename(old)
    beside.rename(target)
    shutil.rmtree(old, ignore_errors=True)


def export(folder: Path, target: Path) -> None:
    """Write the pipeline trained in `folder` to `target`, with the refined decoder where there is one."""
    vae = folder / ("vae-decoder" if (folder / "vae-decoder").is_dir() else "vae")
    pipe = WanVACEPipeline(
        tokenizer=PreTrainedTokenizerFast.from_pretrained(folder / "tokenizer"),
        text_encoder=UMT5EncoderModel.from_pretrained(folder / "text_encoder").half(),
        vae=AutoencoderKLWan.from_pretrained(vae).half(),
        scheduler=build_scheduler(),
        transformer=WanVACETransformer3DModel.from_pretrained(folder / "transformer", torch_dtype=torch.float16),
    )
    beside = target.with_name(target.name + ".part")
    shutil.rmtree(beside, ignore_errors=True)
    pipe.save_pretrained(beside)
    # transformers 5 writes its own class names, which transformers 4 does not know.
    _edit_json(beside / "model_index.json", "tokenizer", ["transformers", "PreTrainedTokenizerFast"])
    _edit_json(beside / "tokenizer" / "tokenizer_config.json", "tokenizer_class", "PreTrainedTokenizerFast")
    for part in ("text_encoder", "vae", "transformer"):
        config = beside / part / "config.json"
        document = json.loads(config.read_text())
        document.pop("_name_or_path", None)
        config.write_text(json.dumps(document, indent=2) + "\n")
    _edit_json(beside / "model_index.json", "_name_or_path", target.name)
    write_settings(beside)
    _swap(beside, target)


def export_transformer(folder: Path, target: Path) -> None:
    """Write only the transformer of `folder` to `target/transformer`, float16."""
    model = WanVACETransformer3DModel.from_pretrained(folder / "transformer", torch_dtype=torch.float16)
    beside = target / "transformer.part"
    shutil.rmtree(beside, ignore_errors=True)
    model.save_pretrained(beside)
    _swap(beside, target / "transformer")
