"""The frozen configuration of the embedded model, and the model it describes with random weights.

Locks and evidence carry digests of this configuration: changing any constant here makes them stale.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import torch
from diffusers import AutoencoderKLWan, UniPCMultistepScheduler, WanVACEPipeline, WanVACETransformer3DModel
from tokenizers import Regex, Tokenizer, models, normalizers, pre_tokenizers, processors
from transformers import PreTrainedTokenizerFast, UMT5Config, UMT5EncoderModel

from refkv_policy.mini.vocabulary import SPECIAL, token_table

MAX_SEQUENCE_LENGTH = 32
SIZE = 96  # pixels, height and width of the clips it is trained on
FRAMES = 17
FLOW_SHIFT = 3.0
TEXT_DIM = 64

TRANSFORMER: dict[str, Any] = {
    "patch_size": (1, 2, 2),
    "num_attention_heads": 4,
    "attention_head_dim": 32,
    "in_channels": 16,
    "out_channels": 16,
    "text_dim": TEXT_DIM,
    "freq_dim": 256,
    "ffn_dim": 512,
    "num_layers": 12,
    "cross_attn_norm": True,
    "qk_norm": "rms_norm_across_heads",
    "eps": 1e-6,
    "rope_max_seq_len": 1024,
    "vace_layers": [0, 2, 4, 6, 8, 10],
    "vace_in_channels": 96,
}

VAE: dict[str, Any] = {
    "base_dim": 16,
    "z_dim": 16,
    "dim_mult": [1, 2, 4, 4],
    "num_res_blocks": 1,
    "attn_scales": [],
    "temperal_downsample": [False, True, True],
}

SCHEDULER: dict[str, Any] = {
    "num_train_timesteps": 1000,
    "prediction_type": "flow_prediction",
    "use_flow_sigmas": True,
    "flow_shift": FLOW_SHIFT,
    "solver_order": 2,
    "solver_type": "bh2",
}


def build_tokenizer() -> PreTrainedTokenizerFast:
    """Lower-case word-level tokenizer that spells unknown words letter by letter and ends with `</s>`, as T5's do."""
    table = token_table()
    pad, eos, unk = SPECIAL
    tokenizer = Tokenizer(models.WordPiece(vocab=table, unk_token=unk, max_input_chars_per_word=40))
    tokenizer.normalizer = normalizers.Sequence(
        [normalizers.NFKD(), normalizers.StripAccents(), normalizers.Lowercase(), normalizers.Replace(Regex("-"), " ")]
    )
    tokenizer.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    tokenizer.post_processor = processors.TemplateProcessing(single=f"$A {eos}", special_tokens=[(eos, table[eos])])
    return PreTrainedTokenizerFast(
        tokenizer_object=tokenizer, pad_token=pad, eos_token=eos, unk_token=unk, model_max_length=MAX_SEQUENCE_LENGTH
    )


def text_encoder_config() -> UMT5Config:
    """A two-layer UMT5 of width `TEXT_DIM`."""
    return UMT5Config(
        vocab_size=len(token_table()),
        d_model=TEXT_DIM,
        d_kv=16,
        d_ff=128,
        num_layers=2,
        num_heads=4,
        relative_attention_num_buckets=16,
        relative_attention_max_distance=32,
        is_encoder_decoder=False,
        feed_forward_proj="gated-gelu",
        dropout_rate=0.0,
        pad_token_id=0,
        eos_token_id=1,
        tie_word_embeddings=False,
    )


def build_scheduler() -> UniPCMultistepScheduler:
    """The flow-matching UniPC scheduler of the Wan2.1 folders, shift 3."""
    return UniPCMultistepScheduler(**SCHEDULER)


def random_pipeline(seed: int = 0) -> WanVACEPipeline:
    """A complete pipeline of exactly the frozen configuration with seeded random float32 weights on the CPU.

    The caller's random state is left as it was. For tests of mechanics only: random hints carry no meaning.
    """
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        return WanVACEPipeline(
            tokenizer=build_tokenizer(),
            text_encoder=UMT5EncoderModel(text_encoder_config()).eval(),
            vae=AutoencoderKLWan(**VAE).eval(),
            scheduler=build_scheduler(),
            transformer=WanVACETransformer3DModel(**TRANSFORMER).eval(),
        )


def write_settings(folder: Path) -> None:
    """Write `refkv.json`, what a caller must pass to the pipeline that its own files have no place for."""
    settings = {
        "max_sequence_length": MAX_SEQUENCE_LENGTH,
        "height": SIZE,
        "width": SIZE,
        "num_frames": FRAMES,
        "num_inference_steps": 30,
        "guidance_scale": 3.0,
    }
    (folder / "refkv.json").write_text(json.dumps(settings, indent=2) + "\n")
