"""`refkv report` from the command line."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

pytest.importorskip("jinja2", reason="Jinja2 is not installed")

from refkv_policy.evidence import read_evidence, write_evidence
from refkv_policy.plan import load_plan
from tests.audit.conftest import TINY
from tests.evidence import sample as evidence_sample
from tests.report import sample

PLAN = """\
version: 1
kind: plan
name: test
models: [wan2.1-vace-mini]
run:
  steps: [12]
  sampler: {name: unipc, flow_shift: 3.0}
  guidance: [3.0, 5.0]
  shapes: [{size: 96x96, frames: 17}]
caches:
  - {name: hints, tier: P1, method: hint_reuse, at: "hint[all]", refresh: {interval: 2}}
acknowledgements:
  - {risk: lossy-hint-cache, by: tests, date: 2026-01-01, reason: needed by a test}
"""


@pytest.fixture
def refkv(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., Result]:
    """Runs a command line in a folder of its own."""
    monkeypatch.chdir(tmp_path)

    def call(*arguments: str) -> Result:
        from refkv_policy.cli import refkv as command

        return CliRunner().invoke(command, ["report", *arguments], prog_name="refkv")

    return call


def test_a_red_verdict_is_no_failure_of_the_report(refkv: Callable[..., Result], tmp_path: Path) -> None:
    """The gate decides; the report is written and exits with 0, and says the verdict and the size."""
    write_evidence(tmp_path / "e.json", sample.evidence())
    done = refkv("e.json", "--out", "r.html")
    assert (done.exit_code, done.stdout) == (0, "")
    assert done.stderr.startswith("r.html: red, 0.")
    assert (tmp_path / "r.html").read_text().startswith("<!doctype html>")


def test_what_cannot_be_trusted_exits_with_1_and_is_shown(refkv: Callable[..., Result], tmp_path: Path) -> None:
    """Edited evidence and a broken log are reported as such, in the page and on stderr."""
    write_evidence(tmp_path / "e.json", sample.evidence(evidence_sample.scope()))
    (tmp_path / "e.json").write_text((tmp_path / "e.json").read_text().replace('"bikes"', '"trikes"'))
    sample.write_log(tmp_path / "a.jsonl", TINY)
    (tmp_path / "a.jsonl").write_bytes((tmp_path / "a.jsonl").read_bytes().replace(b'"cpu"', b'"gpu"', 1))
    done = refkv("e.json", "a.jsonl")
    assert done.exit_code == 1
    assert "problem: e.json: the file was changed after it was written" in done.stderr
    assert "problem: a.jsonl: 1 fault" in done.stderr
    assert "<title>edited: test" in (tmp_path / "report.html").read_text()


def test_a_plan_tells_what_is_stale_and_what_is_missing(refkv: Callable[..., Result], tmp_path: Path) -> None:
    """Held against its plan, green evidence of one guidance leaves the other missing; of another interval it is stale."""
    (tmp_path / "plan.yaml").write_text(PLAN)
    green = evidence_sample.scope(load_plan(tmp_path / "plan.yaml"))
    write_evidence(tmp_path / "e.json", sample.evidence(green))
    done = refkv("e.json", "--plan", "plan.yaml")
    assert (done.exit_code, done.stderr.split(",")[0]) == (0, "report.html: missing")
    text = (tmp_path / "report.html").read_text()
    assert "no evidence given holds wan2.1-vace-mini at 12 steps and guidance 3" in text
    assert "What the plan compiles to today" in text
    (tmp_path / "plan.yaml").write_text(PLAN.replace("interval: 2", "interval: 3"))
    assert refkv("e.json", "--plan", "plan.yaml").stderr.startswith("report.html: stale")


def test_the_recorded_head_ties_a_log_to_the_evidence(refkv: Callable[..., Result], tmp_path: Path) -> None:
    """A log whose head the evidence records is told apart from any other."""
    from refkv_policy.evidence import Audit

    head = sample.write_log(tmp_path / "a.jsonl", TINY)
    write_evidence(tmp_path / "e.json", sample.evidence(sample.scope(audits=(Audit("a.jsonl", head),))))
    refkv("e.json", "a.jsonl")
    assert "given, and its head is the recorded one (a.jsonl)" in (tmp_path / "report.html").read_text()
    refkv("e.json")
    assert "not among the logs given" in (tmp_path / "report.html").read_text()


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        ([], "there is nothing to report: name evidence, an audit log or a run's folder"),
        (["nowhere.json"], "nowhere.json cannot be read: No such file or directory"),
        (["plain.txt"], "plain.txt is neither evidence, an audit log nor drift figures"),
        (["empty"], "empty is no folder of a run: it holds no audit.jsonl, output.mp4 or compare.mp4"),
        (["e.json", "--video", "planned"], "--video planned is not NAME=FILE"),
        (["e.json", "--video", "planned=x.mp4"], "x.mp4 does not exist; give the path of a video file"),
        (["e.json", "--video", "planned=e.json"], "e.json is not a video that can be read"),
        (["e.json", "--out", "nowhere/r.html"], "cannot write nowhere/r.html"),
        (["e.json", "--png", "plain.txt"], "cannot make the folder plain.txt"),
        (["e.json", "--plan", "no-such-plan"], "there is no plan no-such-plan"),
        (["latin.json"], "latin.json cannot be read: it is not UTF-8 text"),
    ],
)
def test_what_cannot_be_done_is_a_sentence(
    refkv: Callable[..., Result], tmp_path: Path, arguments: list[str], sentence: str
) -> None:
    """Exit status 2, one sentence, no traceback, and nothing half-written."""
    (tmp_path / "plain.txt").write_text("hello")
    (tmp_path / "latin.json").write_bytes(b'{"kind": "\xe9"}')
    (tmp_path / "empty").mkdir()
    write_evidence(tmp_path / "e.json", sample.evidence())
    done = refkv(*arguments)
    said = done.stderr if done.exception is None or isinstance(done.exception, SystemExit) else repr(done.exception)
    assert done.exit_code == 2, said
    assert sentence in said
    assert "Traceback" not in said
    assert not list(tmp_path.glob(".*.part*"))


def test_evidence_that_contradicts_itself_is_refused(refkv: Callable[..., Result], tmp_path: Path) -> None:
    """What cannot be trusted to be evidence at all is told at its line, and no report is made of it."""
    text = evidence_sample.forged(evidence_sample.value(), lambda v: v.update(verdict="red"))
    (tmp_path / "e.json").write_text(text)
    done = refkv("e.json")
    assert done.exit_code == 2
    assert "RKV514" in done.stderr
    assert not (tmp_path / "report.html").exists()


def test_a_run_folder_is_taken_whole(refkv: Callable[..., Result], tmp_path: Path) -> None:
    """Of a folder that `refkv run` left, the log and the videos are shown."""
    pytest.importorskip("av", reason="PyAV is not installed")
    from refkv_policy.video import side_by_side, write_clip

    folder = tmp_path / "out" / "x"
    folder.mkdir(parents=True)
    sample.write_log(folder / "audit.jsonl", TINY)
    clips = [(name, sample.numbered(frames=3)) for name in ("input", "uncached", "planned")]
    write_clip(folder / "compare.mp4", side_by_side(clips), 16)
    done = refkv("out/x", "--out", "out/x/report.html")
    assert done.stderr.startswith("out/x/report.html: ok")
    text = (folder / "report.html").read_text()
    assert text.count('class="panel') == 3
    assert "compare.mp4" in text


def test_it_imports_no_torch() -> None:
    """A report of evidence is made without torch, diffusers, numpy or a plotting library."""
    script = (
        "import sys; from refkv_policy.cli import report; import refkv_policy.report.page, refkv_policy.report.write; "
        "print(sorted({'torch', 'diffusers', 'numpy', 'matplotlib', 'av', 'rich'} & set(sys.modules)))"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True, timeout=120)
    assert done.stdout.strip() == "[]"


def test_several_documents_are_told_apart(refkv: Callable[..., Result], tmp_path: Path) -> None:
    """Evidence of two plans makes one report that names both, the worse one first."""
    green = replace(sample.evidence(evidence_sample.scope()), plan="green-plan")
    write_evidence(tmp_path / "a.json", green)
    write_evidence(tmp_path / "b.json", sample.evidence())
    refkv("a.json", "b.json")
    text = (tmp_path / "report.html").read_text()
    assert "green-plan, test" in text
    assert text.index('id="test-wan2.1-vace-mini-12-g5"') < text.index('id="green-plan-wan2.1-vace-mini-12-g5"')


def test_a_report_never_takes_the_place_of_its_inputs(refkv: Callable[..., Result], tmp_path: Path) -> None:
    """Evidence, and the log of a run's folder, are refused as --out, by whatever path, and stay as they are."""
    evidence = tmp_path / "e.json"
    evidence.write_text(text := sample.evidence_sample.text())
    folder = tmp_path / "run"
    folder.mkdir()
    (folder / "audit.jsonl").write_text("{}\n")
    (tmp_path / "link.html").symlink_to(evidence)
    for inputs, out in ((["e.json"], "./e.json"), (["e.json"], "link.html"), (["run"], "run/audit.jsonl")):
        done = refkv(*inputs, "--out", out)
        assert (out, done.exit_code) == (out, 2)
        assert f"--out {out} would overwrite" in done.stderr
    assert evidence.read_text() == text
    assert (folder / "audit.jsonl").read_text() == "{}\n"


