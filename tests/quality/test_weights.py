"""The digest of stored weights, against that of the module they load into."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file

from refkv_policy.runtime import weights
from refkv_policy.runtime.digest import weights_digest
from refkv_policy.runtime.weights import WeightsError, stored_digest
from tests import tiny


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_it_is_the_digest_of_the_model_in_memory(tmp_path: Path, dtype: torch.dtype) -> None:
    """However the tensors are spread over files: names, dtypes, shapes and bytes are what counts."""
    model = tiny.transformer(dtype=dtype)
    model.save_pretrained(tmp_path / "one")
    model.save_pretrained(tmp_path / "many", max_shard_size="40KB")
    assert len(list((tmp_path / "many").glob("*.safetensors"))) > 1
    found = {stored_digest(tmp_path / name, tmp_path / "cache.json") for name in ("one", "many")}
    assert found == {weights_digest(model)}


def test_it_is_remembered_until_the_file_changes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A second call reads no tensor; another size or modification time does; a spoilt cache is made anew."""
    read: list[int] = []
    original = weights._digest
    monkeypatch.setattr(weights, "_digest", lambda files: read.append(1) or original(files))
    cache = tmp_path / "c" / "cache.json"
    file = tmp_path / "a.safetensors"
    save_file({"x": torch.zeros(3)}, file)
    first = stored_digest(tmp_path, cache)
    assert stored_digest(tmp_path, cache) == first
    assert len(read) == 1
    save_file({"x": torch.ones(3)}, file)
    os.utime(file, ns=(1, 1))
    assert stored_digest(tmp_path, cache) != first
    assert len(read) == 2
    for spoilt in ("{", DEEP):
        cache.write_text(spoilt)
        stored_digest(tmp_path, cache)
        assert len(json.loads(cache.read_text())) == 1


DEEP = "[" * 200_000
"""JSON that Python's reader gives up with another error than for what is no JSON."""


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"x" * 64,
        b"\xff" * 8 + b"{}",
        (2).to_bytes(8, "little") + b"[]",
        len(DEEP).to_bytes(8, "little") + DEEP.encode(),
    ],
    ids=["empty", "text", "endless", "list", "deep"],
)
def test_what_is_no_safetensors_is_a_sentence(tmp_path: Path, content: bytes) -> None:
    """A file that breaks off, or is something else, is named."""
    with pytest.raises(WeightsError, match=r"holds no \*\.safetensors"):
        stored_digest(tmp_path, tmp_path / "cache.json")
    (tmp_path / "a.safetensors").write_bytes(content)
    with pytest.raises(WeightsError, match=r"a\.safetensors"):
        stored_digest(tmp_path, tmp_path / "cache.json")


def test_a_cache_that_cannot_be_written_is_done_without(tmp_path: Path) -> None:
    """It costs time the next time, and nothing else."""
    save_file({"x": torch.zeros(3)}, tmp_path / "a.safetensors")
    (tmp_path / "file").write_text("")
    assert stored_digest(tmp_path, tmp_path / "file" / "cache.json").startswith("sha256:")
