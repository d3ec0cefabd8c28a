"""Files that take their place whole, or not at all. Needs the standard library only."""

from __future__ import annotations

import errno
import os
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO

PART = ".part"
MODE = 0o644


def place_of(path: str | os.PathLike[str]) -> Path:
    """Where a file of this path really is to lie: a link is followed, so that it goes on leading there.

    Raises OSError for what is there and is no regular file: a device or a pipe would be replaced, a folder cannot be.
    """
    if not os.fspath(path):
        raise OSError(errno.ENOENT, "the name is empty", "")
    place = Path(os.path.realpath(path))
    if place.is_dir():
        raise OSError(errno.EISDIR, "it is a folder", os.fspath(path))
    if os.path.lexists(place) and not place.is_file():
        raise OSError(errno.EEXIST, "it is a device or a pipe, and not a regular file", os.fspath(path))
    return place


def check_writable(path: str | os.PathLike[str]) -> None:
    """Raises OSError where `atomic_write` would, as far as can be told without writing. Folders that lack may be made."""
    place = place_of(path)
    folder = place.parent
    while not os.path.lexists(folder):
        folder = folder.parent
    if not folder.is_dir():
        raise OSError(errno.ENOTDIR, f"{folder} is not a folder", os.fspath(path))
    if not os.access(folder, os.W_OK | os.X_OK):
        raise OSError(errno.EACCES, f"{folder} may not be written into", os.fspath(path))


@contextmanager
def atomic_write(path: str | os.PathLike[str], *, sync: bool = False) -> Iterator[IO[bytes]]:
    """A file that takes its place when the block ends, and is never seen half written. sync: it is on the disk before.

    Whatever ends the block, KeyboardInterrupt too, leaves nothing beside it. Raises OSError, as `place_of` does.
    """
    place = place_of(path)
    handle, temporary = tempfile.mkstemp(dir=place.parent, prefix=f".{place.name[:64]}", suffix=PART)
    try:
        with os.fdopen(handle, "wb") as stream:
            yield stream
            if sync:
                stream.flush()
                os.fsync(stream.fileno())
        os.chmod(temporary, MODE)
        os.replace(temporary, place)
    except BaseException:
        Path(temporary).unlink(missing_ok=True)
        raise
