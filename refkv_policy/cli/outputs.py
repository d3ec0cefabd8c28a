"""What a command is asked to write, looked at before it works for it."""

from __future__ import annotations

import datetime
import os
import sys
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path

from refkv_policy.cli.group import Failure, say
from refkv_policy.files import check_writable

if sys.platform != "win32":  # there two runs into one folder are not kept apart
    import fcntl


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


@contextmanager
def held(folder: Path) -> Iterator[None]:
    """The folder, made where it lacks, is this process's alone until the block ends, or the process does.

    Raises Failure where another run holds it, or it cannot be written.
    """
    try:
        folder.mkdir(parents=True, exist_ok=True)
        check_writable(folder / "x")
        handle = os.open(folder, os.O_RDONLY)
    except OSError as error:
        raise cannot_write(folder, error) from error
    try:
        _lock(handle, folder)
        yield
    finally:
        os.close(handle)


def _lock(handle: int, folder: Path) -> None:
    """Lock the folder itself, so that nothing is left behind, whatever ends the process."""
    if sys.platform == "win32":
        return
    try:
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError as error:
        raise Failure(
            f"another run is writing into {folder}; wait for it, or choose another folder with --out"
        ) from error
    except OSError:
        return  # a file system without locks, as some network ones are


def cannot_write(folder: Path, error: OSError) -> Failure:
    """The sentence for a folder of results that cannot be written."""
    return Failure(f"cannot write into {folder}: {error.strerror or error}; choose another folder with --out")


def set_aside(folder: Path, names: Iterable[str]) -> None:
    """Keep the files of an earlier run under one stamp, that of its first: a log accounts for the others beside it."""
    there = [folder / name for name in names if (folder / name).exists()]
    if not there:
        return
    written = datetime.datetime.fromtimestamp(there[0].stat().st_mtime)
    stamp, again = f"{written:%Y%m%dT%H%M%S%f}", 1
    while any(_stamped(file, stamp).exists() for file in there):
        again += 1
        stamp = f"{written:%Y%m%dT%H%M%S%f}-{again}"
    for file in there:
        kept = file.rename(_stamped(file, stamp))
        say(f"note: the earlier {file.name} is kept as {kept.name}")


def _stamped(file: Path, stamp: str) -> Path:
    return file.with_name(f"{file.stem}-{stamp}{file.suffix}")
