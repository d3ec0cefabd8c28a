"""The subjective test: a blind pack of pairs for raters, its key apart, and their answers read back. No torch.

Each pair shows the planned and the uncached output of one clip and seed side by side, in an order drawn for that pair, as
one video, so that the two cannot run apart. Some pairs show the uncached output twice: what is called different there
tells how far a rater can be trusted.
"""

from __future__ import annotations

import base64
import datetime
import hashlib
import json
import random
import tempfile
import unicodedata
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType
from typing import Any

import numpy as np

from refkv_policy.evidence import Interval
from refkv_policy.files import atomic_write, check_writable, read_bounded
from refkv_policy.plan.diagnostic import RefkvError
from refkv_policy.quality.statistics import wilson_interval
from refkv_policy.video import write_clip
from refkv_policy.video.clip import Frames

FORMAT = 1
KEY, ANSWERS = "refkv-ab-key", "refkv-ab-answers"
LEFT, SAME, RIGHT = "left", "same", "right"
"""Answers: the left one is noticeably worse, neither is, the right one is."""
MIN_PAIRS, MIN_RATERS = 20, 5
"""The RFC's N = 20–30 and 5–10 raters (section 5.3)."""
CONTROL_SHARE = 6
"""One equal pair for so many real ones."""
PAGE = "index.html"
TEMPLATES = Path(__file__).parent / "templates"
SHORTEST, GAP, GREY = 240, 16, 128
LARGEST_ANSWERS = 1 << 20


class RatingsError(RefkvError):
    """A key or an answers file that cannot be used; says which and why."""


@dataclass(frozen=True)
class Shown:
    """Both outputs of one clip and seed: uint8 (frames, H, W, 3)."""

    clip: str
    seed: int
    planned: Frames
    uncached: Frames
    fps: float


@dataclass(frozen=True, slots=True)
class Ratings:
    """What raters said. unnoticed: answers that did not call the planned side worse. controls: answers on equal pairs."""

    raters: int
    pairs: int
    answers: int
    unnoticed: int
    controls: int
    false_alarms: int

    @property
    def share(self) -> float:
        """Of answers that saw no noticeable degradation."""
        return self.unnoticed / self.answers

    @property
    def interval(self) -> Interval:
        """Wilson's, of the share."""
        return wilson_interval(self.unnoticed, self.answers)


def key_path(folder: Path) -> Path:
    """Where the key of a pack belongs: beside its folder, which can then be given away whole."""
    return folder.with_name(f"{folder.name}.key.json")


def check_pack(folder: Path) -> None:
    """Raises RatingsError for a folder that no pack can be written into, and for one that holds a pack already.

    A new pack has a new key: answers to the old one, which may be with raters, could not be read any more.
    """
    if not folder.name:
        raise RatingsError(f"--ab-pack {folder} leaves no name for the key beside it; name a folder")
    for file in (folder / PAGE, key_path(folder)):
        if file.exists():
            raise RatingsError(f"{file} is there already; choose another --ab-pack, or move the pack and its key away")
        try:
            check_writable(file)
        except OSError as error:
            raise RatingsError(f"cannot write {file}: {error.strerror}; choose another --ab-pack") from error


