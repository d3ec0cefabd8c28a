"""The page: whole, well formed, closed to the network, accessible, and deaf to what hostile files say."""

from __future__ import annotations

import base64
import hashlib
import json
import re
import shlex
from collections.abc import Callable
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("jinja2", reason="Jinja2 is not installed")

from refkv_policy.audit import AuditWriter, Decision
from refkv_policy.evidence import MeasuredScope, write_evidence
from refkv_policy.report import make_report, read_inputs
from refkv_policy.report.page import render
from tests.audit.conftest import TINY
from tests.evidence import sample as evidence_sample
from tests.report import sample
from tests.report.reading import Page

HOSTILE = "</script><script>alert(1)</script><img src=x onerror=alert(2)>\"'`{{7*7}}<!--\u202e\u2028]]>&lt;"
SHOWN = "</script><script>alert(1)</script><img src=x onerror=alert(2)>\"'`{{7*7}}<!--⟨U+202E⟩⟨U+2028⟩]]>&lt;"


DRAWN = "data:image/svg+xml;base64,"
PARTS = (
    "The gate", "Videos", "What was decided", "Drift", "The frontier", "Error by frame and metric", "Provenance",
    "Cache memory over steps", "solver floor", "CUDA out of memory", "not measured", "sha256:" + "c" * 64,
)  # fmt: skip


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> str:
    """A page with everything on it: red evidence, two logs, drift, videos."""
    folder = tmp_path_factory.mktemp("whole")
    write_evidence(
        folder / "evidence.json", sample.evidence(sample.scope(), replace(evidence_sample.scope(), guidance=3.0))
    )
    sample.write_log(folder / "audit.jsonl", sample.deep_table(), requests=3, departing=True)
    sample.write_log(folder / "failed.jsonl", TINY, error="CUDA out of memory")
    sample.write_drift(folder / "drift.json")
    names = ("evidence.json", "audit.jsonl", "failed.jsonl", "drift.json")
    report = make_report(read_inputs(folder / n for n in names), videos=sample.write_videos(folder))
    return render(report)


def test_the_verdict_comes_first_and_in_words(whole: str) -> None:
    """The question, its answer, the reasons in words and the three figures stand before any item's name."""
    words = Page(whole).words
    told = [
        "Approve test?",
        "No red",
        "1 of 2 scopes is red: not shown to be as near",
        "Speed",
        "Error",
        "Memory",
        "fewer_steps",
    ]
    places = [words.index(text) for text in told]
    assert places == sorted(places)
    assert re.search(r"<title>red: test", whole)


def test_everything_is_there(whole: str) -> None:
    """Gate, players, maps, drift, frontier, heat map, memory and provenance."""
    page = Page(whole)
    for part in PARTS:
        assert part in page.words, part
    assert len(page.all("canvas")) == 4
    assert len([e for e in page.all("table") if e.attributes.get("class") == "map"]) == 4
    assert len([e for e in page.all("table") if (e.attributes.get("class") or "").startswith("map heat")]) == 2


def test_it_is_well_formed(whole: str) -> None:
    """Every element is closed where it belongs, no attribute stands twice, no id is used twice."""
    page = Page(whole)
    assert page.broken == []
    ids = [e.attributes["id"] for e in page.elements if "id" in e.attributes]
    assert len(ids) == len(set(ids))
    assert {(e.attributes["href"] or "")[1:] for e in page.all("a")} <= set(ids)


def test_it_loads_nothing(whole: str) -> None:
    """No element names an address outside the page, and the policy would refuse it."""
    page = Page(whole)
    for element in page.elements:
        for name in ("src", "href", "action", "data", "srcset", "poster", "xlink:href"):
            value = element.attributes.get(name)
            inside = value is None or value.startswith(("#", DRAWN)) or value == "data:,"
            assert inside, (element.tag, name, value)
    assert "@import" not in whole
    assert not re.search(r"url\(", Page(whole).all("style")[0].text)


