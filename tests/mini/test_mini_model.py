"""The shipped model: loads as the real one does, has the frozen configuration, repeats bit for bit."""

from __future__ import annotations

import json
from pathlib import Path

import diffusers
import numpy as np
import pytest
import torch

from recipes.mini.measure import Request, generate, luma_correlation
from recipes.mini.train_vae import encode_mean, fast_training
from refkv_policy.mini import architecture, model_path

REPOSITORY = Path(__file__).resolve().parents[2]


@pytest.fixture(scope="module")
def pipe() -> diffusers.WanVACEPipeline:
    """The shipped pipeline in float32."""
    loaded = diffusers.WanVACEPipeline.from_pretrained(model_path(), torch_dtype=torch.float32)
    loaded.set_progress_bar_config(disable=True)
    return loaded


def _control() -> np.ndarray:
    """A grey square moving over a dark ground: uint8 (17, 96, 96, 3)."""
    control = np.full((17, 96, 96, 3), 60, dtype=np.uint8)
    for t in range(17):
        control[t, 30:60, 20 + 2 * t : 50 + 2 * t] = 150
    return control


def test_the_shipped_folder_has_the_frozen_configuration(pipe) -> None:
    """Transformer, autoencoder and scheduler are configured as `architecture` says."""
    for key, value in architecture.TRANSFORMER.items():
        assert pipe.transformer.config[key] == value or list(pipe.transformer.config[key]) == list(value), key
    for key, value in architecture.VAE.items():
        assert pipe.vae.config[key] == value, key
    for key, value in architecture.SCHEDULER.items():
        assert pipe.scheduler.config[key] == value, key


def test_random_weights_have_the_shapes_of_the_shipped_ones(pipe) -> None:
    """The random and the trained model differ in values only."""
    random = architecture.random_pipeline()
    for part in ("transformer", "vae", "text_encoder"):
        shipped, made = getattr(pipe, part).state_dict(), getattr(random, part).state_dict()
        assert {k: v.shape for k, v in shipped.items()} == {k: v.shape for k, v in made.items()}


def test_random_pipeline_is_seeded_and_leaves_the_callers_random_state() -> None:
    """Same seed, same weights; the global generator is untouched."""
    torch.manual_seed(5)
    before = torch.get_rng_state()
    one, two = (architecture.random_pipeline(3).transformer.state_dict() for _ in range(2))
    assert all(torch.equal(one[k], two[k]) for k in one)
    assert torch.equal(before, torch.get_rng_state())


def test_transformers_4_can_read_the_tokenizer_entry() -> None:
    """The class name written is one that transformers 4 and 5 both have."""
    index = json.loads((model_path() / "model_index.json").read_text())
    config = json.loads((model_path() / "tokenizer" / "tokenizer_config.json").read_text())
    assert index["tokenizer"] == ["transformers", "PreTrainedTokenizerFast"]
    assert config["tokenizer_class"] == "PreTrainedTokenizerFast"


def test_unknown_words_are_spelled_and_long_prompts_cut(pipe) -> None:
    """No word is lost to `<unk>`, and the longest prompt fits the model."""
    assert pipe.tokenizer.tokenize("Red zebra") == ["red", "z", "##e", "##b", "##r", "##a"]
    ids = pipe.tokenizer("red " * 90, truncation=True, max_length=architecture.MAX_SEQUENCE_LENGTH).input_ids
    assert len(ids) == architecture.MAX_SEQUENCE_LENGTH


def test_the_folder_is_within_its_size() -> None:
    """At most 30 MB shipped, 12 MB for the second control."""
    assert sum(f.stat().st_size for f in model_path().rglob("*") if f.is_file()) <= 30e6
    second = REPOSITORY / "models" / "wan2.1-vace-mini-b"
    if second.is_dir():
        assert sum(f.stat().st_size for f in second.rglob("*") if f.is_file()) <= 12e6


def test_a_short_sample_repeats_bit_for_bit_and_follows_its_control(pipe) -> None:
    """Four steps give the same bits twice, and the brightness of the control."""
    request = Request(_control(), "a red square on a blue background", seed=1, steps=4)
    first = generate(pipe, request)
    assert first.shape == (17, 96, 96, 3)
    assert np.array_equal(first, generate(pipe, request))
    assert luma_correlation(first, request.control) > 0.8


def test_fast_training_changes_no_result() -> None:
    """The cheaper layers used in training compute what the real ones do."""
    vae = architecture.random_pipeline().vae
    x = torch.rand(1, 3, 5, 16, 16)
    with torch.no_grad():
        plain = encode_mean(vae, x)
        with fast_training():
            fast = encode_mean(vae, x)
    assert torch.allclose(plain, fast, atol=1e-5)
