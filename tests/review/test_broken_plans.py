"""bench/broken_plans.py: refkv catches every mistake at its place, and docs/broken-plans.md is what the script prints."""

from __future__ import annotations

import importlib.metadata
import sys
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType

import pytest

from tests.review.conftest import ROOT

PAGE = (ROOT / "docs" / "broken-plans.md").read_text(encoding="utf-8")


@pytest.fixture(scope="module")
def script() -> Iterator[ModuleType]:
    """The script as a module."""
    sys.path.insert(0, str(ROOT / "bench"))
    try:
        import broken_plans

        yield broken_plans
    finally:
        sys.path.remove(str(ROOT / "bench"))


@pytest.fixture(scope="module")
def said(script: ModuleType, tmp_path_factory: pytest.TempPathFactory) -> list[tuple]:
    """Everything that refkv says of each mistake, and of the sound plan after them."""
    entries = [*script.cases(), script.sound_case()]
    return script.through_refkv(entries, script.lay_out(entries, tmp_path_factory.mktemp("broken")))


def shown(page: str, columns: slice) -> list[tuple[str, ...]]:
    """Cells of the page's second table."""
    rows = [line.strip("| ").split(" | ") for line in page.splitlines() if line[:3].strip("| ").isdigit()]
    return [tuple(row[columns]) for row in rows]


def test_refkv_catches_every_mistake_at_its_place(script: ModuleType, said: list[tuple]) -> None:
    """Each of the forty plans gives the expected code at the expected line and column, with a help."""
    entries = script.cases()
    assert len(entries) == 40
    for case, found in zip(entries, said, strict=False):
        places = [(f.said[:6], f.line, f.column) for f in found]
        assert (case.code, case.line, case.column) in places, f"{case.mistake}: {places}"
        assert all(f.help for f in found)


def test_the_sound_plan_is_accepted(said: list[tuple]) -> None:
    """What the mistakes are made in has none itself."""
    assert said[40] == ()


def test_the_mistakes_are_different_ones(script: ModuleType) -> None:
    """No two plans are equal, no two are called the same, and most codes stand for one mistake only."""
    entries = script.cases()
    assert len({case.plan for case in entries}) >= 39, "two may differ by guardrails or lock alone"
    assert len({case.mistake for case in entries}) == 40
    assert len({case.code for case in entries}) >= 30
    assert Counter(case.code for case in entries).most_common(1)[0][1] <= 4
    assert all((case.config is None) == bool(case.why) for case in entries)


def test_the_page_shows_what_refkv_says(script: ModuleType, said: list[tuple]) -> None:
    """Mistakes and refkv's column in the docs are those that the script prints now."""
    entries = script.cases()
    ours = [script.chosen(case, found) for case, found in zip(entries, said, strict=False)]
    now = [
        (str(number), case.mistake, script.cell(found, named=True))
        for number, (case, found) in enumerate(zip(entries, ours, strict=True), 1)
    ]
    assert shown(PAGE, slice(0, 3)) == now, "run python bench/broken_plans.py > docs/broken-plans.md"


@pytest.mark.slow
def test_the_page_shows_what_check_jsonschema_says(script: ModuleType, tmp_path: Path) -> None:
    """Its column likewise, and it accepts the sound plan; at the version that the page names."""
    pytest.importorskip(
        "check_jsonschema", reason="check-jsonschema is not installed: pip install 'refkv-policy[bench]'"
    )
    if importlib.metadata.version("check-jsonschema") not in PAGE:
        pytest.skip("the page is of another check-jsonschema")
    entries = [*script.cases(), script.sound_case()]
    found = script.through_check_jsonschema(script.lay_out(entries, tmp_path))
    assert [cells[0] for cells in shown(PAGE, slice(3, 4))] == [script.cell(f, named=False) for f in found[:-1]]
    assert found[-1].said == ""


@pytest.mark.slow
@pytest.mark.network
def test_the_page_shows_what_cache_dit_says(script: ModuleType, tmp_path: Path) -> None:
    """Its column likewise, from its own loader, which accepts the sound configuration."""
    pytest.importorskip("diffusers", reason="cache-dit needs torch and diffusers")
    try:
        script.install_cache_dit(tmp_path / "library")
    except RuntimeError as error:
        pytest.skip(str(error))
    entries = [*script.cases(), script.sound_case()]
    found = script.through_cache_dit(entries, tmp_path, tmp_path / "library")
    cells = [cells[0] for cells in shown(PAGE, slice(4, 5))]
    assert [c.split(":")[0] if c.startswith("no equivalent") else c for c in cells] == [
        script.cell(f, named=False) for f in found[:-1]
    ]
    assert found[-1].said == ""
