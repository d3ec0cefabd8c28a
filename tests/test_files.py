"""Files take their place whole: never half, never in the place of what is no regular file, and through links."""

from __future__ import annotations

import os
import stat
from pathlib import Path

import pytest

from refkv_policy.files import atomic_write, check_writable


def test_a_block_that_raises_leaves_what_was_there(tmp_path: Path) -> None:
    """Nothing is half written, and nothing is left beside it."""
    file = tmp_path / "a.txt"
    file.write_text("before")

    def interrupted() -> None:
        with atomic_write(file) as stream:
            stream.write(b"half")
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        interrupted()
    assert file.read_text() == "before"
    assert list(tmp_path.iterdir()) == [file]


@pytest.mark.parametrize("name", ["a.txt", "x" * 250, "ü.json"])
def test_what_is_written_is_there_at_the_end(tmp_path: Path, name: str) -> None:
    """Whatever the name's length; readable by all, as files are."""
    with atomic_write(tmp_path / name, sync=True) as stream:
        stream.write(b"all")
        assert not (tmp_path / name).exists()
    assert (tmp_path / name).read_bytes() == b"all"
    assert stat.S_IMODE((tmp_path / name).stat().st_mode) == 0o644


def test_a_link_goes_on_leading_there(tmp_path: Path) -> None:
    """The file that it leads to is written, in its own folder."""
    (tmp_path / "far").mkdir()
    link = tmp_path / "link.txt"
    link.symlink_to(tmp_path / "far" / "real.txt")
    with atomic_write(link) as stream:
        stream.write(b"x")
    assert link.is_symlink()
    assert (tmp_path / "far" / "real.txt").read_bytes() == b"x"


@pytest.mark.parametrize("kind", ["pipe", "folder", "device", "empty"])
def test_what_is_no_regular_file_stays(tmp_path: Path, kind: str) -> None:
    """A device would be replaced by a file for everybody; a pipe's reader would wait for ever."""
    place: Path | str = tmp_path / "place"
    if kind == "pipe":
        os.mkfifo(place)
    elif kind == "folder":
        Path(place).mkdir()
    else:
        place = os.devnull if kind == "device" else ""
    for attempt in (check_writable, lambda path: atomic_write(path).__enter__()):
        with pytest.raises(OSError, match=r"device or a pipe|folder|empty") as told:
            attempt(place)
        assert told.value.strerror
    if kind == "pipe":
        assert stat.S_ISFIFO(os.lstat(place).st_mode)
    if kind == "device":
        assert stat.S_ISCHR(os.lstat(place).st_mode)


def test_a_place_is_checked_before_anything_is_made(tmp_path: Path) -> None:
    """Folders that lack may be made later; a file that stands where one should be may not."""
    check_writable(tmp_path / "new" / "newer" / "a.txt")
    assert list(tmp_path.iterdir()) == []
    (tmp_path / "file").write_text("")
    with pytest.raises(OSError, match="is not a folder"):
        check_writable(tmp_path / "file" / "a.txt")
    if os.geteuid():
        (tmp_path / "closed").mkdir(mode=0o500)
        with pytest.raises(OSError, match="may not be written"):
            check_writable(tmp_path / "closed" / "a.txt")
