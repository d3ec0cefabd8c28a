"""The page: one HTML file with everything in it, and a content security policy that lets nothing in or out.

Texts from files reach it in one way only, through Jinja2 with autoescape, after `words.visible` has made whatever hides
or turns characters visible. Script and style are refkv's own and named in the policy by their hashes; there are no inline
styles or handlers. JSON stands in script elements that are never run, with `<`, `>`, `&` and `'` escaped.
"""

from __future__ import annotations

import base64
import hashlib
from pathlib import Path
from typing import Any

from jinja2 import Environment, FileSystemLoader, StrictUndefined
from markupsafe import Markup

from refkv_policy.report.charts import ROW_COLUMNS, Chart
from refkv_policy.report.draw import NARROW, WIDE, picture
from refkv_policy.report.frontier import COLUMNS as FRONTIER_COLUMNS
from refkv_policy.report.heat import GREY, HEAT
from refkv_policy.report.logs import REQUEST_COLUMNS, RULE_COLUMNS, SITE_COLUMNS
from refkv_policy.report.model import Report
from refkv_policy.report.scopes import METRIC_COLUMNS, SAMPLE_COLUMNS
from refkv_policy.report.sitemap import PAINTS, class_of, seen
from refkv_policy.report.videos import GAINS, Players
from refkv_policy.report.words import visible

TEMPLATES = Path(__file__).parent / "templates"


def render(report: Report) -> str:
    """The HTML text."""
    environment = Environment(
        loader=FileSystemLoader(TEMPLATES, encoding="utf-8"),
        autoescape=True,
        undefined=StrictUndefined,
        finalize=_seen,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.filters["capital"] = lambda text: text[:1].upper() + text[1:]
    environment.filters["lines"] = _lines
    environment.filters["zip_with"] = lambda first, second: list(zip(first, second, strict=True))
    style, script = _style(), "\n".join(_read(name) for name in ("player.js", "report.js"))
    context = {
        "report": report,
        "style": Markup(style),  # noqa: S704  our own files, as the next
        "script": Markup(script),  # noqa: S704
        "policy": _policy(style, script),
        "wide": lambda chart: _data_address(chart, WIDE),
        "narrow": lambda chart: _data_address(chart, NARROW),
        "class_of": class_of,
        "seen": seen,
        "players": [_player(players, n) for n, players in enumerate(report.players)],
        "frontier_columns": FRONTIER_COLUMNS,
        "columns": {
            "requests": REQUEST_COLUMNS, "sites": SITE_COLUMNS, "rules": RULE_COLUMNS, "metrics": METRIC_COLUMNS,
            "samples": SAMPLE_COLUMNS, "chart": ROW_COLUMNS,
            "departures": ("reason", "planned", "done", "sites", "steps", "branch", "cells"),
        },
    }  # fmt: skip
    return environment.get_template("report.html.j2").render(context)


def _seen(value: Any) -> Any:
    """What is put into the page in place of a value: a text that is not ours is made visible."""
    return visible(value) if isinstance(value, str) and not isinstance(value, Markup) else value


def _lines(text: str) -> Markup:
    """A text of several lines, its line breaks kept."""
    return Markup("\n").join(visible(line) for line in text.splitlines())


def _policy(style: str, script: str) -> str:
    """The content security policy: our own style and script, pictures and videos that are in the page, nothing else."""
    return "; ".join(
        (
            "default-src 'none'",
            f"style-src '{_hash(style)}'",
            f"script-src '{_hash(script)}'",
            "img-src data:",
            "media-src blob:",
            "base-uri 'none'",
            "form-action 'none'",
        )
    )


def _hash(text: str) -> str:
    return "sha256-" + base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()


def _read(name: str) -> str:
    return (TEMPLATES / name).read_text(encoding="utf-8")


def _data_address(chart: Chart, width: float) -> Markup:
    data = base64.b64encode(picture(chart, "svg", width)).decode()
    return Markup(f"data:image/svg+xml;base64,{data}")  # noqa: S704  base64


def _style() -> str:
    """The style sheet with the colours of the maps' cells, which the PNG plots share."""
    rules = [
        f".{class_of(action)}{{background:light-dark({p.light},{p.dark});color:light-dark({p.light_ink},{p.dark_ink})}}"
        for action, p in PAINTS.items()
    ]
    for kind, palette in (("h", HEAT), ("g", GREY)):
        rules += [f".{kind}{level}{{background:{colour}}}" for level, colour in enumerate(palette)]
    return _read("report.css") + "".join(rules)


def _player(players: Players, number: int) -> dict[str, Any]:
    """What the template and the script need of a set of players."""
    small = max(panel.crop[3] for panel in players.panels) < 400
    return {
        "key": f"v{number}",
        "title": players.title,
        "notes": players.notes,
        "compared": players.compared,
        "gap": players.gap,
        "gain": players.gain,
        "gains": GAINS,
        "labels": [panel.label for panel in players.panels],
        "files": [(source.name, source.sha256, len(source.data)) for source in players.sources],
        "size": players.panels[0].crop[2:],
        "frames": players.frames,
        "fps": players.fps,
        "settings": {
            "frames": players.frames,
            "fps": players.fps,
            "pixelated": small,
            "panels": [{"label": p.label, "source": p.source, "crop": p.crop} for p in players.panels],
        },
        "data": [Markup(base64.b64encode(source.data).decode()) for source in players.sources],  # noqa: S704  base64
    }
