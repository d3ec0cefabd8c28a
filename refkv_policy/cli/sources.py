"""The clips of a measurement, each with its prompt."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from refkv_policy.cli.group import Failure, say
from refkv_policy.cli.job import Job
from refkv_policy.files import read_bounded

if TYPE_CHECKING:
    from refkv_policy.quality.tasks import Source

PROMPT = ".txt"
"""Beside a clip, a text file of its name holds its prompt."""
LONGEST_NAME, LONGEST_PROMPT = 200, 4000
"""Characters that evidence holds of a clip's name, and of an argument of the command that measured it."""


def read_sources(options: dict[str, Any], job: Job) -> tuple[Source, ...]:
    """The clips, each read once for its digest. Raises Failure, VideoError."""
    from refkv_policy.canonical import sha256
    from refkv_policy.quality.tasks import Source
    from refkv_policy.video import SHIPPED_PROMPT, read_clip, shipped_clip

    folder, default = options["clips"], options["prompt"]
    if folder is None:
        paths, default = [shipped_clip()], default or SHIPPED_PROMPT
    elif not folder.is_dir():
        raise Failure(f"--clips {folder} is not a folder; give one with video files")
    else:
        paths = sorted(p for p in folder.iterdir() if p.is_file() and p.suffix != PROMPT and not p.name.startswith("."))
    if not paths:
        raise Failure(f"--clips {folder} holds no video; put one file a clip there")
    sources = []
    for path in paths:
        _check_name(path)
        text = path.with_suffix(PROMPT)
        prompt = _prompt(text) if text.is_file() else default or ""
        size = (job.shape.width, job.shape.height)
        clip = read_clip(path, job.shape.frames, size, factor=job.profile.vae_scale[0])
        digest = sha256(clip.frames.tobytes())
        sources.append(Source(path.name, str(path.resolve()), prompt, digest, options["fps"] or clip.fps))
        for note in clip.notes:
            say(f"note: {path.name}: {note}")
    return tuple(sources)


def read_from(clips: Sequence[Source]) -> list[Path]:
    """The files that sources were read from: clips, and texts beside them."""
    return [file for clip in clips for file in (Path(clip.path), Path(clip.path).with_suffix(PROMPT))]


def _check_name(path: Path) -> None:
    """Raises Failure for a name that evidence cannot hold: it is measured first and written last."""
    if not path.name.isprintable() or len(path.name) > LONGEST_NAME:
        raise Failure(f"the clip {ascii(path.name)[:80]} has a name that cannot be printed; rename it")


def _prompt(file: Path) -> str:
    try:
        prompt = read_bounded(file, 8 * LONGEST_PROMPT).decode("utf-8-sig").strip()
    except (OSError, UnicodeDecodeError) as error:
        reason = getattr(error, "strerror", None) or "it is not UTF-8 text"
        raise Failure(f"the prompt {file} cannot be read: {reason}; write it anew, or move it away") from error
    if len(prompt) > LONGEST_PROMPT:
        raise Failure(f"the prompt {file} is longer than {LONGEST_PROMPT} characters; shorten it")
    return prompt