def test_the_shipped_evidence_in_one_page(refkv: Callable[..., Result], tmp_path: Path) -> None:
    """More scopes than are opened at once: all are there, in order of concern, the first of them open."""
    files = sorted((Path(__file__).resolve().parents[2] / "evidence").glob("*.json"))
    assert len(files) > 3
    done = refkv(*map(str, files), "--out", "r.html")
    assert done.exit_code == 0, done.output
    page = (tmp_path / "r.html").read_text()
    scopes = [entry for file in files for entry in read_evidence(file)[0].scopes]  # type: ignore[union-attr]
    assert page.count('<details class="scope"') == len(scopes) > len(files)
    assert page.count('<details class="scope" open') == 1
    assert page.index('<details class="scope" open') == page.index('<details class="scope"')


def test_two_plans_of_one_name_are_refused(refkv: Callable[..., Result], tmp_path: Path) -> None:
    """Evidence names its plan, and a name that two files have does not say which; the same file twice is no harm."""
    write_evidence(tmp_path / "e.json", sample.evidence())
    (tmp_path / "a.yaml").write_text(PLAN)
    (tmp_path / "b.yaml").write_text(PLAN.replace("interval: 2", "interval: 3"))
    done = refkv("e.json", "--plan", "a.yaml", "--plan", "b.yaml", "--out", "r.html")
    assert done.exit_code != 0
    assert "a.yaml and b.yaml are both named test" in done.stderr
    assert not (tmp_path / "r.html").exists()
    assert refkv("e.json", "--plan", "a.yaml", "--plan", "a.yaml", "--out", "r.html").exit_code == 0


