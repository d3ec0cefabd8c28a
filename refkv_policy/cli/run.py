"""`refkv run`: apply a plan to a Wan VACE pipeline on a clip, and account for it."""

from __future__ import annotations

import signal
import sys
from collections.abc import Callable, Iterable
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from refkv_policy.cli.group import echo, echo_json, say
from refkv_policy.text import columns, fold

if TYPE_CHECKING:
    from refkv_policy.cli.job import Job

DEFAULT_PLAN = "wan21_p1_k4"


@click.command("run", context_settings={"show_default": True})
@click.option("--plan", default=DEFAULT_PLAN, metavar="P", help="Plan file, or the name of a shipped plan.")
@click.option("--model", default="mini", envvar="REFKV_MODEL", metavar="mini|DIR|HUB_ID", show_envvar=True,
              help="The embedded model, a WanVACEPipeline folder, or a hub id.")  # fmt: skip
@click.option("--video", metavar="V", help="Input clip.  [default: the shipped one]")
@click.option("--control", type=click.Choice(["grey", "edges", "as-is"]),
              help="What of the clip the model is shown.  [default: grey; nothing of what a mask marks]")  # fmt: skip
@click.option("--reference", "references", multiple=True, metavar="IMG", help="Reference image; may be repeated.")
@click.option("--mask", metavar="M", help="Image or video: white is made anew, black is kept.")
@click.option("--prompt", help="What it shows.  [default: a description of the shipped clip]")
@click.option("--negative-prompt", default="", help="What it should not show.", show_default=False)
@click.option("--steps", type=click.IntRange(1), help="Step count, one the plan lists.")
@click.option("--guidance", type=float, help="Guidance scale, one the plan lists.")
@click.option("--seed", type=click.IntRange(0), default=0, help="Seed of the initial noise.")
@click.option("--size", metavar="WxH", help="Pixels of the output.  [default: the model's, or the plan's first shape]")
@click.option("--frames", type=click.IntRange(1), help="Frames of the output, rounded down to 4n+1.")
@click.option("--start", type=click.IntRange(0), default=0, help="First frame of the clip to use.")
@click.option("--stride", type=click.IntRange(1), default=1, help="Use every n-th frame of the clip.")
@click.option("--dtype", type=click.Choice(["float32", "bfloat16", "float16"]),
              help="Dtype of the transformer.  [default: bfloat16 on an accelerator, else float32]")  # fmt: skip
@click.option("--device", metavar="D", help="Device, such as cuda:0 or cpu.  [default: the best there is]")
@click.option("--offload", is_flag=True, help="Keep parts of the model in host memory while others run.")
@click.option(
    "--out", type=click.Path(path_type=Path), metavar="DIR", help="Folder of the results.  [default: out/PLAN]"
)
@click.option("--baseline", is_flag=True, help="Run uncached too: latency, pixel difference, compare.mp4.")
@click.option("--locked", is_flag=True, help="Refuse a plan whose lock is missing or stale.")
@click.option("--dry-run", is_flag=True, help="Predict at this size and run nothing; needs no torch.")
@click.option("--json", "as_json", is_flag=True, help="One JSON object on stdout, everything else on stderr.")
@click.pass_context
def run(ctx: click.Context, /, **options: Any) -> None:
    """Run a plan on a clip.

    Leaves output.mp4, audit.jsonl and the lock it ran in the folder of the results, and compare.mp4 (input | uncached |
    planned) with --baseline. Ctrl-C leaves a sealed log and no half-written file, and exits with 130.
    """
    if options["dry_run"]:
        ctx.exit(_dry_run(options))
    signal.signal(signal.SIGTERM, _interrupt)
    ctx.exit(_run(options))


