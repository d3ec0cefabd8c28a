"""`refkv gate`: judge a plan on what was measured of it, and write the evidence."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from refkv_policy.cli.find import find_plan
from refkv_policy.cli.group import FALLS_SHORT, FINE, Failure, echo, echo_json, say
from refkv_policy.cli.measure_options import model_options, sweep_options
from refkv_policy.cli.measuring import Measuring, fewer, ready
from refkv_policy.cli.outputs import check_out
from refkv_policy.cli.sources import read_from
from refkv_policy.plan.wording import visible

if TYPE_CHECKING:
    from refkv_policy.cli.job import Job
    from refkv_policy.evidence import Evidence
    from refkv_policy.quality.abpack import Ratings
    from refkv_policy.quality.sweep import Sweep
    from refkv_policy.quality.tasks import Source


@click.command("gate", context_settings={"show_default": True})
@click.argument("plan", metavar="PLAN")
@click.option("--out", type=click.Path(path_type=Path, dir_okay=False), metavar="FILE",
              help="Evidence to write, or to add this scope to.  [default: evidence/PLAN.json]")  # fmt: skip
@click.option("--ab-pack", type=click.Path(path_type=Path, file_okay=False), metavar="DIR",
              help="Write a blind test for raters there, its key beside it, and judge nothing.")  # fmt: skip
@click.option("--ratings", multiple=True, type=click.Path(path_type=Path), metavar="FILE",
              help="Answers of one rater; may be repeated.")  # fmt: skip
@click.option("--guardrails", metavar="FILE|none",
              help="Guardrails whose thresholds hold.  [default: those nearest to the plan]")  # fmt: skip
@click.option("--key", type=click.Path(path_type=Path), metavar="FILE", help="The key of the pack that was rated.")
@sweep_options
@model_options
@click.pass_context
def gate(ctx: click.Context, /, plan: str, **options: Any) -> None:
    """Gate a plan and write its evidence.

    Runs what `refkv sweep` runs (results that are there are not run again) and judges nine items, the RFC's and three
    more. Each is green, red or not measured; exit status 1 when anything is red. One call measures one scope: a profile, a
    step count, a guidance.
    """
    if bool(options["ratings"]) != bool(options["key"]):
        raise Failure("--ratings and --key belong together: the answers, and the key of the pack that was rated")
    out = options["out"] or Path("evidence") / f"{find_plan(plan).stem}.json"

    def check(job: Job, clips: tuple[Source, ...]) -> None:
        from refkv_policy.quality.abpack import check_pack
        from refkv_policy.quality.gate import check_gateable

        check_gateable(job.guidance, clips)
        if options["ab_pack"] is not None:
            check_pack(options["ab_pack"])
            return
        check_out(out, [find_plan(plan), *read_from(clips)])
        _earlier(out, job.plan.name)
        _thresholds(job, options["guardrails"])

    measuring = ready(options, plan, default_varies=True, check=check)
    if options["ab_pack"] is not None:
        ctx.exit(_pack(measuring, options))
    ratings = _ratings(measuring, options)
    thresholds = _thresholds(measuring.sweep, options["guardrails"])
    measuring.run(options)
    ctx.exit(_judge(measuring, options, out, ratings, thresholds))


def _judge(
    measuring: Measuring,
    options: dict[str, Any],
    out: Path,
    ratings: Ratings | None,
    thresholds: Mapping[str, float],
) -> int:
    from refkv_policy.evidence import to_value, with_scope, write_evidence
    from refkv_policy.quality.gate import GateError, measured_scope, verdict_text
    from refkv_policy.quality.sweep_collect import collect
    from refkv_policy.quality.sweep_text import sweep_text

    sweep = measuring.sweep
    findings = collect(sweep, measuring.store, options["metric"], options["clock"])
    try:
        scope = measured_scope(
            findings,
            model=measuring.spec.model.name,
            command=("refkv", *sys.argv[1:]),
            ratings=ratings,
            thresholds=thresholds,
        )
    except GateError as error:  # its own run failed
        raise Failure(str(error), FALLS_SHORT) from error
    # Read once more: another gate may have added its scope meanwhile.
    evidence = with_scope(_earlier(out, sweep.plan.name), sweep.plan.name, scope)
    try:
        out.parent.mkdir(parents=True, exist_ok=True)
        digest = write_evidence(out, evidence)
    except OSError as error:
        raise Failure(f"cannot write {out}: {error.strerror}; choose another --out") from error
    echo(f"{sweep_text(findings)}\n\n{verdict_text(scope)}", err=options["as_json"])
    say(f"{out}: {digest}")
    if options["as_json"]:
        echo_json({"format_version": 1, "out": str(out), **to_value(evidence)})
    return FALLS_SHORT if scope.verdict == "red" else FINE


def _earlier(out: Path, plan: str) -> Evidence | None:
    """The evidence that the scope is added to. Raises Failure for what cannot be added to: before hours are spent, too."""
    from refkv_policy.evidence import read_evidence

    if not out.exists():
        return None
    evidence, faults = read_evidence(out)
    if evidence is None or evidence.edited:
        raise Failure(
            f"{out} is not evidence that can be added to ({faults[0].message}); move it away, or choose another --out"
        )
    if evidence.plan != plan:
        raise Failure(f"{out} is evidence of the plan {evidence.plan}, not of {plan}; choose another --out")
    return evidence


def _ratings(measuring: Measuring, options: dict[str, Any]) -> Ratings | None:
    from refkv_policy.quality.abpack import read_ratings

    if not options["ratings"]:
        return None
    return read_ratings(options["key"], options["ratings"], measuring.sweep.bound)


def _pack(measuring: Measuring, options: dict[str, Any]) -> int:
    """The pairs of every clip and seed; only the plan and the uncached run are made for it."""
    import numpy as np

    from refkv_policy.quality.abpack import MIN_PAIRS, Shown, write_pack

    measuring = fewer(measuring, entries=measuring.sweep.entries[:2], repeats=0)
    sweep, store, folder = measuring.sweep, measuring.store, options["ab_pack"]
    measuring.run(options)

    def pixels(key: str) -> Any:
        return np.rint(np.clip(store.arrays(key)[0], 0, 1) * 255).astype(np.uint8)

    shown = []
    for clip, seed in sweep.samples:
        planned = sweep.run(sweep.entries[1], clip, seed)
        failed = (store.result(planned) or {}).get("failed")
        if failed:
            raise Failure(f"the plan's run on {clip.name} with seed {seed} failed: {failed}", FALLS_SHORT)
        shown.append(Shown(clip.name, seed, pixels(planned.key), pixels(sweep.uncached(clip, seed).key), clip.fps))
    key = write_pack(folder, shown, sweep.bound)
    if len(shown) < MIN_PAIRS:
        say(f"note: {len(shown)} pairs; for the gate the RFC asks for {MIN_PAIRS} at least: name more clips or --seeds")
    echo(
        f"{visible(str(folder))}/index.html: {len(shown)} pairs, for raters\n{visible(str(key))}: its key, not for raters"
    )
    return FINE


def _thresholds(of: Job | Sweep, choice: str | None) -> Mapping[str, float]:
    """What the repository's guardrails ask for in place of the gate's own thresholds. Raises PlanError for faulty ones."""
    from refkv_policy.cli.guard import Guards
    from refkv_policy.guardrails import thresholds
    from refkv_policy.plan.diagnostic import PlanError, errors
    from refkv_policy.profiles import names_of

    guardrails, faults = Guards(choice).of(of.plan.document.file, {})
    if errors(faults):
        raise PlanError(faults)
    tiers = frozenset(rule.tier for rule in of.table.rules)
    return thresholds(guardrails, of.plan.purpose, names_of(of.profile), tiers)
