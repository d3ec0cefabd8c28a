"""The plan language: text → Plan, with every fault a diagnostic at its place. No torch."""

from __future__ import annotations

from refkv_policy.plan.catalogue import RULES, Rule
from refkv_policy.plan.diagnostic import Diagnostic, PlanError, RefkvError, Span, errors
from refkv_policy.plan.document import Document
from refkv_policy.plan.model import (
    Acknowledgement,
    AttentionQuantization,
    CacheRule,
    Plan,
    Quantization,
    Refresh,
    Run,
    Sampler,
    Shape,
    Store,
)
from refkv_policy.plan.reader import in_order, load_plan, parse_plan, plan_digest, read_plan
from refkv_policy.plan.schema import check_schema
from refkv_policy.plan.selectors import SelectorError, Site, parse_sites, parse_steps, parse_window
from refkv_policy.plan.source import text_span
from refkv_policy.plan.yaml_subset import load_document, read_document

__all__ = [
    "RULES",
    "Acknowledgement",
    "AttentionQuantization",
    "CacheRule",
    "Diagnostic",
    "Document",
    "Plan",
    "PlanError",
    "Quantization",
    "RefkvError",
    "Refresh",
    "Rule",
    "Run",
    "Sampler",
    "SelectorError",
    "Shape",
    "Site",
    "Span",
    "Store",
    "check_schema",
    "errors",
    "in_order",
    "load_document",
    "load_plan",
    "parse_plan",
    "parse_sites",
    "parse_steps",
    "parse_window",
    "plan_digest",
    "read_document",
    "read_plan",
    "text_span",
]