def test_the_policy_names_our_script_and_style_and_nothing_else(whole: str) -> None:
    """Their hashes are worked out here anew; there are no inline handlers or styles, which they would not cover."""
    page = Page(whole)
    policy = next(e.attributes["content"] for e in page.all("meta") if "http-equiv" in e.attributes)
    assert policy is not None
    rules = dict(part.split(" ", 1) for part in policy.split("; "))
    run = [e for e in page.all("script") if "type" not in e.attributes]
    for name, text in (("script-src", run[0].text), ("style-src", page.all("style")[0].text)):
        digest = base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()
        assert rules[name] == f"'sha256-{digest}'"
    assert (len(run), len(page.all("style"))) == (1, 1)
    assert rules["default-src"] == "'none'"
    assert "unsafe" not in policy
    assert not [e for e in page.elements for name in e.attributes if name.startswith("on") or name == "style"]


def test_tables_have_headers_and_controls_have_names(whole: str) -> None:
    """Each table has a caption and scoped headers; each control a text or a label; each picture a description."""
    page = Page(whole)
    for table in page.all("table"):
        assert table.inside[0].tag == "caption"
    assert all(e.attributes.get("scope") in ("col", "row") for e in page.all("th"))
    for control in [*page.all("button"), *page.all("input")]:
        in_label = any(control in label.inside for label in page.all("label"))
        assert control.text.strip() or control.attributes.get("aria-label") or in_label, control
    for picture in [e for e in page.elements if e.attributes.get("role") == "img"]:
        assert picture.attributes.get("aria-label")
    assert len(page.all("img")) >= 5
    assert all(e.attributes.get("alt") for e in page.all("img"))
    for part in page.all("section"):
        assert part.attributes.get("aria-labelledby")
    assert page.all("html")[0].attributes["lang"] == "en"


def test_headings_go_down_one_level_at_a_time(whole: str) -> None:
    """One h1, and no level is passed over."""
    levels = [int(e.tag[1]) for e in Page(whole).elements if re.fullmatch("h[1-6]", e.tag)]
    assert levels.count(1) == 1
    assert all(after <= before + 1 for before, after in pairwise(levels))


def test_the_same_report_is_the_same_text(tmp_path: Path) -> None:
    """Rendering twice gives the same bytes: nothing depends on the order of a set or on the time."""
    write_evidence(tmp_path / "e.json", sample.evidence())
    report = make_report(read_inputs([tmp_path / "e.json"]))
    assert render(report) == render(report)


def _scope(**changes: Any) -> Callable[[], MeasuredScope]:
    return lambda: sample.scope(**changes)


def _setting(**changes: Any) -> MeasuredScope:
    made = sample.scope()
    return replace(made, setting=replace(made.setting, **changes))


def _point() -> MeasuredScope:
    made = sample.scope()
    assert made.levels.frontier is not None
    points = (replace(sample.points()[1], name=HOSTILE), *sample.points()[2:])
    return replace(made, levels=replace(made.levels, frontier=replace(made.levels.frontier, points=points)))


@pytest.mark.parametrize(
    "scope",
    [
        _scope(model=HOSTILE),
        _scope(gate=tuple(replace(item, why=HOSTILE) for item in sample.items())),
        lambda: _setting(device=HOSTILE),
        lambda: _setting(timing=HOSTILE),
        lambda: _setting(versions={**sample.scope().setting.versions, "torch": HOSTILE}),
        lambda: replace(sample.scope(), metrics=(replace(sample.metrics()[0], title=HOSTILE, provenance=HOSTILE),)),
        _point,
    ],
)
def test_hostile_evidence_stays_text(scope: Callable[[], MeasuredScope], tmp_path: Path) -> None:
    """Whatever its free texts say, they are shown as they are, and no element or attribute comes of them."""
    write_evidence(tmp_path / "e.json", sample.evidence(scope()))
    text = render(make_report(read_inputs([tmp_path / "e.json"])))
    _holds_text_only(text)


def test_a_hostile_command_stays_text(tmp_path: Path) -> None:
    """The command is shown as a shell would need it written, and still as text."""
    write_evidence(tmp_path / "e.json", sample.evidence(sample.scope(command=("refkv", HOSTILE))))
    text = render(make_report(read_inputs([tmp_path / "e.json"])))
    _holds_text_only(text, shlex.join(("refkv", SHOWN)))


