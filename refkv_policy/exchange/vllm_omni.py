"""A plan as settings of vLLM-Omni: `diffusion_kv_cache_*` exactly, and a list of all that it cannot be told.

Field names, selectors and their effect are those of the released version RELEASE (docs/exchange.md says how that was
checked). It has five cache backends, none of them for VACE hints, for the text's K and V, or for a declared schedule.
"""

from __future__ import annotations

import json
import shlex
from collections.abc import Iterator
from dataclasses import dataclass

from refkv_policy.exchange.indices import indices_text
from refkv_policy.exchange.settings import BACKENDS, PLATFORM, AttentionSettings, ExchangeError
from refkv_policy.plan import Plan, SelectorError, Site, parse_sites, parse_steps
from refkv_policy.plan.wording import listed
from refkv_policy.profiles import Profile

RELEASE = "0.30.0"

_NO_EQUIVALENT = {
    "P0": "no released version keeps the text's K and V of a request",
    "P1": "none of the cache backends (cache_dit, tea_cache, mag_cache, sea_cache, step_cache) knows VACE hints",
    "P2": "no released version separates the reference's K and V",
    "S": "no setting runs a sampler on a declared subset of its own sigmas, or these stacks on declared steps",
}


@dataclass(frozen=True, slots=True)
class LeftOut:
    """Something of the plan that the server is not told, and why."""

    what: str
    why: str

    def __str__(self) -> str:
        return f"{self.what}: {self.why}"


@dataclass(frozen=True, slots=True)
class Export:
    """What the server is told of a plan, and what it is not. notes: what holds there without being asked.

    model: whose layers are meant; None where none are named.
    """

    plan: str
    model: str | None
    attention: AttentionSettings
    left_out: tuple[LeftOut, ...]
    notes: tuple[str, ...]

    @property
    def fields(self) -> dict[str, object]:
        """The fields of a stage in a deploy YAML; none where attention is native."""
        attention = self.attention
        if attention.dtype is None:
            return {}
        found: dict[str, object] = {"diffusion_kv_cache_dtype": attention.dtype}
        if attention.skip_steps:
            found["diffusion_kv_cache_skip_steps"] = indices_text(attention.skip_steps)
        if attention.skip_layers:
            found["diffusion_kv_cache_skip_layers"] = indices_text(attention.skip_layers)
        if attention.backend is not None:
            found["diffusion_attention_config"] = {"per_role": {"self": {"backend": attention.backend}}}
        return found

    @property
    def flags(self) -> str:
        """The same as flags of `vllm serve --omni`, quoted for a shell; empty where attention is native."""
        words = []
        for name, value in self.fields.items():
            text = value if isinstance(value, str) else json.dumps(value)
            words += [f"--{name.replace('_', '-')}", shlex.quote(text)]
        return " ".join(words)

    def yaml(self, stage: int = 0) -> str:
        """A deploy YAML with the fields for a stage, and the rest as comments, so that nothing is lost on the way."""
        model = f" on {self.model}" if self.model else ""
        heading = [f"# vLLM-Omni {RELEASE}: what it can be told of the plan {self.plan}{model}"]
        heading += [f"# flags: {self.flags}"] if self.fields else []
        heading += [f"# note: {note}" for note in self.notes]
        heading += [f"# not told: {entry}" for entry in self.left_out]
        if not self.fields:
            return "\n".join([*heading, "stages: []"]) + "\n"
        lines = [f"  - stage_id: {stage}"]
        for name, value in self.fields.items():
            lines.append(f"    {name}: {json.dumps(value)}")
        return "\n".join([*heading, "stages:", *lines]) + "\n"


