"""`refkv explain`: what a plan does on a model and why, in words, as a map and in figures."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from refkv_policy.cli.find import find_plan
from refkv_policy.cli.group import echo, say

if TYPE_CHECKING:
    from refkv_policy.plan import Plan, Shape


@click.command("explain")
@click.argument("plan", metavar="PLAN")
@click.option("--model", "model_name", metavar="PROFILE", help="One of the plan's models.  [default: its first]")
@click.option("--steps", type=click.IntRange(1), help="One of the plan's step counts.  [default: its first]")
@click.option("--size", metavar="WxH", help="Predict for this size.  [default: the plan's shapes]")
@click.option("--frames", type=click.IntRange(1), help="Predict for this many frames.")
@click.option("--dtype", type=click.Choice(["float32", "bfloat16", "float16"]), default="bfloat16", show_default=True,
              help="Dtype that bytes are counted in.")  # fmt: skip
@click.option("--format", "form", type=click.Choice(["text", "json"]), default="text", show_default=True,
              help="text is for people, json for machines: the same facts, and the table itself.")  # fmt: skip
@click.option("--json", "as_json", is_flag=True, help="The same as --format json.")
def explain(
    plan: str,
    model_name: str | None,
    steps: int | None,
    size: str | None,
    frames: int | None,
    dtype: str,
    form: str,
    as_json: bool,
) -> None:
    """Show what a plan does and why.

    Its rules in words, the step × site map, why each site is what it is, and for each size where a step's time goes, what
    the plan saves of it beside the most that caching could, and the memory that it holds.
    """
    from refkv_policy.cli.account import account, account_json
    from refkv_policy.cli.sizes import fit_shape
    from refkv_policy.compiler import Workload, check_plan, compile_plan, profile_for
    from refkv_policy.plan import load_plan

    loaded = load_plan(find_plan(plan))
    profile = profile_for(loaded, model_name or next((m for m in loaded.models if m != "any"), loaded.models[0]))
    table = compile_plan(loaded, profile, steps or loaded.run.steps[0])
    accounts = []
    for asked in _shapes(loaded, size, frames):
        shape, notes = fit_shape(profile, asked)
        for note in notes:
            say(f"note: {note}")
        tokens = profile.tokens(shape.width, shape.height, shape.frames)
        accounts.append(account(table, profile, Workload(tokens, profile.text_tokens), shape, dtype))
    warnings = [d for d in check_plan(loaded) if d.severity != "error"]
    if as_json or form == "json":
        echo(account_json(loaded, table, profile, accounts, dtype, warnings), ready=True)
        return
    from refkv_policy.cli.explain_text import explain_text

    explain_text(loaded, table, profile, accounts, dtype, warnings)


def _shapes(plan: Plan, size: str | None, frames: int | None) -> list[Shape]:
    """The shape that is asked for, completed from the plan's first, or the plan's own. Raises Failure."""
    from refkv_policy.cli.sizes import parse_size
    from refkv_policy.plan import Shape

    if size is None and frames is None:
        return list(plan.run.shapes)
    first = plan.run.shapes[0]
    width, height = parse_size(size) if size else (first.width, first.height)
    return [Shape(width, height, frames or first.frames)]
