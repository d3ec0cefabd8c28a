"""What a command is asked to write, looked at before it works for it."""

from __future__ import annotations

import os
from collections.abc import Iterable
from pathlib import Path

from refkv_policy.cli.group import Failure
from refkv_policy.files import check_writable


def check_out(out: str | Path, inputs: Iterable[str | Path] = (), option: str = "--out") -> None:
    """Raises Failure for a place that cannot be written, and for one that is an input of the same command."""
    try:
        check_writable(out)
    except (OSError, ValueError) as error:
        reason = getattr(error, "strerror", None) or str(error)
        raise Failure(f"cannot write {out}: {reason}; choose another {option}") from error
    for file in inputs:
        if os.path.isfile(file) and os.path.realpath(file) == os.path.realpath(out):
            raise Failure(f"{option} {out} would overwrite {file}, which is read for it; name another file")
