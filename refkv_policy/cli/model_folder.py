"""Model folders: what `--model` means, what a folder holds and refuses to hold, all read without torch."""

from __future__ import annotations

import json
import os
import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from refkv_policy.cli.group import Failure

EMBEDDED = "mini"
COMPONENTS = {
    "transformer": "diffusers",
    "vae": "diffusers",
    "scheduler": "diffusers",
    "text_encoder": "transformers",
    "tokenizer": "transformers",
}
"""Parts of the pipeline and the only library each may come from: a folder must not bring code of its own."""
WEIGHTS = ("transformer", "vae", "text_encoder")
_HUB_ID = re.compile(r"[A-Za-z0-9][\w.-]*/[A-Za-z0-9][\w.-]*")


@dataclass(frozen=True)
class ModelFolder:
    """A checked folder in diffusers format.

    name: how to call it in front of a person. settings: of its `refkv.json`, what a caller must pass that the pipeline's
    own files have no place for (max_sequence_length, height, width, num_frames, num_inference_steps, guidance_scale).
    """

    path: Path
    name: str
    config: Mapping[str, Any]
    settings: Mapping[str, Any]

    @property
    def transformer(self) -> SimpleNamespace:
        """Stands for the transformer wherever only its config is asked for."""
        return SimpleNamespace(config=self.config)

    def setting(self, key: str, otherwise: Any) -> Any:
        """A setting of the folder, or what holds where it has none."""
        return self.settings.get(key, otherwise)


def open_model(reference: str) -> ModelFolder:
    """The folder of the embedded model, of a path, or of a hub id (downloaded). Raises Failure."""
    if reference == EMBEDDED:
        from refkv_policy.mini import MODEL_NAME, model_path

        try:
            return read_folder(model_path(), f"{MODEL_NAME} (embedded)")
        except FileNotFoundError as error:
            raise Failure(f"the embedded model is not installed: {error}") from error
    path = Path(reference).expanduser()
    if path.is_dir():
        return read_folder(path, path.resolve().name)
    if path.exists():
        raise Failure(f"--model {reference} is a file; give the folder of a WanVACEPipeline in diffusers format")
    if _HUB_ID.fullmatch(reference) and not reference.startswith((".", "~")):
        return read_folder(_download(reference), reference)
    raise Failure(
        f"there is no model folder {reference}; give `{EMBEDDED}`, a folder in diffusers format, or a hub id (owner/name)"
    )


def read_folder(path: Path, name: str) -> ModelFolder:
    """Check that a folder holds a WanVACEPipeline, weights as safetensors only, and no code. Raises Failure."""
    index = _json(path / "model_index.json", "it is not a pipeline in diffusers format")
    kind = index.get("_class_name")
    if kind != "WanVACEPipeline":
        raise Failure(f"{path} holds a {kind}; refkv runs WanVACEPipeline folders")
    if index.get("boundary_ratio") is not None or (index.get("transformer_2") or [None])[0] is not None:
        raise Failure(f"{path} is a pipeline of two transformers (Wan2.2), which refkv does not support yet")
    for part, library in COMPONENTS.items():
        entry = index.get(part)
        if not isinstance(entry, list) or len(entry) != 2 or entry[0] != library:
            raise Failure(
                f"{path}/model_index.json wants {part} from {entry!r}; only {library}'s own classes are loaded"
            )
    for part in WEIGHTS:
        folder = path / part
        if not any(folder.glob("*.safetensors")):
            pickled = next((p.name for p in folder.glob("*") if p.suffix in (".bin", ".pt", ".pth", ".ckpt")), None)
            holds = f"holds {pickled}, which could run code when loaded" if pickled else "holds no weights"
            raise Failure(f"{folder} {holds}; refkv loads safetensors only")
    settings = path / "refkv.json"
    return ModelFolder(
        path=path,
        name=name,
        config=_json(path / "transformer" / "config.json", "the transformer's config is missing"),
        settings=_json(settings, "") if settings.is_file() else {},
    )


def _json(path: Path, without: str) -> dict[str, Any]:
    try:
        value = json.loads(path.read_text("utf-8"))
    except FileNotFoundError as error:
        raise Failure(f"{path.parent} has no {path.name}: {without}") from error
    except (OSError, ValueError, RecursionError) as error:
        raise Failure(f"{path} cannot be read: {error}") from error
    if not isinstance(value, dict):
        raise Failure(f"{path} is not a JSON object")
    return value


def _download(hub_id: str) -> Path:
    """The local snapshot of a hub repository, by the pipeline class's own download. Raises Failure."""
    from refkv_policy.cli.libraries import needs_run_extra

    with needs_run_extra():
        from diffusers import WanVACEPipeline
        from huggingface_hub.errors import HfHubHTTPError, LocalEntryNotFoundError, OfflineModeIsEnabled
    try:
        return Path(WanVACEPipeline.download(hub_id, use_safetensors=True))
    except (OfflineModeIsEnabled, LocalEntryNotFoundError, HfHubHTTPError, OSError, ValueError) as error:
        offline = os.environ.get("HF_HUB_OFFLINE", "") not in ("", "0")
        reason = "the hub is switched off (HF_HUB_OFFLINE)" if offline else str(error).strip().splitlines()[0]
        raise Failure(
            f"{hub_id} is neither a local folder nor to be had from the hub: {reason}; download it first, then give its folder"
        ) from error
