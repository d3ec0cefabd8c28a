"""Writing a clip: whole or not at all."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from fractions import Fraction
from pathlib import Path

import av
import numpy as np

from refkv_policy.files import place_of
from refkv_policy.video.clip import Frames, VideoError


@contextmanager
def beside(path: Path) -> Iterator[Path]:
    """A temporary file in the folder of `path` that takes its place when the block ends, and vanishes if it raises.

    That goes for KeyboardInterrupt too: nobody ever sees a half-written file under the final name.
    """
    path = place_of(path)
    handle, name = tempfile.mkstemp(dir=path.parent, prefix=f".{path.stem[:64]}.", suffix=f".part{path.suffix}")
    os.close(handle)
    part = Path(name)
    try:
        yield part
        part.chmod(0o666 & ~_umask())
        os.replace(part, path)
    except BaseException:
        part.unlink(missing_ok=True)
        raise


def write_clip(path: str | Path, frames: Frames, fps: float, *, quality: int = 14) -> None:
    """Write uint8 (frames, height, width, 3) as H.264 in MP4, playable in a browser.

    quality is x264's constant rate factor, lower is better. An odd height or width gains one repeated row or column,
    as 4:2:0 chroma needs. Raises VideoError.
    """
    file = Path(path)
    if frames.ndim != 4 or frames.shape[-1] != 3 or frames.dtype != np.uint8 or not frames.size:
        raise VideoError(f"cannot write {file.name}: frames are {frames.dtype} {frames.shape}, not uint8 (n, H, W, 3)")
    if not fps > 0:
        raise VideoError(f"cannot write {file.name}: {fps} frames a second is not a rate")
    even = np.pad(frames, ((0, 0), (0, frames.shape[1] % 2), (0, frames.shape[2] % 2), (0, 0)), mode="edge")
    try:
        with beside(file) as part:
            _encode(part, even, Fraction(fps).limit_denominator(1001), quality)
    except (OSError, av.error.FFmpegError) as error:
        raise VideoError(f"cannot write {file}: {error.strerror}; choose another folder with --out") from error


def _encode(path: Path, frames: Frames, rate: Fraction, quality: int) -> None:
    with av.open(str(path), "w", format="mp4", options={"movflags": "+faststart"}) as container:
        # With its macroblock tree x264 was seen to write one of several files from the same frames.
        settings = {"crf": str(quality), "preset": "medium", "x264-params": "mbtree=0"}
        stream = container.add_stream("libx264", rate=rate, options=settings)
        stream.height, stream.width = frames.shape[1:3]
        stream.pix_fmt = "yuv420p"
        for picture in frames:
            container.mux(stream.encode(av.VideoFrame.from_ndarray(np.ascontiguousarray(picture), format="rgb24")))
        container.mux(stream.encode(None))


def _umask() -> int:
    mask = os.umask(0)
    os.umask(mask)
    return mask
