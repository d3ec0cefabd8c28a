"""Reading clips: fitting, and every way a file can be no clip."""

from __future__ import annotations

import struct
from pathlib import Path

import av
import numpy as np
import pytest

from refkv_policy.video import VideoError, read_clip, shipped_clip, whole_frames, write_clip


def counting(path: Path, frames: int = 20, size: tuple[int, int] = (64, 48), fps: float = 25) -> Path:
    """A video whose frame i is uniformly of grey level 10·i."""
    levels = (10 * np.arange(frames, dtype=np.uint8))[:, None, None, None]
    write_clip(path, np.broadcast_to(levels, (frames, size[1], size[0], 3)), fps, quality=4)
    return path


def levels(frames: np.ndarray) -> list[int]:
    """The frame numbers of a `counting` clip."""
    return [round(float(f.mean()) / 10) for f in frames]


def test_frames_start_and_stride(tmp_path: Path) -> None:
    """Frames come from the start frame on, every stride-th, and the rate is divided by the stride."""
    clip = read_clip(counting(tmp_path / "a.mp4"), 5, (64, 48), start=3, stride=4)
    assert levels(clip.frames) == [3, 7, 11, 15, 19]
    assert clip.fps == pytest.approx(25 / 4)
    assert clip.notes == ()


@pytest.mark.parametrize("fps", [10, 23.976, 29.97, 60])
def test_rate_is_kept(tmp_path: Path, fps: float) -> None:
    """A clip keeps the frame rate of its file, whatever it is."""
    clip = read_clip(counting(tmp_path / "a.mp4", fps=fps), 5, (64, 48))
    assert clip.fps == pytest.approx(fps, rel=1e-4)


def test_frames_rounded_down_and_said() -> None:
    """A count that is not 4n+1 is brought down to one, and the note names both."""
    clip = read_clip(shipped_clip(), 20, (96, 96))
    assert clip.frames.shape == (17, 96, 96, 3)
    assert any("17" in n and "20" in n and "4n+1" in n for n in clip.notes)
    assert [whole_frames(n) for n in (1, 4, 5, 8, 9, 81)] == [1, 1, 5, 5, 9, 81]


def test_odd_sizes_are_cropped_in_the_centre_and_said(tmp_path: Path) -> None:
    """A 63 by 47 clip fills 32 by 32 with its centre: what lies left and right of the middle square is gone."""
    frames = np.zeros((5, 47, 63, 3), np.uint8)
    frames[:, :, 8:55] = 200
    write_clip(tmp_path / "odd.mp4", frames, 25, quality=4)
    clip = read_clip(tmp_path / "odd.mp4", 5, (32, 32))
    assert clip.frames.shape == (5, 32, 32, 3)
    assert clip.frames[:, :, 3:-3].min() > 190
    assert any("cropped in the centre to 32x32" in n for n in clip.notes)


def test_too_few_frames_says_the_numbers(tmp_path: Path) -> None:
    """The error names what the file has, what is needed, and the largest count that would do."""
    path = counting(tmp_path / "short.mp4", frames=12)
    with pytest.raises(VideoError, match=r"has 12 frames, and the output is to have 17; ask for 9 frames"):
        read_clip(path, 17, (64, 48))
    with pytest.raises(VideoError, match=r"17 from frame 2 on at stride 3 need 51; ask for 1 frame,"):
        read_clip(path, 17, (64, 48), start=2, stride=3)
    with pytest.raises(VideoError, match="start earlier"):
        read_clip(path, 5, (64, 48), start=40)


def test_turned_as_the_file_says(tmp_path: Path) -> None:
    """A quarter turn in the track header (QuickTime matrix 0 1 / -1 0: clockwise) is applied and said."""
    frames = np.zeros((5, 32, 64, 3), np.uint8)
    frames[:, :, :32] = 220
    plain = tmp_path / "plain.mp4"
    write_clip(plain, frames, 25, quality=4)
    data = bytearray(plain.read_bytes())
    matrix = data.index(b"tkhd") + 4 + 40
    one = 1 << 16
    assert struct.unpack_from(">9i", data, matrix)[:5] == (one, 0, 0, 0, one)
    struct.pack_into(">5i", data, matrix, 0, one, 0, -one, 0)
    turned = tmp_path / "turned.mp4"
    turned.write_bytes(data)
    clip = read_clip(turned, 5, (32, 64))
    assert clip.frames[:, :30].min() > 200, "the bright left half is on top after a clockwise turn"
    assert clip.frames[:, 34:].max() < 20
    assert any("turned by 90 degrees" in n for n in clip.notes)


