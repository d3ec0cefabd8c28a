"""What a caching method is: where it may stand, how it lowers to table rows, and how it makes a value it did not compute.

Adding a method is adding one file to this package that defines `METHOD` (or, from another distribution, an entry point
in the group `refkv_policy.methods`). Nothing else needs an edit.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar, Literal, NamedTuple

if TYPE_CHECKING:
    import torch

RefreshForm = Literal["interval", "steps", "spacing"]
SiteKind = tuple[str, "str | None"]
"""Stack and part: ("hint", None), ("main", "text_kv")."""


class Observation(NamedTuple):
    """A fresh value kept at a site. sigma: of the step it was computed at. value: native or store dtype."""

    sigma: float
    value: torch.Tensor


@dataclass(frozen=True, slots=True)
class Grid:
    """The clock a rule is lowered against: the nominal step count, the steps the sampler visits, each step's sigma."""

    steps: int
    evaluated: tuple[int, ...]
    sigmas: tuple[float, ...]


@dataclass(frozen=True, slots=True)
class Lowered:
    """One site's actions and what the store must keep for them.

    actions: one character a nominal step. `C` marks every fresh step; the compiler turns those that nothing reads into `.`.
    """

    actions: str
    history: int = 1


class MethodError(ValueError):
    """A rule that the method cannot honour. field: the key of the rule that is at fault (`refresh`, `params`, …)."""

    def __init__(self, field: str, message: str, help: str) -> None:
        super().__init__(message)
        self.field, self.message, self.help = field, message, help


class Method:
    """Base of every method. Class attributes are declarations; a method holds no state.

    schedules: the method decides which steps the sampler visits, not what is cached.
    forecasts: the method exists to lower to `F`; a rule of it that never does is an error.
    refreshes: the forms of `refresh:` it takes; empty when it has none (then `refresh:` is refused).
    """

    name: ClassVar[str]
    title: ClassVar[str]
    tier: ClassVar[str]
    risk: ClassVar[str | None]
    sites: ClassVar[frozenset[SiteKind]]
    refreshes: ClassVar[frozenset[RefreshForm]] = frozenset()
    takes_window: ClassVar[bool] = False
    takes_store: ClassVar[bool] = True
    schedules: ClassVar[bool] = False
    forecasts: ClassVar[bool] = False
    params_schema: ClassVar[Mapping[str, Any]] = {"type": "object", "properties": {}, "additionalProperties": False}

    def risks(self, params: Mapping[str, Any]) -> tuple[str, ...]:
        """Every risk that an acknowledgement must name."""
        return (self.risk,) if self.risk else ()

    def fresh_without_refresh(self, grid: Grid) -> frozenset[int]:
        """The fresh steps of a rule that has no `refresh:`. Raises NotImplementedError where one is required."""
        raise NotImplementedError(self.name)

    def lower(self, fresh: frozenset[int], grid: Grid, params: Mapping[str, Any]) -> Lowered:
        """The actions of a site that is computed at `fresh` (nominal steps), before the chain is resolved."""
        raise NotImplementedError(self.name)

    def predict(self, history: Sequence[Observation], sigma: float, params: Mapping[str, Any]) -> torch.Tensor:
        """The value of an `F` cell from fresh observations, newest first; fp32 unless all it does is select.

        Raises NotImplementedError for a method that never lowers to `F`.
        """
        raise NotImplementedError(self.name)

    def describe(self, params: Mapping[str, Any]) -> str:
        """What the method does between refreshes, as the predicate of a sentence about the sites."""
        return self.title


def reuse_between(fresh: frozenset[int], grid: Grid, served: str = "R") -> str:
    """`C` at fresh evaluated steps, `served` at the other evaluated ones, `-` at those left out."""
    visited = set(grid.evaluated)
    return "".join("-" if s not in visited else "C" if s in fresh else served for s in range(grid.steps))
