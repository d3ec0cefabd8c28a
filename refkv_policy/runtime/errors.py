"""What the runtime refuses or warns of, as sentences that say what is wrong and what to do."""

from __future__ import annotations

import logging
import warnings

from refkv_policy.plan.diagnostic import RefkvError, RefkvWarning

LOGGER = logging.getLogger("refkv")
LOGGER.addHandler(logging.NullHandler())  # a program that configures no logging sees the warning alone


class AttachError(RefkvError):
    """The table cannot be attached to this model, pipeline or scheduler. Nothing was changed."""


class RequestError(RefkvError):
    """A request differs from what the table was compiled for. Raised before anything of it is served or kept."""


TI2V = "the model is given one timestep a token (Wan2.2 TI2V), which is not supported yet; "


def warn(text: str) -> None:
    """Say that a plan did not hold."""
    LOGGER.warning(text)
    warnings.warn(text, RefkvWarning, stacklevel=3)
