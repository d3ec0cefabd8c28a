"""Where a repository of plans begins, and how its files are named to a person. No torch."""

from __future__ import annotations

import errno
import os
from pathlib import Path

from refkv_policy.resources import resource


def repository_root(plan_file: str) -> Path:
    """The folder that a plan's evidence paths start from, and with which the search for its guardrails ends.

    For a plan in the folder of shipped plans, the one above that; else the nearest folder upward that holds `.git`;
    where there is none, the one above a folder named `plans`, or else the plan's own.
    """
    folder = Path(os.path.abspath(plan_file)).parent
    try:
        if os.path.samefile(folder, resource("plans")):
            return folder.parent
    except OSError:
        pass  # no shipped plans here, or a plan that is not in a file
    return git_root(folder) or (folder.parent if folder.name == "plans" else folder)


def git_root(folder: Path) -> Path | None:
    """The nearest folder, from `folder` (absolute) upward, that holds `.git`; None where there is none."""
    return next((place for place in (folder, *folder.parents) if os.path.exists(place / ".git")), None)


def check_inside(path: str | os.PathLike[str]) -> None:
    """Raises OSError where a path in a git repository leads out of it through a link.

    Whoever sends a pull request could have a line of any file shown in its review, or a lock written over one.
    """
    place = Path(os.path.abspath(path))
    root = git_root(place.parent)
    if root is not None and not Path(os.path.realpath(place)).is_relative_to(os.path.realpath(root)):
        raise OSError(errno.EXDEV, "it leads out of the repository through a link", os.fspath(path))


def shown(path: str | os.PathLike[str]) -> str:
    """The path as a person would write it from the working directory; whole where it lies outside."""
    try:
        relative = os.path.relpath(path)
    except ValueError:  # another drive
        return str(path)
    return str(path) if relative.startswith("..") else relative
