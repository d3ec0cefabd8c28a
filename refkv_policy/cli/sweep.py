"""`refkv sweep`: variants of a plan against the uncached run, beside fewer steps, plain and re-spaced."""

from __future__ import annotations

from typing import Any

import click

from refkv_policy.cli.group import FALLS_SHORT, Failure, echo, echo_json, say
from refkv_policy.cli.measure_options import model_options, sweep_options
from refkv_policy.cli.measuring import ready
from refkv_policy.plan.wording import counted, visible
from refkv_policy.text import columns, fold


@click.command("sweep", context_settings={"show_default": True})
@click.argument("plan", metavar="PLAN")
@sweep_options
@model_options
@click.pass_context
def sweep(ctx: click.Context, /, plan: str, **options: Any) -> None:
    """Measure variants of a plan: errors, latency, memory, hits.

    Each variant, and fewer steps (plain, and re-spaced over the plan's sigmas), runs on every clip and seed and is
    compared with the uncached run and with one of three times the steps. Results are kept a task at a time: a sweep that
    was interrupted goes on, and nothing is run twice. Every variant is compiled before anything runs. Exit status: 0 all was
    measured, 1 a variant does not compile or a run failed, 2 nothing could be measured.
    """
    measuring = ready(options, plan)
    from refkv_policy.quality.sweep_collect import collect
    from refkv_policy.quality.sweep_text import sweep_json, sweep_text

    made = measuring.sweep
    head = (
        f"{visible(measuring.spec.model.name)} ({made.profile.name}), plan {made.plan.name}: {len(made.entries)} ways to run, "
        f"{counted(len(made.clips), 'clip')}, {counted(len(made.seeds), 'seed')}, {made.steps} steps, "
        f"guidance {made.guidance:g}"
    )
    echo(fold(head, columns()), err=options["as_json"])
    if made.guidance <= 1:
        say("note: at guidance 1 the loss is a lower bound of that in service; such figures cannot be gated")
    measuring.run(options)
    findings = collect(made, measuring.store, options["metric"], options["clock"])
    echo(f"\n{sweep_text(findings)}", err=options["as_json"])
    if options["as_json"]:
        echo_json(sweep_json(findings, str(measuring.store.folder)))
    if all(row.faults for row in findings.rows[1:]):
        raise Failure("nothing could be measured: every run but the uncached one failed")
    if made.faults or any(row.faults for row in findings.rows):
        ctx.exit(FALLS_SHORT)
