"""A profile: the weight-free facts of one model that plans are compiled against."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from functools import cached_property
from types import MappingProxyType
from typing import Any

from refkv_policy.canonical import json_digest

FAMILY = "wan-vace"


@dataclass(frozen=True)
class Profile:
    """Dimensions and layer map of one Wan VACE transformer, and the names its layer sets go by.

    vace_at[j] is the main block after which hint j is added. `sets` maps a stack to named selectors, such as
    {"hint": {"deep": "8-14"}}. text_tokens is the length that prompts are padded to. latent_channels and the VAE's
    (temporal, spatial) factors give the token count of a video.
    """

    name: str
    title: str
    main_blocks: int
    vace_at: tuple[int, ...]
    heads: int
    head_dim: int
    ffn_dim: int
    text_tokens: int
    text_dim: int
    in_channels: int = 16
    out_channels: int = 16
    vace_in_channels: int = 96
    freq_dim: int = 256
    patch: tuple[int, int, int] = (1, 2, 2)
    vae_scale: tuple[int, int] = (4, 8)
    few_step: bool = False
    family: str = FAMILY
    sets: Mapping[str, Mapping[str, str]] = field(default_factory=lambda: MappingProxyType({}))

    @property
    def dim(self) -> int:
        """Model width d."""
        return self.heads * self.head_dim

    @property
    def counts(self) -> Mapping[str, int]:
        """How many indexes each stack has."""
        return {"main": self.main_blocks, "vace": len(self.vace_at), "hint": len(self.vace_at)}

    def tokens(self, width: int, height: int, frames: int, references: int = 0) -> int:
        """Video tokens of a clip: frames are causal (1 + 4n give 1 + n latent frames); a reference image adds one.

        Raises ValueError when the size is not a multiple of patch × VAE factor, or the frames are not 4n + 1.
        """
        temporal, spatial = self.vae_scale
        step_h, step_w = spatial * self.patch[1], spatial * self.patch[2]
        if width % step_w or height % step_h or width <= 0 or height <= 0:
            raise ValueError(f"size {width}x{height} must be a multiple of {step_w}x{step_h}")
        if frames < 1 or (frames - 1) % temporal:
            raise ValueError(f"{frames} frames are not {temporal}n+1")
        latent_frames = (1 + (frames - 1) // temporal + references) // self.patch[0]
        return latent_frames * (height // step_h) * (width // step_w)

    @cached_property
    def digest(self) -> str:
        """`sha256:…` of every fact except the title."""
        return json_digest({k: v for k, v in asdict(_plain(self)).items() if k != "title"})

    @classmethod
    def from_transformer(cls, transformer: Any, *, name: str = "custom", text_tokens: int = 512) -> Profile:
        """The profile of any `WanVACETransformer3DModel`, read from its `config`; `deep` is the last half of the hints.

        Raises ValueError when the object's config is not a Wan VACE transformer's.
        """
        config = getattr(transformer, "config", None)
        try:
            assert config is not None
            facts: dict[str, Any] = {
                "main_blocks": int(config["num_layers"]),
                "vace_at": tuple(int(i) for i in config["vace_layers"]),
                "heads": int(config["num_attention_heads"]),
                "head_dim": int(config["attention_head_dim"]),
                "ffn_dim": int(config["ffn_dim"]),
                "text_dim": int(config["text_dim"]),
                "in_channels": int(config["in_channels"]),
                "out_channels": int(config["out_channels"] or config["in_channels"]),
                "vace_in_channels": int(config["vace_in_channels"]),
                "freq_dim": int(config["freq_dim"]),
                "patch": tuple(int(p) for p in config["patch_size"]),
            }
        except (AssertionError, KeyError, TypeError, ValueError) as error:
            kind = type(transformer).__name__
            raise ValueError(f"{kind} is not a Wan VACE transformer: its config lacks or misstates {error}") from error
        hints = len(facts["vace_at"])
        sets = {"hint": {"deep": f"{(hints + 1) // 2}-{hints - 1}"}} if hints > 1 else {}
        return cls(name=name, title=name, text_tokens=text_tokens, sets=freeze(sets), **facts)

    def same_model(self, other: Profile) -> bool:
        """Whether both describe one architecture (names, titles, sets and padding of prompts do not count)."""
        ignored = {"name", "title", "sets", "text_tokens", "few_step"}
        fields = self.__dataclass_fields__.keys() - ignored
        return all(getattr(self, f) == getattr(other, f) for f in fields)


def freeze(sets: Mapping[str, Mapping[str, str]]) -> Mapping[str, Mapping[str, str]]:
    """A read-only copy."""
    return MappingProxyType({stack: MappingProxyType(dict(named)) for stack, named in sets.items()})


def _plain(profile: Profile) -> Profile:
    """The profile with ordinary dicts, which `asdict` can copy."""
    from dataclasses import replace

    return replace(profile, sets={stack: dict(named) for stack, named in profile.sets.items()})
