"""Texts that others wrote (reasons, names of files, titles, messages of git) do nothing but stand there, in every output."""

from __future__ import annotations

import html
import io
import json
import os
import re
import shutil
import subprocess
import unicodedata
from collections.abc import Callable
from pathlib import Path

import pytest
import yaml
from click.testing import Result
from hypothesis import example, given
from hypothesis import strategies as st
from rich.console import Console

from refkv_policy.cli import explain_text
from refkv_policy.cli.diff_text import NO_LINK
from refkv_policy.plan.wording import inert, json_text, visible
from refkv_policy.resources import resource
from tests.cli.conftest import PLAN

Refkv = Callable[..., Result]

FORGED = "other.yaml: nothing changed"
HOSTILE = {
    "lines": f"fine\r\n\n{FORGED}\n\t{FORGED}\r{FORGED}\u2028{FORGED}\u2029{FORGED}\x85{FORGED}\x0b{FORGED}\x0c{FORGED}",
    "commands": "fine\n::error file=plans/other.yaml,line=1::forged\n  ::add-mask::x\n\u3000::stop-commands::x\n::::notice::x",
    "commands anywhere": "fine ##[error]forged ##vso[task.complete]x ##teamcity[buildStatus text='x'] ###[group]x",
    "terminal": "fine\x1b[2J\x1b]0;owned\x07\x1b[31mred\x08\x7f\x9b1m\x00",
    "direction": "fine \u202etxet\u202c \u2066x\u2069 \u200fx \u061cx",
    "nothing seen": "fi\u200bne\u200d\u2060\ufeff\u00ad\u034f\u3164\u115f\ufe0f\U000e0041\U000e0101\u2800",
    "calls": "fine @team @org/team #1 \\@team &#64;team &#8238;x &rlm;x &ZeroWidthSpace;x &lt;b&gt;",
    "markup": "fine ~~x~~ $x$ <!-- x --> <script>x</script> [x](y) |x| `x` [bold]x[/bold] [/] {0} %s %(x)s {x.__class__}",
    "wrapped": "fine " * 30 + f"{'x' * 97} ::error::forged {'x' * 97} {FORGED}",
}

EVERY = "\n".join(HOSTILE.values())
NAMED = f"x\n{FORGED}\n::error::x\u202ex\x1b[31m[/]"
"""Short enough for the name of a file."""


def hidden(text: str) -> set[str]:
    """Characters of a text that cannot be seen, or change how others are seen; a line feed is none."""
    return {c for c in text if c != "\n" and unicodedata.category(c) in ("Cc", "Cf", "Cs", "Co", "Cn", "Zl", "Zp")}


def check(text: str, github: bool = False, markdown: bool = False) -> None:
    """Asserts that an output holds nothing but visible characters, and no line or command that refkv did not mean."""
    assert not hidden(text), {f"{ord(c):04X}" for c in hidden(text)}
    for line in text.split("\n"):
        assert not line.startswith(FORGED), text
        if github and line:
            assert re.match(r"::(error|warning|notice) title=RKV\d{3} ", line), line
        else:
            assert not re.match(r"\s*::", line), line
    if not github:
        assert not re.search(r"##\w*\[", text), text
    if markdown:
        told = text.replace(NO_LINK, "·")
        assert not re.search(r"[@#]\w", told), text
        assert not hidden(html.unescape(told)), text
        assert not re.search(r"(?<!\\)<(?!/?(details|summary)>)", told), text


def checked(result: Result, status: set[int], **how: bool) -> str:
    """The output of a command that ended as it should, both streams looked at."""
    assert result.exit_code in status, result.output
    assert "Traceback" not in result.output
    check(result.stdout, **how)
    check(result.stderr)
    return result.stdout


def accepted(text: str) -> str:
    """What of a text a plan may say with escapes: any but controls, line feeds excepted."""
    return "".join(c for c in text if c == "\n" or unicodedata.category(c) not in ("Cc", "Cs"))


def as_yaml(value: object) -> str:
    """A document on few lines, in which whatever is refused raw is escaped."""
    return yaml.safe_dump(value, width=1 << 20)


def file_name(text: str) -> str:
    """A file name that says as much of a text as the system takes."""
    return text.replace("/", "|").replace("\0", "").encode()[:200].decode(errors="ignore")


@pytest.fixture(params=HOSTILE)
def hostile(request: pytest.FixtureRequest) -> str:
    """One of the texts."""
    return HOSTILE[request.param]