def _holds_text_only(text: str, expected: str = SHOWN) -> None:
    page = Page(text)
    assert page.broken == []
    assert len([e for e in page.all("script") if "type" not in e.attributes]) == 1
    assert all((e.attributes["src"] or "").startswith(DRAWN) for e in page.all("img"))
    assert not [name for e in page.elements for name in e.attributes if name.startswith("on")]
    shown = [*(e.text for e in page.elements), *(v or "" for e in page.elements for v in e.attributes.values())]
    assert any(expected in each for each in shown)
    assert not set("\u202e\u2028") & set(text)


def test_a_hostile_log_stays_text(tmp_path: Path) -> None:
    """Names, reasons, errors and events of a log are shown and never obeyed."""
    with AuditWriter(tmp_path / "log.jsonl", session=HOSTILE) as writer:
        header = {"branches": ["cond"], "device": HOSTILE, "clip": {HOSTILE: HOSTILE}, "versions": {HOSTILE: "1"}}
        writer.begin(HOSTILE, header, replace(TINY, plan=HOSTILE))
        decisions = [Decision(row.site, ".", "R" if row.at.stack == "hint" else ".", HOSTILE) for row in TINY.rows]
        writer.step(HOSTILE, step=0, index=0, branch="cond", sigma=1.0, decisions=decisions, bytes_held=10)
        writer.event(HOSTILE, HOSTILE, why=HOSTILE)
        writer.seal(HOSTILE, outcome="failed", bytes_peak=10, error=HOSTILE)
    report = make_report(read_inputs([tmp_path / "log.jsonl"]))
    assert report.verdict.word == "broken"
    _holds_text_only(render(report))


@pytest.mark.parametrize(
    "change",
    [
        lambda r: r.update(acknowledgements=7),
        lambda r: r.update(acknowledgements=[HOSTILE, None, {"by": ["x", 1.5, {"deep": {"er": [[[[[[[1]]]]]]]}}]}]),
        lambda r: r.update(digests=[HOSTILE], versions={"torch": {"a": [1, 2]}}),
        lambda r: r.update(seed=10**400, steps=1e308),
        lambda r: r["table"]["rules"][0].update(
            name=None, tier=[HOSTILE], budget=HOSTILE, risk={}, params={HOSTILE: 1}
        ),
        lambda r: r["table"]["rules"][0].update(budget=10**400),
    ],
)
def test_a_log_of_the_wrong_shape_does_not_stop_the_report(
    change: Callable[[dict[str, Any]], None], tmp_path: Path
) -> None:
    """A chained log may hold any JSON in its header and rules; the report is still written."""
    from tests.audit.conftest import rechained

    sample.write_log(tmp_path / "good.jsonl", TINY)
    records = [json.loads(line) for line in (tmp_path / "good.jsonl").read_text().splitlines()]
    change(records[0])
    (tmp_path / "bad.jsonl").write_bytes(rechained(records))
    assert "<!doctype html>" in render(make_report(read_inputs([tmp_path / "bad.jsonl"])))


def test_huge_numbers_of_a_log_do_not_stop_the_report(tmp_path: Path) -> None:
    """Bytes, ages and signals beyond what a double holds are shown as such."""
    huge = 10**400
    with AuditWriter(tmp_path / "log.jsonl") as writer:
        writer.begin("r", {"branches": ["cond"]}, TINY)
        decisions = [Decision(row.site, ".", ".", None, huge, huge, huge) for row in TINY.rows]
        writer.step("r", step=0, index=0, branch="cond", sigma=huge, decisions=decisions, bytes_held=huge)
        writer.seal("r", outcome="finished", bytes_peak=huge)
    assert "beyond 1e308" in render(make_report(read_inputs([tmp_path / "log.jsonl"])))


def test_an_empty_log_and_nothing_judged(tmp_path: Path) -> None:
    """An empty log reads as unsealed; drift alone is shown without a verdict."""
    (tmp_path / "empty.jsonl").write_bytes(b"")
    assert make_report(read_inputs([tmp_path / "empty.jsonl"])).verdict.word == "unsealed"
    sample.write_drift(tmp_path / "drift.json")
    report = make_report(read_inputs([tmp_path / "drift.json"]))
    assert "nothing judged" in Page(render(report)).words
