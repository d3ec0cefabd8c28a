"""A checked document as a Plan. Nothing is judged here."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from refkv_policy.plain import from_plain
from refkv_policy.plan.checks import bytes_of, size_of
from refkv_policy.plan.document import Document
from refkv_policy.plan.model import Path, Plan, Shape

Values = Mapping[str, Any]


def build_plan(document: Document) -> Plan:
    """The plan of a document in which no error was found (any other may raise)."""
    value = document.value
    run = {**value["run"], "shapes": shapes_of(value["run"]["shapes"])}
    caches: list[Values] = [{**rule, "store": _store(rule.get("store", {}))} for rule in value["caches"]]
    return from_plain(
        Plan,
        {
            "purpose": "reference",
            "description": "",
            **value,
            "document": document,
            "run": run,
            "caches": with_paths(("caches",), caches),
            "acknowledgements": with_paths(("acknowledgements",), value.get("acknowledgements", [])),
        },
    )


def shapes_of(values: list[Values]) -> list[Shape]:
    """The shapes of a checked list of `{size: 832x480, frames: 81}`."""
    return [Shape(*size_of(shape["size"]), shape["frames"]) for shape in values]


def with_paths(path: Path, entries: Iterable[Values]) -> list[Values]:
    """The entries of a document's list at `path`, each with the path that leads to it."""
    return [{**entry, "path": (*path, index)} for index, entry in enumerate(entries)]


def _store(value: Values) -> Values:
    return {**value, "budget": bytes_of(value["budget"])} if "budget" in value else value