@pytest.fixture
def plans(refkv: Refkv, tmp_path: Path, hostile: str, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A repository with a sound plan that holds the text wherever one is free, its name and its profile's among them."""
    for name in ("GIT_DIR", "GIT_INDEX_FILE", "GIT_WORK_TREE"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("GIT_CONFIG_GLOBAL", os.devnull)
    folder = tmp_path / "plans"
    folder.mkdir()
    profile = yaml.safe_load(resource("refkv_policy/profiles/wan2.1-vace-mini.yaml").read_text())
    said = accepted(hostile)
    name = f"{file_name(said)}.yaml"
    (folder / name).write_text(as_yaml({**profile, "title": said}))
    plan = yaml.safe_load(PLAN)
    plan["description"] = said
    plan["models"] = [f"./{name}"] if "\n" not in name else plan["models"]
    plan["acknowledgements"][0] |= {"reason": said, "by": said, "date": "2026-11-30"}
    (folder / "a.yaml").write_text(as_yaml(plan))
    git("init", "-q")
    git("add", "-A")
    git("-c", "user.email=a@b", "-c", "user.name=x", "commit", "-qm", "x")
    return folder


def git(*arguments: str) -> None:
    """Runs git in the working directory."""
    subprocess.run(["git", *arguments], check=True, capture_output=True)


def change(plan: Path, hostile: str) -> None:
    """Other behaviour, and other texts."""
    value = yaml.safe_load(plan.read_text())
    value["caches"][0]["refresh"]["interval"] = 3
    value["description"] = f"{accepted(hostile)} anew"
    value["acknowledgements"][0]["reason"] = f"{accepted(hostile)} anew"
    plan.write_text(as_yaml(value))


@pytest.mark.parametrize("form", ["text", "concise", "json", "github", "sarif"])
def test_validate(refkv: Refkv, plans: Path, hostile: str, form: str) -> None:
    """Of a plan whose keys, values and name are hostile, in every format."""
    value = yaml.safe_load((plans / "a.yaml").read_text())
    spoilt = {**value, hostile: 1, "purpose": hostile, "models": [hostile, f"{hostile}.yaml"]}
    spoilt["caches"] = [{**value["caches"][0], "at": hostile, "method": hostile, "name": hostile}]
    spoilt["acknowledgements"] = [
        {**value["acknowledgements"][0], "evidence": hostile, "risk": hostile, "date": hostile}
    ]
    broken = plans / f"{file_name(hostile)} broken.yaml"
    broken.write_text(json.dumps(spoilt, ensure_ascii=False).replace("\0", ""), encoding="utf-8", errors="replace")
    (plans / "guardrails.yaml").write_text(json.dumps({"version": 1, "kind": "guardrails", hostile: [hostile]}))
    for target in (broken, plans / "a.yaml"):
        out = checked(refkv("validate", target, "--format", form), {0, 1}, github=form == "github")
        if form in ("json", "sarif"):
            json.loads(out)
            assert out.isascii()


@pytest.mark.parametrize("form", ["text", "markdown", "json"])
def test_diff(refkv: Refkv, plans: Path, hostile: str, form: str) -> None:
    """Of two files and of a revision: neither lines nor commands of a plan's own, and in Markdown nobody is called."""
    old = plans / f"{file_name(hostile)}.old"
    shutil.copy(plans / "a.yaml", old)
    change(plans / "a.yaml", hostile)
    how = {"markdown": form == "markdown"}
    assert (
        "fine" in checked(refkv("diff", old, plans / "a.yaml", "--format", form), {0}, **how) or "fine" not in hostile
    )
    checked(refkv("diff", "--base", "HEAD", "plans", "--format", form), {0, 1}, **how)
    checked(refkv("diff", "--base", hostile.replace("\0", ""), "plans", "--format", form), {2})


def test_explain_compile_and_dry_run(refkv: Refkv, plans: Path, hostile: str) -> None:
    """Of a sound plan: pages, JSON, locks that are written, printed, stale and in the way."""
    plan, model = plans / "a.yaml", ("--model", "wan2.1-vace-mini")
    checked(refkv("explain", plan, *model), {0})
    assert checked(refkv("explain", plan, *model, "--json"), {0}).isascii()
    checked(refkv("run", "--plan", plan, "--dry-run"), {0})
    for arguments in ([], ["--check"], ["--stdout"], ["--json"], ["--check", "--json"]):
        checked(refkv("compile", *arguments, plan), {0})
    (plans / "a.lock").write_text(hostile, "utf-8")
    checked(refkv("compile", "--check", plan), {1})
    (plans / "a.lock").write_text(f"{hostile.encode('ascii', 'ignore').decode()}\n", "ascii")
    checked(refkv("compile", "--check", plan), {1})


def test_explain_on_a_terminal(refkv: Refkv, plans: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its colours are there, and nothing else that could steer the terminal."""
    monkeypatch.setattr(explain_text, "_console", lambda: Console(force_terminal=True, width=100, file=io.StringIO()))
    result = refkv("explain", plans / "a.yaml", "--model", "wan2.1-vace-mini", color=True)
    assert result.exit_code == 0, result.output
    assert "\x1b[1mtiny" in result.stdout
    check(re.sub(r"\x1b\[[0-9;]*m", "", result.stdout))


@pytest.mark.parametrize(
    "command",
    [
        ["validate"], ["compile"], ["explain"], ["diff", "x.yaml"], ["run", "--plan"], ["report"], ["rule"], ["schema"],
        ["schema", "--method"], ["audit", "verify"], ["audit", "show"], ["audit"], ["export", "--to", "vllm-omni"], [],
        ["import", "--from", "vllm-omni-flags"], ["import", "--from", "vllm-omni-config"], ["gate"], ["sweep"], ["drift"],
        ["run", "--model"], ["run", "--video"], ["run", "--size"], ["run", "--device"], ["validate", "--format"],
        ["validate", "--guardrails"], ["init", "--tier", "P0", "--model"], ["models"], ["diff", "--base"], ["plans", "--"],
        ["init", "--tier", "P1", "--model", "wan2.1-vace-mini", "--out", "-", "--by"], ["sweep", "p.yaml", "--clips"],
        ["init", "--tier", "P0", "--model", "wan2.1-vace-mini", "--out", "-", "--name"], ["sweep", "p.yaml", "--vary"],
    ],
    ids=" ".join,
)  # fmt: skip
@pytest.mark.parametrize("as_option", [False, True])
def test_arguments(refkv: Refkv, plan_file: Path, command: list[str], as_option: bool) -> None:
    """What is said of a command line, and of files that are not there."""
    plan_file.rename("p.yaml")
    checked(refkv(*command, f"--{EVERY}" if as_option else EVERY), {0, 1, 2})


def test_files_named_so(refkv: Refkv, plans: Path, tmp_path: Path, hostile: str) -> None:
    """Files that are there and are not what they should be."""
    place = tmp_path / file_name(hostile)
    place.write_text(json.dumps({hostile: hostile, "version": hostile, "kind": hostile}))
    for command in (
        ["validate", place], ["explain", place], ["compile", place], ["audit", "verify", place],
        ["report", place, "--out", "x.html"],
        ["import", "--from", "vllm-omni-config", place], ["import", "--from", "vllm-omni-deploy", place],
        ["validate", "--guardrails", place, plans / "a.yaml"], ["run", "--model", place], ["run", "--video", place],
        ["run", "--out", place / "x"], ["init", "--tier", "P0", "--model", "wan2.1-vace-mini", "--out", place],
        ["gate", plans / "a.yaml", "--features", place], ["drift", plans / "a.yaml", "--clips", place],
    ):  # fmt: skip
        checked(refkv(*command), {1, 2})


def test_a_run_its_log_and_its_report(refkv: Refkv, model_folder: Path, tmp_path: Path) -> None:
    """The names of model, clip and results, and what a log and a page make of a plan's texts."""
    model, out = tmp_path / file_name(NAMED), tmp_path / f"{file_name(NAMED)} out"
    shutil.copytree(model_folder, model)
    value = yaml.safe_load(PLAN)
    value["acknowledgements"][0] |= {"reason": accepted(EVERY), "by": accepted(EVERY), "date": "2026-11-30"}
    plan = tmp_path / f"{file_name(NAMED)}.yaml"
    plan.write_text(as_yaml(value))
    run = ("run", "--plan", plan, "--model", model, "--out", out, "--steps", "4", "--size", "32x32", "--frames", "5")
    checked(refkv(*run), {0})
    for command in (
        ["verify"],
        ["show"],
        ["show", "--step", "1"],
        ["summary"],
        ["summary", "--json"],
        ["show", "--json"],
    ):
        checked(refkv("audit", command[0], out / "audit.jsonl", *command[1:]), {0, 1})
    checked(refkv("report", out, "--out", tmp_path / "page.html"), {0, 1})
    page = re.sub(r"<(script|style)\b.*?</\1>", "", (tmp_path / "page.html").read_text("utf-8"), flags=re.DOTALL)
    assert not hidden(html.unescape(page))


@given(st.text())
@example("".join(HOSTILE.values()))
@example("a\x1c::error::x")
def test_a_text_is_made_inert(text: str) -> None:
    """Of any text: one line, nothing hidden, no command; and making it inert once more changes nothing."""
    shown = visible(text)
    check(shown)
    check(inert(text.replace(FORGED, "")))
    assert "\n" not in shown
    assert visible(shown) == shown
    assert json.loads(json_text([text])) == [text]
    assert json_text([text]).isascii()


def test_what_can_be_seen_stays() -> None:
    """Letters, accents, ideographs, emoji, and `::` and `##` within a text are left as they are."""
    text = "Łódź é 画像 σ × – 🎬 a::b ## x"
    assert visible(text) == inert(text) == text
