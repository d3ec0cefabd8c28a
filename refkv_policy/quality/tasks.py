"""Tasks: the units of work of a sweep. Each is known by a digest of all that its result depends on, and is run once.

A task's result is one JSON file; the runs that others are compared with also leave their frames and latents. Plain data,
so that a task can be sent to another process. Needs no torch.
"""

from __future__ import annotations

import hashlib
import json
import zlib
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, Literal
from uuid import uuid4
from zipfile import BadZipFile

import numpy as np
import numpy.typing as npt

from refkv_policy.audit import AuditError, verify
from refkv_policy.canonical import sha256
from refkv_policy.evidence import canonical
from refkv_policy.files import PART, atomic_write, read_bounded
from refkv_policy.plan.diagnostic import RefkvError

FORMAT = 1
LARGEST = 64 << 20
"""Bytes of a result that are read."""
UNCACHED, MANY_STEPS = "uncached", "many_steps"
"""The two references that a run is compared with."""
Kind = Literal["run", "pair", "compare"]
Array = npt.NDArray[np.float32]


class ResultsError(RefkvError):
    """A results folder that cannot be used; says what to do."""


@dataclass(frozen=True, slots=True)
class Source:
    """An input clip. sha256: `sha256:…` of its frames at the model's size. fps: at which the output plays."""

    name: str
    path: str
    prompt: str
    sha256: str
    fps: float


@dataclass(frozen=True, slots=True)
class Conditions:
    """What all runs of a sweep share. weights: `sha256:…`. features: digests of the feature models, in order."""

    profile: str
    weights: str
    width: int
    height: int
    frames: int
    guidance: float
    control: str
    negative_prompt: str
    text_tokens: int
    sampler: str
    flow_shift: float
    dtype: str
    device: str
    features: tuple[str, ...]
    versions: Mapping[str, str]

    @property
    def digest(self) -> str:
        """Of all of it."""
        return sha256(canonical(asdict(self)))


@dataclass(frozen=True, slots=True)
class Work:
    """How the model is run: with a table, or uncached at a step count. table: a hook table's `to_dict`."""

    steps: int
    table: Mapping[str, Any] | None = field(default=None, repr=False)
    digest: str | None = None

    @property
    def visited(self) -> int:
        """How many steps the sampler visits."""
        return self.steps if self.table is None else len(self.table["evaluated"])


@dataclass(frozen=True, slots=True)
class Task:
    """One unit of work.

    run: one request, compared with kept runs. pair: an uncached request and this one, timed step by step in turns.
    compare: no request; a kept run against others. repeat tells equal work apart. against: label and key of each
    reference. of: key of the kept run that is compared. nominal: steps of the uncached request that a pair times it
    against. keep: leave frames and latents. label is for people.
    """

    kind: Kind
    label: str
    work: Work
    clip: Source
    seed: int
    conditions: str
    repeat: int = 0
    against: tuple[tuple[str, str], ...] = ()
    of: str | None = None
    nominal: int | None = None
    keep: bool = False

    @property
    def steps(self) -> int:
        """Denoising steps that are run for it."""
        return 0 if self.kind == "compare" else self.work.visited + (self.nominal or 0)

    @property
    def key(self) -> str:
        """A digest of all that the result depends on; names and what is kept do not count."""
        work = {"steps": self.work.steps} if self.work.digest is None else {"table": self.work.digest}
        about = {
            "format": FORMAT,
            "kind": self.kind,
            **work,
            "clip": self.clip.sha256,
            "prompt": self.clip.prompt,
            "fps": self.clip.fps,
            "seed": self.seed,
            "conditions": self.conditions,
            "repeat": self.repeat,
            "against": [list(pair) for pair in self.against],
            "of": self.of,
            "nominal": self.nominal,
        }
        if self.kind == "pair":
            about["turns"] = "step"  # pairs were once timed request by request
        return hashlib.sha256(canonical(about).encode()).hexdigest()[:40]


