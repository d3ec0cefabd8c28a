"""What a model's folder must not hold: code, a request for code, or anything that lies elsewhere. Read without torch."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from fnmatch import fnmatch
from pathlib import Path
from types import SimpleNamespace

import pytest

from refkv_policy.cli.group import Failure
from refkv_policy.cli.model_folder import COMPONENTS, FETCHED, VARIANTS, open_model, read_folder

ROOT = Path(__file__).resolve().parents[2]
CLASSES = {
    "transformer": "WanVACETransformer3DModel",
    "vae": "AutoencoderKLWan",
    "scheduler": "UniPCMultistepScheduler",
    "text_encoder": "UMT5EncoderModel",
    "tokenizer": "T5TokenizerFast",
}


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A folder that is sound as far as can be seen without loading it."""
    made = tmp_path / "model"
    for part in COMPONENTS:
        (made / part).mkdir(parents=True)
        (made / part / "config.json").write_text("{}")
        (made / part / "diffusion_pytorch_model.safetensors").write_bytes(b"")
    index = {"_class_name": "WanVACEPipeline", "transformer_2": [None, None], "_ignore_files": ["x.bin"]}
    index |= {part: [library, CLASSES[part]] for part, library in COMPONENTS.items()}
    (made / "model_index.json").write_text(json.dumps(index))
    (made / "README.md").write_text("")
    (made / "assets").mkdir()
    (made / "assets" / "demo.py").write_text("")  # beside the components, where nothing is looked for
    return made


def refused(folder: Path) -> str:
    """The sentence by which a folder is refused."""
    with pytest.raises(Failure) as told:
        read_folder(folder, "model")
    return str(told.value)


def test_a_sound_folder_is_read(folder: Path) -> None:
    """Nothing that the published models' folders hold is refused."""
    (folder / "vae" / "model.safetensors.index.json").write_text('{"weight_map": {}}')
    assert read_folder(folder, "model").path == folder


@pytest.mark.parametrize(
    "name",
    [
        "transformer/diffusers.py",  # what diffusers 0.37 runs; the next two likewise
        "text_encoder/transformers.py",
        "None.py",
        "tokenizer/transformers.pyc",
        "scheduler/diffusers/__init__.py",
        "vae/diffusers.cpython-311-x86_64-linux-gnu.so",
        "text_encoder/deep/er/x.PY",
        "transformer/diffusers.pyd",
        "pipeline.py",
        "tokenizer/__pycache__/transformers.cpython-312.pyc",
    ],
)
def test_code_is_refused(folder: Path, name: str) -> None:
    """Source, byte code and extensions, at the top and anywhere in a component, with the file named."""
    file = folder / name
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text("")
    assert f"holds code ({name})" in refused(folder)


@pytest.mark.parametrize(
    ("file", "value", "key"),
    [
        ("text_encoder/config.json", {"auto_map": {"AutoModel": "evil.Model"}}, "auto_map"),
        ("tokenizer/tokenizer_config.json", {"init": [{"auto_map": 1}]}, "auto_map"),
        ("transformer/config.json", {"trust_remote_code": True}, "trust_remote_code"),
        ("model_index.json", {"custom_pipeline": "owner/evil"}, "custom_pipeline"),
        ("scheduler/scheduler_config.json", {"a": {"custom_revision": "x"}}, "custom_revision"),
    ],
)
def test_a_request_for_code_is_refused(folder: Path, file: str, value: dict[str, object], key: str) -> None:
    """However deep in a configuration the key stands."""
    place = folder / file
    known = json.loads(place.read_text()) if place.exists() else {}
    place.write_text(json.dumps(known | value))
    assert f"{file} has `{key}`" in refused(folder)


@pytest.mark.parametrize(
    ("entry", "words"),
    [
        ({"transformer": ["evil", "Model"]}, "only diffusers's own classes"),
        ({"vae": ["diffusers", "DiffusionPipeline"]}, "only diffusers's own classes"),
        ({"tokenizer": ["transformers", ["a", "b"], "c"]}, "only transformers's own classes"),
        ({"image_encoder": ["evil", "Model"]}, "wants image_encoder"),
        ({"safety_checker": ["diffusers", "X"]}, "wants safety_checker"),
        ({"_class_name": ["pipeline", "Evil"]}, "holds a ['pipeline', 'Evil']"),
    ],
)
def test_other_parts_and_pipelines_are_refused(folder: Path, entry: dict[str, object], words: str) -> None:
    """A part of another library, a whole pipeline in the place of a part, a part too many, a pipeline of its own."""
    index = folder / "model_index.json"
    index.write_text(json.dumps(json.loads(index.read_text()) | entry))
    assert words in refused(folder)


def link(place: Path, target: str | Path) -> None:
    """A link in the place of whatever lies there."""
    if place.is_dir() and not place.is_symlink():
        shutil.rmtree(place)
    place.unlink(missing_ok=True)
    place.symlink_to(target)


