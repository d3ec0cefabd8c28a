"""`refkv models`: the profiles that plans are compiled against."""

from __future__ import annotations

from typing import Any

import click

from refkv_policy.cli.group import echo, echo_json
from refkv_policy.text import columns, fold


@click.command("models")
@click.option("--json", "as_json", is_flag=True, help="One JSON object on stdout.")
def models(as_json: bool) -> None:
    """List the known models: dimensions, layer map, named sets of layers."""
    from refkv_policy.profiles import load_profile, names

    entries: list[dict[str, Any]] = []
    for name in names():
        profile = load_profile(name)
        entries.append(
            {
                "name": name,
                "title": profile.title,
                "family": profile.family,
                "main_blocks": profile.main_blocks,
                "vace_at": list(profile.vace_at),
                "dim": profile.dim,
                "ffn_dim": profile.ffn_dim,
                "heads": profile.heads,
                "text_tokens": profile.text_tokens,
                "sets": {stack: dict(named) for stack, named in profile.sets.items()},
                "digest": profile.digest,
                "embedded": _embedded(name),
            }
        )
    if as_json:
        echo_json({"format_version": 1, "models": entries})
        return
    for e in entries:
        weights = "weights: `refkv run --model DIR`" if e["vace_at"] else "attach a plan to its pipeline in Python"
        weights = "embedded: `refkv run` needs nothing else" if e["embedded"] else weights
        vace = f"  {len(e['vace_at'])} VACE blocks, added after main {', '.join(map(str, e['vace_at']))}"
        lines = [
            f"{e['name']}  {e['title']} ({weights})",
            f"  {e['main_blocks']} main blocks, width {e['dim']}, feed-forward {e['ffn_dim']}, {e['heads']} heads",
            *([vace] if e["vace_at"] else []),
            *(f"  {s}[{label}] is {s}[{text}]" for s, named in e["sets"].items() for label, text in named.items()),
        ]
        echo(fold("\n".join(lines), columns()))


def _embedded(name: str) -> bool:
    from refkv_policy.mini import MODEL_NAME, model_path

    if name != MODEL_NAME:
        return False
    try:
        model_path()
    except FileNotFoundError:
        return False
    return True
