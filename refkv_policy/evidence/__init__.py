"""Evidence: what was measured of a plan, bound by digests to what it was measured on. Read, check, bind. No torch."""

from __future__ import annotations

from refkv_policy.evidence.check import Findings, check_evidence, examine, locate
from refkv_policy.evidence.document import canonical, digest_of, from_value, sigmas_digest, to_value
from refkv_policy.evidence.gate import GATE, GATE_ITEMS, Interval, Item, Requirement, judge, make_item, overall
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
    Levels,
    MeasuredScope,
    Memory,
    Metric,
    Point,
    Sample,
    Scope,
    Seconds,
    Setting,
    StepLatency,
)
from refkv_policy.evidence.read import evidence_schema, parse_evidence, read_evidence
from refkv_policy.evidence.status import Status, of_weights, plan_scopes, profile_digests, status
from refkv_policy.evidence.write import evidence_text, make_scope, with_scope, write_evidence
from refkv_policy.repository import repository_root

__all__ = [
    "GATE",
    "GATE_ITEMS",
    "Audit",
    "Bound",
    "Clip",
    "Counts",
    "EndToEnd",
    "Evaluations",
    "Evidence",
    "Figure",
    "Findings",
    "Frontier",
    "Interval",
    "Item",
    "Levels",
    "MeasuredScope",
    "Memory",
    "Metric",
    "Point",
    "Requirement",
    "Sample",
    "Scope",
    "Seconds",
    "Setting",
    "Status",
    "StepLatency",
    "canonical",
    "check_evidence",
    "digest_of",
    "evidence_schema",
    "evidence_text",
    "examine",
    "from_value",
    "judge",
    "locate",
    "make_item",
    "make_scope",
    "of_weights",
    "overall",
    "parse_evidence",
    "plan_scopes",
    "profile_digests",
    "read_evidence",
    "repository_root",
    "sigmas_digest",
    "status",
    "to_value",
    "with_scope",
    "write_evidence",
]
