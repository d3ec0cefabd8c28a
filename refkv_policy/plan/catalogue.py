"""The rule catalogue: one entry a diagnostic code, holding the only copy of its texts.

Families: RKV0xx file and YAML · 1xx schema · 2xx selectors and sites · 3xx composition and tiers · 4xx quantization ·
5xx acknowledgements and evidence · 6xx guardrails · 7xx lock.
"""

from __future__ import annotations

from dataclasses import dataclass

from refkv_policy.plan.diagnostic import Diagnostic, Severity, Span


@dataclass(frozen=True, slots=True)
class Rule:
    """A kind of fault. `message` and `help` are `str.format` templates filled by `at`."""

    code: str
    name: str
    severity: Severity
    message: str
    help: str
    why: str

    def at(self, file: str, span: Span | None, **fields: object) -> Diagnostic:
        """The diagnostic of this rule at a place. Raises KeyError when a template's field is missing."""
        return Diagnostic(
            code=self.code,
            severity=self.severity,
            message=self.message.format(**fields),
            file=file,
            span=span,
            help=self.help.format(**fields),
        )


RULES: dict[str, Rule] = {}


def rule(code: str, name: str, message: str, help: str, why: str, severity: Severity = "error") -> Rule:
    """Register a rule. Raises ValueError when the code or the name is taken: a code never changes its meaning."""
    if code in RULES or any(r.name == name for r in RULES.values()):
        raise ValueError(f"rule {code} ({name}) is registered twice")
    entry = RULES[code] = Rule(code, name, severity, message, help, why)
    return entry
