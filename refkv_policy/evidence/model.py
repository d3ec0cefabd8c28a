"""The evidence as data: what a gate measured of a plan. Fields are named as in the JSON document, one to one.

Seconds, bytes and shares (0.08 is 8 %) throughout; a figure that was not measured is None, never zero.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Literal, NamedTuple

from refkv_policy.evidence.gate import GATE, Interval, Item, Outcome, Verdict, overall


class Scope(NamedTuple):
    """What a measurement holds for: one profile, nominal step count and guidance."""

    profile: str
    steps: int
    guidance: float

    def __str__(self) -> str:
        return f"{self.profile} at {self.steps} steps and guidance {self.guidance:g}"


@dataclass(frozen=True, slots=True)
class Figure:
    """A measured value. interval: None where there was but one observation."""

    value: float
    interval: Interval | None = None


@dataclass(frozen=True, slots=True)
class Clip:
    """An input video. sha256: `sha256:…` of the frames or file it was read from."""

    name: str
    sha256: str


@dataclass(frozen=True, slots=True)
class Bound:
    """What the measurement is bound to; where one of these no longer fits, it is stale. Digests are `sha256:…`.

    table: of the hook table (acknowledgements and names do not count). weights: of the transformer's. profile: of the
    profile's facts. sigmas: of the list of the nominal steps' sigmas.
    """

    table: str
    weights: str
    profile: str
    sampler: str
    flow_shift: float
    sigmas: str


@dataclass(frozen=True, slots=True)
class Setting:
    """How it was measured.

    solver_steps: steps of the many-step run that the solver floor is measured against; None where there was none.
    compile: the mode of `torch.compile`; None where it was not used. warm_up: requests run untimed before the timed
    ones. timed_pairs: pairs of an uncached and a planned request that were timed, interleaved. timing: where the clock
    was started and stopped. versions: of refkv, torch, diffusers and python, and the platform.
    """

    seeds: tuple[int, ...]
    clips: tuple[Clip, ...]
    width: int
    height: int
    frames: int
    fps: float
    batch: int
    dtype: str
    device: str
    solver_steps: int | None
    compile: str | None
    warm_up: int
    timed_pairs: int
    timing: str
    versions: Mapping[str, str] = field(default_factory=lambda: MappingProxyType({}))


@dataclass(frozen=True, slots=True)
class Evaluations:
    """Measured NFE: calls of the transformer in one request, both guidance branches counted."""

    planned: int
    uncached: int


@dataclass(frozen=True, slots=True)
class Counts:
    """Level 1: what the cache did. Of one request; departures by reason; FLOPs of all forwards of it."""

    hits: int
    misses: int
    departures: Mapping[str, int]
    flops_planned: float
    flops_uncached: float

    @property
    def saved(self) -> float:
        """Share of the uncached FLOPs that was not computed."""
        return 1 - self.flops_planned / self.flops_uncached


@dataclass(frozen=True, slots=True)
class StepLatency:
    """Level 2: seconds of one denoising step, averaged over a request, with every overhead of the cache in it.

    speedup: uncached over planned, of pairs.
    """

    planned: Figure
    uncached: Figure
    speedup: Figure


@dataclass(frozen=True, slots=True)
class Seconds:
    """Seconds of one request by part. vae: encoding and decoding. io: reading and writing video."""

    text: float
    denoiser: float
    vae: float
    io: float
    total: float


@dataclass(frozen=True, slots=True)
class EndToEnd:
    """Level 3: a whole request, from input file to output file. speedup: uncached over planned totals, of pairs."""

    planned: Seconds
    uncached: Seconds
    speedup: Figure


@dataclass(frozen=True, slots=True)
class Point:
    """One run of the frontier: the uncached one, the plan, a variant of it, or fewer steps, plain or re-spaced.

    varied: what sets it apart, such as {"refresh.interval": 4} or {"steps": 20}. table: digest of its hook table; None
    where it ran without one. speedup: uncached over this one's denoising time; None where not timed. speedup_flops: the
    same of FLOPs. error: against the uncached run; solver_error: against the many-step run. memory: peak bytes.
    """

    name: str
    family: Literal["uncached", "plan", "variant", "fewer_steps", "respaced_steps"]
    varied: Mapping[str, str | int | float | bool]
    table: str | None
    evaluations: int
    hits: int
    misses: int
    speedup: Figure | None
    speedup_flops: float
    error: Figure
    solver_error: Figure | None
    memory: int | None


@dataclass(frozen=True, slots=True)
class Frontier:
    """Level 4: speed against error. metric: the name of the metric that the errors are of."""

    metric: str
    points: tuple[Point, ...]


@dataclass(frozen=True, slots=True)
class Levels:
    """All figures by the survey's four levels; None is not measured."""

    counts: Counts
    step_latency: StepLatency | None
    end_to_end: EndToEnd | None
    frontier: Frontier | None


