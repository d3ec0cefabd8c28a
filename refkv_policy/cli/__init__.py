"""The command line: one small module a command, imported only when that command is called."""

from __future__ import annotations

from refkv_policy.cli.group import Commands

__all__ = ["main", "refkv"]

refkv = Commands(
    name="refkv",
    help=(
        "A policy engine for diffusion-model caches: a plan says what may be cached, refkv proves it, runs it and "
        "accounts for every decision.\n\n"
        "Exit status: 0 fine, 1 the plan, lock or log falls short, 2 the command could not do its work, "
        "130 interrupted."
    ),
)


def main() -> None:
    """The command `refkv`. Never returns: exits with the status of the command."""
    refkv(prog_name="refkv")
