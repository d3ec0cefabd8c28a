"""`refkv init`: a first plan, commented, that validates as it stands."""

from __future__ import annotations

import datetime
import os
import subprocess
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

import click

from refkv_policy.cli.group import Failure, did_you_mean, echo, say

if TYPE_CHECKING:
    from refkv_policy.cli.scaffold import Scaffold
    from refkv_policy.compiler import HookTable
    from refkv_policy.methods import Method
    from refkv_policy.profiles import Profile

STDOUT = "-"
SCHEMA = "schemas/plan.v1.schema.json"
VALID_DAYS = 182
"""How long a scaffolded acknowledgement holds: half a year."""


@click.command("init")
@click.option("--model", "models", multiple=True, required=True, metavar="PROFILE",
              help="A model of `refkv models`, the path of a profile, or any; may be repeated.")  # fmt: skip
@click.option("--tier", required=True, type=click.Choice(["P0", "P1", "P2", "S"]),
              help="P0 lossless, P1 lossy VACE hints, P2 decoupled reference K/V (no method yet), S fewer steps.")  # fmt: skip
@click.option("--method", metavar="METHOD", help="A method of that tier.  [default: the simplest]")
@click.option("--steps", multiple=True, type=click.IntRange(1), help="A step count; may be repeated.  [default: 30]")
@click.option("--size", metavar="WxH", help="[default: 832x480; 96x96 for the embedded model]")
@click.option("--frames", type=click.IntRange(1), help="[default: 81; 17 for the embedded model]")
@click.option("--name", metavar="NAME", help="The plan's name.  [default: model and method]")
@click.option("--by", "party", metavar="PARTY", help="Who accepts the risk of a lossy method: a person or a team.")
@click.option("--out", metavar="FILE", help="Where to write; - for the standard output.  [default: plans/NAME.yaml]")
def init(
    models: tuple[str, ...], tier: str, method: str | None, steps: tuple[int, ...], size: str | None, frames: int | None,
    name: str | None, party: str | None, out: str | None,
) -> None:  # fmt: skip
    """Write a first plan for a model: commented, and sound as it stands. Never overwrites a file.

    A lossy tier carries a risk that somebody has to accept, so it wants --by; the scaffold never accepts it for you.
    """
    from refkv_policy.cli.scaffold import Scaffold
    from refkv_policy.cli.sizes import parse_size
    from refkv_policy.mini import MODEL_NAME
    from refkv_policy.plan import Shape

    chosen = _method(tier, method)
    plan_name = name or _name(models, chosen)
    target = Path(out or f"plans/{plan_name}.yaml")
    profiles = _profiles(models)
    _check_party(chosen, party)
    embedded = all(model == MODEL_NAME for model in models)
    width, height = parse_size(size or ("96x96" if embedded else "832x480"))
    today = datetime.date.today()
    scaffold = Scaffold(
        name=plan_name, models=models, profiles=profiles, method=chosen, steps=steps or (30,),
        shape=Shape(width, height, frames or (17 if embedded else 81)), party=party,
        date=today, expires=today + datetime.timedelta(days=VALID_DAYS), schema=_schema(target),
    )  # fmt: skip
    text = _sound(scaffold, target.parent)
    if out == STDOUT:
        echo(text, nl=False)
        return
    _write(target, text)
    if codes := _unguarded(target):
        say(
            f"wrote {target}. The guardrails here ask for more ({', '.join(codes)}): `refkv validate {target}` says what"
        )
    else:
        say(f"wrote {target}, which validates. Read it, then `refkv explain {target}` and `refkv compile {target}`")
    if not (target.parent / scaffold.schema).exists():
        say(f"for completion in editors: refkv schema plan > {_beside(target) / SCHEMA}")


def _method(tier: str, name: str | None) -> Method:
    """The method of that name, or the tier's simplest: without history, then by name. Raises Failure."""
    from refkv_policy import methods

    known = [methods.get(n) for n in methods.names()]
    of_tier = [m for m in known if m.tier == tier]
    if name is not None:
        found = next((m for m in known if m.name == name), None)
        if found is None:
            names = [m.name for m in of_tier or known]
            raise Failure(f"there is no method {name}{did_you_mean(name, names)} Methods: {', '.join(names)}")
        if found.tier != tier:
            raise Failure(f"method {name} is of tier {found.tier}, not {tier}; say --tier {found.tier}")
        return found
    if not of_tier:
        tiers = sorted({m.tier for m in known})
        raise Failure(f"no method here is of tier {tier}; there are methods of {', '.join(tiers)}")
    return min(of_tier, key=lambda m: (not m.schedules, m.forecasts, m.name))


