"""The videos of a report: checked, brought to one shape, and carried in the page as they are."""

from __future__ import annotations

import hashlib
import io
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING, Any

from refkv_policy.report.errors import ReportError
from refkv_policy.report.inputs import COMPARE, OUTPUT
from refkv_policy.report.words import number, percent, size

if TYPE_CHECKING:
    from refkv_policy.video import Clip

LABELS = ("input", "uncached", "planned")
GAINS = (1, 2, 4, 8, 16, 32, 64, 128)
"""By which a difference can be enlarged."""
LARGEST = 256 << 20
"""Bytes of all videos of one report: beyond it a browser may not open the page."""


@dataclass(frozen=True, slots=True)
class Source:
    """One video file that browsers play: H.264 in MP4, 4:2:0, at a constant rate. data: the file's bytes."""

    name: str
    data: bytes
    width: int
    height: int
    frames: int
    fps: float

    @property
    def sha256(self) -> str:
        """Of the bytes in the page."""
        return "sha256:" + hashlib.sha256(self.data).hexdigest()


@dataclass(frozen=True, slots=True)
class Panel:
    """A player: the part (left, top, width, height) of a source, by index."""

    label: str
    source: int
    crop: tuple[int, int, int, int]


@dataclass(frozen=True, slots=True)
class Players:
    """Players that run together, all of `frames` frames at `fps`. notes: what was done to make them so.

    gain: by which the difference is enlarged at first; gap: how large it is over the whole clip, in words.
    """

    title: str
    sources: tuple[Source, ...]
    panels: tuple[Panel, ...]
    notes: tuple[str, ...] = ()
    gain: int = 1
    gap: str = ""

    @property
    def frames(self) -> int:
        """Frames of each."""
        return self.sources[0].frames

    @property
    def fps(self) -> float:
        """Frames a second of each."""
        return self.sources[0].fps

    @property
    def compared(self) -> bool:
        """Whether a difference can be shown."""
        return {"uncached", "planned"} <= {panel.label for panel in self.panels}


def players_of(files: Mapping[str, Path]) -> Players:
    """Players of `input`, `uncached` and `planned`, those that are given. Raises ReportError and VideoError.

    Uncached and planned must be of one shape. An input of another is cropped and brought to theirs, as `refkv run`
    does; what browsers do not play is written anew.
    """
    unknown = sorted(set(files) - set(LABELS))
    if unknown or not files:
        raise ReportError(f"a video is {', '.join(LABELS[:-1])} or {LABELS[-1]}, not {', '.join(unknown) or 'nothing'}")
    chosen = next(label for label in ("planned", "uncached", "input") if label in files)
    first, notes = _load(files[chosen], None)
    sources = {chosen: first}
    told = [f"{chosen}: {note}" for note in notes]
    for label in LABELS:
        if label in files and label != chosen:
            sources[label], notes = _load(files[label], first, fit=label == "input")
            told += [f"{label}: {note}" for note in notes]
    ordered = [label for label in LABELS if label in sources]
    _limit([sources[label] for label in ordered])
    panels = [Panel(label, n, (0, 0, sources[label].width, sources[label].height)) for n, label in enumerate(ordered)]
    return _compared(Players("Videos", tuple(sources[label] for label in ordered), tuple(panels), tuple(told)))


def players_in(folder: Path) -> Players | None:
    """Players of a run's folder: the panels of its comparison, or its output alone; None where it has neither."""
    for name in (COMPARE, OUTPUT):
        path = folder / name
        if path.is_file():
            source, notes = _load(path, None)
            _limit([source])
            panels = _split(source) if name == COMPARE else (Panel("planned", 0, (0, 0, source.width, source.height)),)
            return _compared(Players(f"Videos of {folder.name}", (source,), panels, notes))
    return None


def _compared(players: Players) -> Players:
    """With the gain that its difference needs to be seen: it keeps all but one in a hundred values within the scale."""
    if not players.compared:
        return players
    import av
    import numpy as np

    one, other = (next(p for p in players.panels if p.label == label) for label in ("uncached", "planned"))
    tally = np.zeros(256, np.int64)
    try:
        for pictures in zip(*map(_decoded, players.sources), strict=False):
            first, second = (
                pictures[panel.source][top : top + height, left : left + width].astype(np.int16)
                for panel in (one, other)
                for left, top, width, height in [panel.crop]
            )
            tally += np.bincount(np.abs(first - second).ravel(), minlength=256)
    except av.error.FFmpegError as error:
        return replace(players, gap=f"not measured, for a frame cannot be decoded ({error.strerror})")
    if not tally[1:].any():
        return replace(players, gap="no value differs")
    most = max(1, int(np.searchsorted(np.cumsum(tally), 0.99 * tally.sum())))
    gain = max(gain for gain in GAINS if gain * most <= 255)
    mean, largest = float(tally @ np.arange(256)) / int(tally.sum()) / 255, int(tally.nonzero()[0][-1]) / 255
    said = (
        f"over the whole clip {percent(mean)} of full scale on average and {percent(largest)} at most; shown × {gain}"
    )
    return replace(players, gain=gain, gap=f"{said}, by which 99 of 100 values stay within the scale")


