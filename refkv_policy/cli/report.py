"""`refkv report`: one HTML file that shows what evidence, audit logs and drift figures say."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import click

from refkv_policy.cli.group import COULD_NOT, FALLS_SHORT, FINE, Failure, say
from refkv_policy.cli.outputs import check_out

if TYPE_CHECKING:
    from refkv_policy.report import Report


@click.command("report")
@click.argument("inputs", nargs=-1, metavar="[EVIDENCE|AUDIT|DRIFT|RUN]...")
@click.option("--out", default="report.html", show_default=True, metavar="FILE", help="The HTML file to write.")
@click.option("--png", metavar="DIR", help="Write every plot as a PNG picture, too.")
@click.option(
    "--plan",
    "plans",
    multiple=True,
    metavar="PLAN",
    help="Hold the evidence against this plan: is it stale?",
)
@click.option("--video", "videos", multiple=True, metavar="NAME=FILE",
              help="A video to show: input, uncached or planned. Uncached and planned give a difference.")  # fmt: skip
@click.pass_context
def report(
    ctx: click.Context,
    inputs: tuple[str, ...],
    out: str,
    png: str | None,
    plans: tuple[str, ...],
    videos: tuple[str, ...],
) -> None:
    """Write a report that a reviewer can open in a browser, offline.

    Give evidence (*.json), audit logs (*.jsonl), figures of `refkv drift`, or folders that `refkv run` left, with their
    videos. Exit status: 0 written, whatever the verdict; 1 written, but an input cannot be trusted (edited evidence, a
    broken log); 2 not written.
    """
    from refkv_policy.cli.find import find_plan
    from refkv_policy.plan import PlanError, load_plan
    from refkv_policy.report import make_report, read_inputs, write_page, write_plots

    if not inputs and not videos:
        raise Failure("there is nothing to report: name evidence, an audit log or a run's folder")
    plan_files, shown = [find_plan(p) for p in plans], _videos(videos)
    check_out(out, _files([*inputs, *plan_files, *shown.values()]))
    if png is not None and not png:
        raise Failure("--png names no folder")
    try:
        given = read_inputs(inputs)
        made = make_report(given, plans=map(load_plan, plan_files), videos=shown)
    except PlanError as error:  # status 1 says that a report was written
        raise Failure(str(error), COULD_NOT) from error
    size = write_page(made, out)
    say(f"{out}: {made.verdict.word}, {size / 1e6:.2f} MB")
    if png is not None:
        pictures = write_plots(made, png)
        say(f"{png}: {len(pictures)} pictures")
    ctx.exit(FINE if _trusted(made) else FALLS_SHORT)


def _files(inputs: Iterable[str | Path]) -> Iterator[Path]:
    """The inputs, and of folders what is read in them."""
    from refkv_policy.report.inputs import COMPARE, LOG, OUTPUT

    for place in map(Path, inputs):
        yield place
        yield from (place / name for name in (LOG, OUTPUT, COMPARE))


def _videos(given: tuple[str, ...]) -> dict[str, Path]:
    files: dict[str, Path] = {}
    for each in given:
        name, sign, file = each.partition("=")
        if not sign or not file:
            raise Failure(f"--video {each} is not NAME=FILE, such as --video planned=out/x/output.mp4")
        if name in files:
            raise Failure(f"--video {name} is given twice; name one file for it")
        files[name] = Path(file)
    return files


def _trusted(made: Report) -> bool:
    """Whether every input is what it was when it was written; what is not is said."""
    faults = [f"{s.file}: {s.standing.why}" for s in made.scopes if s.standing.word == "edited"]
    faults += [f"{log.file}: {log.standing.why}" for log in made.logs if log.standing.word == "broken"]
    for fault in dict.fromkeys(faults):
        say(f"problem: {fault}")
    return not faults
