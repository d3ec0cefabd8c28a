"""The bench: an opened pipeline on which tasks are performed. Needs torch and diffusers."""

from __future__ import annotations

import hashlib
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import numpy as np
import numpy.typing as npt
import torch
from PIL import Image

from refkv_policy.audit import verify
from refkv_policy.compiler import HookTable
from refkv_policy.quality.metrics import FeatureModel, MeasureError, Video, compare
from refkv_policy.quality.tasks import Conditions, Source, Store, Task, Work
from refkv_policy.quality.turns import Pause, take_turns, twin_of
from refkv_policy.runtime import AttachError, RequestError, attach
from refkv_policy.runtime.generate import Generated, Request, generate
from refkv_policy.runtime.placement import Patches
from refkv_policy.runtime.session import Session
from refkv_policy.video import Clip, control, read_clip, write_clip

if TYPE_CHECKING:
    from diffusers import WanVACEPipeline

T = TypeVar("T")
OWN_FAULTS = (MeasureError, RequestError, AttachError)
"""What ends one task and not the sweep: its result says so."""
EMBEDDED = 8
"""Clips whose features are remembered."""


class Bench:
    """Performs tasks on one pipeline, one after the other. factor: frames of the video to one of the latents."""

    def __init__(
        self,
        pipe: WanVACEPipeline,
        conditions: Conditions,
        features: Sequence[FeatureModel],
        store: Store,
        factor: int = 4,
    ) -> None:
        self.pipe, self.conditions, self.store, self.factor = pipe, conditions, store, factor
        self.features = [_Remembering(model) for model in features]
        self._inputs: dict[str, tuple[Clip, dict[str, Any]]] = {}
        self._encode = _Encoded(pipe.vae)
        self._twin: WanVACEPipeline | None = None
        self._warm = False

    def perform(self, task: Task) -> None:
        """Run a task and write its result into the store. Raises whatever is no fault of the task's own."""
        try:
            result = {"run": self._run, "pair": self._pair, "compare": self._compare}[task.kind](task)
        except OWN_FAULTS as error:
            result = {"failed": str(error)}
        self.store.write(task, result)

    def _run(self, task: Task) -> dict[str, Any]:
        with resident_peak() as peak, self._encode.remembered():
            made, about = self._request(task, task.work, self._input(task.clip)[1])
        host, memory = peak(), made.memory
        about["memory"] = host if memory is None else memory
        about["memory_of"] = (
            None if about["memory"] is None else "host_resident" if memory is None else "device_allocated"
        )
        if task.keep:
            self.store.keep(task.key, made.frames, made.latents)
        return {"run": about, "comparisons": self._comparisons(task, made.frames, made.latents)}

    def _compare(self, task: Task) -> dict[str, Any]:
        assert task.of is not None
        return {"comparisons": self._comparisons(task, *self.store.arrays(task.of))}

    def _pair(self, task: Task) -> dict[str, Any]:
        """Uncached and planned, each from input file to output file; which is first alternates from pair to pair.

        Their steps alternate, on two pipelines of the same weights; where parts are offloaded, which one of two pipelines
        would undo for the other, one run follows the other.
        """
        assert task.nominal is not None
        contestants = {"uncached": Work(task.nominal), "planned": task.work}
        order = sorted(contestants, reverse=task.repeat % 2 == 0)
        offloaded = bool(getattr(self.pipe, "_all_hooks", None))
        if self._twin is None and not offloaded:
            self._twin = twin_of(self.pipe)
        pipes = {"uncached": self.pipe, "planned": self._twin or self.pipe}
        if not self._warm:
            for name in order:
                self._timed(task, Work(2), pipes[name])
            self._warm = True

        def run(name: str, pause: Pause | None = None) -> dict[str, Any]:
            return self._timed(task, contestants[name], pipes[name], name == "planned", pause)

        if offloaded:  # without a pause, for which the device's queue would be drained at every step
            timed = {name: run(name) for name in order}
        else:
            made = take_turns([partial(run, name) for name in order], [contestants[name].visited for name in order])
            timed = dict(zip(order, made, strict=True))
        return {**timed, "order": order, "turns": "request" if offloaded else "step"}

    def _timed(
        self, task: Task, work: Work, pipe: WanVACEPipeline, logged: bool = False, pause: Pause | None = None
    ) -> dict[str, Any]:
        """One run, and its seconds from the input file to the output file, without what it waited for its turn."""
        began = time.perf_counter()
        clip, inputs = self._read(task.clip)
        read = time.perf_counter() - began
        made, about = self._request(task, work, inputs, logged, pipe, pause)
        with tempfile.TemporaryDirectory() as folder:
            start = time.perf_counter()
            write_clip(Path(folder) / "output.mp4", made.pixels, clip.fps)
            about["seconds"]["io"] = read + time.perf_counter() - start
        about["seconds"]["total"] += about["seconds"]["io"]
        return about

    def _request(
        self,
        task: Task,
        work: Work,
        inputs: Mapping[str, Any],
        logged: bool = True,
        pipe: WanVACEPipeline | None = None,
        pause: Pause | None = None,
    ) -> tuple[Generated, dict[str, Any]]:
        """One request and what there is to tell of it. Under a table its log is verified against it."""
        shared, pipe = self.conditions, pipe or self.pipe
        request = request_of(shared, task.clip, task.seed, work.steps, inputs)
        if work.table is None:
            made = generate(pipe, request, pause=pause)
            return made, {"hits": 0, "misses": 0, "departures": {}, "bytes_peak": 0, "audit": None, **_told(made)}
        table = HookTable.from_dict(work.table)
        log = self.store.new_audit(task.key) if logged else None
        header = {
            "seed": task.seed,
            "guidance": shared.guidance,
            "clip": {"name": task.clip.name, "frames": task.clip.sha256},
            "digests": {"weights": shared.weights},
        }
        try:
            with attach(pipe, table, audit=log, header=header) as session:
                made = generate(pipe, request, pause=pause)
            audit = None if log is None else self._audited(task, log, table)
        finally:
            if log is not None:
                log.unlink(missing_ok=True)
        return made, {**_counts(session), "audit": audit, **_told(made)}

    def _audited(self, task: Task, log: Path, table: HookTable) -> dict[str, Any]:
        """The log takes its place once it verifies. Raises MeasureError."""
        found = verify(log, table=table)
        if found.outcome != "ok":
            problem = found.problems[0] if found.problems else found.outcome
            raise MeasureError(f"the audit log does not verify against its table: {problem}")
        return {"log": self.store.keep_audit(log, task.key), "head": found.head}

    def _comparisons(self, task: Task, frames: Any, latents: Any) -> dict[str, Any]:
        found = {}
        for label, key in task.against:
            reference, its_latents = self.store.arrays(key)
            comparison = compare(frames, reference, self.features, fps=task.clip.fps, latents=(latents, its_latents))
            found[label] = comparison.to_json()
        return found

    def _input(self, source: Source) -> tuple[Clip, dict[str, Any]]:
        if source.path not in self._inputs:
            self._inputs[source.path] = self._read(source)
        return self._inputs[source.path]

    def _read(self, source: Source) -> tuple[Clip, dict[str, Any]]:
        return read_input(source, self.conditions, self.factor)