def test_what_cannot_be_reported_is_told_and_nothing_is_written(refkv: Callable[..., Result], tmp_path: Path) -> None:
    """Exit status 2: evidence that is none, an unsound plan, a pipe, a log without a line, drift beyond all measure."""
    write_evidence(tmp_path / "e.json", sample.evidence())
    (tmp_path / "bad.json").write_text('{"kind":"evidence","version":1}')
    (tmp_path / "bad.yaml").write_text("version: 1\n")
    (tmp_path / "no.jsonl").write_text("this is not a log")
    os.mkfifo(tmp_path / "pipe.json")
    curve = {
        "site": "hint[0]",
        "branch": "cond",
        "against": "first",
        "measure": "relative_l2",
        "steps": [0],
        "mean": [0.1],
    }
    for number, change in enumerate(({"mean": [10**400]}, {"mean": [1e308]}, {"steps": [10**30]}, {"mean": [5e-324]})):
        value = {"kind": "drift", "version": 1, "series": [{**curve, **change}]}
        (tmp_path / f"drift{number}.json").write_text(json.dumps(value))
    names = ["bad.json", "pipe.json", "no.jsonl", *(f"drift{n}.json" for n in range(4))]
    for arguments in (*([name] for name in names), ["e.json", "--plan", "bad.yaml"], ["e.json", "--png", ""]):
        done = refkv(*arguments, "--out", "r.html")
        assert (done.exit_code, done.stderr.startswith("refkv: ")) == (2, True), (arguments, done.stderr)
        assert "Error" not in done.stderr
        assert not (tmp_path / "r.html").exists()


@pytest.mark.parametrize("kind", ["pipe", "link"])
def test_the_page_takes_no_devices_place(refkv: Callable[..., Result], tmp_path: Path, kind: str) -> None:
    """A pipe stays a pipe; through a link the file it leads to is written."""
    write_evidence(tmp_path / "e.json", sample.evidence())
    place = tmp_path / "place.html"
    if kind == "pipe":
        os.mkfifo(place)
    else:
        place.symlink_to(tmp_path / "real.html")
    done = refkv("e.json", "--out", "place.html")
    if kind == "pipe":
        assert (done.exit_code, "it is a device or a pipe" in done.stderr) == (2, True)
        assert place.is_fifo()
    else:
        assert done.exit_code == 0
        assert place.is_symlink()
        assert (tmp_path / "real.html").read_text().startswith("<!doctype html>")
