"""`refkv explain`: what a plan does on a model, in words, as a map and in figures."""

from __future__ import annotations

import json
from typing import Any

import click

from refkv_policy.cli.find import find_plan
from refkv_policy.cli.group import Failure


@click.command("explain")
@click.argument("plan", metavar="PLAN")
@click.option("--model", "model_name", metavar="PROFILE", help="One of the plan's models.  [default: its first]")
@click.option("--steps", type=click.IntRange(1), help="One of the plan's step counts.  [default: its first]")
@click.option("--size", metavar="WxH", help="Predict for this size.  [default: the plan's shapes]")
@click.option("--frames", type=click.IntRange(1), help="Predict for this many frames.")
@click.option("--dtype", type=click.Choice(["float32", "bfloat16", "float16"]), default="bfloat16", show_default=True,
              help="Dtype that bytes are counted in.")  # fmt: skip
@click.option("--json", "as_json", is_flag=True, help="One JSON object on stdout: the table and the predictions.")
def explain(
    plan: str,
    model_name: str | None,
    steps: int | None,
    size: str | None,
    frames: int | None,
    dtype: str,
    as_json: bool,
) -> None:
    """Show what a plan does: its rules in words, the step × site map, hits, bytes and FLOPs."""
    from refkv_policy.cli.sizes import parse_size
    from refkv_policy.cli.summary import figures, figures_text, rules_text
    from refkv_policy.compiler import Workload, compile_plan, predict, profile_for
    from refkv_policy.compiler.picture import render_map
    from refkv_policy.plan import Shape, load_plan

    loaded = load_plan(find_plan(plan))
    profile = profile_for(loaded, model_name or next((m for m in loaded.models if m != "any"), loaded.models[0]))
    table = compile_plan(loaded, profile, steps or loaded.run.steps[0])
    shapes = list(loaded.run.shapes)
    if size is not None or frames is not None:
        first = shapes[0] if shapes else Shape(832, 480, 81)
        width, height = parse_size(size) if size else (first.width, first.height)
        shapes = [Shape(width, height, frames or first.frames)]
    predictions: list[tuple[str, Any]] = []
    for shape in shapes:
        try:
            tokens = profile.tokens(shape.width, shape.height, shape.frames)
        except ValueError as error:
            raise Failure(f"{shape}: {error}") from error
        predictions.append((str(shape), predict(table, profile, Workload(tokens, profile.text_tokens), dtype)))
    if as_json:
        shown = {shape: figures(p) for shape, p in predictions}
        value = {"format_version": 1, "plan": loaded.name, "profile": profile.name, "table": table.to_dict()}
        click.echo(json.dumps({**value, "table_digest": table.digest, "dtype": dtype, "predicted": shown}, indent=2))
        return
    click.echo(f"{loaded.name}: {' '.join(loaded.description.split())}")
    click.echo(f"on {profile.title} at {table.steps} steps, {table.sampler}, shift {table.flow_shift:g}\n")
    click.echo(rules_text(loaded, table) + "\n")
    click.echo(render_map(table) + "\n")
    for name, prediction in predictions:
        click.echo(figures_text(f"predicted at {name} in {dtype}, guidance above 1", prediction))
