"""`refkv drift`: how far hints move from step to step, and which refresh that suggests."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from refkv_policy.cli.find import find_plan
from refkv_policy.cli.group import Failure, echo
from refkv_policy.cli.measure_options import model_options
from refkv_policy.cli.measuring import make_conditions, prepare_job
from refkv_policy.cli.outputs import check_out
from refkv_policy.cli.progress import progress
from refkv_policy.cli.run import DEFAULT_PLAN
from refkv_policy.cli.sources import read_from, read_sources
from refkv_policy.plan.wording import counted, visible
from refkv_policy.text import columns, fold

if TYPE_CHECKING:
    from refkv_policy.cli.job import Job
    from refkv_policy.quality.drift import Schedule
    from refkv_policy.quality.drift_suggest import Suggestion


@click.command("drift", context_settings={"show_default": True})
@click.argument("plan", metavar="[PLAN]", default=DEFAULT_PLAN)
@click.option("--main", is_flag=True, help="Main blocks' outputs and the main residual too, not hints alone.")
@click.option(
    "--tolerance", type=click.FloatRange(0, min_open=True), default=0.1, help="Relative L2 a stable hint keeps to."
)
@click.option(
    "--out", type=click.Path(path_type=Path, dir_okay=False), metavar="FILE", help="Write the JSON there as well."
)
@model_options
def drift(plan: str, **options: Any) -> None:
    """Measure how hints drift over an uncached run.

    Relative L2, cosine and norm ratio of every hint against the first step, the step before and the newest value that PLAN
    would have computed, by step and branch, over clips and seeds. Suggests a deep set and a refresh as a plan fragment.
    """
    from refkv_policy.cli.libraries import choose_device, choose_dtype, load_pipeline, needs_run_extra
    from refkv_policy.quality.drift_suggest import RULE, candidates, drift_text, plan_fresh, series, suggest

    job = prepare_job(options, plan, Path("out"))
    with needs_run_extra():
        clips = read_sources(options, job)
    if options["out"] is not None:
        check_out(options["out"], [find_plan(plan), *read_from(clips)])
    device = choose_device(options["device"])
    dtype = choose_dtype(options["dtype"], device)
    with needs_run_extra():
        from refkv_policy.quality.drift import measure
        from refkv_policy.quality.tasks_bench import read_input, request_of

    tried = candidates(job.table)
    own = plan_fresh(job.table)
    schedules = _schedules(job, own, tried)
    conditions = make_conditions(options, job, str(dtype).removeprefix("torch."), device, ())
    tell = {"err": options["as_json"]}
    head = (
        f"{visible(job.model.name)} ({job.profile.name}), plan {job.plan.name}: {counted(len(clips), 'clip')}, "
        f"{counted(options['seeds'], 'seed')}, {job.table.steps} steps, guidance {job.guidance:g}"
    )
    echo(fold(head, columns()), **tell)
    pipe = load_pipeline(job.model, dtype, device, options["offload"], job.plan.run.sampler)
    samples = []
    total = len(clips) * options["seeds"] * job.table.steps
    with progress("uncached", total) as step:
        for clip in clips:
            inputs = read_input(clip, conditions, job.profile.vae_scale[0])[1]
            for seed in range(options["seeds"]):
                request = request_of(conditions, clip, seed, job.table.steps, inputs)
                samples.append(measure(pipe, request, schedules, main=options["main"], on_step=step))
    curves = series(samples, ("first", "previous", "fresh"))
    found = suggest(samples, job.table, tried, options["tolerance"])
    value = {
        "kind": "drift",
        "version": 1,
        "plan": job.plan.name,
        "profile": job.profile.name,
        "weights": conditions.weights,
        "steps": job.table.steps,
        "sigmas": list(job.table.sigmas),
        "guidance": job.guidance,
        "dtype": conditions.dtype,
        "device": conditions.device,
        "clips": [{"name": clip.name, "sha256": clip.sha256} for clip in clips],
        "seeds": list(range(options["seeds"])),
        "fresh_steps": None if own is None else {branch: sorted(steps) for branch, steps in own.items()},
        "series": curves,
        "tolerance": options["tolerance"],
        "rule": RULE,
        "suggestion": None if found is None else found.fragment(),
        "suggested": None if found is None else _suggested(found),
    }
    text = json.dumps(value, indent=1, allow_nan=False)
    echo(f"\n{drift_text(curves, job.table.steps)}\n\n{_advice(found, options['tolerance'])}", **tell)
    if options["as_json"]:
        echo(text)
    if options["out"] is not None:  # last, so that nothing is lost where it cannot be written
        _write(options["out"], text)


def _schedules(
    job: Job, own: dict[str, frozenset[int]] | None, tried: list[tuple[str, frozenset[int], dict[str, Any]]]
) -> tuple[Schedule, ...]:
    """The plan's own refresh, where it caches hints, and those that are tried."""
    from refkv_policy.quality.drift import FRESH, Schedule

    first = () if own is None else (Schedule(FRESH, own),)
    return (*first, *(Schedule(name, dict.fromkeys(job.branches, fresh)) for name, fresh, _ in tried))


def _suggested(found: Suggestion) -> dict[str, Any]:
    return {
        "hints": list(found.hints),
        "refresh": dict(found.refresh),
        "worst": found.worst,
        "block_runs_spared": found.spared,
    }


def _advice(found: Suggestion | None, tolerance: float) -> str:
    from refkv_policy.quality.drift_suggest import RULE

    if found is None:
        return f"no refresh tried keeps a hint within {tolerance:g}: nothing is suggested\n{fold(RULE, columns())}"
    told = (
        f"# drifts {found.worst:.3f} at most from a fresh value, and spares {found.spared:.1%} of the VACE block runs"
    )
    rule = fold(RULE, columns())
    return f"suggested at tolerance {tolerance:g}:\n\n{fold(told, columns())}\n{found.fragment()}\n{rule}"


def _write(path: Path, text: str) -> None:
    from refkv_policy.files import atomic_write

    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with atomic_write(path) as stream:
            stream.write(text.encode() + b"\n")
    except OSError as error:
        raise Failure(f"cannot write {path}: {error.strerror}; choose another --out") from error
