"""Files are read within bounds, and take their place whole: never half, and never what is no regular file."""

from __future__ import annotations

import errno
import os
import stat
from pathlib import Path

import pytest

from refkv_policy.files import atomic_write, check_writable, open_regular, read_bounded
from refkv_policy.repository import check_inside


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


@pytest.mark.parametrize(
    ("kind", "number"),
    [
        ("pipe", errno.EINVAL),
        ("link to a pipe", errno.EINVAL),
        ("/dev/zero", errno.EINVAL),
        ("/dev/tty or none", None),
        ("folder", errno.EISDIR),
        ("nothing", errno.ENOENT),
        ("link to itself", errno.ELOOP),
    ],
)
def test_only_regular_files_are_read(tmp_path: Path, kind: str, number: int | None) -> None:
    """A pipe is not waited for, a device not read, and whatever else is in the way is told."""
    place = tmp_path / "place"
    match kind:
        case "pipe":
            os.mkfifo(place)
        case "link to a pipe":
            os.mkfifo(tmp_path / "pipe")
            place.symlink_to("pipe")
        case "folder":
            place.mkdir()
        case "link to itself":
            place.symlink_to(place)
        case "nothing":
            pass
        case _:
            place.symlink_to(kind.split()[0])
    for read in (open_regular, lambda path: read_bounded(path, 10)):
        with pytest.raises(OSError, match=r".") as told:
            read(place)
        assert number is None or told.value.errno == number
        assert told.value.strerror


def test_a_file_is_read_to_its_limit(tmp_path: Path) -> None:
    """As many bytes as allowed are read, also through a link; one more is refused, and an endless one costs nothing."""
    file, link = tmp_path / "a", tmp_path / "b"
    file.write_bytes(b"x" * 10)
    link.symlink_to("a")
    assert read_bounded(link, 10) == b"x" * 10
    with file.open("ab") as stream:
        stream.truncate(1 << 40)
    with pytest.raises(OSError, match="larger than 10 bytes") as told:
        read_bounded(file, 10)
    assert told.value.errno == errno.EFBIG


def test_links_out_of_a_repository_are_found(tmp_path: Path) -> None:
    """Those of files and of folders; not those within it, nor where the repository itself is reached through one."""
    top = tmp_path / "repository"
    for folder in (top / ".git", top / "plans", tmp_path / "other"):
        folder.mkdir(parents=True)
    for file in (top / "plans" / "a", tmp_path / "other" / "b"):
        file.write_text("")
    (top / "within").symlink_to("plans/a")
    (top / "out").symlink_to("../other/b")
    (top / "twice").symlink_to("out")
    (top / "folder").symlink_to(tmp_path / "other")
    (top / "nowhere").symlink_to("/nowhere")
    (tmp_path / "way").symlink_to("repository")
    for name in ("plans/a", "within", "missing"):
        check_inside(top / name)
        check_inside(tmp_path / "way" / name)
    for name in ("out", "twice", "folder/b", "folder/missing", "nowhere"):
        with pytest.raises(OSError, match="leads out of the repository through a link"):
            check_inside(top / name)
    check_inside(tmp_path / "other" / "b")  # in no repository: whoever may put a link there may read what it leads to
