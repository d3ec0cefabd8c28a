"""`refkv import`: a server's cache settings as a plan."""

from __future__ import annotations

import datetime
from pathlib import Path
from typing import TYPE_CHECKING

import click

from refkv_policy.cli.group import FALLS_SHORT, Failure, echo, say, stdin_bytes
from refkv_policy.files import atomic_write

if TYPE_CHECKING:
    from refkv_policy.exchange import Settings
    from refkv_policy.profiles import Profile

FLAGS, CONFIG, DEPLOY = "vllm-omni-flags", "vllm-omni-config", "vllm-omni-deploy"
STDIN = "-"
# A text of flags begins with `--` and is still an argument; read_flags refuses what it does not know.
_SETTINGS = {"ignore_unknown_options": True}


@click.command("import", context_settings=_SETTINGS)
@click.argument("source", nargs=-1, required=True, metavar="SOURCE...")
@click.option("--from", "form", required=True, type=click.Choice([FLAGS, CONFIG, DEPLOY]),
              help="SOURCE is a text of flags, a file of RefTargetKVCacheConfig fields, or a deploy YAML.")  # fmt: skip
@click.option(
    "--by", metavar="PARTY", help="Who accepts the risk of P1: a flag says that somebody did, a plan says who."
)
@click.option("--expires", type=click.DateTime(["%Y-%m-%d"]), metavar="DATE", help="When the acceptance ends.")
@click.option("--reason", metavar="TEXT", help="Why the risk is worth taking.")
@click.option(
    "--model", "model", default="wan2.1-vace-1.3b", show_default=True, metavar="PROFILE", help="The plan's model."
)
@click.option("--name", default="imported", show_default=True, metavar="NAME", help="The plan's name.")
@click.option("--steps", multiple=True, type=click.IntRange(1), help="A step count; may be repeated.  [default: 30]")
@click.option("--flow-shift", type=float, default=3.0, show_default=True, help="The sampler's shift.")
@click.option("--guidance", type=float, default=5.0, show_default=True, help="The guidance scale.")
@click.option("--size", default="832x480", show_default=True, metavar="WxH", help="A shape to predict for.")
@click.option("--frames", type=click.IntRange(1), default=81, show_default=True, help="Its frames.")
@click.option("--out", metavar="FILE", help="Write the plan there instead of printing it.")
def import_(
    source: tuple[str, ...], form: str, by: str | None, expires: datetime.datetime | None, reason: str | None, model: str,
    name: str, steps: tuple[int, ...], flow_shift: float, guidance: float, size: str, frames: int, out: str | None,
) -> None:  # fmt: skip
    """Write the plan that a server's cache settings amount to. What has no equivalent is refused, never dropped.

    SOURCE is - for the standard input. Exit status: 0 the plan is sound, 1 the settings cannot become one, 2 the command
    could not do its work.

    refkv import --from vllm-omni-flags --by "video team" "--enable-vace-hint-cache-lossy
    --vace-hint-cache-warning-acknowledged --vace-hint-refresh-interval 4"
    """
    from refkv_policy.cli.sizes import parse_size
    from refkv_policy.exchange import ExchangeError, OperatingPoint, check_text, plan_text
    from refkv_policy.exchange.plan_text import REASON
    from refkv_policy.plan import Shape

    width, height = parse_size(size)
    point = OperatingPoint(
        profile=_profile(model), name=name, steps=steps or (30,), flow_shift=flow_shift, guidance=guidance,
        shape=Shape(width, height, frames), by=by, expires=expires.date() if expires else None,
        reason=reason or REASON,
    )  # fmt: skip
    target = Path(out) if out else None
    if target is not None and target.exists():
        raise Failure(f"{target} exists; name another file, or remove it first")
    try:
        text = plan_text(_settings(form, source), point)
    except ExchangeError as error:
        first, *more = (f"cannot import: {reason}" for reason in error.reasons)
        raise Failure(first, FALLS_SHORT, more) from error
    for found in check_text(text, out or "<imported>"):
        say(f"note: {found.message} ({found.code})")
    if target is None:
        echo(text, nl=False)
        return
    _write(target, text)
    say(f"wrote {target}. Read it, then `refkv explain {target}` and `refkv compile {target}`")


def _settings(form: str, source: tuple[str, ...]) -> Settings:
    from refkv_policy.exchange import parse_config, parse_deploy, read_flags

    if form == FLAGS:
        return read_flags(_stdin() if source == (STDIN,) else " ".join(source))
    if len(source) > 1:
        raise Failure(f"{form} is read from one file, and {len(source)} arguments are given: {' '.join(source)}")
    return (parse_config if form == CONFIG else parse_deploy)(*_file(source[0]))


def _file(name: str) -> tuple[str, str]:
    """The text of a file, and what to call it. Raises PlanError."""
    from refkv_policy.plan import PlanError
    from refkv_policy.plan.yaml_subset import read_text

    if name == STDIN:
        return _stdin(), "<stdin>"
    text, faults = read_text(name)
    if text is None:
        raise Failure("; ".join(f"{fault.file}: {fault.message}" for fault in faults)) from PlanError(faults)
    return text, name


def _stdin() -> str:
    from refkv_policy.plan import PlanError
    from refkv_policy.plan.yaml_subset import decode

    text, faults = decode(stdin_bytes(), "<stdin>")
    if text is None:
        raise PlanError(faults)
    return text


def _profile(model: str) -> Profile:
    from refkv_policy.profiles import ProfileError, is_path, load_profile

    if is_path(model):
        raise Failure(
            f"--model {model} is a file; import for a shipped profile, and put your own into the plan's `models`"
        )
    try:
        return load_profile(model)
    except ProfileError as error:
        raise Failure(f"{error}. `refkv models` lists them") from error


def _write(target: Path, text: str) -> None:
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        with atomic_write(target) as stream:
            stream.write(text.encode("utf-8"))
    except OSError as error:
        raise Failure(f"cannot write {target}: {error.strerror}; check the folder's permissions") from error
