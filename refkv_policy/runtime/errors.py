"""What the runtime refuses, as sentences that say what is wrong and what to do."""

from __future__ import annotations

from refkv_policy.plan.diagnostic import RefkvError


class AttachError(RefkvError):
    """The table cannot be attached to this model, pipeline or scheduler. Nothing was changed."""


class RequestError(RefkvError):
    """A request differs from what the table was compiled for. Raised by its first forward, before anything is cached."""
