"""The digest of stored weights, read from safetensors files without loading them as a model, and remembered."""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

from refkv_policy.files import atomic_write, read_bounded
from refkv_policy.plan.diagnostic import RefkvError

DTYPES = {
    "F64": "float64", "F32": "float32", "F16": "float16", "BF16": "bfloat16", "I64": "int64", "I32": "int32",
    "I16": "int16", "I8": "int8", "U8": "uint8", "BOOL": "bool", "F8_E4M3": "float8_e4m3fn", "F8_E5M2": "float8_e5m2",
}  # fmt: skip
"""Dtype names of the format, and torch's."""
LARGEST_HEADER = 100_000_000
CHUNK = 1 << 22


class WeightsError(RefkvError):
    """Weights that cannot be read; says which file and what to do."""


class _Stored(NamedTuple):
    name: str
    dtype: str
    shape: tuple[int, ...]
    file: Path
    start: int
    end: int


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
    digest = hashlib.sha256()
    for tensor in sorted(t for file in files for t in _tensors(file)):
        digest.update(f"{tensor.name}\0torch.{tensor.dtype}\0{tensor.shape}\0".encode())
        with tensor.file.open("rb") as stream:
            stream.seek(tensor.start)
            left = tensor.end - tensor.start
            while left:
                part = stream.read(min(left, CHUNK))
                if not part:
                    raise WeightsError(f"{tensor.file} breaks off in {tensor.name}; get a whole copy")
                digest.update(part)
                left -= len(part)
    return "sha256:" + digest.hexdigest()


def _tensors(file: Path) -> Iterator[_Stored]:
    """The tensors of a file, from its header (https://github.com/huggingface/safetensors#format)."""
    try:
        with file.open("rb") as stream:
            size = int.from_bytes(stream.read(8), "little")
            if size > LARGEST_HEADER:
                raise ValueError("its header is too long")
            header: dict[str, Any] = json.loads(stream.read(size))
        for name, about in header.items():
            if name != "__metadata__":
                start, end = about["data_offsets"]
                shape = tuple(int(side) for side in about["shape"])
                yield _Stored(name, DTYPES[about["dtype"]], shape, file, 8 + size + start, 8 + size + end)
    except (OSError, ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        raise WeightsError(f"{file} is not a safetensors file that can be read ({error}); get a whole copy") from error


def _remembered(cache: Path) -> dict[str, str]:
    try:
        known = json.loads(read_bounded(cache, LARGEST_HEADER))
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
