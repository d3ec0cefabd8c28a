"""`refkv export`: what a serving engine can be told of a plan, and what it cannot."""

from __future__ import annotations

import sys
from dataclasses import asdict
from typing import TYPE_CHECKING

import click

from refkv_policy.cli.find import find_plan
from refkv_policy.cli.group import FALLS_SHORT, FINE, Failure, echo, echo_json, say

if TYPE_CHECKING:
    from refkv_policy.plan import Plan
    from refkv_policy.profiles import Profile


@click.command("export")
@click.argument("plan", metavar="PLAN")
@click.option("--to", "target", required=True, type=click.Choice(["vllm-omni"]), help="The serving engine.")
@click.option("--model", metavar="PROFILE", help="One of the plan's models.  [default: its only one]")
@click.option("--stage-id", type=click.IntRange(0), default=0, show_default=True, help="The stage of the deploy YAML.")
@click.option("--format", "form", type=click.Choice(["yaml", "flags", "json"]), default="yaml", show_default=True,
              help="A deploy YAML with everything else as comments, flags of `vllm serve`, or both for machines.")  # fmt: skip
@click.pass_context
def export(ctx: click.Context, plan: str, target: str, model: str | None, stage_id: int, form: str) -> None:
    """Print the settings that say of a plan what the engine can be told; list what has no equivalent there.

    Exit status: 0 printed, 1 the plan is unsound, cannot be said exactly, or nothing of it can be told, 2 the command
    could not do its work.
    """
    from refkv_policy.compiler import check_plan
    from refkv_policy.exchange import RELEASE, ExchangeError, export_plan
    from refkv_policy.plan import PlanError, errors, load_plan

    loaded = load_plan(find_plan(plan))
    faults = check_plan(loaded)
    if errors(faults):
        raise PlanError(faults)
    try:
        found = export_plan(loaded, _profile(loaded, model))
    except ExchangeError as error:
        first, *more = (f"cannot export: {reason}" for reason in error.reasons)
        raise Failure(first, FALLS_SHORT, more) from error
    if form == "json":
        value = {"format_version": 1, "to": target, "release": RELEASE, "plan": found.plan, "model": found.model}
        told = {"stage_id": stage_id, "fields": found.fields, "flags": found.flags}
        left_out = [asdict(entry) for entry in found.left_out]
        echo_json({**value, **told, "not_told": left_out, "notes": found.notes})
        ctx.exit(FINE if found.fields else FALLS_SHORT)
    echo(found.yaml(stage_id) if form == "yaml" else found.flags, nl=form == "flags" and bool(found.fields))
    if form == "flags" or not sys.stdout.isatty():  # the YAML's comments say the same
        for note in found.notes:
            say(f"note: {note}")
        for entry in found.left_out:
            say(f"not told: {entry}")
    if not found.fields:
        say(f"vLLM-Omni {RELEASE} can be told nothing of this plan")
        ctx.exit(FALLS_SHORT)


def _profile(plan: Plan, model: str | None) -> Profile | None:
    """The profile of the model that is named, or of the plan's only one; None where none is needed. Raises Failure."""
    from refkv_policy.compiler import plan_profiles, profile_for
    from refkv_policy.profiles import names

    if model is not None:
        return profile_for(plan, model)
    profiles = plan_profiles(plan)
    if not plan.quantization.attention.skip_layers:
        return None
    if len(profiles) == 1:
        return profiles[0]
    known = [profile.name for profile in profiles] or list(names())
    raise Failure(f"layers are numbered by model: say which with --model, one of {', '.join(known)}")