def _decoded(source: Source) -> Iterator[Any]:
    """The frames of a source, uint8 (height, width, 3)."""
    import av

    with av.open(io.BytesIO(source.data), "r") as container:
        for frame in container.decode(video=0):
            yield frame.to_ndarray(format="rgb24")


def _split(source: Source) -> tuple[Panel, ...]:
    """The three panels of `refkv run`'s comparison, without their labels."""
    from refkv_policy.video.panels import GAP, STRIP

    width, height = (source.width - 2 * GAP) // 3, source.height - STRIP
    if width < 8 or height < 8:
        raise ReportError(f"{source.name} is {source.width}x{source.height}: not a comparison that `refkv run` wrote")
    return tuple(Panel(label, 0, (n * (width + GAP), STRIP, width, height)) for n, label in enumerate(LABELS))


def _load(path: Path, like: Source | None, fit: bool = False) -> tuple[Source, tuple[str, ...]]:
    """The video, and notes of what was changed. like: the shape it must have, or is brought to with `fit`."""
    probed = _probe(path)
    playable = probed.playable
    same = like is None or (
        probed.shape == (like.width, like.height, like.frames) and abs(probed.fps - like.fps) < 0.01
    )
    if playable and same:
        return Source(path.name, path.read_bytes(), probed.width, probed.height, probed.frames, probed.fps), ()
    if like is not None and not same and not fit:
        raise ReportError(
            f"{path} is {probed.words}, and the other is {like.width}x{like.height}, {like.frames} frames at "
            f"{number(like.fps)} a second; give two videos of one shape, from the same request"
        )
    shape = (like.width, like.height, like.frames) if like is not None else probed.shape
    clip = _read(path, shape)
    notes = [*clip.notes, f"written anew for browsers from {probed.words} ({probed.codec})"]
    return _written(path.name, clip, clip.fps if like is None else like.fps), tuple(notes)


@dataclass(frozen=True, slots=True)
class _Probe:
    width: int
    height: int
    frames: int
    fps: float
    codec: str
    playable: bool

    @property
    def shape(self) -> tuple[int, int, int]:
        return self.width, self.height, self.frames

    @property
    def words(self) -> str:
        return f"{self.width}x{self.height}, {self.frames} frames at {number(self.fps)} a second"


def _probe(path: Path) -> _Probe:
    _need_av()
    from refkv_policy.video.read import FALLBACK_FPS, open_video

    with open_video(path) as (container, stream):
        fps = float(stream.average_rate or stream.guessed_rate or FALLBACK_FPS)
        times = sorted(p.pts for p in container.demux(stream) if p.size and p.pts is not None)
        codec, layout = stream.codec_context.name, stream.codec_context.pix_fmt
        gaps = {b - a for a, b in pairwise(times)}
        steady = not gaps or stream.time_base is None or max(gaps) - min(gaps) <= 0.1 * max(gaps)
        plain = not stream.sample_aspect_ratio or stream.sample_aspect_ratio == 1
        playable = "mp4" in container.format.name and codec == "h264" and layout in ("yuv420p", "yuvj420p")
        return _Probe(
            stream.codec_context.width, stream.codec_context.height, len(times), fps, f"{codec} {layout}",
            playable and steady and plain and len(container.streams.video) == 1,
        )  # fmt: skip


def _read(path: Path, shape: tuple[int, int, int]) -> Clip:
    from refkv_policy.video import read_clip

    width, height, frames = shape
    return read_clip(path, frames, (width, height), factor=1)


def _written(name: str, clip: Clip, fps: float) -> Source:
    from refkv_policy.video import write_clip

    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "clip.mp4"
        write_clip(path, clip.frames, fps)
        probed = _probe(path)
        return Source(name, path.read_bytes(), probed.width, probed.height, probed.frames, probed.fps)


def _limit(sources: Sequence[Source]) -> None:
    total = sum(len(source.data) for source in sources)
    if total > LARGEST:
        raise ReportError(
            f"the videos are {size(total)}, more than the {size(LARGEST)} a page can carry; give shorter ones"
        )


def _need_av() -> None:
    try:
        import av  # noqa: F401
        import numpy  # noqa: F401
        import PIL  # noqa: F401
    except ModuleNotFoundError as error:
        raise ReportError(f"videos need {error.name}: pip install 'refkv-policy[report]'") from error
