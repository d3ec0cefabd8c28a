"""Reading a clip: any container, codec, rate and size that PyAV opens, brought to the model's frames and size."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import av
import numpy as np
from av.container import InputContainer
from av.video.frame import VideoFrame
from av.video.stream import VideoStream

from refkv_policy.video.clip import Clip, Frames, VideoError, cover, whole_frames

FALLBACK_FPS = 16.0
"""Wan2.1's own rate, for files that do not state one."""


def read_clip(
    path: str | Path,
    frames: int,
    size: tuple[int, int],
    *,
    start: int = 0,
    stride: int = 1,
    factor: int = 4,
) -> Clip:
    """`frames` frames of a video from frame `start` on, every `stride`-th, covering `size` (width, height).

    frames is brought down to the next `factor`·n + 1. Nothing is repeated or made up: too few frames raise VideoError,
    and so does whatever is not a readable video. Pictures are turned and stretched as the file says they are shown.
    """
    if start < 0 or stride < 1:
        raise VideoError(f"start frame {start} and stride {stride}: the first must be 0 or more, the second 1 or more")
    used = whole_frames(frames, factor)
    notes = []
    if used != frames:
        notes.append(f"{used} frames are used of the {frames} asked for: the model takes {factor}n+1")
    with open_video(path) as (container, stream):
        taken, shown, turned, seen = _take(container, stream, path, used, size, start, stride)
        rate = stream.average_rate or stream.guessed_rate
    if len(taken) < used:
        raise VideoError(_too_few(path, seen, len(taken), used, start, stride, factor))
    if shown != size:
        notes.append(f"{shown[0]}x{shown[1]} was resized and cropped in the centre to {size[0]}x{size[1]}")
    if turned:
        notes.append(f"frames were turned by {turned} degrees, as the file says they are shown")
    if not rate:
        notes.append(f"the file states no frame rate: {FALLBACK_FPS:g} a second is taken")
    fps = float(rate) / stride if rate else FALLBACK_FPS
    return Clip(np.stack(taken), fps, str(path), tuple(notes))


@contextmanager
def open_video(path: str | Path) -> Iterator[tuple[InputContainer, VideoStream]]:
    """The opened file and its first video stream. Raises VideoError, as does a decoding error inside the block."""
    file = Path(path)
    if not file.exists():
        raise VideoError(f"{path} does not exist; give the path of a video file")
    if not file.is_file():
        raise VideoError(f"{path} is not a file; give the path of a video file")
    try:
        # Only local files: a playlist must not make the reader fetch anything.
        with av.open(str(file.resolve()), options={"protocol_whitelist": "file"}) as container:
            if not container.streams.video:
                raise VideoError(f"{path} holds no video stream; give a file with pictures in it")
            stream = container.streams.video[0]
            stream.thread_type = "AUTO"
            yield container, stream
    except PermissionError as error:
        raise VideoError(f"{path} may not be read; change its permissions or give another file") from error
    except (av.error.FFmpegError, av.error.InvalidDataError) as error:
        raise VideoError(f"{path} is not a video that can be read ({error.strerror}); give another file") from error


def _take(
    container: InputContainer,
    stream: VideoStream,
    path: str | Path,
    wanted: int,
    size: tuple[int, int],
    start: int,
    stride: int,
) -> tuple[list[Frames], tuple[int, int], int, int]:
    """The frames taken, the size the source is shown at, its turn in degrees and how many frames were decoded."""
    taken: list[Frames] = []
    shown, turned, seen = size, 0, 0
    try:
        for frame in container.decode(stream):
            if seen >= start and (seen - start) % stride == 0:
                picture, aspect, turned = _upright(frame, float(stream.sample_aspect_ratio or 1))
                shown = (round(picture.shape[1] * aspect), picture.shape[0])
                taken.append(cover(picture, size, aspect))
            seen += 1
            if len(taken) == wanted:
                break
    except av.error.FFmpegError as error:
        raise VideoError(
            f"{path} cannot be decoded after frame {seen} ({error.strerror}); {wanted} frames from frame {start} on "
            "are needed: repair the file or give another"
        ) from error
    return taken, shown, turned, seen


def _upright(frame: VideoFrame, aspect: float) -> tuple[Frames, float, int]:
    """The picture as it is meant to be shown, its pixel aspect then, and the degrees it was turned clockwise."""
    picture = np.asarray(frame.to_ndarray(format="rgb24"), np.uint8)
    quarter = round(-frame.rotation / 90) % 4
    if quarter:
        picture = np.ascontiguousarray(np.rot90(picture, -quarter))
    return picture, 1 / aspect if quarter % 2 else aspect, quarter * 90


def _too_few(path: str | Path, seen: int, taken: int, used: int, start: int, stride: int, factor: int) -> str:
    if seen == 0:
        return f"{path} holds no frames; give another file"
    needed = start + (used - 1) * stride + 1
    where = (f" from frame {start} on" if start else "") + (f" at stride {stride}" if stride > 1 else "")
    wanted = f"{used}{where} need {needed}" if where else f"the output is to have {used}"
    help = f"ask for {_frames(whole_frames(taken, factor))}, or " if taken else "start earlier, or "
    return f"{path} has {_frames(seen)}, and {wanted}; {help}give a longer video"


def _frames(count: int) -> str:
    return "1 frame" if count == 1 else f"{count} frames"