def write_pack(
    folder: Path, shown: Sequence[Shown], bound: Mapping[str, str], draw: random.Random | None = None
) -> Path:
    """Write `index.html` into the folder and the key beside it; gives the key's path.

    bound: what the pack is of, such as plan and table digest; it goes into the key only. draw: for the order; of the
    operating system unless given. Raises RatingsError as `check_pack` does.
    """
    check_pack(folder)
    draw = draw or random.SystemRandom()
    trials: list[tuple[Shown, str | None]] = [(one, draw.choice((LEFT, RIGHT))) for one in shown]
    trials += [(one, None) for one in draw.sample(list(shown), max(1, len(shown) // CONTROL_SHARE))]
    draw.shuffle(trials)
    videos, pairs = [], []
    for number, (one, side) in enumerate(trials, 1):
        left = one.planned if side == LEFT else one.uncached
        right = one.planned if side == RIGHT else one.uncached
        videos.append(_video(left, right, one.fps))
        pairs.append({"pair": number, "clip": one.clip, "seed": one.seed, "planned": side})
    pack = hashlib.sha256("\0".join(videos).encode()).hexdigest()
    created = datetime.datetime.now(datetime.timezone.utc).isoformat(timespec="seconds")
    key = {"format": FORMAT, "kind": KEY, "pack": pack, "created": created, **bound, "pairs": pairs}
    path, text = key_path(folder), page(pack, videos)
    try:
        folder.mkdir(parents=True, exist_ok=True)
        # The key first: a page without one is worth nothing, and might be given away.
        with atomic_write(path) as stream:
            stream.write((json.dumps(key, indent=1) + "\n").encode())
        with atomic_write(folder / PAGE) as stream:
            stream.write(text.encode())
    except OSError as error:
        raise RatingsError(
            f"cannot write the pack into {folder}: {error.strerror}; choose another --ab-pack"
        ) from error
    return path


def page(pack: str, videos: Sequence[str]) -> str:
    """The page for raters. videos: MP4 files in base64, in order. It holds nothing that tells which side is which."""
    from jinja2 import Environment, FileSystemLoader, StrictUndefined

    environment = Environment(
        loader=FileSystemLoader(TEMPLATES, encoding="utf-8"),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
    )
    environment.filters["csp_hash"] = lambda text: base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()
    data = {"pack": pack, "videos": list(videos), "kind": ANSWERS, "format": FORMAT}
    return environment.get_template("abpack.html.j2").render(data=data)


def read_ratings(
    key_file: Path, answer_files: Sequence[Path], bound: Mapping[str, str] = MappingProxyType({})
) -> Ratings:
    """The answers of one pack. bound: what the pack must be of, as it was given to `write_pack`.

    Raises RatingsError: for a file that is not what it should be, answers of another pack, a rater who comes twice, an
    answer that is missing.
    """
    key = _load(key_file, KEY, "the key of a pack")
    other = [name for name, value in bound.items() if key.get(name) != value]
    if other:
        what = ", ".join(other)
        raise RatingsError(f"{key_file} is of a pack that was made otherwise ({what}); make a new pack of this plan")
    sides = {str(pair["pair"]): pair["planned"] for pair in _pairs(key, key_file)}
    raters: dict[str, Path] = {}
    said: list[tuple[str, str]] = []
    for file in answer_files:
        given = _answers(file, key, sides)
        rater = _name(str(given["rater"]))
        if rater in raters:
            raise RatingsError(f"{file} and {raters[rater]} are both of rater {given['rater']!r}; a rater counts once")
        raters[rater] = file
        said += given["answers"].items()
    real = [(sides[pair], answer) for pair, answer in said if sides[pair] is not None]
    equal = [answer for pair, answer in said if sides[pair] is None]
    if not real:
        raise RatingsError("there are no answers; name one file a rater with --ratings")
    return Ratings(
        raters=len(raters),
        pairs=sum(side is not None for side in sides.values()),
        answers=len(real),
        unnoticed=sum(answer != side for side, answer in real),
        controls=len(equal),
        false_alarms=sum(answer != SAME for answer in equal),
    )


def _answers(file: Path, key: Mapping[str, Any], sides: Mapping[str, str | None]) -> dict[str, Any]:
    given = _load(file, ANSWERS, "a file of answers")
    if given.get("pack") != key["pack"]:
        raise RatingsError(f"{file} answers another pack; give the key of that one, or leave it out")
    answers, rater = given.get("answers"), given.get("rater")
    if not isinstance(rater, str) or not _name(rater):
        raise RatingsError(f"{file} names no rater; let its rater save it again")
    if not isinstance(answers, dict) or not set(answers) <= set(sides):
        raise RatingsError(f"{file} answers pairs that the pack does not have; let its rater save it again")
    if not all(answer in (LEFT, SAME, RIGHT) for answer in answers.values()):
        raise RatingsError(f"{file} has an answer that is none of {LEFT}, {SAME}, {RIGHT}; let its rater save it again")
    if len(answers) < len(sides):
        raise RatingsError(
            f"{file} answers {len(answers)} of {len(sides)} pairs; let its rater finish, or leave it out"
        )
    return given


def _name(rater: str) -> str:
    """A rater's name without what nobody sees: one person writes it in many ways."""
    plain = unicodedata.normalize("NFKC", rater)
    seen = "".join(c for c in plain if unicodedata.category(c) not in ("Cf", "Cc") or c.isspace())
    return " ".join(seen.casefold().split())


def _pairs(key: Mapping[str, Any], file: Path) -> list[dict[str, Any]]:
    pairs = key.get("pairs")
    fine = isinstance(pairs, list) and all(
        isinstance(p, dict) and isinstance(p.get("pair"), int) and p.get("planned", "") in (LEFT, RIGHT, None)
        for p in pairs
    )
    if not fine or not isinstance(key.get("pack"), str):
        raise RatingsError(f"{file} is not the key of a pack as it was written; make the pack again")
    found: list[dict[str, Any]] = key["pairs"]
    return found


def _once(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """Raises ValueError for a key that stands twice: which of them counts?"""
    found = dict(pairs)
    if len(found) < len(pairs):
        raise ValueError("a key stands twice")
    return found


def _load(file: Path, kind: str, what: str) -> dict[str, Any]:
    try:
        value = json.loads(read_bounded(file, LARGEST_ANSWERS), object_pairs_hook=_once)
    except OSError as error:
        raise RatingsError(f"{file} cannot be read: {error.strerror}; give {what}") from error
    except (ValueError, RecursionError) as error:
        raise RatingsError(f"{file} is not {what}: it is no JSON") from error
    if not isinstance(value, dict) or value.get("kind") != kind or value.get("format") != FORMAT:
        raise RatingsError(f"{file} is not {what}")
    return value


def _video(left: Frames, right: Frames, fps: float) -> str:
    """Both side by side, without a label, as an MP4 in base64. Small ones are enlarged by a whole factor."""
    factor = max(1, -(-SHORTEST // left.shape[1]))
    sides = [frames.repeat(factor, axis=1).repeat(factor, axis=2) for frames in (left, right)]
    gap = np.full((len(left), sides[0].shape[1], GAP, 3), GREY, np.uint8)
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "pair.mp4"
        write_clip(path, np.concatenate([sides[0], gap, sides[1]], axis=2), fps)
        return base64.b64encode(path.read_bytes()).decode()
