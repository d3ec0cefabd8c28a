"""The JSON document and its digest: evidence → plain value and back. Nothing is judged here."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import fields, is_dataclass
from types import MappingProxyType
from typing import Any, TypeVar

from refkv_policy.canonical import canonical_json, sha256
from refkv_policy.evidence.gate import Item
from refkv_policy.evidence.model import (
    Audit,
    Bound,
    Clip,
    Counts,
    EndToEnd,
    Evaluations,
    Evidence,
    Figure,
    Frontier,
    Interval,
    Levels,
    MeasuredScope,
    Memory,
    Metric,
    Point,
    Sample,
    Seconds,
    Setting,
    StepLatency,
)

VERSION, KIND = 1, "evidence"
EXACT = 2**53
"""Below this a whole number is the same as a JSON integer and as a double."""

Values = Mapping[str, Any]
T = TypeVar("T")


def to_value(evidence: Evidence) -> dict[str, Any]:
    """The JSON document, its digest in it. Verdicts are worked out anew."""
    value = {
        "version": VERSION,
        "kind": KIND,
        "plan": evidence.plan,
        "verdict": evidence.verdict,
        "scopes": [_plain(scope) for scope in evidence.scopes],
    }
    return {**value, "digest": digest_of(value)}


def _plain(value: Any) -> Any:
    if is_dataclass(value) and not isinstance(value, type):
        plain = {field.name: _plain(getattr(value, field.name)) for field in fields(value)}
        return {**plain, "verdict": value.verdict} if isinstance(value, (Item, MeasuredScope)) else plain
    if isinstance(value, Mapping):
        return {key: _plain(inner) for key, inner in value.items()}
    if isinstance(value, (list, tuple)):
        return [_plain(inner) for inner in value]
    return value


def canonical(value: Any) -> str:
    """The one text of a JSON value: keys sorted, no spaces, ASCII, and 5.0 written as 5, its equal in JSON."""
    return canonical_json(_numbers(value))


def _numbers(value: Any) -> Any:
    if isinstance(value, float) and value.is_integer() and abs(value) < EXACT:
        return int(value)
    if isinstance(value, dict):
        return {key: _numbers(inner) for key, inner in value.items()}
    if isinstance(value, (list, tuple)):
        return [_numbers(inner) for inner in value]
    return value


def digest_of(value: Values) -> str:
    """`sha256:…` of a document without its own digest. Layout and the order of keys do not count."""
    return sha256(canonical({key: inner for key, inner in value.items() if key != "digest"}))


def sigmas_digest(sigmas: Iterable[float]) -> str:
    """`sha256:…` of a list of sigmas, as the table of the nominal steps holds them."""
    return sha256(canonical(list(sigmas)))


def from_value(value: Values) -> Evidence:
    """The evidence of a document that fits the schema (any other may raise). Its stored verdicts are not looked at."""
    scopes = tuple(map(_scope, value["scopes"]))
    return Evidence(value["plan"], scopes, edited=digest_of(value) != value["digest"])


def _scope(value: Values) -> MeasuredScope:
    return MeasuredScope(
        profile=value["profile"],
        steps=value["steps"],
        guidance=float(value["guidance"]),
        created=value["created"],
        command=tuple(value["command"]),
        model=value["model"],
        bound=Bound(**value["bound"]),
        setting=_setting(value["setting"]),
        evaluations=Evaluations(**value["evaluations"]),
        levels=_levels(value["levels"]),
        metrics=tuple(map(_metric, value["metrics"])),
        memory=_optional(value["memory"], lambda memory: Memory(**memory)),
        audits=tuple(Audit(**audit) for audit in value["audits"]),
        gate=tuple(map(_item, value["gate"])),
    )


def _setting(value: Values) -> Setting:
    return Setting(
        **{
            **value,
            "seeds": tuple(value["seeds"]),
            "clips": tuple(Clip(**clip) for clip in value["clips"]),
            "versions": _frozen(value["versions"]),
        }
    )


def _levels(value: Values) -> Levels:
    counts = value["counts"]
    return Levels(
        Counts(**{**counts, "departures": _frozen(counts["departures"])}),
        _optional(value["step_latency"], lambda level: StepLatency(**{k: _figure(v) for k, v in level.items()})),
        _optional(value["end_to_end"], _end_to_end),
        _optional(value["frontier"], lambda level: Frontier(level["metric"], tuple(map(_point, level["points"])))),
    )


def _end_to_end(value: Values) -> EndToEnd:
    return EndToEnd(Seconds(**value["planned"]), Seconds(**value["uncached"]), _figure(value["speedup"]))


def _point(value: Values) -> Point:
    return Point(
        **{
            **value,
            "varied": _frozen(value["varied"]),
            "speedup": _optional(value["speedup"], _figure),
            "error": _figure(value["error"]),
            "solver_error": _optional(value["solver_error"], _figure),
        }
    )


def _metric(value: Values) -> Metric:
    ends = {key: _optional(value[key], _figure) for key in ("worst", "noise", "solver", "other_seed")}
    return Metric(
        **{
            **value,
            **ends,
            "mean": _figure(value["mean"]),
            "per_frame": tuple(value["per_frame"]),
            "samples": tuple(Sample(**sample) for sample in value["samples"]),
        }
    )


def _item(value: Values) -> Item:
    rest = {key: inner for key, inner in value.items() if key != "verdict"}
    return Item(**{**rest, "interval": _optional(value["interval"], _interval)})


def _figure(value: Values) -> Figure:
    return Figure(value["value"], _optional(value["interval"], _interval))


def _interval(value: Values) -> Interval:
    return Interval(**value)


def _optional(value: Any, build: Callable[[Any], T]) -> T | None:
    return None if value is None else build(value)


def _frozen(value: Values) -> Values:
    return MappingProxyType(dict(value))