def request_of(shared: Conditions, clip: Source, seed: int, steps: int, inputs: Mapping[str, Any]) -> Request:
    """The request of a clip and seed. inputs: as `read_input` gives them."""
    return Request(
        prompt=clip.prompt,
        negative_prompt=shared.negative_prompt,
        width=shared.width,
        height=shared.height,
        frames=shared.frames,
        steps=steps,
        guidance=shared.guidance,
        seed=seed,
        text_tokens=shared.text_tokens,
        inputs=inputs,
    )


def read_input(source: Source, shared: Conditions, factor: int) -> tuple[Clip, dict[str, Any]]:
    """The clip, and the pipeline's arguments that show its control. factor: of the VAE, in time."""
    clip = read_clip(source.path, shared.frames, (shared.width, shared.height), factor=factor)
    shown = control(clip.frames, shared.control)
    return clip, {"video": [Image.fromarray(frame) for frame in shown]}


class _Encoded:
    """Remembers what a VAE's encoder gave for the newest few inputs: every run of a clip is shown the same control.

    Only where nothing is timed. The encoder gives a distribution, so that nothing random is remembered.
    """

    def __init__(self, vae: Any) -> None:
        self._vae = vae
        self._known: dict[bytes, Any] = {}

    @contextmanager
    def remembered(self) -> Iterator[None]:
        """The VAE's `encode` goes through the memory until the block ends."""
        original, patches = self._vae.encode, Patches()

        def encode(x: torch.Tensor, return_dict: bool = True) -> Any:
            key = hashlib.blake2b(x.detach().cpu().contiguous().view(torch.uint8).numpy().data).digest()
            key += f"{x.dtype}{tuple(x.shape)}{return_dict}".encode()
            return _known(self._known, key, lambda: original(x, return_dict=return_dict), 2 * EMBEDDED)

        patches.set(self._vae, "encode", encode)
        try:
            yield
        finally:
            patches.undo()


def _known(known: dict[bytes, T], key: bytes, make: Callable[[], T], most: int) -> T:
    """What is known under a key, made where it is not; the oldest go when there are more than `most`."""
    if key not in known:
        while len(known) >= most:
            del known[next(iter(known))]
        known[key] = make()
    return known[key]


class _Remembering:
    """A feature model that embeds the newest few clips once each: every run meets the same references."""

    def __init__(self, model: FeatureModel) -> None:
        self.name, self.provenance, self.digest, self.stand_in = (
            model.name,
            model.provenance,
            model.digest,
            model.stand_in,
        )
        self._model = model
        self._known: dict[bytes, npt.NDArray[np.float32]] = {}

    def embed(self, frames: Video) -> npt.NDArray[np.float32]:
        """As the model's."""
        key = hashlib.blake2b(np.ascontiguousarray(frames).data).digest()
        return _known(self._known, key, lambda: self._model.embed(frames), EMBEDDED)


@contextmanager
def resident_peak() -> Iterator[Callable[[], int | None]]:
    """Gives a function that tells the most bytes this process had resident since the block began; None where not known.

    Linux counts it, and starts anew when 5 is written to `/proc/self/clear_refs` (man 5 proc).
    """

    def peak() -> int | None:
        return _status("VmHWM") if reset else None

    try:
        Path("/proc/self/clear_refs").write_text("5")
        reset = True
    except OSError:
        reset = False
    yield peak


def _status(name: str) -> int | None:
    try:
        lines = Path("/proc/self/status").read_text().splitlines()
    except OSError:
        return None
    return next((int(line.split()[1]) * 1024 for line in lines if line.startswith(f"{name}:")), None)


def _told(made: Generated) -> dict[str, Any]:
    seconds = {
        "text": made.text_seconds,
        "denoiser": made.denoise_seconds,
        "vae": made.vae_seconds,
        "total": made.total_seconds,
    }
    return {"calls": made.calls, "seconds": seconds, "denoiser_cpu": made.denoise_cpu}


def _counts(session: Session) -> dict[str, Any]:
    summary = session.summary
    outcome = summary.requests[-1].outcome if summary.requests else "incomplete"
    return {
        "hits": summary.hits,
        "misses": summary.misses,
        "departures": dict(summary.reasons),
        "bytes_peak": summary.bytes_peak,
        "outcome": outcome,
    }