UNREADABLE = (OSError, ValueError, KeyError, EOFError, RuntimeError, BadZipFile, zlib.error)
"""What numpy and zipfile raise for an archive that is cut short or damaged; RuntimeError is for flags of encryption."""


class Store:
    """A folder of results: `<key>.json`, `<key>.npz` and `audits/<key>.jsonl`. Whatever has a file there is whole."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def open(self) -> Store:
        """Make the folder. Raises ResultsError."""
        try:
            (self.folder / "audits").mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise ResultsError(
                f"cannot write into {self.folder}: {error.strerror}; choose another with --results"
            ) from error
        return self

    def done(self, task: Task) -> bool:
        """Whether a task need not be run: its result is whole, what it keeps is there, and its audit log verifies still."""
        result = self.result(task)
        if result is None or (task.keep and not self.arrays_path(task.key).is_file()):
            return False
        told = [(result.get(part) or {}).get("audit") for part in ("run", "planned")]
        return all(self._verifies(each["log"], each["head"]) for each in told if each)

    def _verifies(self, log: str, head: str) -> bool:
        try:
            return verify(self.folder / log, head=head).outcome == "ok"
        except AuditError:
            return False

    def result(self, task: Task) -> dict[str, Any] | None:
        """The result of a task; None where there is none that can be read."""
        return self.by_key(task.key)

    def by_key(self, key: str) -> dict[str, Any] | None:
        """The same, by a task's key. One that was changed since it was written is none."""
        try:
            value = json.loads(read_bounded(self.folder / f"{key}.json", LARGEST))
            sound = isinstance(value, dict) and value.pop("digest", None) == sha256(canonical(value))
        except (OSError, ValueError, RecursionError):
            return None
        return value if sound and value.get("format") == FORMAT and value.get("key") == key else None

    def write(self, task: Task, result: Mapping[str, Any]) -> None:
        """Take a result in; the last thing a task does, so that one killed before leaves none."""
        about = {
            "label": task.label,
            "clip": task.clip.name,
            "seed": task.seed,
            "kind": task.kind,
            "repeat": task.repeat,
        }
        value = {
            "format": FORMAT,
            "key": task.key,
            **about,
            "table": task.work.digest,
            "steps": task.work.steps,
            **result,
        }
        stored = json.loads(json.dumps(value, allow_nan=False))
        text = json.dumps({**stored, "digest": sha256(canonical(stored))}, indent=1)
        with atomic_write(self.folder / f"{task.key}.json") as stream:
            stream.write(text.encode())

    def arrays_path(self, key: str) -> Path:
        """Where a kept run's frames and latents lie."""
        return self.folder / f"{key}.npz"

    def keep(self, key: str, frames: Array, latents: Array) -> None:
        """Keep a run's frames (frames, H, W, 3) and latents, both float32 and exact."""
        with atomic_write(self.arrays_path(key)) as stream:
            np.savez(stream, frames=frames, latents=latents)

    def arrays(self, key: str) -> tuple[Array, Array]:
        """Frames and latents of a kept run. Raises ResultsError."""
        try:
            # The stream is ours, since numpy leaves its own open where the archive is damaged.
            with self.arrays_path(key).open("rb") as stream, np.load(stream, allow_pickle=False) as held:
                return held["frames"], held["latents"]
        except UNREADABLE as error:
            raise ResultsError(f"{self.arrays_path(key)} cannot be read ({error}); delete it and {key}.json") from error

    def new_audit(self, key: str) -> Path:
        """Where a run writes its audit log: a name of its own, since another process may be at the same task."""
        return self.folder / "audits" / f".{key}.{uuid4().hex}{PART}"

    def keep_audit(self, log: Path, key: str) -> str:
        """Give a log that verifies its place; returns its path in the folder."""
        name = f"audits/{key}.jsonl"
        log.replace(self.folder / name)
        return name
