"""A profile: the weight-free facts of one model that plans are compiled against."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from functools import cached_property
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

from refkv_policy.profiles.families import ClipError, family, names
from refkv_policy.profiles.sites import Cost, Tree

if TYPE_CHECKING:
    from refkv_policy.plan.selectors import Site
    from refkv_policy.profiles.cost import Workload

from refkv_policy.canonical import json_digest

FAMILY = "wan-vace"
"""The family of a profile that names none."""


@dataclass(frozen=True)
class Profile:
    """Dimensions and layer map of one transformer, and the names its layer sets go by.

    vace_at[j] is the main block after which hint j is added; empty where the model has no hints, and then no control either
    (vace_in_channels 0). `sets` maps a stack to named selectors, such as {"hint": {"deep": "8-14"}}. text_tokens is the length
    that prompts are padded to. The VAE's (temporal, spatial) factors give the token count of a video.
    """

    name: str
    title: str
    main_blocks: int
    heads: int
    head_dim: int
    ffn_dim: int
    text_tokens: int
    text_dim: int
    vace_at: tuple[int, ...] = ()
    in_channels: int = 16
    out_channels: int = 16
    vace_in_channels: int = 96
    freq_dim: int = 256
    patch: tuple[int, int, int] = (1, 2, 2)
    vae_scale: tuple[int, int] = (4, 8)
    few_step: bool = False
    family: str = FAMILY
    sets: Mapping[str, Mapping[str, str]] = field(default_factory=lambda: MappingProxyType({}))

    def __post_init__(self) -> None:
        if not self.vace_at:
            object.__setattr__(self, "vace_in_channels", 0)

    @property
    def dim(self) -> int:
        """Model width d."""
        return self.heads * self.head_dim

    @property
    def counts(self) -> Mapping[str, int]:
        """How many indexes each stack has."""
        return {"main": self.main_blocks, "vace": len(self.vace_at), "hint": len(self.vace_at)}

    @property
    def tree(self) -> Tree:
        """How the model's sites hang together."""
        return family(self.family).tree(self.main_blocks, self.vace_at)

    def costs(self, work: Workload) -> Mapping[Site, Cost]:
        """FLOPs and elements of each site at a workload."""
        known: dict[Workload, Mapping[Site, Cost]] = self.__dict__.setdefault("_costs", {})
        if work not in known:
            known[work] = family(self.family).costs(self, work)
        return known[work]

    def tokens(self, width: int, height: int, frames: int, references: int = 0) -> int:
        """Video tokens of a clip, with reference images. Raises ClipError for a size or count that the model does not make."""
        for fault in self.clip_faults(width, height, frames):
            raise fault
        return family(self.family).tokens(self, width, height, frames, references)

    def clip_faults(self, width: int, height: int, frames: int) -> tuple[ClipError, ...]:
        """What keeps the model from making a clip of that size and length; nothing where it does."""
        return tuple(family(self.family).clip_faults(self, width, height, frames))

    @cached_property
    def digest(self) -> str:
        """`sha256:…` of every fact except the title."""
        return json_digest({k: v for k, v in asdict(_plain(self)).items() if k != "title"})

    @classmethod
    def from_transformer(cls, transformer: Any, *, name: str = "custom", text_tokens: int = 512) -> Profile:
        """The profile of any transformer of a known family, read from its `config`.

        Raises ValueError when the object's config is none of theirs, or of a variant that is not supported.
        """
        config = getattr(transformer, "config", None)
        own = family_of(transformer)
        kind = type(transformer).__name__
        try:
            assert config is not None
            facts = family(own).facts(config)
        except NotImplementedError as error:
            raise ValueError(f"this {kind} {error}") from error
        except (AssertionError, KeyError, TypeError, ValueError) as error:
            title = family(own).TITLE
            raise ValueError(f"{kind} is not a {title} transformer: its config lacks or misstates {error}") from error
        sets = freeze(facts.pop("sets", {}))
        return cls(name=name, title=name, text_tokens=text_tokens, family=own, sets=sets, **facts)

    def same_model(self, other: Profile) -> bool:
        """Whether both describe one architecture (names, titles, sets and padding of prompts do not count)."""
        ignored = {"name", "title", "sets", "text_tokens", "few_step"}
        fields = self.__dataclass_fields__.keys() - ignored
        return all(getattr(self, f) == getattr(other, f) for f in fields)


def family_of(transformer: Any) -> str:
    """The family that recognises a transformer's config; the default one where none does, for its message."""
    config = getattr(transformer, "config", None)
    return next((name for name in names() if config is not None and family(name).recognises(config)), FAMILY)


def freeze(sets: Mapping[str, Mapping[str, str]]) -> Mapping[str, Mapping[str, str]]:
    """A read-only copy."""
    return MappingProxyType({stack: MappingProxyType(dict(named)) for stack, named in sets.items()})


def _plain(profile: Profile) -> Profile:
    """The profile with ordinary dicts, which `asdict` can copy."""
    from dataclasses import replace

    return replace(profile, sets={stack: dict(named) for stack, named in profile.sets.items()})