@pytest.mark.parametrize(
    ("name", "target"),
    [
        ("transformer/config.json", "/etc/passwd"),
        ("vae/diffusion_pytorch_model.safetensors", "../../other.safetensors"),
        ("tokenizer/spiece.model", "/dev/zero"),
        ("transformer", "../elsewhere"),
        ("scheduler", "assets"),
        ("tokenizer/more", "../assets"),
        ("refkv.json", "../x.json"),
    ],
)
def test_links_out_of_the_folder_are_refused(folder: Path, name: str, target: str) -> None:
    """Of files, and of folders wherever they lead, since what is behind them would not be looked at."""
    shutil.copytree(folder / "transformer", folder.parent / "elsewhere")
    (folder.parent / "other.safetensors").write_bytes(b"")
    (folder.parent / "x.json").write_text("{}")
    (folder / "assets" / "config.json").write_text("{}")
    link(folder / name, target)
    assert f"{folder / name} is a link to a folder, or out of this one" in refused(folder)


def test_links_within_and_those_of_the_hubs_cache_are_followed(folder: Path, tmp_path: Path) -> None:
    """A snapshot in the cache is nothing but links to the blobs beside it; to anything else they lead out."""
    cache = tmp_path / "hub" / "models--owner--name"
    snapshot = cache / "snapshots" / "0123abcd"
    (cache / "blobs").mkdir(parents=True)
    shutil.copytree(folder, snapshot)
    for number, file in enumerate(sorted(p for p in snapshot.rglob("*") if p.is_file())):
        file.rename(cache / "blobs" / str(number))
        file.symlink_to(os.path.relpath(cache / "blobs" / str(number), file.parent))
    assert read_folder(snapshot, "owner/name").path == snapshot
    link(snapshot / "vae" / "config.json", "../../../../secret.json")
    (cache.parent / "secret.json").write_text("{}")
    assert "is a link to a folder, or out of this one" in refused(snapshot)
    link(folder / "vae" / "config.json", "../transformer/config.json")
    read_folder(folder, "model")


def test_pipes_and_endless_files_are_refused(folder: Path) -> None:
    """They are neither waited for nor read to their end."""
    os.mkfifo(folder / "vae" / "more.safetensors")
    assert "more.safetensors is not a regular file" in refused(folder)
    (folder / "vae" / "more.safetensors").unlink()
    with (folder / "scheduler" / "config.json").open("wb") as stream:
        stream.truncate(1 << 34)  # takes no room on the disk
    assert "config.json cannot be read: it is larger than" in refused(folder)
    with (folder / "model_index.json").open("wb") as stream:
        stream.truncate(1 << 34)
    assert "model_index.json cannot be read: it is larger than" in refused(folder)


def test_of_a_hub_repository_no_code_is_fetched(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What is asked for names what is loaded; and what was fetched earlier, by something else, is refused all the same."""
    asked = SimpleNamespace()

    def snapshot_download(hub_id: str, **settings: object) -> str:
        asked.hub_id, asked.settings = hub_id, settings
        return str(folder)

    monkeypatch.setattr("huggingface_hub.snapshot_download", snapshot_download)
    assert open_model("owner/name").name == "owner/name"
    assert asked.hub_id == "owner/name"
    assert asked.settings == {"allow_patterns": list(FETCHED), "ignore_patterns": list(VARIANTS)}
    wanted = (
        "model_index.json", "transformer/config.json", "transformer/diffusion_pytorch_model-00001-of-00002.safetensors",
        "transformer/diffusion_pytorch_model.safetensors.index.json", "tokenizer/spiece.model", "tokenizer/merges.txt",
    )  # fmt: skip
    other = (
        "transformer/diffusers.py", "None.py", "pipeline.py", "vae/x.so", "text_encoder/pytorch_model.bin", "x.safetensors",
        "tokenizer/a/b.pyc", "unet/config.json", "vae/diffusion_pytorch_model.fp16.safetensors", "README.md", "a/refkv.json",
    )  # fmt: skip
    fetched = [
        name for name in (*wanted, *other)
        if any(fnmatch(name, p) for p in FETCHED) and not any(fnmatch(name, p) for p in VARIANTS)
    ]  # fmt: skip
    assert fetched == [*wanted]
    (folder / "transformer" / "diffusers.py").write_text("")
    with pytest.raises(Failure, match="holds code"):
        open_model("owner/name")


@pytest.mark.parametrize("name", ["transformer/diffusers.py", "text_encoder/transformers.py", "None.py"])
def test_the_code_of_a_folder_does_not_run(
    refkv: Callable, plan_file: Path, model_folder: Path, tmp_path: Path, name: str
) -> None:
    """Whatever the version of diffusers: the command ends with 2, and the file was not run."""
    folder, mark = tmp_path / "model", tmp_path / "ran"
    shutil.copytree(model_folder, folder)
    library = Path(name).stem.replace("None", "diffusers")
    (folder / name).write_text(f"from {library} import *\nopen({str(mark)!r}, 'w').close()\n")
    result = refkv("run", "--plan", plan_file, "--model", folder, "--size", "32x32", "--frames", "5")
    assert (result.exit_code, mark.exists()) == (2, False)
    assert f"holds code ({name})" in result.stderr


def test_folders_are_read_without_torch() -> None:
    """Neither torch nor diffusers is imported for it."""
    code = (
        "import sys, refkv_policy.cli.model_folder as m\n"
        "m.open_model('mini')\n"
        "assert not {'torch', 'diffusers'} & {*sys.modules}"
    )
    subprocess.run([sys.executable, "-c", code], check=True, cwd=ROOT)
