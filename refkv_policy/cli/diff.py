"""`refkv diff`: what changed between two plans, or since a git revision."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import click

from refkv_policy.cli.find import find_plans
from refkv_policy.cli.group import FINE, Failure

if TYPE_CHECKING:
    from refkv_policy.plan import Plan

BEHAVIOUR, TEXT_ONLY = 3, 4
"""With --detailed-exitcode: a table changed; only text did. 1 and 2 keep their meaning."""


@click.command("diff")
@click.argument("plans", nargs=-1, metavar="OLD NEW | [PLAN]...")
@click.option("--base", metavar="REV", help="Compare PLAN (files or folders; plans/ unless said) with a git revision.")
@click.option("--format", "form", type=click.Choice(("text", "markdown", "json")), default="text", show_default=True)
@click.option("--detailed-exitcode", is_flag=True, help="Exit 3 when behaviour changed, 4 when only text did.")
@click.pass_context
def diff(ctx: click.Context, plans: tuple[str, ...], base: str | None, form: str, detailed_exitcode: bool) -> None:
    """Show what changed between two plans: cells, speed, memory, risks; then the text."""
    from refkv_policy.cli import diff_text
    from refkv_policy.compiler.diff import diff_plans

    pairs = _since(base, plans) if base is not None else _two(plans)
    found = [(name, diff_plans(old, new)) for name, old, new in pairs]
    if form == "json":
        value = {"format_version": 1, "plans": [diff_text.as_json(name, d) for name, d in found]}
        click.echo(json.dumps(value, indent=2))
    else:
        show = diff_text.text if form == "text" else diff_text.markdown
        shown = [show(name, d) for name, d in found if d.verdict != "unchanged" or base is None]
        click.echo("\n".join(shown) if shown else "no plan changed\n", nl=False)
    verdicts = {d.verdict for _, d in found}
    status = FINE
    if detailed_exitcode:
        status = (
            BEHAVIOUR if verdicts & {"behaviour", "added", "removed"} else TEXT_ONLY if "metadata" in verdicts else FINE
        )
    ctx.exit(status)


def _two(plans: tuple[str, ...]) -> Iterator[tuple[str, Plan | None, Plan | None]]:
    from refkv_policy.plan import load_plan

    if len(plans) != 2:
        raise Failure("name two plans, the old one and the new one; or one side with --base REV")
    old, new = plans
    yield (new if old == new else f"{old} -> {new}"), load_plan(old), load_plan(new)


def _since(base: str, plans: tuple[str, ...]) -> Iterator[tuple[str, Plan | None, Plan | None]]:
    """Each plan that is here or was at the revision, under its path in the repository."""
    from refkv_policy.plan import load_plan, parse_plan
    from refkv_policy.plan.diagnostic import PlanError

    top = Path(_git("rev-parse", "--show-toplevel").strip())
    revision = _git("rev-parse", "--verify", "--quiet", f"{base}^{{commit}}").strip()
    names = plans or ("plans",)
    now = {_inside(Path(file), top): Path(file) for name in names if Path(name).exists() for file in find_plans([name])}
    folders = [_inside(Path(name), top) for name in names]
    listed = _git("ls-tree", "-r", "-z", "--name-only", revision, "--", *(str(f) for f in folders), at=top).split("\0")
    before = [Path(p) for p in listed if p.endswith((".yaml", ".yml"))]
    for path in sorted({*now, *before}):
        old = None
        if path in before:
            text = _git("show", f"{revision}:{path.as_posix()}", at=top)
            if path not in now and "kind: plan" not in text:
                continue
            old, faults = parse_plan(text, str(top / path))
            if old is None:
                raise PlanError([*faults])
        yield path.as_posix(), old, load_plan(now[path]) if path in now else None


def _inside(path: Path, top: Path) -> Path:
    """The path within the repository. Raises Failure for one outside it."""
    try:
        return path.resolve().relative_to(top.resolve())
    except ValueError as error:
        raise Failure(f"{path} is not inside the repository {top}") from error


def _git(*arguments: str, at: Path | None = None) -> str:
    """What git prints. Raises Failure with git's own words."""
    try:
        done = subprocess.run(["git", *arguments], cwd=at, capture_output=True, check=True)
        return done.stdout.decode("utf-8")
    except FileNotFoundError as error:
        raise Failure("git is not installed; compare two files instead: refkv diff OLD NEW") from error
    except UnicodeDecodeError as error:
        raise Failure(f"git {arguments[0]} gave something that is not UTF-8 text") from error
    except subprocess.CalledProcessError as error:
        why = error.stderr.decode("utf-8", "replace").strip() or f"git knows no revision {arguments[-1]!r}"
        raise Failure(f"git {arguments[0]}: {why}") from error
