"""`refkv diff`: what changed between two plans, or since a git revision."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING

import click

from refkv_policy.cli.group import FINE, Failure, echo, echo_json

if TYPE_CHECKING:
    from refkv_policy.cli.diff_standing import Moved
    from refkv_policy.compiler.diff import PlanDiff

BEHAVIOUR, TEXT_ONLY = 3, 4
"""With --detailed-exitcode: a table changed; no table did, but text, evidence or guardrails. 1 and 2 keep their meaning."""


@dataclass(frozen=True, slots=True)
class Compared:
    """A plan's two sides under the name that it is shown by."""

    name: str
    diff: PlanDiff
    moved: Moved

    @property
    def changed(self) -> bool:
        """Whether there is anything to tell."""
        return self.diff.verdict != "unchanged" or self.moved.changed or bool(self.moved.faults)


@click.command("diff")
@click.argument("plans", nargs=-1, metavar="OLD NEW | [PLAN]...")
@click.option("--base", metavar="REV", help="Compare PLAN (files or folders; plans/ unless said) with a git revision.")
@click.option("--format", "form", type=click.Choice(("text", "markdown", "json")), default="text", show_default=True)
@click.option("--detailed-exitcode", is_flag=True, help="Exit 3 when behaviour changed, 4 when anything else did.")
@click.pass_context
def diff(ctx: click.Context, plans: tuple[str, ...], base: str | None, form: str, detailed_exitcode: bool) -> None:
    """Show what changed between two plans: cells, speed, memory, risks, evidence, guardrails; then the text.

    Each side is held against its own evidence and guardrails: with --base, those of that revision.
    """
    from refkv_policy.cli import diff_text

    found = list(_since(base, plans) if base is not None else _two(plans))
    if form == "json":
        value = {"format_version": 1, "plans": [diff_text.as_json(c.name, c.diff, c.moved) for c in found]}
        echo_json(value)
    else:
        both = [(c.diff, c.moved) for c in found]
        preface = f"{diff_text.preface(both)}\n\n" if form == "text" else diff_text.markdown_preface(both)
        show = diff_text.text if form == "text" else diff_text.markdown
        shown = [show(c.name, c.diff, c.moved) for c in found if c.changed or base is None]
        echo(preface.lstrip() + ("\n".join(shown) if shown else "no plan changed\n"), nl=False)
    status = FINE
    if detailed_exitcode and any(c.changed or c.moved.demands for c in found):
        behaviour = any(c.diff.verdict in ("behaviour", "added", "removed") for c in found)
        status = BEHAVIOUR if behaviour else TEXT_ONLY
    ctx.exit(status)


def _two(plans: tuple[str, ...]) -> Iterator[Compared]:
    from refkv_policy.cli.diff_standing import moved, standing
    from refkv_policy.cli.guard import Guards
    from refkv_policy.compiler.diff import diff_plans
    from refkv_policy.plan import load_plan

    if len(plans) != 2:
        raise Failure("name two plans, the old one and the new one; or one side with --base REV")
    old, new = map(load_plan, plans)
    name = plans[1] if plans[0] == plans[1] else f"{plans[0]} -> {plans[1]}"
    yield Compared(name, diff_plans(old, new), moved(standing(old, Guards(), past=True), standing(new, Guards())))


def _since(base: str, plans: tuple[str, ...]) -> Iterator[Compared]:
    from refkv_policy.cli.diff_base import since
    from refkv_policy.cli.diff_standing import moved, standing
    from refkv_policy.cli.guard import Guards
    from refkv_policy.compiler.diff import diff_plans
    from refkv_policy.plan import PlanError

    then, now = Guards(), Guards()
    for name, old, new, revision in since(base, plans or ("plans",)):
        try:
            difference = diff_plans(old, new)
        except PlanError as error:
            raise PlanError(map(revision.told, error.diagnostics)) from error
        yield Compared(name, difference, moved(standing(old, then, revision.named, past=True), standing(new, now)))