def test_pixel_aspect_is_respected(tmp_path: Path) -> None:
    """Pixels twice as wide as high: 32 by 32 of them fill a 64 by 32 picture without any crop."""
    frames = np.zeros((1, 32, 32, 3), np.uint8)
    frames[:, :4] = 220
    path = tmp_path / "anamorphic.mp4"
    with av.open(str(path), "w") as container:
        stream = container.add_stream("libx264", rate=25, options={"crf": "4"})
        stream.width, stream.height, stream.pix_fmt = 32, 32, "yuv420p"
        stream.codec_context.sample_aspect_ratio = 2
        container.mux(stream.encode(av.VideoFrame.from_ndarray(frames[0], format="rgb24")))
        container.mux(stream.encode(None))
    clip = read_clip(path, 1, (64, 32))
    assert clip.frames[0, :3].min() > 200
    assert clip.frames[0, 6:].max() < 20


def sound(path: Path) -> Path:
    """A file with an audio stream only."""
    with av.open(str(path), "w", format="wav") as container:
        stream = container.add_stream("pcm_s16le", rate=8000, layout="mono")
        frame = av.AudioFrame.from_ndarray(np.zeros((1, 800), np.int16), format="s16", layout="mono")
        frame.sample_rate = 8000
        container.mux(stream.encode(frame))
        container.mux(stream.encode(None))
    return path


def broken(path: Path) -> Path:
    """A video whose pictures' bytes are lost while its index is whole."""
    data = bytearray(counting(path).read_bytes())
    start = data.index(b"mdat") + 4
    data[start:] = b"\xff" * (len(data) - start)
    path.write_bytes(data)
    return path


@pytest.mark.parametrize(
    ("name", "prepare", "text"),
    [
        ("missing.mp4", lambda p: p, "does not exist"),
        ("folder.mp4", lambda p: p.mkdir() or p, "is not a file"),
        ("empty.mp4", lambda p: p.write_bytes(b"") or p, "is not a video"),
        ("text.mp4", lambda p: p.write_text("hello\n" * 400) or p, "is not a video"),
        ("cut.mp4", lambda p: p.write_bytes(counting(p).read_bytes()[:300]) or p, "is not a video|no video stream"),
        ("sound.wav", sound, "no video stream"),
        ("broken.mp4", broken, "cannot be decoded|holds no frames"),
    ],
)
def test_what_is_no_clip_is_a_sentence(tmp_path: Path, name, prepare, text: str) -> None:
    """Each file that is no clip raises a VideoError that names the file and what is wrong with it."""
    prepare(tmp_path / name)
    with pytest.raises(VideoError, match=text) as caught:
        read_clip(tmp_path / name, 5, (32, 32))
    assert name in str(caught.value)
    assert "\n" not in str(caught.value)


def test_playlists_fetch_nothing(tmp_path: Path) -> None:
    """A playlist that points to the network is refused without a connection."""
    playlist = tmp_path / "list.m3u8"
    playlist.write_text("#EXTM3U\n#EXTINF:1,\nhttp://127.0.0.1:9/a.ts\n#EXT-X-ENDLIST\n")
    with pytest.raises(VideoError):
        read_clip(playlist, 1, (32, 32))


def test_shipped_clip_is_enough_for_the_embedded_model() -> None:
    """The shipped clip is small, has at least 17 frames, and its credit is beside it."""
    path = shipped_clip()
    assert path.stat().st_size < 150_000
    assert read_clip(path, 37, (96, 96)).frames.shape[0] == 37
    credit = (path.parent / "CREDITS.md").read_text()
    assert "Blender Foundation" in credit
    assert "Attribution 3.0" in credit
