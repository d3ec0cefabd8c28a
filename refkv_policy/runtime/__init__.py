"""The runtime: a hook table applied to a model that runs. Needs torch and diffusers."""

from refkv_policy.runtime.attachment import attach, detach
from refkv_policy.runtime.errors import AttachError, RequestError
from refkv_policy.runtime.session import Session
from refkv_policy.runtime.summary import RequestSummary, Summary, Tally

__all__ = [
    "AttachError",
    "RequestError",
    "RequestSummary",
    "Session",
    "Summary",
    "Tally",
    "attach",
    "detach",
]
