"""A run made ready: every option checked against plan, model and clip before anything heavy is imported."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

from refkv_policy.cli.find import find_plan
from refkv_policy.cli.group import FALLS_SHORT, Failure
from refkv_policy.cli.model_folder import EMBEDDED, ModelFolder, open_model
from refkv_policy.cli.sizes import fit_shape, parse_size
from refkv_policy.compiler import HookTable, Prediction, Workload, compile_plan, predict, profile_for
from refkv_policy.compiler.lock import check_lock, lock_path
from refkv_policy.compiler.rules import NOT_FOR_GUIDANCE
from refkv_policy.plan import Plan, PlanError, load_plan
from refkv_policy.plan.model import Shape
from refkv_policy.profiles import Profile

if TYPE_CHECKING:
    from refkv_policy.cli.inputs import Inputs


@dataclass(frozen=True)
class Job:
    """One request and the plan it runs under. out is the folder its results go to."""

    plan: Plan
    plan_path: Path
    model: ModelFolder
    profile: Profile
    table: HookTable
    shape: Shape
    references: int
    guidance: float
    text_tokens: int
    seed: int
    prompt: str
    negative_prompt: str
    out: Path
    inputs: Inputs | None = None

    @property
    def branches(self) -> tuple[str, ...]:
        """The guidance branches that run."""
        return ("cond", "uncond") if self.guidance > 1 else ("cond",)

    @property
    def workload(self) -> Workload:
        """What one forward is given."""
        shape = self.shape
        tokens = self.profile.tokens(shape.width, shape.height, shape.frames, self.references)
        return Workload(tokens, self.text_tokens)

    def predict(self, dtype: str) -> Prediction:
        """The exact figures of this request, if it departs nowhere."""
        return predict(self.table, self.profile, self.workload, dtype, self.branches)


def prepare(
    *,
    plan: str,
    model: str,
    steps: int | None,
    guidance: float | None,
    size: str | None,
    frames: int | None,
    references: int,
    seed: int,
    prompt: str,
    negative_prompt: str,
    out: Path | None,
    locked: bool,
) -> tuple[Job, tuple[str, ...]]:
    """The job of a command line, and notes on what was changed to fit. Reads plan and model folder; no torch.

    Raises Failure, or PlanError where the plan is unsound or not for this model or step count.
    """
    path = find_plan(plan)
    loaded = load_plan(path)
    folder = open_model(model)
    profile = _profile(loaded, folder, model)
    table = compile_plan(loaded, profile, _steps(loaded, folder, steps))
    if locked and (fault := check_lock(loaded, lock_path(path))):
        raise Failure(f"{fault}; {fault.help}, or run without --locked", FALLS_SHORT)
    shape, notes = _shape(loaded, folder, profile, size, frames)
    job = Job(
        plan=loaded,
        plan_path=path,
        model=folder,
        profile=profile,
        table=table,
        shape=shape,
        references=references,
        guidance=_guidance(loaded, folder, guidance),
        text_tokens=int(folder.setting("max_sequence_length", profile.text_tokens)),
        seed=seed,
        prompt=prompt,
        negative_prompt=negative_prompt,
        out=out or Path("out") / path.stem,
    )
    return job, notes


def _profile(plan: Plan, folder: ModelFolder, reference: str) -> Profile:
    """The plan's profile of the model. Raises PlanError, which says how to name another where none was named."""
    try:
        return profile_for(plan, folder.transformer)
    except PlanError as error:
        if reference != EMBEDDED:
            raise
        help = "name another model with --model (without it, the embedded one is run), or {0}"
        raise PlanError(replace(d, help=help.format(d.help)) for d in error.diagnostics) from error


def _steps(plan: Plan, folder: ModelFolder, wanted: int | None) -> int:
    """The step count: as asked (compile_plan refuses one not reviewed), the model's own where reviewed, or the first."""
    if wanted is not None:
        return wanted
    own = folder.setting("num_inference_steps", None)
    return own if own in plan.run.steps else plan.run.steps[0]


def _guidance(plan: Plan, folder: ModelFolder, wanted: float | None) -> float:
    """The guidance scale, likewise. Raises PlanError for one that is not reviewed."""
    reviewed = plan.run.guidance
    if wanted is None:
        own = folder.setting("guidance_scale", None)
        return own if own in reviewed else reviewed[0]
    if wanted not in reviewed:
        listed, document = ", ".join(f"{g:g}" for g in reviewed), plan.document
        span = document.span(("run", "guidance"))
        raise PlanError([NOT_FOR_GUIDANCE.at(document.file, span, guidance=wanted, listed=listed)])
    return wanted


def _shape(
    plan: Plan, folder: ModelFolder, profile: Profile, size: str | None, frames: int | None
) -> tuple[Shape, tuple[str, ...]]:
    first = plan.run.shapes[0] if plan.run.shapes else Shape(832, 480, 81)
    width = int(folder.setting("width", first.width))
    height = int(folder.setting("height", first.height))
    asked = frames if frames is not None else int(folder.setting("num_frames", first.frames))
    if size is not None:
        width, height = parse_size(size)
    return fit_shape(profile, Shape(width, height, asked))
