"""What a caching method is: *when* its sites are computed, *whether* a step that may be served is, *what* stands in.

Adding a method is adding one file to this package that defines `METHOD` (or, from another distribution, an entry point
in the group `refkv_policy.methods`). Nothing else needs an edit. A method never adds a residual, a hint or a guidance
branch itself: the executor does.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar, Literal, NamedTuple

from refkv_policy.plan.selectors import Site

if TYPE_CHECKING:
    import torch

RefreshForm = Literal["interval", "steps", "spacing"]
SiteKind = tuple[str, "str | None"]
"""Stack and part: ("hint", None), ("main", None) for single blocks, ("main", "span") for the stack and runs of blocks."""

MAIN_STACK = frozenset({("main", "span"), ("main", None)})
"""The main stack as a whole, spans of it, single blocks."""
PARTS = frozenset((stack, part) for stack in ("main", "vace") for part in ("self", "cross", "ffn"))
"""Outputs of attention and feed-forward, in both stacks."""


class Observation(NamedTuple):
    """A fresh value kept at a site.

    sigma, step: of the nominal step it was computed at. value: native or store dtype; a residual is float32.
    probe: the rule's probe at that step, where it has one that is kept.
    """

    sigma: float
    value: torch.Tensor
    step: int = -1
    probe: torch.Tensor | None = None


class Now(NamedTuple):
    """The call in which a value is predicted. probe: the rule's probe in it. base: at `cfg`, the cond velocity of this step."""

    sigma: float
    step: int
    site: Site
    probe: torch.Tensor | None = None
    base: torch.Tensor | None = None


@dataclass(frozen=True, slots=True)
class Grid:
    """The clock a rule is lowered against: the nominal step count, the steps the sampler visits, each step's sigma."""

    steps: int
    evaluated: tuple[int, ...]
    sigmas: tuple[float, ...]


@dataclass(frozen=True, slots=True)
class Placement:
    """What a method sees of one of its rule's sites in one branch.

    grid: its `evaluated` are the steps at which the site is reached. fresh: nominal steps at which the rule's refresh and
    window have it computed.
    """

    params: Mapping[str, Any]
    site: Site
    branch: str
    grid: Grid
    fresh: frozenset[int] = frozenset()


@dataclass(frozen=True, slots=True)
class Lowered:
    """One site's actions and what the store must keep for them.

    actions: one character a nominal step. `C` marks every fresh step; the compiler turns those that nothing reads into `.`.
    history: how many of the newest observations a served cell reads at most. longest: the most `?` steps in a row that an
    online rule serves; None where nothing bounds it.
    """

    actions: str
    history: int = 1
    longest: int | None = None


@dataclass(frozen=True, slots=True)
class Probe:
    """What an online rule looks at in each call before it decides.

    first, last: the main blocks whose residual (output − input, float32) is the probe. against: the probe of the call
    before, or that of the newest call in which the rule's sites were computed. keep: whether `predict` reads the probes
    of kept observations.
    """

    first: int
    last: int
    against: Literal["previous", "computed"]
    keep: bool = False


class Online:
    """Decides a rule's `?` cells of one call, all of them as one. Pure, and without torch: the audit replays it.

    The state is the caller's to keep: any value, never changed in place.
    """

    threshold: float

    def begin(self) -> Any:
        """The state before the first call of a branch."""
        return None

    def decide(self, state: Any, signal: float | None) -> tuple[bool, Any]:
        """Whether to serve the call, and the state after it.

        Called once a call of the branch, in order, before the rule's sites. signal: None where there is nothing to compare
        with yet; the rule's sites are then computed whatever is answered.
        """
        raise NotImplementedError

    def computed(self, state: Any) -> Any:
        """The state after a call in which the rule's sites were computed: because it said so, or the table, or a departure."""
        return state


class MethodError(ValueError):
    """A rule that the method cannot honour. field: the key of the rule that is at fault (`refresh`, `params`, …)."""

    def __init__(self, field: str, message: str, help: str) -> None:
        super().__init__(message)
        self.field, self.message, self.help = field, message, help