def _profiles(models: Sequence[str]) -> tuple[Profile, ...]:
    """The profiles that are named, `any` left out. Raises Failure."""
    from refkv_policy.profiles import ANY, ProfileError, load_profile

    if ANY in models and len(models) > 1:
        raise Failure("--model any takes whatever model there is, so it stands alone")
    try:
        return tuple(load_profile(model) for model in models if model != ANY)
    except ProfileError as error:
        raise Failure(f"{error}. `refkv models` lists them") from error


def _check_party(method: Method, party: str | None) -> None:
    """Raises Failure when a risk would be accepted by nobody."""
    risks = method.risks({})
    if not risks or (party and party.strip()):
        return
    user = _git_user()
    example = f'--by "{user}"' if user else '--by "video team"'
    raise Failure(
        f"{method.name} is lossy: somebody has to accept the risk {', '.join(risks)}; say who, such as {example}"
    )


def _git_user() -> str:
    try:
        done = subprocess.run(["git", "config", "user.name"], capture_output=True, text=True, check=True)
    except (OSError, subprocess.CalledProcessError):
        return ""
    return done.stdout.strip()


def _name(models: Sequence[str], method: Method) -> str:
    stem = Path(models[0]).stem if models[0].endswith((".yaml", ".yml")) else models[0]
    allowed = "".join(
        c if c.isascii() and (c.isalnum() or c in "._-") else "-" for c in f"{stem}-{method.name}".lower()
    )
    return allowed.replace("_", "-").strip("._-")[:64]


def _schema(target: Path) -> str:
    """The path of the plan's schema from the plan's folder: the nearest upward, or where it would be put."""
    folder = Path(os.path.abspath(target)).parent
    for above in (folder, *folder.parents):
        if (above / SCHEMA).is_file():
            return Path(os.path.relpath(above / SCHEMA, folder)).as_posix()
    return f"../{SCHEMA}"


def _beside(target: Path) -> Path:
    return target.parent.parent


def _sound(scaffold: Scaffold, folder: Path) -> str:
    """The first variant of the scaffold that validates, profiles named from `folder`; one without a warning goes before.

    Raises Failure when none does.
    """
    from refkv_policy.compiler import examine_plan
    from refkv_policy.plan import errors, parse_plan

    first: list[str] = []
    warned: str | None = None
    placed = replace(scaffold, models=tuple(_from(folder, model) for model in scaffold.models))
    # Checked with paths as they are from here, since the folder need not exist yet.
    for number, seen in enumerate(scaffold.variants()):
        plan, faults = parse_plan(seen)
        if plan is not None:
            tables, found = examine_plan(plan)
            faults = (*faults, *found)
        if plan is not None and not errors(faults):
            text = list(replace(placed, budget=_budget(scaffold, tables)).variants())[number]
            if not faults:
                return text
            warned = warned or text
        first = first or [line for d in errors(faults) for line in (f"  {d.code} {d.message}", f"    help: {d.help}")]
    if warned is not None:
        return warned
    raise Failure(
        f"no plan of {scaffold.method.name} can be scaffolded for this; the simplest one would break", more=first
    )


def _budget(scaffold: Scaffold, tables: Mapping[tuple[str, int], HookTable]) -> str | None:
    """Room for what the rule keeps at the scaffold's shape in float32, to the next power of two; None where it keeps nothing."""
    from refkv_policy.compiler import Workload, bytes_needed

    shape, need = scaffold.shape, 0
    for profile in scaffold.profiles:
        work = Workload(profile.tokens(shape.width, shape.height, shape.frames), profile.text_tokens)
        for (name, _), table in tables.items():
            if name == profile.name:
                need = max(need, *bytes_needed(table, profile, work, "float32").values())
    if not need or not scaffold.method.takes_store:
        return None
    exponent = max(20, (need - 1).bit_length())
    return f"{1 << exponent - 30}GiB" if exponent >= 30 else f"{1 << exponent - 20}MiB"


def _unguarded(target: Path) -> list[str]:
    """The codes of what the guardrails that hold for a plan find in it: a scaffold has no evidence yet, for one."""
    from refkv_policy.cli.guard import Guards
    from refkv_policy.plan import errors, load_plan

    return sorted({d.code for d in errors(Guards().faults(load_plan(target), {}))})


def _from(folder: Path, model: str) -> str:
    """A profile's path as a plan in `folder` names it; a model's name as it is."""
    from refkv_policy.profiles import is_path

    if not is_path(model):
        return model
    return Path(os.path.relpath(model, folder)).as_posix()


def _write(target: Path, text: str) -> None:
    """Create the file. Raises Failure when there is one, or it cannot be written."""
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        with target.open("x", encoding="utf-8", newline="\n") as stream:
            stream.write(text)
    except FileExistsError:
        raise Failure(f"{target} exists, and init overwrites nothing; choose another --out or --name") from None
    except OSError as error:
        raise Failure(f"cannot write {target}: {error.strerror}; check the folder and its permissions") from error
