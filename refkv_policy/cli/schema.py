"""`refkv schema`: the published JSON Schemas, for editors and other tools."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import click

from refkv_policy.cli.group import Failure, did_you_mean, echo, echo_json
from refkv_policy.resources import resource

_FILE = re.compile(r"(?P<kind>[a-z_-]+)\.v(?P<version>[0-9]+)\.schema\.json")


@click.command("schema")
@click.argument("kind", required=False)
@click.option("--method", metavar="METHOD", help="Print the schema of a caching method's `params` instead.")
@click.option("--json", "as_json", is_flag=True, help="List as one JSON object. A schema is JSON anyway.")
def schema(kind: str | None, method: str | None, as_json: bool) -> None:
    """Print the JSON Schema of a KIND of document; without one, list the kinds.

    In a repository of plans: refkv schema plan > schemas/plan.v1.schema.json
    """
    if kind is not None and method is not None:
        raise Failure("name a kind of document or a --method, not both")
    if method is not None:
        echo_json(_of_method(method))
    elif kind is not None:
        echo(_newest(kind).read_text(encoding="utf-8"), nl=False)
    else:
        entries = [_entry(path) for found in published().values() for path in found]
        if as_json:
            echo_json({"format_version": 1, "schemas": entries})
            return
        width = max(len(e["kind"]) for e in entries)
        for e in entries:
            echo(f"{e['kind']:<{width}}  {e['title']}")


def published() -> dict[str, list[Path]]:
    """The schema files by kind of document, each kind's oldest version first. Raises Failure where none are installed."""
    try:
        files = sorted(resource("schemas").glob("*.schema.json"))
    except FileNotFoundError as error:
        raise Failure(f"{error}; install refkv again") from error
    found: dict[str, list[tuple[int, Path]]] = {}
    for path in files:
        if match := _FILE.fullmatch(path.name):
            found.setdefault(match["kind"], []).append((int(match["version"]), path))
    return {kind: [path for _, path in sorted(versions)] for kind, versions in found.items()}


def _newest(kind: str) -> Path:
    known = published()
    if kind not in known:
        raise Failure(f"there is no schema of {kind}{did_you_mean(kind, [*known])} Published are {', '.join(known)}")
    return known[kind][-1]


def _of_method(name: str) -> Any:
    from refkv_policy import methods

    try:
        return methods.get(name).params_schema
    except KeyError:
        known = methods.names()
        raise Failure(f"there is no method {name}{did_you_mean(name, known)} Methods: {', '.join(known)}") from None


def _entry(path: Path) -> dict[str, Any]:
    match = _FILE.fullmatch(path.name)
    assert match is not None
    value = json.loads(path.read_text(encoding="utf-8"))
    facts = {"kind": match["kind"], "version": int(match["version"]), "file": path.name}
    return {**facts, "title": value.get("title", ""), "id": value.get("$id", "")}
