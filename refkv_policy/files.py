"""Files: read within bounds, and written so that they take their place whole, or not at all. Standard library only."""

from __future__ import annotations

import errno
import os
import stat
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO

PART = ".part"
MODE = 0o644
NOT_REGULAR = "it is a device or a pipe, and not a regular file"


def open_regular(path: str | os.PathLike[str]) -> IO[bytes]:
    """A regular file, open for reading. Raises OSError for any other: a device has no end, and a pipe is waited for.

    git holds links, and whoever sends a pull request says where they lead: `profile.yaml -> /dev/zero`.
    """
    # Without O_NONBLOCK, opening a pipe waits for whoever would write into it.
    handle = os.open(path, os.O_RDONLY | getattr(os, "O_NONBLOCK", 0) | getattr(os, "O_BINARY", 0))
    mode = os.fstat(handle).st_mode
    if stat.S_ISREG(mode):
        return os.fdopen(handle, "rb")
    os.close(handle)
    if stat.S_ISDIR(mode):
        raise OSError(errno.EISDIR, "it is a directory", os.fspath(path))
    raise OSError(errno.EINVAL, NOT_REGULAR, os.fspath(path))


def read_bounded(path: str | os.PathLike[str], limit: int) -> bytes:
    """The bytes of a regular file. Raises OSError as `open_regular` does, with EFBIG for more than `limit` bytes."""
    with open_regular(path) as stream:
        data = stream.read(limit + 1)
    if len(data) > limit:
        raise OSError(errno.EFBIG, f"it is larger than {limit:,} bytes", os.fspath(path))
    return data


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
        raise OSError(errno.EEXIST, NOT_REGULAR, os.fspath(path))
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
