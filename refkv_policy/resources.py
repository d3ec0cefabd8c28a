"""Files that ship with refkv: the JSON Schemas and the plans.

A wheel carries them inside the package, under `_data/`; a checkout (and an editable install) has them at its root.
"""

from __future__ import annotations

from pathlib import Path

PACKAGE = Path(__file__).resolve().parent


def resource(name: str) -> Path:
    """The path of a shipped file or folder, such as `schemas/plan.v1.schema.json` or `plans`.

    Raises FileNotFoundError, with both places looked at, where this installation lacks it.
    """
    places = (PACKAGE / "_data" / name, PACKAGE.parent / name)
    for place in places:
        if place.exists():
            return place
    raise FileNotFoundError(f"this installation of refkv lacks {name}: looked at {places[0]} and {places[1]}")


def shipped_plan(name: str) -> Path | None:
    """The path of the shipped plan of this name (`wan21_p1_k4`, or as a plan spells its own, `wan21-p1-k4`), or None."""
    try:
        found = resource("plans") / f"{name.lower().replace('-', '_')}.yaml"
    except FileNotFoundError:
        return None
    return found if name.replace("-", "_").isidentifier() and found.is_file() else None
