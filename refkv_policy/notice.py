"""How refkv tells of something that is no error and must not pass unseen: a warning, and a record of the logger `refkv`."""

from __future__ import annotations

import logging
import warnings

LOGGER = logging.getLogger("refkv")
LOGGER.addHandler(logging.NullHandler())  # a program that configures no logging sees the warning, once


class RefkvWarning(UserWarning):
    """Something ran otherwise than a plan says, and rightly so: computed where it could have been served."""


def tell(message: str) -> None:
    """Warn (category `RefkvWarning`), and log at the level WARNING. Python shows one text once, the log has them all."""
    LOGGER.warning(message)
    warnings.warn(message, RefkvWarning, stacklevel=2)
