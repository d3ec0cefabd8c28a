"""Evidence written for tests: a small plan, its tables, and a scope measured in every respect."""

from __future__ import annotations

import datetime
import functools
import json
from collections.abc import Callable
from dataclasses import replace
from typing import Any

from refkv_policy.compiler import HookTable, compile_all
from refkv_policy.evidence import (
    GATE,
    Audit,
    Clip,
    Counts,
    EndToEnd,
    Evaluations,
    Evidence,
    Figure,
    Frontier,
    Interval,
    Item,
    Levels,
    MeasuredScope,
    Memory,
    Metric,
    Point,
    Sample,
    Seconds,
    Setting,
    StepLatency,
    digest_of,
    make_item,
    make_scope,
    to_value,
)
from refkv_policy.evidence.agree import ON_FEATURES
from refkv_policy.plan import Plan
from refkv_policy.profiles import load_profile
from tests.plans import hints, plan_of

PROFILE = "wan2.1-vace-mini"
WEIGHTS = "sha256:" + "a" * 64
HEAD = "sha256:" + "b" * 64
TODAY = datetime.date(2026, 12, 1)
NOON = datetime.datetime(2026, 12, 1, 12, tzinfo=datetime.timezone.utc)
KEPT = {"pareto": 0, "subjective": 0.95, "speedup": 0.2, "memory": 1 << 20}
"""Measured values that keep their thresholds; 0 keeps the others."""


FEATURES = "dinov2_b_14_drop"
"""The metric of the items that are judged on feature similarity."""


def plan(interval: int = 2, **more: Any) -> Plan:
    """A plan of one rule at 12 steps and guidance 5 on the embedded model."""
    return plan_of(hints("'hint[all]'", f"interval: {interval}"), **more)


def tables(of: Plan) -> dict[tuple[str, int], HookTable]:
    """What it compiles to, on a day when its acknowledgements are in force."""
    return compile_all(of, TODAY)


def interval(low: float, high: float) -> Interval:
    """A bootstrap interval."""
    return Interval(low, high, 0.95, "bootstrap")


def items(**measured: float | None) -> tuple[Item, ...]:
    """All of the gate's items, green but for what is given."""
    values = {name: KEPT.get(name, 0) for name in GATE}
    return tuple(
        make_item(
            name,
            value,
            why="as a test needs it",
            threshold=2 << 20 if name == "memory" else None,
            metric=None if value is None or name not in ON_FEATURES else FEATURES,
        )
        for name, value in {**values, **measured}.items()
    )


def metric(name: str = "pixel_difference", *, stand_in: bool = False) -> Metric:
    """A metric of two clips and two seeds."""
    samples = [Sample(clip, seed, 0.002, 0.006, 13) for clip in ("bunny", "bikes") for seed in (0, 1)]
    floor = Figure(0.004, interval(0.003, 0.005))
    return Metric(
        name=name, title="mean absolute difference of pixels", provenance="numpy 2.3", stand_in=stand_in,
        better="lower", reference="uncached", mean=Figure(0.002, interval(0.001, 0.003)), worst=Figure(0.006),
        noise=Figure(0.0), solver=floor, other_seed=Figure(0.2), per_frame=(0.001, 0.003), samples=tuple(samples),
    )  # fmt: skip


def scope(of: Plan | None = None, *, gate: tuple[Item, ...] | None = None, **changes: Any) -> MeasuredScope:
    """A scope with every field filled, green unless a gate is given."""
    chosen = of or plan()
    (table,) = tables(chosen).values()
    setting = Setting(
        seeds=(0, 1), clips=(Clip("bunny", "sha256:" + "c" * 64), Clip("bikes", "sha256:" + "d" * 64)), width=96,
        height=96, frames=17, fps=16, batch=1, dtype="float32", device="cpu", solver_steps=36, compile=None,
        warm_up=1, timed_pairs=5, timing="the denoising loop",
    )  # fmt: skip
    speed = Figure(1.24, interval(1.21, 1.27))
    seconds = Seconds(0.02, 4.1, 1.3, 0.1, 5.6)
    point = Point(
        name="k2", family="plan", varied={"refresh.interval": 2}, table=table.digest, evaluations=24, hits=60,
        misses=12, speedup=speed, speedup_flops=1.25, error=Figure(0.002), solver_error=None, memory=1 << 20,
    )  # fmt: skip
    other = replace(point, name="s10", family="fewer_steps", varied={"steps": 10}, table=None)
    return make_scope(
        table,
        load_profile(PROFILE),
        guidance=5.0,
        weights=WEIGHTS,
        model="wan2.1-vace-mini, embedded",
        command=("refkv", "gate", "plans/test.yaml"),
        setting=setting,
        evaluations=Evaluations(24, 24),
        levels=Levels(
            Counts(60, 12, {"no_state": 0}, 4.0e12, 5.0e12),
            StepLatency(Figure(0.1), Figure(0.124), speed),
            EndToEnd(seconds, replace(seconds, denoiser=5.1, total=6.6), Figure(1.18)),
            Frontier("pixel_difference", (point, other)),
        ),
        audits=[Audit("audit.jsonl", HEAD)],
        metrics=[metric(), metric(FEATURES)],
        memory=Memory("host_resident", 1 << 30, 1 << 29, 1 << 20, 1 << 20, None),
        gate=items() if gate is None else gate,
        created=NOON,
        **changes,
    )


def evidence(*scopes: MeasuredScope) -> Evidence:
    """A document of scopes; of the one green scope unless some are given."""
    return Evidence("test", scopes or (scope(),))


def forged(value: dict[str, Any], change: Callable[[dict[str, Any]], object]) -> str:
    """The text of a changed document whose digest was worked out anew, as a careful forger would."""
    copy = json.loads(json.dumps(value))
    change(copy)
    return json.dumps({**copy, "digest": digest_of(copy)}, indent=1)


@functools.cache
def text() -> str:
    """The JSON text of the green evidence."""
    return json.dumps(to_value(evidence()), sort_keys=True, indent=1) + "\n"


def value() -> dict[str, Any]:
    """Its JSON document, a new one each time."""
    return json.loads(text())
