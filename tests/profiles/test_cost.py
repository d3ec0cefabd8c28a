"""FLOPs and bytes against torch's own counter and the published dimensions."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import torch
from diffusers import WanTransformer3DModel, WanVACETransformer3DModel
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.utils.flop_counter import FlopCounterMode

from refkv_policy.profiles import Profile, identify, load_profile, names
from refkv_policy.profiles.cost import Workload, forward, hint_share

torch.set_num_threads(1)


def tiny(num_layers: int, vace_layers: list[int], **over: object) -> Any:
    """A transformer of a layer map, 24 wide; without VACE layers a plain one."""
    config: dict[str, Any] = {
        "num_attention_heads": 2,
        "attention_head_dim": 12,
        "text_dim": 20,
        "freq_dim": 16,
        "ffn_dim": 40,
        "num_layers": num_layers,
        "in_channels": 4,
        "out_channels": 4,
    }
    if not vace_layers:
        return WanTransformer3DModel(**{**config, **over}).eval()
    return WanVACETransformer3DModel(**{**config, "vace_layers": vace_layers, "vace_in_channels": 24, **over}).eval()


@pytest.mark.parametrize(
    ("layers", "vace", "batch"),
    [
        (30, list(range(0, 30, 2)), 1),
        (40, list(range(0, 40, 5)), 1),
        (3, [0, 2], 2),
        (30, [], 1),
        (40, [], 1),
        (3, [], 2),
    ],
)
def test_a_forward_costs_exactly_what_torch_counts(layers: int, vace: list[int], batch: int) -> None:
    """The sum of the cost formulas equals torch's FLOP counter over a real forward, to the operation."""
    model = tiny(layers, vace)
    latent = torch.randn(batch, 4, 3, 8, 6)
    text = torch.randn(batch, 7, 20)
    control = {"control_hidden_states": torch.randn(batch, 24, 3, 8, 6)} if vace else {}
    # torch's counter has no formula for the fused attention of a CPU, but counts its two products one by one.
    with torch.no_grad(), sdpa_kernel(SDPBackend.MATH), FlopCounterMode(display=False) as counter:
        model(latent, torch.tensor([5] * batch), text, **control, return_dict=False)
    profile = Profile.from_transformer(model, text_tokens=7)
    assert forward(profile, Workload(tokens=3 * 4 * 3, text_tokens=7, batch=batch)) == counter.get_total_flops()


@pytest.mark.parametrize(
    ("name", "clip", "tokens", "share", "gib"),
    [
        ("wan2.1-vace-1.3b", (832, 480, 17), 7800, 0.341, None),
        ("wan2.1-vace-1.3b", (832, 480, 81), 32760, 0.337, 1.41),
        ("wan2.1-vace-1.3b", (1280, 720, 81), 75600, None, 3.24),
        ("wan2.1-vace-14b", (832, 480, 81), 32760, 0.173, 2.50),
        ("wan2.1-vace-14b", (1280, 720, 81), 75600, 0.170, 5.77),
        ("wan2.1-t2v-1.3b", (832, 480, 81), 32760, 0.0, 0.0),
        ("wan2.1-t2v-14b", (1280, 720, 81), 75600, 0.0, 0.0),
    ],
)
def test_published_figures_of_the_real_models(
    name: str, clip: tuple[int, int, int], tokens: int, share: float | None, gib: float | None
) -> None:
    """Tokens, the hints' share of a forward and the bytes of all hints are those computed for the published models."""
    profile = load_profile(name)
    work = Workload(profile.tokens(*clip), profile.text_tokens)
    assert work.tokens == tokens
    if share is not None:
        assert hint_share(profile, work) == pytest.approx(share, abs=6e-4)
    if gib is not None:
        total = sum(2 * cost.elements for site, cost in profile.costs(work).items() if site.stack == "hint")
        assert total / 2**30 == pytest.approx(gib, abs=5e-3)


def test_the_embedded_model_keeps_the_hints_share_of_the_real_one() -> None:
    """Hints are 30 to 38 % of the embedded model's forward, as in the 1.3B."""
    profile = load_profile("wan2.1-vace-mini")
    for frames, size in ((17, 96), (17, 128), (33, 96)):
        assert 0.30 <= hint_share(profile, Workload(profile.tokens(size, size, frames), profile.text_tokens)) <= 0.38


def test_a_transformer_is_identified_by_its_architecture_alone() -> None:
    """Each shipped profile is found from a transformer of its config; a model of other dims is none of them."""
    for name in names():
        profile = load_profile(name)
        config = {
            "num_layers": profile.main_blocks,
            "num_attention_heads": profile.heads,
            "attention_head_dim": profile.head_dim,
            "ffn_dim": profile.ffn_dim,
            "text_dim": profile.text_dim,
            "in_channels": 16,
            "out_channels": 16,
            "freq_dim": 256,
            "patch_size": (1, 2, 2),
        }
        if profile.vace_at:
            config |= {"vace_layers": list(profile.vace_at), "vace_in_channels": 96}
        found = identify(type("Model", (), {"config": config})())
        assert found is not None
        assert found.name == name
    assert identify(tiny(30, list(range(0, 30, 2)))) is None


def test_tokens_follow_the_causal_vae() -> None:
    """1 + 4n frames are 1 + n latent frames, a reference image adds one; other sizes and counts are refused."""
    profile = load_profile("wan2.1-vace-1.3b")
    assert profile.tokens(96, 96, 1) == 36
    assert profile.tokens(96, 96, 17, references=2) == 7 * 36
    with pytest.raises(ValueError, match="multiples of 16"):
        profile.tokens(100, 96, 17)
    with pytest.raises(ValueError, match=r"4n\+1"):
        profile.tokens(96, 96, 16)


@pytest.mark.parametrize(
    "more",
    [
        {"added_kv_proj_dim": 24, "image_dim": 32},
        {"added_kv_proj_dim": 24, "image_dim": 32, "in_channels": 8},
        {"added_kv_proj_dim": 24},
        {"image_dim": 32, "pos_embed_seq_len": 514},
    ],
    ids=["both", "more channels", "only attention", "first and last frame"],
)
def test_image_to_video_is_refused_in_a_sentence(more: dict[str, Any]) -> None:
    """A model that attends to an image costs and keeps more than a plain one, and is not taken for one."""
    config = {"num_layers": 2, "num_attention_heads": 2, "attention_head_dim": 12, "ffn_dim": 40, **more}
    model = type("WanTransformer3DModel", (), {"config": config})()
    with pytest.raises(ValueError, match="this WanTransformer3DModel attends to an image besides the text"):
        Profile.from_transformer(model)


def test_a_model_without_hints_has_no_control() -> None:
    """What is said of a control's channels changes neither the facts nor the digest of a model without hints."""
    profile = Profile.from_transformer(tiny(3, []))
    assert (profile.family, profile.vace_at, profile.vace_in_channels) == ("wan", (), 0)
    assert replace(profile, vace_in_channels=96).digest == profile.digest
    assert profile.counts == {"main": 3, "vace": 0, "hint": 0}
    assert {site.stack for site in profile.tree.order} == {"step", "cfg", "main"}
