"""The page: one HTML file with everything in it, and a content security policy that lets nothing in or out.

Texts from files reach it in one way only, through Jinja2 with autoescape, after `words.visible` has made whatever hides
or turns characters visible. Script and style are refkv's own and named in the policy by their hashes; there are no inline
styles or handlers. JSON stands in script elements that are never run, with `<`, `>`, `&` and `'` escaped.
"""

from __future__ import annotations

import base64
import hashlib
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

from jinja2 import Environment, FileSystemLoader, StrictUndefined
from markupsafe import Markup

from refkv_policy.report.charts import GREY_DARK, GREY_LIGHT, HEAT_DARK, HEAT_LIGHT, PAINTS, STYLES
from refkv_policy.report.frontier import COLUMNS as FRONTIER_COLUMNS
from refkv_policy.report.logs import REQUEST_COLUMNS, RULE_COLUMNS, SITE_COLUMNS
from refkv_policy.report.model import Report
from refkv_policy.report.scopes import METRIC_COLUMNS, SAMPLE_COLUMNS
from refkv_policy.report.sitemap import class_of, seen
from refkv_policy.report.svg import chart_svg, heat_svg, key_svg
from refkv_policy.report.videos import Players
from refkv_policy.report.words import visible

TEMPLATES = Path(__file__).parent / "templates"
OPEN = 3
"""Scopes that are shown unfolded; of more, only the first."""


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
        "chart_svg": chart_svg,
        "heat_svg": heat_svg,
        "key_svg": key_svg,
        "class_of": class_of,
        "seen": seen,
        "players": [_player(players, n) for n, players in enumerate(report.players)],
        "open_all": len(report.scopes) <= OPEN,
        "frontier_columns": FRONTIER_COLUMNS,
        "columns": {
            "requests": REQUEST_COLUMNS, "sites": SITE_COLUMNS, "rules": RULE_COLUMNS, "metrics": METRIC_COLUMNS,
            "samples": SAMPLE_COLUMNS,
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


def _style() -> str:
    """The style sheet with the plots' colours, which the PNG plots share."""
    rules = [f".s-{name}{{--c:light-dark({s.light},{s.dark})}}" for name, s in STYLES.items()]
    rules += [
        f".{class_of(action)}{{background:light-dark({p.light},{p.dark});color:light-dark({p.light_ink},{p.dark_ink})}}"
        for action, p in PAINTS.items()
    ]
    for kind, light, dark in (("h", HEAT_LIGHT, HEAT_DARK), ("g", GREY_LIGHT, GREY_DARK)):
        rules += _fills(kind, light, dark)
    return _read("report.css") + "".join(rules)


def _fills(kind: str, light: Sequence[str], dark: Sequence[str]) -> Iterable[str]:
    for level, (on_light, on_dark) in enumerate(zip(light, dark, strict=True)):
        yield f".{kind}{level}{{--c:light-dark({on_light},{on_dark});fill:var(--c)}}"


def _player(players: Players, number: int) -> dict[str, Any]:
    """What the template and the script need of a set of players."""
    small = max(panel.crop[3] for panel in players.panels) < 400
    return {
        "key": f"v{number}",
        "title": players.title,
        "notes": players.notes,
        "compared": players.compared,
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