@dataclass(frozen=True, slots=True)
class Sample:
    """One clip and seed: mean over frames, worst frame and its index (None where the metric has no frames)."""

    clip: str
    seed: int
    mean: float
    worst: float | None = None
    worst_frame: int | None = None


@dataclass(frozen=True, slots=True)
class Metric:
    """One measure of the planned run against a reference, with both ends of its scale beside it.

    name: its honest name; provenance: library and version, or weights. stand_in: it stands in for a metric that could
    not be had, and no gate item may be judged on it. reference: what it compares with, the uncached run or the
    many-step one. mean and worst: over all samples, of each sample's mean and worst frame. per_frame: mean over
    samples, by frame; empty where it has no frames. noise: uncached against uncached, repeated. solver: uncached
    against the many-step run. other_seed: uncached against uncached of another seed.
    """

    name: str
    title: str
    provenance: str
    stand_in: bool
    better: Literal["higher", "lower"]
    reference: Literal["uncached", "many_steps"]
    mean: Figure
    worst: Figure | None
    noise: Figure | None
    solver: Figure | None
    other_seed: Figure | None
    per_frame: tuple[float, ...]
    samples: tuple[Sample, ...]


@dataclass(frozen=True, slots=True)
class Memory:
    """Peak bytes.

    what: which memory `planned` and `uncached` are of. cache: of the store alone, measured and predicted.
    budget: the sum of the plan's budgets; None where it states none.
    """

    what: Literal["device_allocated", "device_reserved", "host_resident"]
    planned: int
    uncached: int
    cache: int
    cache_predicted: int
    budget: int | None


@dataclass(frozen=True, slots=True)
class Audit:
    """The head (last hash) of an audit log of the measured runs: against it a rewrite of the whole log shows."""

    log: str
    head: str


@dataclass(frozen=True, slots=True)
class MeasuredScope:
    """All that was measured in one scope.

    created: UTC, ISO 8601. command: the command line. model: which weights ran, in words.
    """

    profile: str
    steps: int
    guidance: float
    created: str
    command: tuple[str, ...]
    model: str
    bound: Bound
    setting: Setting
    evaluations: Evaluations
    levels: Levels
    metrics: tuple[Metric, ...]
    memory: Memory | None
    audits: tuple[Audit, ...]
    gate: tuple[Item, ...]

    @property
    def scope(self) -> Scope:
        """The profile, steps and guidance it holds for."""
        return Scope(self.profile, self.steps, self.guidance)

    @property
    def verdicts(self) -> dict[str, Verdict]:
        """The verdict of each item, and `not_measured` for one of the gate's own that the document leaves out."""
        return {**dict.fromkeys(GATE, "not_measured"), **{item.name: item.verdict for item in self.gate}}

    @property
    def verdict(self) -> Outcome:
        """Green only when every item is; worked out from what was measured."""
        return overall(self.verdicts.values())


@dataclass(frozen=True, slots=True)
class Evidence:
    """An evidence document. edited: changed after it was written; its digest does not fit what it holds."""

    plan: str
    scopes: tuple[MeasuredScope, ...]
    edited: bool = False

    @property
    def verdict(self) -> Outcome:
        """Green only when every scope is."""
        return overall(scope.verdict for scope in self.scopes)

    def of(self, scope: Scope) -> MeasuredScope | None:
        """What was measured in a scope, if anything was."""
        return next((entry for entry in self.scopes if entry.scope == scope), None)
