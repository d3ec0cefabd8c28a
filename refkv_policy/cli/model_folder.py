"""Model folders: what `--model` means, what a folder holds and refuses to hold, all read without torch."""

from __future__ import annotations

import json
import os
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from itertools import chain
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from refkv_policy.cli.group import Failure
from refkv_policy.files import read_bounded

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
CODE = (".py", ".pyw", ".pyc", ".pyo", ".pyd", ".so", ".dylib", ".dll")
"""What Python imports. diffusers 0.37 runs `transformer/diffusers.py` and, at the top, `None.py`."""
ASKS_FOR_CODE = frozenset({"auto_map", "trust_remote_code", "custom_pipeline", "custom_revision", "custom_pipelines"})
"""Keys by which a configuration names code to fetch or to run."""
LARGEST = 16 << 20
"""Bytes of a configuration that are read; the published models' have a few thousand, their tokenizer's 60,000."""
FETCHED = (
    "model_index.json",
    "refkv.json",
    *(f"{part}/*.{kind}" for part in COMPONENTS for kind in ("json", "safetensors")),
    *("tokenizer/*.model", "tokenizer/*.txt"),
)
"""What is downloaded of a hub repository: no code, and no weights that are pickled."""
VARIANTS = ("*.fp16.*", "*.bf16.*", "*.ema.*")
"""The same weights again, which are not loaded."""
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
    """Check that a folder holds a WanVACEPipeline, weights as safetensors only, and no code. Raises Failure.

    Not left to diffusers: which files it runs has changed from version to version.
    """
    index = _json(path / "model_index.json", "it is not a pipeline in diffusers format")
    kind = index.get("_class_name")
    if kind != "WanVACEPipeline":
        raise Failure(f"{path} holds a {kind}; refkv runs WanVACEPipeline folders")
    if index.get("boundary_ratio") is not None or (index.get("transformer_2") or [None])[0] is not None:
        raise Failure(f"{path} is a pipeline of two transformers (Wan2.2), which refkv does not support yet")
    for part, library in COMPONENTS.items():
        entry = index.get(part)
        if not isinstance(entry, list) or len(entry) != 2 or entry[0] != library or "Pipeline" in str(entry[1]):
            raise Failure(
                f"{path}/model_index.json wants {part} from {entry!r}; only {library}'s own classes are loaded"
            )
    for part, entry in index.items():
        if isinstance(entry, list) and any(entry) and part not in COMPONENTS and not part.startswith("_"):
            raise Failure(f"{path}/model_index.json wants {part}, which is no part of a pipeline that refkv runs")
    for part in WEIGHTS:
        folder = path / part
        if not any(folder.glob("*.safetensors")):
            pickled = next((p.name for p in folder.glob("*") if p.suffix in (".bin", ".pt", ".pth", ".ckpt")), None)
            holds = f"holds {pickled}, which could run code when loaded" if pickled else "holds no weights"
            raise Failure(f"{folder} {holds}; refkv loads safetensors only")
    _check_code(path)
    settings = path / "refkv.json"
    return ModelFolder(
        path=path,
        name=name,
        config=_json(path / "transformer" / "config.json", "the transformer's config is missing"),
        settings=_json(settings, "") if settings.is_file() else {},
    )


def _check_code(path: Path) -> None:
    """Raises Failure where anything that is loaded of a folder is code, asks for code, or lies elsewhere than it seems to."""
    tops = {os.path.realpath(path), _cached(path)}
    for file in _files(path):
        if file.name.lower().endswith(CODE):
            name = file.relative_to(path)
            raise Failure(f"{path} holds code ({name}), which may be run when the folder is loaded; take it out")
        if file.is_symlink() and (file.is_dir() or tops.isdisjoint(map(str, Path(os.path.realpath(file)).parents))):
            raise Failure(f"{file} is a link to a folder, or out of this one; put there what it leads to")
        if not file.is_file():
            raise Failure(f"{file} is not a regular file; get a whole copy of the model")
        if file.name.endswith(("config.json", "index.json")) and (key := _asks_for_code(_load(file))):
            raise Failure(
                f"{file} has `{key}`, by which a model brings code of its own, and refkv runs none; take it out"
            )


def _cached(path: Path) -> str:
    """Where the hub's cache keeps what a snapshot in it (`models--OWNER--NAME/snapshots/REVISION`) has links to."""
    real = Path(os.path.realpath(path))
    return str(real.parents[1] / "blobs") if real.parent.name == "snapshots" else str(real)


def _files(path: Path) -> Iterator[Path]:
    """What lies at the top of a folder and anywhere in its components, folders left out unless they are links."""
    within = chain.from_iterable((path / part).rglob("*") for part in COMPONENTS)
    return (place for place in chain(path.iterdir(), within) if place.is_symlink() or not place.is_dir())


def _asks_for_code(value: Any) -> str | None:
    """The key of ASKS_FOR_CODE that stands anywhere in a JSON value."""
    todo = [value]
    while todo:
        match todo.pop():
            case dict() as mapping:
                if found := ASKS_FOR_CODE.intersection(mapping):
                    return min(found)
                todo.extend(mapping.values())
            case list() as entries:
                todo.extend(entries)
    return None


def _load(path: Path) -> Any:
    """The JSON of a file. Raises Failure, and FileNotFoundError."""
    try:
        return json.loads(read_bounded(path, LARGEST).decode("utf-8"))
    except FileNotFoundError:
        raise
    except (OSError, ValueError, RecursionError) as error:
        raise Failure(f"{path} cannot be read: {getattr(error, 'strerror', None) or error}") from error


def _json(path: Path, without: str) -> dict[str, Any]:
    try:
        value = _load(path)
    except FileNotFoundError as error:
        raise Failure(f"{path.parent} has no {path.name}: {without}") from error
    if not isinstance(value, dict):
        raise Failure(f"{path} is not a JSON object")
    return value


def _download(hub_id: str) -> Path:
    """The local snapshot of a hub repository: of its files those that are loaded. Raises Failure."""
    from refkv_policy.cli.libraries import needs_run_extra

    with needs_run_extra():
        from huggingface_hub import snapshot_download
        from huggingface_hub.errors import HfHubHTTPError, LocalEntryNotFoundError, OfflineModeIsEnabled
    try:
        return Path(snapshot_download(hub_id, allow_patterns=list(FETCHED), ignore_patterns=list(VARIANTS)))
    except (OfflineModeIsEnabled, LocalEntryNotFoundError, HfHubHTTPError, OSError, ValueError) as error:
        offline = os.environ.get("HF_HUB_OFFLINE", "") not in ("", "0")
        reason = "the hub is switched off (HF_HUB_OFFLINE)" if offline else str(error).strip().splitlines()[0]
        raise Failure(
            f"{hub_id} is neither a local folder nor to be had from the hub: {reason}; download it first, then give its folder"
        ) from error
