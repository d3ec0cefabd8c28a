"""`refkv validate`: is every plan sound, on each model and step count it lists?"""

from __future__ import annotations

import os
import sys
from collections.abc import Iterable
from typing import TYPE_CHECKING

import click

from refkv_policy.cli.find import STDIN, find_plans
from refkv_policy.cli.group import COULD_NOT, FALLS_SHORT, FINE, NO_FILE, echo, say, stdin_bytes
from refkv_policy.plan.diagnostic import Diagnostic
from refkv_policy.plan.wording import counted

if TYPE_CHECKING:
    from refkv_policy.cli.guard import Guards
    from refkv_policy.plan import Plan

FORMATS = ("text", "concise", "json", "github", "sarif")
RANK = {"error": 0, "warning": 1, "note": 2}
STDIN_NAME = "<stdin>"


@click.command("validate")
@click.argument("plans", nargs=-1, metavar="[PLAN]...")
@click.option("--format", "form", type=click.Choice(FORMATS), default="text", show_default=True,
              help="text shows the line, concise is one line a fault, json, github and sarif are for machines.")  # fmt: skip
@click.option("--severity", type=click.Choice(tuple(RANK)), default="note", show_default=True,
              help="Tell what is at least so severe; the exit status counts everything.")  # fmt: skip
@click.option("-q", "--quiet", is_flag=True, help="The same as --severity warning.")
@click.option("--guardrails", "rails", metavar="FILE|none",
              help="Hold every plan against these guardrails, or none.  [default: those nearest to each plan]")  # fmt: skip
@click.pass_context
def validate(
    ctx: click.Context, plans: tuple[str, ...], form: str, severity: str, quiet: bool, rails: str | None
) -> None:
    """Check plans.

    PLAN is a file, a folder, a glob, or - for the standard input; without one, the folder plans/. Errors are told first.
    Of files that were not asked for (guardrails, evidence) only errors are. Needs no torch and no model. Exit status: 0
    all are sound, 1 at least one is not, 2 a file could not be read.
    """
    from refkv_policy.cli.guard import Guards
    from refkv_policy.cli.render import render

    guards = Guards(rails)
    files = find_plans(plans or ("plans",), missing=True)
    sources: dict[str, str] = {}
    found: list[Diagnostic] = []
    for file in files:
        found += _check(file, sources, guards)
    least = RANK["warning" if quiet and severity == "note" else severity]
    asked = (*plans, STDIN_NAME) if plans else ("plans",)
    shown = [d for d in found if d.severity == "error" or (RANK[d.severity] <= least and _asked(d.file, files, asked))]
    colour = form == "text" and _colourful()
    echo(render(shown, form, sources, colour), nl=False, colours=colour, ready=form not in ("text", "concise"))
    faulty = {d.file for d in found if d.severity == "error"}
    if form in ("text", "concise"):
        say(_verdict(len(files), len(faulty), shown))
    ctx.exit(_status(found, faulty))


def _asked(file: str, files: Iterable[str], asked: Iterable[str]) -> bool:
    """Whether a file was named, or lies in a folder that was."""
    place = os.path.abspath(file)
    return file in files or any(
        place == os.path.abspath(a) or place.startswith(os.path.abspath(a) + os.sep) for a in asked
    )


def _check(file: str, sources: dict[str, str], guards: Guards) -> Iterable[Diagnostic]:
    """Every fault of one plan; the text of a faulty one goes to `sources`."""
    from refkv_policy.plan import parse_plan
    from refkv_policy.plan.yaml_subset import decode, read_text

    if file == STDIN:
        file = STDIN_NAME
        text, faults = decode(stdin_bytes(), file)
    else:
        text, faults = read_text(file)
    if text is None:
        return faults
    of_rails = guards.own(text, file)
    plan, faults = parse_plan(text, file) if of_rails is None else (None, of_rails)
    if plan is not None:
        faults = (*faults, *examine(plan, sources, guards))
    if faults:
        sources[file] = text
    return faults


def examine(plan: Plan, sources: dict[str, str] | None = None, guards: Guards | None = None) -> tuple[Diagnostic, ...]:
    """Every fault of a plan that could be read: what it compiles to, its evidence, and the guardrails that hold for it.

    The text of faulty guardrails goes to `sources`.
    """
    from refkv_policy.cli.guard import Guards
    from refkv_policy.compiler import examine_plan
    from refkv_policy.plan.diagnostic import errors

    tables, faults = examine_plan(plan)
    unsound, statuses = bool(errors(faults)), None
    if not unsound and (plan.purpose == "recommended" or any(a.evidence for a in plan.acknowledgements)):
        from refkv_policy.evidence import examine as examine_evidence

        evidence = examine_evidence(plan, tables)
        faults, statuses = (*faults, *evidence.diagnostics), evidence.statuses
    # Guardrails speak of a plan that compiles whole; what keeps it from compiling is told already.
    tables = {} if unsound else tables
    guards, sources = guards or Guards(), {} if sources is None else sources
    return (*faults, *guards.faults(plan, sources, told=faults, tables=tables, statuses=statuses))


def _verdict(count: int, faulty: int, found: list[Diagnostic]) -> str:
    plans = counted(count, "plan")
    warnings = sum(d.severity == "warning" for d in found)
    also = f", {counted(warnings, 'warning')}" if warnings else ""
    if not faulty:
        return f"{plans}: sound{also}"
    errors = sum(d.severity == "error" for d in found)
    return f"{plans}: {faulty} unsound, {counted(errors, 'error')}{also}"


def _status(found: list[Diagnostic], faulty: set[str]) -> int:
    if any(d.code in NO_FILE for d in found):
        return COULD_NOT
    return FALLS_SHORT if faulty else FINE


def _colourful() -> bool:
    return sys.stdout.isatty() and "NO_COLOR" not in os.environ