def _dry_run(options: dict[str, Any]) -> int:
    from refkv_policy.cli.summary import prediction_json, prediction_text, title

    job, notes = _prepare(options)
    dtype = options["dtype"] or ("float32" if options["device"] == "cpu" else "bfloat16")
    if options["dtype"] is None and options["device"] is None:
        notes = (*notes, "bytes are for bfloat16, as on an accelerator; on a CPU a run is in float32: say --device cpu")
    prediction = job.predict(dtype)
    tell = _teller(options["as_json"])
    tell(title(job, "no clip (a dry run)"))
    _say_notes(job, notes)
    tell(prediction_text(job, prediction, dtype))
    if options["as_json"]:
        echo_json({"format_version": 1, "dry_run": True, **prediction_json(job, prediction, dtype)})
    return 0


def _run(options: dict[str, Any]) -> int:
    """Everything that can be wrong with the command line is told before torch is imported, which takes seconds."""
    from refkv_policy.cli.libraries import choose_device, choose_dtype, load_pipeline, needs_run_extra
    from refkv_policy.cli.outputs import held
    from refkv_policy.cli.summary import prediction_text, title

    tell = _teller(options["as_json"])
    job, notes = _prepare(options)
    for note in notes:
        say(f"note: {note}")
    with needs_run_extra():
        from refkv_policy.cli.inputs import read_inputs
        from refkv_policy.video import SHIPPED_CREDIT, SHIPPED_PROMPT, shipped_clip
    inputs = read_inputs(
        options["video"] or str(shipped_clip()),
        job.shape,
        kind=options["control"],
        mask=options["mask"],
        references=options["references"],
        start=options["start"],
        stride=options["stride"],
        factor=job.profile.vae_scale[0],
    )
    prompt = job.prompt if options["prompt"] is not None or options["video"] else SHIPPED_PROMPT
    job = replace(job, inputs=inputs, prompt=prompt)
    clip = Path(inputs.clip.source).name
    with held(job.out):
        tell(title(job, clip if options["video"] else f"{clip} ({SHIPPED_CREDIT})"))
        _say_notes(job, inputs.clip.notes)
        device = choose_device(options["device"])
        dtype = choose_dtype(options["dtype"], device)
        tell(prediction_text(job, job.predict(_name(dtype)), _name(dtype)))
        pipe = load_pipeline(job.model, dtype, device, options["offload"], job.plan.run.sampler)
        from refkv_policy.cli.results import Results

        results = Results.open(job, _name(dtype), str(device))
        if options["baseline"]:
            results.warm_up(pipe)
        results.run_planned(pipe)
        if options["baseline"]:
            results.run_uncached(pipe)
    tell(results.text())
    if options["as_json"]:
        echo_json({"format_version": 1, **results.json()})
    return results.status


def _say_notes(job: Job, notes: Iterable[str]) -> None:
    """What was changed to fit, and whatever `refkv validate` warns of."""
    from refkv_policy.cli.validate import examine

    for note in notes:
        say(f"note: {note}")
    for found in examine(job.plan):
        if found.severity != "note":
            say(f"{found.severity}: {found}")
            say(f"  help: {found.help}")


def _prepare(options: dict[str, Any]) -> Any:
    from refkv_policy.cli.job import prepare

    return prepare(
        plan=options["plan"],
        model=options["model"],
        steps=options["steps"],
        guidance=options["guidance"],
        size=options["size"],
        frames=options["frames"],
        references=len(options["references"]),
        seed=options["seed"],
        prompt=options["prompt"] or "",
        negative_prompt=options["negative_prompt"],
        out=options["out"],
        locked=options["locked"],
    )


def _teller(as_json: bool) -> Callable[[str], None]:
    """Says the human-readable part: on stdout, or on stderr where stdout is for the JSON."""
    return lambda text: echo(fold(text, columns(sys.stderr if as_json else sys.stdout)), err=as_json)


def _name(dtype: Any) -> str:
    return str(dtype).removeprefix("torch.")


def _interrupt(*_: Any) -> None:
    raise KeyboardInterrupt
