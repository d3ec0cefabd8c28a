"""Finding plans: files, folders, globs, the standard input, and the plans that come with refkv."""

from __future__ import annotations

import glob
import os
import re
from collections.abc import Iterable, Iterator
from difflib import get_close_matches
from pathlib import Path

from refkv_policy.cli.group import Failure, did_you_mean
from refkv_policy.files import read_bounded
from refkv_policy.plan.rules import MAX_BYTES
from refkv_policy.plan.yaml_subset import compose
from refkv_policy.resources import resource

STDIN = "-"
_KIND = re.compile(r"^kind:[ \t]*['\"]?([A-Za-z_-]+)", re.MULTILINE)


def shipped_plans() -> tuple[Path, ...]:
    """Paths of the shipped plans, by name. Raises Failure."""
    try:
        return tuple(sorted(p for p in resource("plans").glob("*.yaml") if is_plan(p)))
    except FileNotFoundError as error:
        raise Failure(f"{error}; install refkv again") from error


def find_plan(reference: str) -> Path:
    """The one plan that `reference` means: a path, or the name of a shipped plan. Raises Failure."""
    path = Path(reference)
    if path.is_file():
        return path
    if path.is_dir():
        raise Failure(f"{reference} is a folder; name one plan in it")
    known = {_key(p.stem): p for p in shipped_plans()}
    if _key(path.stem) in known and (path.parent == Path() or path.parent.name == "plans"):
        return known[_key(path.stem)]
    near = [str(p) for p in sorted(path.parent.glob("*.y*ml"))] if path.parent.is_dir() else []
    guess = did_you_mean(reference, [*near, *(p.stem for p in known.values())])
    raise Failure(f"there is no plan {reference}{guess} `refkv plans` lists the shipped ones")


def find_plans(references: Iterable[str], missing: bool = False) -> tuple[str, ...]:
    """Every plan file that files, folders and globs name, in order, each once; `-` stays as it is. Raises Failure.

    A folder stands for the plans in it and below; YAML files in it that say they are of another kind are passed over.
    A file that is named is taken whatever it says; with `missing`, even one that does not exist, for reading to report.
    """
    found: dict[str, None] = {}
    for reference in references:
        found.update(dict.fromkeys(_expand(reference, missing)))
    return tuple(found)


def is_plan(path: Path) -> bool:
    """Whether a YAML file found in a folder is meant as a plan: it says so, or says no kind at all."""
    try:
        text = read_bounded(path, MAX_BYTES).decode("utf-8", errors="replace")
    except OSError:
        return True
    kind = _KIND.search(text)
    if kind is None or kind[1] == "plan":
        return True
    # A line that begins so can also stand within a text, and `Plan` is a slip: neither may keep a plan from being read.
    document = compose(text, str(path)).document
    value = document.value if document is not None else None
    said = value.get("kind", "plan") if isinstance(value, dict) else kind[1]
    return isinstance(said, str) and bool(get_close_matches(said.casefold(), ("plan",), 1, 0.75))


def _expand(reference: str, missing: bool) -> Iterator[str]:
    path = Path(reference)
    if reference == STDIN or path.is_file():
        yield reference
    elif path.is_dir():
        plans = [str(p) for p in sorted(_within(path)) if p.suffix in (".yaml", ".yml") and is_plan(p)]
        if not plans:
            raise Failure(f"the folder {reference} holds no plan; name a folder of *.yaml files")
        yield from plans
    elif glob.has_magic(reference):
        matches = sorted(p for p in glob.glob(reference, recursive=True) if Path(p).is_file())
        if not matches:
            raise Failure(f"{reference} matches no file; check the pattern and the folder it is looked for in")
        yield from matches
    elif missing:
        yield reference
    else:
        raise Failure(_missing(path, reference))


def _missing(path: Path, reference: str) -> str:
    if path.exists():
        return f"{reference} is not a file; name a plan file or a folder"
    if path.is_symlink():
        return f"{reference} is a link that leads to no file; correct the link, or name another plan"
    near = [str(p) for p in path.parent.iterdir()] if path.parent.is_dir() else []
    return f"{reference} does not exist{did_you_mean(reference, near)}"


def _within(top: Path) -> Iterator[Path]:
    """The files of a folder and below, hidden ones left out; links are followed, one that leads nowhere is given too.

    A folder that is linked into itself is entered once.
    """
    entered: set[str] = set()
    for folder, folders, files in os.walk(top, followlinks=True):
        real = os.path.realpath(folder)
        if real in entered:
            folders.clear()
            continue
        entered.add(real)
        folders[:] = sorted(name for name in folders if not name.startswith("."))
        places = [Path(folder, name) for name in files if not name.startswith(".")]
        yield from (place for place in places if place.is_file() or not place.exists())


def _key(stem: str) -> str:
    return stem.lower().replace("-", "_").replace(".", "_")
