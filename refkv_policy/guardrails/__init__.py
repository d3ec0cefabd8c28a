"""Guardrails: a repository's rules about plans. Find, read, and hold plans against them. No torch."""

from __future__ import annotations

from refkv_policy.guardrails.check import breaches, check_guardrails
from refkv_policy.guardrails.held import Breach
from refkv_policy.guardrails.model import OWN, SENSES, Guardrails, thresholds
from refkv_policy.guardrails.read import (
    FILES,
    find_guardrails,
    guardrails_schema,
    parse_guardrails,
    read_guardrails,
)

__all__ = [
    "FILES",
    "OWN",
    "SENSES",
    "Breach",
    "Guardrails",
    "breaches",
    "check_guardrails",
    "find_guardrails",
    "guardrails_schema",
    "parse_guardrails",
    "read_guardrails",
    "thresholds",
]