class Method:
    """Base of every method. Class attributes are declarations; a method holds no state.

    sites: the kinds of site it may stand at. schedules: it decides which steps the sampler visits, not what is cached.
    forecasts: it makes served values with `predict`; a rule that never lowers to `F` or `?` is then an error.
    refreshes: the forms of `refresh:` it takes; empty when it has none (then `refresh:` is refused).
    keeps: at a region (the main stack, a span, a block, `cfg`), its output, or output − input in float32, which the executor
    adds to the input of the call that is served; `cfg` has the cond velocity of the step for an input. by_site: `lower` looks at
    the site or the branch, so that it is asked for each. due: when a rule without `refresh:` is fresh, as `explain` says it.
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
    keeps: ClassVar[Literal["output", "residual"]] = "output"
    by_site: ClassVar[bool] = False
    due: ClassVar[str] = "once for each request and branch"
    params_schema: ClassVar[Mapping[str, Any]] = {"type": "object", "properties": {}, "additionalProperties": False}

    def risks(self, params: Mapping[str, Any]) -> tuple[str, ...]:
        """Every risk that an acknowledgement must name."""
        return (self.risk,) if self.risk else ()

    def fresh_without_refresh(self, grid: Grid) -> frozenset[int]:
        """The fresh steps of a rule that has no `refresh:`. Raises NotImplementedError where one is required."""
        raise NotImplementedError(self.name)

    def lower(self, at: Placement) -> Lowered:
        """When: the actions of a site, one a nominal step. Raises MethodError for what it cannot honour."""
        raise NotImplementedError(self.name)

    def keeps_sources(self, params: Mapping[str, Any]) -> bool:
        """Whether the rule also keeps what its sites are computed from, to restart from it (a chain's state)."""
        return False

    def hints_apart(self, params: Mapping[str, Any]) -> bool:
        """Whether a kept residual leaves out the hints that are added inside it; those that the table names are then added."""
        return leaves_out_hints(params)

    @property
    def decides_online(self) -> bool:
        """Whether rules of the method may decide in the run."""
        return type(self).probe is not Method.probe

    def probe(self, at: Placement) -> Probe | None:
        """Whether: what an online rule looks at; None for a rule whose cells are all known when it is compiled."""
        return None

    def online(self, at: Placement) -> Online:
        """The decider of a rule that has a probe."""
        raise NotImplementedError(self.name)

    def measure(self, value: torch.Tensor, reference: torch.Tensor, at: Placement) -> torch.Tensor:
        """The signal, a 0-d tensor: L1rel = mean|a − b| / mean|b| unless said otherwise [TeaCache, FirstBlockCache]."""
        return (value - reference).abs().mean() / reference.abs().mean()

    def predict(self, history: Sequence[Observation], now: Now, params: Mapping[str, Any]) -> torch.Tensor:
        """What: the value of an `F` cell, or of a served `?` cell, from fresh observations, newest first.

        Of a `?` cell there may be fewer observations than `Lowered.history`. fp32 unless all it does is select.
        """
        return history[0].value

    def describe(self, params: Mapping[str, Any]) -> str:
        """What the method does between refreshes, as the predicate of a sentence about the sites."""
        return self.title


HINTS: dict[str, Any] = {
    "enum": ["with", "apart"],
    "description": "`with` (unless said): the kept residual holds the hints that were added in it, and none is computed where "
    "it is reused. `apart`: it is kept without them, and the hints that the table names (fresh, reused or forecast) are added",
}
"""The parameter of every method that keeps a residual of the main stack."""


def leaves_out_hints(params: Mapping[str, Any]) -> bool:
    """What HINTS says, of a rule in a plan and in a table alike."""
    return params.get("hints") == "apart"


def reuse_between(at: Placement, served: str = "R") -> str:
    """`C` at fresh evaluated steps, `served` at the other evaluated ones, `-` at those not reached."""
    visited = set(at.grid.evaluated)
    return "".join("-" if s not in visited else "C" if s in at.fresh else served for s in range(at.grid.steps))
