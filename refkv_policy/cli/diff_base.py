"""The old side of a comparison with a git revision: its plans, and beside them its profiles, guardrails and evidence."""

from __future__ import annotations

import os
import posixpath
import subprocess
import tempfile
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path, PurePosixPath
from typing import TYPE_CHECKING

from refkv_policy.cli.find import find_plans
from refkv_policy.cli.group import Failure
from refkv_policy.evidence.rules import MAX_BYTES
from refkv_policy.plan.diagnostic import Diagnostic, PlanError

if TYPE_CHECKING:
    from refkv_policy.plan import Plan

LINK = "120000"
"""Git's mode of a symbolic link."""
MOST_LINKS = 8


class Revision:
    """The files of a revision, laid out in a folder as they are asked for, where they are found as they were in git.

    commit: its hash. files: mode by path, of every file. Raises Failure for a revision that git does not know.
    """

    def __init__(self, name: str, top: Path, folder: Path) -> None:
        self.name, self.top, self.folder = name, top, folder
        self.commit = git("rev-parse", "--verify", "--quiet", f"{name}^{{commit}}").decode().strip()
        listed = git("ls-tree", "-r", "-z", "--full-tree", self.commit, at=top).split(b"\0")
        entries = (line.partition(b"\t") for line in listed if line)
        self.files = {os.fsdecode(path): facts.split(b" ")[0].decode() for facts, _, path in entries}
        (folder / ".git").mkdir()  # what makes the folder the root that evidence and guardrails are looked for from
        for path in self._profiles():
            self.lay_out(path)

    def _profiles(self) -> list[str]:
        """Every file that says it is a profile: plans and guardrails may name them by path."""
        looked = ("grep", "-l", "-z", "-E", "^kind:[[:space:]]*['\"]?profile", self.commit, "--", "*.yaml", "*.yml")
        found = git(*looked, at=self.top, nothing=1).split(b"\0")
        return [os.fsdecode(path).partition(":")[2] for path in found if path]

    def lay_out(self, path: str) -> Path | None:
        """The file in the folder, None where the revision has none. A link within the repository is followed."""
        source, links = path, 0
        while self.files.get(source) == LINK and links < MOST_LINKS:
            target = os.fsdecode(self._content(source))
            source, links = posixpath.normpath(posixpath.join(posixpath.dirname(source), target)), links + 1
        if self.files.get(source, LINK) == LINK:
            return None
        place = self.folder / path
        if not place.exists():
            place.parent.mkdir(parents=True, exist_ok=True)
            place.write_bytes(self._content(source))
        return place

    def _content(self, path: str) -> bytes:
        """The bytes of a file, past whatever git is told to make of them for people."""
        blob = f"{self.commit}:{path}"
        if int(git("cat-file", "-s", blob, at=self.top)) > MAX_BYTES:
            raise Failure(f"{self.name}:{path} is larger than {MAX_BYTES:,} bytes; no plan or evidence is")
        return git("cat-file", "blob", blob, at=self.top)

    def plan(self, path: str, sure: bool) -> Plan | None:
        """The plan at a path, with what decides about it; None where there is none. Raises PlanError for an unsound one.

        sure: it is meant as a plan whatever it says.
        """
        from refkv_policy.cli.find import is_plan
        from refkv_policy.guardrails import FILES
        from refkv_policy.plan import read_plan

        place = self.lay_out(path)
        if place is None or not (sure or is_plan(place)):
            return None
        for folder in PurePosixPath(path).parents:
            for name in FILES:
                self.lay_out(str(folder / name))
        plan, faults = read_plan(place)
        if plan is None:
            raise PlanError(map(self.told, faults))
        for entry in plan.acknowledgements:
            if entry.evidence is not None:
                self.lay_out(posixpath.normpath(entry.evidence))
        return plan

    def told(self, diagnostic: Diagnostic) -> Diagnostic:
        """A diagnostic with the revision in the place of the folder, as in `main:plans/x.yaml`."""
        file, message, help = map(self.named, (diagnostic.file, diagnostic.message, diagnostic.help))
        return replace(diagnostic, file=file, message=message, help=help)

    def named(self, text: str) -> str:
        """A text with the revision in the place of the folder."""
        for folder in (str(self.folder), os.path.relpath(self.folder)):
            text = text.replace(folder + os.sep, f"{self.name}:")
        return text


def since(base: str, names: tuple[str, ...]) -> Iterator[tuple[str, Plan | None, Plan | None, Revision]]:
    """Each plan that is here or was at the revision, under its path in the repository, and the revision.

    The old plan's files are there until the next plan is asked for. Raises Failure and PlanError.
    """
    from refkv_policy.plan import load_plan

    top = Path(git("rev-parse", "--show-toplevel").decode().strip())
    now = {_inside(Path(file), top): file for name in names if Path(name).exists() for file in find_plans([name])}
    asked = [_inside(Path(name), top) for name in names]
    with tempfile.TemporaryDirectory(prefix="refkv-") as folder:
        revision = Revision(base, top, Path(os.path.realpath(folder)))
        before = [p for p in revision.files if p.endswith((".yaml", ".yml")) and any(_below(p, a) for a in asked)]
        for name, place in zip(names, asked, strict=True):
            if not Path(name).exists() and not any(_below(path, place) for path in revision.files):
                raise Failure(f"{name} is neither here nor in {base}; name a plan or a folder of plans")
        for path in sorted({*now, *before}):
            old = revision.plan(path, path in now or path in asked) if path in revision.files else None
            new = load_plan(now[path]) if path in now else None
            if old is not None or new is not None:
                yield path, old, new, revision


def _inside(path: Path, top: Path) -> str:
    """The path within the repository, with `/`. Raises Failure for one outside it."""
    try:
        return path.resolve().relative_to(top.resolve()).as_posix()
    except ValueError as error:
        raise Failure(f"{path} is not inside the repository {top}") from error


def _below(path: str, folder: str) -> bool:
    return folder in (".", path) or path.startswith(f"{folder}/")


def git(*arguments: str, at: Path | None = None, nothing: int = 0) -> bytes:
    """What git prints. nothing: the status by which it says that there is nothing to print. Raises Failure with its words."""
    try:
        done = subprocess.run(["git", "-c", "color.ui=false", *arguments], cwd=at, capture_output=True)
    except FileNotFoundError as error:
        raise Failure("git is not installed; compare two files instead: refkv diff OLD NEW") from error
    if done.returncode not in (0, nothing):
        why = (
            done.stderr.decode("utf-8", "replace").strip()
            or f"git knows no revision {arguments[-1].removesuffix('^{commit}')!r}"
        )
        raise Failure(f"git {arguments[0]}: {why}")
    return done.stdout
