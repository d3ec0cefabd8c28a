"""Guardrails as data: what a repository asks of its plans. Fields are named as in the document."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Literal

from refkv_policy.plan.document import Document
from refkv_policy.plan.model import Path, Shape

Purpose = Literal["reference", "recommended"]
Names = tuple[str, ...]
"""Never empty: a key that is left out is None, and limits nothing."""

TIERS = ("P0", "P1", "P2", "S")
LOSSY = ("P1", "P2", "S")
"""The tiers that a bound on refreshes, steps or evidence holds for unless it names its own: P0 is bit-exact."""

SENSES: Mapping[str, Literal["at_most", "at_least"]] = MappingProxyType(
    {
        "mean_drop": "at_most",
        "worst_frame_drop": "at_most",
        "speedup": "at_least",
        "pareto": "at_most",
        "second_half_decay": "at_most",
        "subjective": "at_least",
        "fewer_steps": "at_most",
        "respaced_steps": "at_most",
    }
)
"""The gate's items that guardrails may give a threshold, and what a measured value must be beside it."""


OWN: Mapping[str, float] = MappingProxyType(
    {
        "mean_drop": 0.08,
        "worst_frame_drop": 0.15,
        "speedup": 0.10,
        "pareto": 0.0,
        "second_half_decay": 0.5,
        "subjective": 0.90,
        "fewer_steps": 0.0,
        "respaced_steps": 0.0,
    }
)
"""The gate's own thresholds, by which evidence is judged where guardrails ask for it and state none."""


@dataclass(frozen=True, slots=True)
class Allow:
    """What rules may be. models: entries of a plan's `models`; a profile file by its real path."""

    tiers: Names | None = None
    methods: Names | None = None
    models: Names | None = None


@dataclass(frozen=True, slots=True)
class Bound:
    """What every entry has: where it stands, and which rules and models it holds for.

    path: leads to it in the document. models: names of profiles; None is every one.
    """

    path: Path
    tiers: Names
    models: Names | None

    def holds_on(self, *names: str) -> bool:
        """Whether it holds on a profile that goes by any of these names."""
        return self.models is None or not set(names).isdisjoint(self.models)


@dataclass(frozen=True, slots=True)
class RefreshBound(Bound):
    """largest_interval: in evaluated steps. smallest_count: of fresh steps. At least one is set."""

    largest_interval: int | None = None
    smallest_count: int | None = None


@dataclass(frozen=True, slots=True)
class AlwaysComputed(Bound):
    """steps: a window."""

    steps: str


@dataclass(frozen=True, slots=True)
class NeverCached(Bound):
    """sites: selectors, resolved on each model. reason: empty when none is given."""

    sites: Names
    reason: str = ""


@dataclass(frozen=True, slots=True)
class ByteLimit(Bound):
    """largest: bytes. dtype: the model's. shapes: None is each of the plan's own."""

    largest: int
    dtype: str
    shapes: tuple[Shape, ...] | None = None


@dataclass(frozen=True, slots=True)
class EvidenceDemand(Bound):
    """status: the smallest that will do. purpose: None is either. thresholds: by item of the gate."""

    status: Literal["green", "incomplete", "red"]
    purpose: Purpose | None = None
    thresholds: Mapping[str, float] = field(default_factory=lambda: MappingProxyType({}))

    def holds_for(self, purpose: str, tiers: frozenset[str], *names: str) -> bool:
        """Whether a plan of this purpose needs evidence on a model, by its names, where its rules are of these tiers."""
        return self.purpose in (None, purpose) and self.holds_on(*names) and not tiers.isdisjoint(self.tiers)


@dataclass(frozen=True, slots=True)
class Party:
    """A risk, and the parties of which one must have acknowledged it."""

    path: Path
    risk: str
    by: Names


@dataclass(frozen=True, slots=True)
class AcknowledgementBounds:
    """expires: whether an acknowledgement must say so. longest_days: from its date to its expiry."""

    expires: bool = False
    longest_days: int | None = None
    parties: tuple[Party, ...] = ()


@dataclass(frozen=True, slots=True)
class Guardrails:
    """A guardrails document that is sound in itself. Selectors stay texts: what they name depends on the model."""

    document: Document = field(repr=False, compare=False)
    description: str = ""
    allow: Allow = Allow()
    refresh: tuple[RefreshBound, ...] = ()
    always_computed: tuple[AlwaysComputed, ...] = ()
    never_cached: tuple[NeverCached, ...] = ()
    acknowledgements: AcknowledgementBounds = AcknowledgementBounds()
    bytes: tuple[ByteLimit, ...] = ()
    evidence: tuple[EvidenceDemand, ...] = ()

    def place(self, path: Path) -> str:
        """`plans/guardrails.yaml:12`, for a message about a plan."""
        return f"{self.document.file}:{self.document.span(path, key=True).line}"


def thresholds(
    guardrails: Guardrails | None, purpose: str, models: Collection[str], tiers: frozenset[str]
) -> dict[str, float]:
    """The thresholds that the gate judges a plan by in place of its own, by item; of several the strictest.

    purpose: the plan's. models: the names that its model goes by (`profiles.names_of`). tiers: of the rules that apply to
    it. Empty without guardrails.
    """
    found: dict[str, float] = {}
    for demand in guardrails.evidence if guardrails is not None else ():
        if demand.holds_for(purpose, tiers, *models):
            for name, limit in demand.thresholds.items():
                strictest = min if SENSES[name] == "at_most" else max
                found[name] = strictest(limit, found.get(name, limit))
    return found
