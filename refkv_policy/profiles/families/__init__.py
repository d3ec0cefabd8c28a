"""Model families without weights: how each one's sites hang together and what they cost. One file a family, found by name."""

from __future__ import annotations

import importlib
import pkgutil
from collections.abc import Iterator, Mapping
from functools import cache
from typing import TYPE_CHECKING, Any, Literal, Protocol

from refkv_policy.profiles.sites import Cost, Tree

if TYPE_CHECKING:
    from refkv_policy.plan.selectors import Site
    from refkv_policy.profiles.cost import Workload
    from refkv_policy.profiles.profile import Profile

__all__ = ["ClipError", "Family", "family", "names"]


class ClipError(ValueError):
    """A clip that a model does not make. field: what is at fault. takes: what it takes, in words.

    nearest: what it makes, as it is written: the nearest size, or the numbers of frames below and above.
    """

    def __init__(self, field: Literal["size", "frames"], given: str, takes: str, nearest: tuple[str, ...]) -> None:
        self.field, self.given, self.takes, self.nearest = field, given, takes, nearest
        self.help = f"write {' or '.join(nearest)}"
        noun = " frames" if field == "frames" else ""
        super().__init__(f"{given}{noun}: the model takes {takes}; {self.help}")


class Family(Protocol):
    """What a family's module holds: the facts of a model from its config, its sites, and what each of them costs."""

    NAME: str
    TITLE: str

    @staticmethod
    def recognises(config: Mapping[str, Any]) -> bool:
        """Whether a transformer's config is of this family's kind."""

    @staticmethod
    def facts(config: Mapping[str, Any]) -> dict[str, Any]:
        """The profile's fields, from a transformer's config. Raises KeyError, TypeError or ValueError for another model's.

        Raises NotImplementedError, with the rest of a sentence about the model, for a variant that is not supported.
        """

    @staticmethod
    def tree(main_blocks: int, vace_at: tuple[int, ...]) -> Tree:
        """The sites of a layer map."""

    @staticmethod
    def costs(profile: Profile, work: Workload) -> Mapping[Site, Cost]:
        """FLOPs and elements of every site of `tree`, in one call of a workload."""

    @staticmethod
    def tokens(profile: Profile, width: int, height: int, frames: int, references: int) -> int:
        """Video tokens of a clip without faults."""

    @staticmethod
    def clip_faults(profile: Profile, width: int, height: int, frames: int) -> Iterator[ClipError]:
        """What keeps a model of the family from making a clip."""

    @staticmethod
    def layers_fault(main_blocks: int, vace_at: tuple[int, ...]) -> str | None:
        """Why a layer map is none of the family's, as a sentence about `vace_at` without its end; None where it is one."""


def names() -> tuple[str, ...]:
    """Names of the families, sorted."""
    return tuple(sorted(m.name.replace("_", "-") for m in pkgutil.iter_modules(__path__)))


@cache
def family(name: str) -> Family:
    """The family of that name. Raises KeyError when there is none."""
    if name not in names():
        raise KeyError(name)
    return importlib.import_module(f"{__name__}.{name.replace('-', '_')}")  # type: ignore[return-value]  # a module
