"""Writing clips: the pictures come back, and no half-written file is ever seen."""

from __future__ import annotations

from pathlib import Path

import av
import numpy as np
import pytest

from refkv_policy.video import VideoError, read_clip, write_clip
from refkv_policy.video.write import beside


def moving(frames: int = 9, height: int = 48, width: int = 64) -> np.ndarray:
    """Smooth moving colours, which H.264 keeps well."""
    t, y, x = np.meshgrid(np.arange(frames), np.arange(height), np.arange(width), indexing="ij")
    channels = [127 + 100 * np.sin((x + 3 * t) / 20), 127 + 100 * np.cos((y + 2 * t) / 25), 90 + 2 * t]
    return np.stack(np.broadcast_arrays(*channels), -1).astype(np.uint8)


def test_frames_come_back(tmp_path: Path) -> None:
    """What was written is read back within the codec's error, at the same rate, as H.264 that browsers play."""
    frames = moving()
    write_clip(tmp_path / "a.mp4", frames, 16)
    clip = read_clip(tmp_path / "a.mp4", 9, (64, 48))
    assert np.abs(clip.frames.astype(int) - frames).mean() < 3
    assert clip.fps == 16
    with av.open(str(tmp_path / "a.mp4")) as container:
        stream = container.streams.video[0]
        assert (stream.codec_context.name, stream.pix_fmt, stream.frames) == ("h264", "yuv420p", 9)


def test_the_same_frames_are_the_same_file(tmp_path: Path) -> None:
    """Byte for byte, whatever else the machine does: a digest of a file can be met again."""
    y, x = np.mgrid[0:96, 0:96]
    waves = [(np.sign(np.sin(x / 7 + t / 3) + np.sin(y / 11)) * 60 + 128).astype(np.uint8) for t in range(17)]
    frames = np.stack([np.stack([w, 255 - w, w // 2], axis=-1) for w in waves])
    for i in range(8):
        write_clip(tmp_path / f"{i}.mp4", frames, 16, quality=8)
    assert len({(tmp_path / f"{i}.mp4").read_bytes() for i in range(8)}) == 1


def test_odd_sizes_gain_a_row_and_a_column(tmp_path: Path) -> None:
    """47 by 63 is written as 48 by 64: the last row and column are repeated, none is lost."""
    write_clip(tmp_path / "a.mp4", moving(5, 47, 63), 16)
    with av.open(str(tmp_path / "a.mp4")) as container:
        stream = container.streams.video[0]
        assert (stream.width, stream.height) == (64, 48)


@pytest.mark.parametrize("error", [KeyboardInterrupt, RuntimeError])
def test_interrupted_write_leaves_what_was_there(tmp_path: Path, monkeypatch, error: type[BaseException]) -> None:
    """Ctrl-C or an exception in mid-encoding leaves the earlier file untouched and nothing beside it."""
    path = tmp_path / "a.mp4"
    path.write_bytes(b"earlier")
    original, calls = av.VideoFrame.from_ndarray, []

    class Interrupting:
        @staticmethod
        def from_ndarray(*args: object, **kwargs: object) -> av.VideoFrame:
            calls.append(1)
            if len(calls) == 4:
                raise error
            return original(*args, **kwargs)

    monkeypatch.setattr("refkv_policy.video.write.av.VideoFrame", Interrupting)
    with pytest.raises(error):
        write_clip(path, moving(), 16)
    assert path.read_bytes() == b"earlier"
    assert [p.name for p in tmp_path.iterdir()] == ["a.mp4"]


def test_file_mode_follows_the_umask(tmp_path: Path) -> None:
    """A file written beside and renamed has the mode that an ordinary new file would have."""
    with beside(tmp_path / "a.txt") as part:
        part.write_text("x")
    (tmp_path / "b.txt").write_text("x")
    assert (tmp_path / "a.txt").stat().st_mode == (tmp_path / "b.txt").stat().st_mode


@pytest.mark.parametrize(
    ("frames", "fps", "text"),
    [
        (np.zeros((0, 8, 8, 3), np.uint8), 16, "uint8"),
        (np.zeros((1, 8, 8, 3), np.float32), 16, "float32"),
        (np.zeros((1, 8, 8), np.uint8), 16, r"\(1, 8, 8\)"),
        (np.zeros((1, 8, 8, 3), np.uint8), 0, "not a rate"),
    ],
)
def test_what_cannot_be_written_is_said(tmp_path: Path, frames: np.ndarray, fps: float, text: str) -> None:
    """Frames of another kind, or a rate of zero, raise before any file is made."""
    with pytest.raises(VideoError, match=text):
        write_clip(tmp_path / "a.mp4", frames, fps)
    assert not list(tmp_path.iterdir())


def test_missing_folder_is_said(tmp_path: Path) -> None:
    """A folder that does not exist is a sentence, not an OSError."""
    with pytest.raises(VideoError, match="choose another folder"):
        write_clip(tmp_path / "none" / "a.mp4", moving(1), 16)
