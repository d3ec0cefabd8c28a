"""`refkv compile`: write the lock beside each plan, or check that it is the one there."""

from __future__ import annotations

import errno
import os
from collections.abc import Iterable
from pathlib import Path

import click

from refkv_policy.cli.find import STDIN, find_plans
from refkv_policy.cli.group import FALLS_SHORT, Failure, echo, echo_json, say, say_faults


@click.command("compile")
@click.argument("plans", nargs=-1, metavar="[PLAN]...")
@click.option("--check", is_flag=True, help="Write nothing; exit 1 when a lock is missing or stale.")
@click.option("--stdout", "to_stdout", is_flag=True, help="Print the lock instead of writing it.")
@click.option(
    "--json", "as_json", is_flag=True, help="One JSON object on stdout: each plan's lock and what became of it."
)
@click.pass_context
def compile_(ctx: click.Context, plans: tuple[str, ...], check: bool, to_stdout: bool, as_json: bool) -> None:
    """Compile plans to their locks.

    PLAN is a file, a folder or a glob; without one, the folder plans/. The lock x.lock beside x.yaml holds the table of
    each model and step count the plan lists: commit it, and review it in every change.
    """
    from refkv_policy.compiler.lock import check_lock, lock_path, lock_text, write_lock
    from refkv_policy.plan import PlanError, errors, load_plan

    for one, other, given in (
        ("--check", "--stdout", check and to_stdout),
        ("--stdout", "--json", to_stdout and as_json),
    ):
        if given:
            raise Failure(f"{one} and {other} say different things; give one of them")
    files = find_plans(plans or ("plans",))
    if STDIN in files:
        raise Failure("a lock belongs beside its plan, and the standard input has no place; name a file")
    if not to_stdout:
        _check_places(files)
    results: dict[str, str] = {}
    for file in files:
        try:
            plan = load_plan(file)
            lock = lock_path(file)
            if to_stdout:
                echo(lock_text(plan), nl=False)
                results[file] = "printed"
            elif check:
                fault = check_lock(plan, lock)
                results[file] = "stale" if fault else "current"
                if fault:
                    say_faults([fault])
            else:
                results[file] = "written" if write_lock(plan, lock) else "current"
        except PlanError as error:
            say_faults(errors(error.diagnostics))
            results[file] = "unsound"
        except OSError as error:
            full = error.errno in (errno.ENOSPC, errno.EDQUOT)
            help = "make room" if full else "make the folder writable, or print the lock with --stdout"
            raise Failure(f"cannot write {lock_path(file)}: {error.strerror}; {help}") from error
    _report(results, as_json, quiet=to_stdout)
    if {"stale", "unsound"} & set(results.values()):
        ctx.exit(FALLS_SHORT)


def _check_places(files: Iterable[str]) -> None:
    """Raises Failure where a lock would take the place of a plan, or of another plan's lock."""
    from refkv_policy.compiler.lock import lock_path

    takers: dict[str, str] = {}
    for file in files:
        place = os.path.abspath(lock_path(file))
        if place == os.path.abspath(file):
            raise Failure(f"{file} has the name of a lock, which would overwrite it; name the plan *.yaml")
        other = takers.setdefault(place, file)
        if os.path.abspath(other) != os.path.abspath(file):
            raise Failure(f"{other} and {file} have one lock, {lock_path(file)}; rename one of them")


def _report(results: dict[str, str], as_json: bool, quiet: bool) -> None:
    if as_json:
        plans = [
            {"plan": file, "lock": str(Path(file).with_suffix(".lock")), "state": s} for file, s in results.items()
        ]
        echo_json({"format_version": 1, "plans": plans})
        return
    if quiet:
        return
    for file, state in results.items():
        say(f"{Path(file).with_suffix('.lock')}: {state}")
