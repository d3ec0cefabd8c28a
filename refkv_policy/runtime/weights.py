"""The digest of stored weights, read from safetensors files without loading them as a model, and remembered."""

from __future__ import annotations

import hashlib
import json
import os
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open

from refkv_policy.files import atomic_write, read_bounded
from refkv_policy.plan.diagnostic import RefkvError

LARGEST_CACHE = 1 << 26
"""Bytes of the file of remembered digests that are read."""


class WeightsError(RefkvError):
    """Weights that cannot be read; says which file and what to do."""


def stored_digest(folder: str | Path, cache: Path | None = None) -> str:
    """`sha256:…` of the tensors in a folder's safetensors files, whichever file each is in.

    It is `digest.weights_digest` of the module they load into, as long as loading changes no dtype: what a file holds and
    what is in memory are told apart by their values, not by their form. Remembered by path, modification time and size of
    the files, in `cache` (unless given, `refkv/weights.json` in the user's cache folder). Raises WeightsError.
    """
    files = sorted(Path(folder).glob("*.safetensors"))
    if not files:
        raise WeightsError(f"{folder} holds no *.safetensors; give the folder of the transformer")
    cache = cache or default_cache()
    known = _remembered(cache)
    state = json.dumps([[str(f.resolve()), f.stat().st_mtime_ns, f.stat().st_size] for f in files])
    if state not in known:
        known[state] = _digest(files)
        _remember(cache, known)
    return known[state]


def default_cache() -> Path:
    """Where digests are remembered, unless a caller says otherwise."""
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "refkv" / "weights.json"


def _digest(files: list[Path]) -> str:
    """As `weights_digest`; each tensor is a view of its mapped file, so that none is loaded."""
    digest = hashlib.sha256()
    with ExitStack() as stack:
        opened = [stack.enter_context(_open(file)) for file in files]
        for name, index in sorted((name, index) for index, file in enumerate(opened) for name in file.keys()):  # noqa: SIM118
            tensor = opened[index].get_tensor(name)
            digest.update(f"{name}\0{tensor.dtype}\0{tuple(tensor.shape)}\0".encode())
            digest.update(tensor.reshape(-1).view(torch.uint8).numpy().data)
    return "sha256:" + digest.hexdigest()


def _open(file: Path) -> Any:
    try:
        return safe_open(file, "pt")
    except (OSError, SafetensorError) as error:
        raise WeightsError(f"{file} is not a safetensors file that can be read ({error}); get a whole copy") from error


def _remembered(cache: Path) -> dict[str, str]:
    try:
        known = json.loads(read_bounded(cache, LARGEST_CACHE))
    except (OSError, ValueError, RecursionError):
        return {}
    return known if isinstance(known, dict) else {}


def _remember(cache: Path, known: dict[str, str]) -> None:
    """Not being able to costs time the next time, and nothing else."""
    try:
        cache.parent.mkdir(parents=True, exist_ok=True)
        with atomic_write(cache) as stream:
            stream.write(json.dumps(known, indent=1).encode("utf-8"))
    except OSError:
        pass
