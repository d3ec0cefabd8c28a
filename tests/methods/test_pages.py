"""The pages of methods: one each, and every rule they show is one that a plan may hold."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import jsonschema
import pytest
import yaml

from refkv_policy import methods
from refkv_policy.methods import Grid, MethodError, Placement
from refkv_policy.plan.selectors import parse_sites, parse_window

PAGES = Path(__file__).parents[2] / "docs/methods"
COUNTS = {"main": 40, "vace": 15, "hint": 15}


def rules_of(page: Path) -> list[dict[str, Any]]:
    """Every rule in the page's YAML blocks."""
    return [
        rule
        for block in re.findall(r"```yaml\n(.*?)```", page.read_text("utf-8"), re.DOTALL)
        for rule in yaml.safe_load(block)
    ]


@pytest.mark.parametrize("name", methods.names())
def test_every_shipped_method_has_a_page_and_a_line_in_the_index(name: str) -> None:
    """The page bears the name, tier and risk that the method declares, and shows a rule of it."""
    method = methods.get(name)
    page = (PAGES / f"{name}.md").read_text("utf-8")
    assert page.startswith(f"# `{name}` ({method.tier})\n")
    assert all(f"`{risk}`" in page for risk in method.risks({}))
    line = next(
        each for each in (PAGES / "README.md").read_text("utf-8").splitlines() if f"[`{name}`]({name}.md)" in each
    )
    assert f"| {method.tier} |" in line
    assert all(f"`{key}`" in page or f"{key}:" in page for key in method.params_schema["properties"])
    assert name in {rule["method"] for rule in rules_of(PAGES / f"{name}.md")}


@pytest.mark.parametrize("page", sorted(PAGES.glob("*.md")), ids=lambda page: page.stem)
def test_every_rule_on_a_page_fits_its_method(page: Path) -> None:
    """Its tier, its sites on a model of 40 blocks, refresh, window and parameters; calibrations may be cut short."""
    for rule in rules_of(page):
        method, params = methods.get(rule["method"]), rule.get("params", {})
        assert rule["tier"] == method.tier
        jsonschema.validate(params, dict(method.params_schema))
        assert set(rule.get("refresh", {})) - {"count"} <= method.refreshes
        assert bool(rule.get("refresh")) == bool(method.refreshes)
        assert "window" not in rule or (method.takes_window and parse_window(rule["window"]).resolve(50))
        steps = tuple(range(len(params.get("signals", range(50)))))
        grid = Grid(len(steps), steps, tuple(1 - s / len(steps) for s in steps))
        for text in rule["at"] if isinstance(rule["at"], list) else [rule["at"]]:
            for site in parse_sites(text).resolve(COUNTS, {"hint": {"deep": "8-14"}}):
                assert site.kind in method.sites
                try:
                    method.lower(Placement(params, site, "uncond", grid, frozenset({0, 1})))
                except MethodError as error:
                    pytest.fail(f"{site}: {error}")
