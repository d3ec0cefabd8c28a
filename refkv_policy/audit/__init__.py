"""The audit log: writing it, reading it, and verifying it against the table that was to be followed. No torch."""

from refkv_policy.audit.decision import Decision
from refkv_policy.audit.fold import Folded, expand, fold
from refkv_policy.audit.read import Header, Log, Problem, RequestLog, StepLine, read_log
from refkv_policy.audit.record import GENESIS, SCHEMA, AuditError
from refkv_policy.audit.totals import Count, Totals
from refkv_policy.audit.verify import Verification, verify
from refkv_policy.audit.writer import AuditWriter, NullWriter, free_path, outcome_of

__all__ = [
    "GENESIS",
    "SCHEMA",
    "AuditError",
    "AuditWriter",
    "Count",
    "Decision",
    "Folded",
    "Header",
    "Log",
    "NullWriter",
    "Problem",
    "RequestLog",
    "StepLine",
    "Totals",
    "Verification",
    "expand",
    "fold",
    "free_path",
    "outcome_of",
    "read_log",
    "verify",
]
