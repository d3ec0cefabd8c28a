"""`refkv plans`: the plans that come with refkv."""

from __future__ import annotations

from typing import Any

import click

from refkv_policy.cli.find import shipped_plans
from refkv_policy.cli.group import echo, echo_json
from refkv_policy.text import columns, fold


@click.command("plans")
@click.option("--json", "as_json", is_flag=True, help="One JSON object on stdout.")
def plans(as_json: bool) -> None:
    """List the shipped plans: what each does, for which models and step counts."""
    from refkv_policy.plan import load_plan

    entries: list[dict[str, Any]] = []
    for path in shipped_plans():
        plan = load_plan(path)
        entries.append(
            {
                "name": path.stem,
                "path": str(path),
                "purpose": plan.purpose,
                "tiers": sorted({rule.tier for rule in plan.caches}),
                "methods": sorted({rule.method for rule in plan.caches}),
                "models": list(plan.models),
                "steps": list(plan.run.steps),
                "description": " ".join(plan.description.split()),
            }
        )
    if as_json:
        echo_json({"format_version": 1, "plans": entries})
        return
    width = max(len(e["name"]) for e in entries) if entries else 0
    for e in entries:
        steps = ", ".join(map(str, e["steps"]))
        lines = (
            f"{e['name']:<{width}}  {'+'.join(e['tiers']) or 'none'}  {e['purpose']}, {steps} steps",
            f"{'':<{width}}  {e['description']}",
            f"{'':<{width}}  for {', '.join(e['models'])}",
        )
        echo(fold("\n".join(lines), columns()))