def export_plan(plan: Plan, profile: Profile | None = None) -> Export:
    """What vLLM-Omni can be told of a plan, on one of its models where layers are named, since they differ by model.

    Raises ExchangeError with every reason when the plan's attention precision cannot be said exactly (a narrower dtype at
    other layers than the plan's would be another plan), ValueError when layers are named and no profile is given.
    """
    attention = plan.quantization.attention
    reasons: list[str] = []
    if attention.dtype == "native":
        reasons = [
            f"{key} has no effect with `dtype: native`: take it out of the plan"
            for key, given in (("skip_steps", attention.skip_steps), ("skip_layers", attention.skip_layers))
            if given
        ]
        if reasons:
            raise ExchangeError(reasons)
        return Export(plan.name, None, AttentionSettings(), tuple(_left_out(plan)), ())
    if attention.platform not in (None, PLATFORM):
        reasons.append(
            f"the plan is for {attention.platform}, and its narrower attention dtypes exist on {PLATFORM} only"
        )
    backend = _backend(attention.backend, attention.dtype, reasons)
    steps = _steps(plan, reasons)
    layers: tuple[int, ...] = ()
    left_out: list[LeftOut] = []
    if attention.skip_layers:
        if profile is None:
            raise ValueError("the plan names layers, which are numbered by model: a profile is needed")
        layers, left_out = _layers(plan, profile, reasons)
    if reasons:
        raise ExchangeError(reasons)
    notes = (
        "it takes these dtypes on Ascend NPU only, and refuses to start elsewhere",
        "its Wan models keep cross-attention native, whatever the dtype",
    )
    told = AttentionSettings(attention.dtype, steps, layers, backend)
    model = profile.name if profile is not None and attention.skip_layers else None
    return Export(plan.name, model, told, (*_left_out(plan), *left_out), notes)


def _backend(name: str | None, dtype: str, reasons: list[str]) -> str | None:
    if name is None:
        return None
    theirs = name.upper()
    if theirs not in BACKENDS:
        known = listed(backend.lower() for backend in BACKENDS)
        reasons.append(f"the attention backend {name} computes in no narrower dtype there: it has {known}")
    elif dtype not in BACKENDS[theirs]:
        reasons.append(
            f"the attention backend {name} does not compute in {dtype} there: it has {listed(BACKENDS[theirs])}"
        )
    return theirs


def _steps(plan: Plan, reasons: list[str]) -> tuple[int, ...]:
    """Both count the steps of a whole run from 0, so the indices are the plan's own."""
    text = plan.quantization.attention.skip_steps
    if text is None:
        return ()
    try:
        return parse_steps(text).resolve(min(plan.run.steps))
    except SelectorError as error:
        reasons.append(f"skip_steps: {error.message}: {error.help}")
        return ()


def _layers(plan: Plan, profile: Profile, reasons: list[str]) -> tuple[tuple[int, ...], list[LeftOut]]:
    """The indices that mean what the plan's selectors name: each stands for a main and a VACE block of that number."""
    sites: set[Site] = set()
    for text in plan.quantization.attention.skip_layers:
        try:
            sites.update(parse_sites(text).resolve(profile.counts, profile.sets))
        except SelectorError as error:
            reasons.append(f"skip_layers {text}: {error.message}: {error.help}")
    native = sorted(str(site) for site in sites if site.part == "cross")
    for site in sorted(map(str, (s for s in sites if s.stack not in ("main", "vace") or s.part in ("ffn", "text_kv")))):
        reasons.append(f"skip_layers names {site}, which is no attention layer")
    main, vace = (
        {s.index or 0 for s in sites if s.stack == stack and s.part in (None, "self")} for stack in ("main", "vace")
    )
    both = range(len(profile.vace_at))
    for index in sorted((main ^ vace) & set(both)):
        kept, other = ("main", "vace") if index in main else ("vace", "main")
        reasons.append(
            f"skip_layers keeps {kept}[{index}] native and not {other}[{index}], and vLLM-Omni's layer {index} is both: "
            f"add {other}[{index}], or take {kept}[{index}] out"
        )
    left_out = [LeftOut(f"skip_layers {site}", "cross-attention is native there anyway") for site in native]
    return tuple(sorted(main | vace)), left_out


def _left_out(plan: Plan) -> Iterator[LeftOut]:
    for rule in plan.caches:
        yield LeftOut(f"rule {rule.name} ({rule.tier}, {rule.method})", _NO_EQUIVALENT[rule.tier])
    yield LeftOut("the audit log", "no released version accounts for cache decisions")
    if plan.acknowledgements:
        yield LeftOut("the acknowledgements", "no setting says who accepted which risk")
    yield LeftOut("run", "steps, sampler, guidance and shapes are each request's own there, and none is refused")
    if plan.quantization.lossless == "downgrade":
        yield LeftOut("quantization.lossless", "with no lossless claim there is nothing to downgrade")
