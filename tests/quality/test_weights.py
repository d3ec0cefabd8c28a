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


def test_odd_tensors_count_as_they_do_in_memory(tmp_path: Path) -> None:
    """A scalar, an empty tensor, eight-bit floats and booleans give the digest of the module that holds them."""
    module = torch.nn.Module()
    values = {
        "scalar": torch.tensor(1.5),
        "none": torch.zeros(0, 3),
        "fp8": torch.arange(4.0).to(torch.float8_e4m3fn),
        "flag": torch.tensor([True, False]),
        "narrow": torch.ones(2, 3, dtype=torch.bfloat16),
    }
    for name, value in values.items():
        module.register_buffer(name, value)
    save_file(values, tmp_path / "a.safetensors")
    assert stored_digest(tmp_path, tmp_path / "cache.json") == weights_digest(module)


@pytest.mark.parametrize("kept", [0.99, 0.5, 0.01])
def test_a_file_that_breaks_off_is_named(tmp_path: Path, kept: float) -> None:
    """A copy that lacks its end, among whole ones, is told by name."""
    for name in ("a", "b"):
        save_file({name: torch.zeros(1000)}, tmp_path / f"{name}.safetensors")
    whole = (tmp_path / "b.safetensors").read_bytes()
    (tmp_path / "b.safetensors").write_bytes(whole[: int(len(whole) * kept)])
    with pytest.raises(WeightsError, match=r"b\.safetensors is not a safetensors file"):
        stored_digest(tmp_path, tmp_path / "cache.json")
