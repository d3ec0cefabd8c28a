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
