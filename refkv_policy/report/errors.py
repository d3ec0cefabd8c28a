"""What stops a report from being written."""

from __future__ import annotations

from refkv_policy.plan.diagnostic import RefkvError


class ReportError(RefkvError):
    """A file that cannot be shown, or a library that is missing; says which and what to do."""
