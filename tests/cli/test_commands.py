"""The group itself, `compile`, `explain`, `plans` and `models`."""

from __future__ import annotations

import errno
import json
import os
import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]


def test_help_lists_every_command(refkv: Callable) -> None:
    """`refkv --help` names each command with what it does, and the exit statuses."""
    result = refkv("--help")
    assert result.exit_code == 0
    for name in ("run", "validate", "compile", "explain", "audit", "plans", "models"):
        assert f"\n  {name} " in result.stdout
    assert "Exit status" in result.stdout


def test_versions_are_told_without_importing_torch(tmp_path: Path) -> None:
    """refkv's, python's, and those of the libraries that a report of a fault has to name; `python -m refkv_policy` works."""
    import importlib.metadata
    import platform

    from refkv_policy import __version__

    code = (
        "import runpy, sys; sys.argv = ['refkv', '--version']\n"
        "try:\n    runpy.run_module('refkv_policy', run_name='__main__')\nexcept SystemExit as stop:\n"
        "    assert not stop.code\nassert not {'torch', 'diffusers'} & set(sys.modules)\n"
    )
    done = subprocess.run([sys.executable, "-c", code], cwd=tmp_path, capture_output=True, text=True, check=True)
    assert done.stdout.splitlines() == [
        f"refkv {__version__}",
        f"python {platform.python_version()}",
        f"torch {importlib.metadata.version('torch')}",
        f"diffusers {importlib.metadata.version('diffusers')}",
    ]


def test_schemas_are_listed_by_kind_and_title(refkv: Callable) -> None:
    """Each kind once, with its version once."""
    lines = refkv("schema").stdout.splitlines()
    assert "plan        refkv plan, version 1" in lines
    assert all(line.count("version") == 1 for line in lines)


@pytest.mark.parametrize(
    ("number", "help"),
    [
        (errno.EROFS, "make the folder writable, or print the lock with --stdout"),
        (errno.EACCES, "make the folder writable, or print the lock with --stdout"),
        (errno.ENOSPC, "make room"),
        (errno.EDQUOT, "make room"),
    ],
)
def test_a_lock_that_cannot_be_written_says_what_would_help(
    refkv: Callable, plan_file: Path, monkeypatch: pytest.MonkeyPatch, number: int, help: str
) -> None:
    """A read-only disk lacks no room, and a full one no permission."""
    from refkv_policy.compiler import lock

    def refused(*_: object) -> bool:
        raise OSError(number, os.strerror(number))

    monkeypatch.setattr(lock, "write_lock", refused)
    result = refkv("compile", plan_file)
    assert (result.exit_code, result.stderr.strip().endswith(f"{os.strerror(number)}; {help}")) == (2, True), (
        result.stderr
    )


@pytest.mark.parametrize(
    "arguments",
    [
        ("validate", "none.yaml"), ("explain", "none"), ("compile", "none.yaml"), ("diff", "none.yaml", "wan21_p0"),
        ("diff", "plans", "plans"), ("run", "--plan", "none"), ("sweep", "none"), ("gate", "none"), ("drift", "none"),
        ("export", "none", "--to", "vllm-omni"), ("import", "--from", "vllm-omni-config", "none"), ("rule", "RKV999"),
        ("report", "none.json"), ("schema", "none"), ("init", "--model", "none", "--tier", "P0"),
        ("audit", "verify", "none"), ("audit", "show", "none"), ("audit", "summary", "none"), ("none",),
        ("validate", "--severity", "none"),
    ],
    ids=" ".join,
)  # fmt: skip
def test_what_is_not_there_is_status_two(refkv: Callable, plan_file: Path, arguments: tuple[str, ...]) -> None:
    """A command that could not do its work exits with 2; 1 is kept for plans, locks, logs and evidence that fall short."""
    result = refkv(*arguments)
    assert result.exit_code == 2, result.output
    assert result.stderr or "RKV001" in result.stdout


def test_mistyped_command_is_guessed(refkv: Callable) -> None:
    """A mistyped command exits with 2 and names the nearest."""
    result = refkv("vlidate")
    assert result.exit_code == 2
    assert "did you mean 'validate'?" in result.stderr


def test_unexpected_exceptions_are_one_sentence(refkv: Callable, monkeypatch: pytest.MonkeyPatch) -> None:
    """A defect is told in one line, with its traceback only under REFKV_DEBUG=1; the exit status is 2."""

    def defect() -> None:
        raise RuntimeError("boom")

    monkeypatch.setattr("refkv_policy.cli.plans.shipped_plans", defect)
    result = refkv("plans")
    assert result.exit_code == 2
    assert result.stderr == "refkv: RuntimeError: boom (set REFKV_DEBUG=1 to see where)\n"
    monkeypatch.setenv("REFKV_DEBUG", "1")
    assert "Traceback" in refkv("plans").stderr


def test_a_closed_pipe_is_no_error() -> None:
    """`refkv models | head -1` ends quietly."""
    command = f"{sys.executable} -m refkv_policy.cli models --json | head -1"
    done = subprocess.run(["bash", "-o", "pipefail", "-c", command], cwd=ROOT, capture_output=True, text=True)
    assert (done.returncode, done.stderr) == (0, "")


def test_launcher_of_a_checkout() -> None:
    """`python cli.py` does what the installed command does."""
    done = subprocess.run([sys.executable, "cli.py", "--version"], cwd=ROOT, capture_output=True, text=True, check=True)
    assert done.stdout.startswith("refkv ")


def test_compile_writes_and_checks_locks(refkv: Callable, plan_file: Path) -> None:
    """The lock is written beside the plan; --check passes then, survives a comment, and fails on a changed interval."""
    assert refkv("compile", "--check", plan_file).exit_code == 1
    result = refkv("compile", plan_file)
    assert result.exit_code == 0, result.output
    lock = plan_file.with_suffix(".lock")
    assert lock.read_text().startswith("# refkv lock")
    assert "\nhint[03] +main[06] CRC" in lock.read_text() or "\nhint[03] +main[06] CR" in lock.read_text()
    assert refkv("compile", "--check", "plans").exit_code == 0
    plan_file.write_text("# a comment\n" + plan_file.read_text())
    assert refkv("compile", "--check", plan_file).exit_code == 0
    plan_file.write_text(plan_file.read_text().replace("interval: 2", "interval: 3"))
    before = lock.read_bytes()
    result = refkv("compile", "--check", "--json", plan_file)
    assert result.exit_code == 1
    (told,) = json.loads(result.stdout)["plans"]
    assert told["state"] == "stale"
    assert "first difference: -" in result.stderr + result.stdout
    assert "first difference: -table" not in result.stderr + result.stdout, "a digest tells a reader nothing"
    assert lock.read_bytes() == before
    assert [p.name for p in plan_file.parent.iterdir()] == ["tiny.yaml", "tiny.lock"] or len(
        list(plan_file.parent.iterdir())
    ) == 2


def test_compile_of_an_unsound_plan_writes_nothing(refkv: Callable, plan_file: Path) -> None:
    """An unsound plan exits with 1 and leaves no lock."""
    plan_file.write_text(plan_file.read_text().replace("P1", "P0"))
    result = refkv("compile", plan_file)
    assert result.exit_code == 1
    assert "RKV301" in result.stderr
    assert not plan_file.with_suffix(".lock").exists()


def test_shipped_locks_are_current(refkv: Callable) -> None:
    """Every shipped plan's lock is the one it compiles to."""
    assert refkv("compile", "--check", ROOT / "plans").exit_code == 0


def test_explain_shows_rules_map_and_figures(refkv: Callable) -> None:
    """`explain` names the risk and who accepted it, draws the map, and its figures are those of the compiler."""
    result = refkv("explain", "wan21_p1_k4", "--model", "wan2.1-vace-1.3b")
    assert result.exit_code == 0, result.output
    for text in ("hint[8-14]", "CRRRCRRR", "lossy-hint-cache, accepted by", "hits", "peak cache"):
        assert text in result.stdout
    value = json.loads(refkv("explain", "wan21_p1_k4", "--model", "wan2.1-vace-1.3b", "--json").stdout)
    # Seven hints, 30 steps, fresh at 0, 4, …, 28: 22 hits and 8 misses each, in two branches.
    predicted = value["predicted"]["832x480x81"]
    assert (predicted["hits"], predicted["misses"]) == (7 * 22 * 2, 7 * 8 * 2)
    # 32,760 tokens of width 1536 in two bytes, seven hints, two branches.
    assert predicted["bytes_peak"] == 32_760 * 1536 * 2 * 7 * 2


def test_explain_at_another_size(refkv: Callable) -> None:
    """--size and --frames predict for that size; one off the grid is a sentence."""
    value = json.loads(refkv("explain", "wan21_p1_k4", "--size", "1280x720", "--frames", "81", "--json").stdout)
    assert list(value["predicted"]) == ["1280x720x81"]
    result = refkv("explain", "wan21_p1_k4", "--size", "1280x721")
    assert result.exit_code == 2
    assert "multiples of 16x16" in result.stderr


def explained(refkv: Callable, *words: object) -> dict:
    """What `explain` says of the 1.3B at 720p, for machines."""
    at = ("--model", "wan2.1-vace-1.3b", "--size", "1280x720", "--frames", "81", "--format", "json")
    return json.loads(refkv("explain", *words, *at).stdout)


def test_explain_sets_what_a_plan_achieves_beside_what_its_tier_could(refkv: Callable) -> None:
    """Shares add up to one, the ceiling is the chain's share of a step, and the plan's part of it is what it saves."""
    value = explained(refkv, "wan21_p1_k4")["predicted"]["1280x720x81"]
    parts = value["components"].values()
    assert sum(part["share_uncached"] for part in parts) == pytest.approx(1)
    assert sum(part["share_planned"] for part in parts) == pytest.approx(1)
    assert sum(part["flops_planned"] for part in parts) == value["flops_planned"]
    bound = value["ceilings"]["P1"]
    assert bound["most"] == pytest.approx(0.335, abs=1e-3)
    assert bound["spared"] == pytest.approx(value["flops_saved"]) == value["spared_by_rule"]["deep-hints"]
    # A step on which seven of fifteen blocks are spared costs less; the eight on which all run cost a whole one.
    assert value["step_shares"][:5] == [1.0, *[pytest.approx(0.8436, abs=1e-4)] * 3, 1.0]
    # One branch alone needs half of what both need: 75,600 tokens of width 1536 in two bytes, seven hints.
    assert value["bytes_branch"] == {"cond": 75_600 * 1536 * 2 * 7, "uncond": 75_600 * 1536 * 2 * 7}


def test_explain_says_why_for_machines_too(refkv: Callable) -> None:
    """Each group of sites has its rule, its place in the plan and its reasons; `--json` is the same as `--format json`."""
    value = explained(refkv, "wan21_p1_k4")
    deep = next(entry for entry in value["sites"] if entry["sites"] == "hint[8-14]")
    assert (deep["rule"], deep["line"], deep["column"]) == ("deep-hints", 19, 9)
    assert value["rules"][0]["between"] == "reuse the newest fresh hint, at most 3 steps old"
    assert value["rules"][0]["risks"][0]["risk"] == "lossy-hint-cache"
    assert value["format_version"] == 1
    same = ("explain", "wan21_p0", "--model", "wan2.1-vace-mini")
    assert refkv(*same, "--json").stdout == refkv(*same, "--format", "json").stdout


@pytest.mark.parametrize("width", [80, 120])
def test_explain_keeps_to_the_width_and_is_plain_when_piped(
    refkv: Callable, monkeypatch: pytest.MonkeyPatch, width: int
) -> None:
    """No line is longer than asked for, none ends in spaces, none holds an escape; every section is there."""
    monkeypatch.setenv("COLUMNS", str(width))
    monkeypatch.setenv("FORCE_COLOR", "")
    text = refkv("explain", "wan21_p1_sigma11", "--model", "wan2.1-vace-14b").stdout
    assert max(map(len, text.splitlines())) <= width
    assert not any(line.endswith(" ") for line in text.splitlines())
    assert "\x1b" not in text
    for heading in ("rules", "table", "why each site is what it is", "predicted at 832x480x81"):
        assert any(line.startswith(heading) for line in text.splitlines()), heading
    for phrase in ("hints for nothing", "all rules together save", "peak memory of", "steps each cost"):
        assert phrase in text


def test_explain_repeats_what_validate_warns_of(refkv: Callable, plan_file: Path) -> None:
    """Four steps are few: a warning that does not keep the plan from compiling is told beside what it compiles to."""
    text = refkv("explain", plan_file).stdout
    assert "RKV316 rule 'deep-hints' reuses values across steps, of which a run has only 4" in " ".join(text.split())
    (warning,) = json.loads(refkv("explain", plan_file, "--json").stdout)["warnings"]
    assert (warning["code"], warning["line"]) == ("RKV316", 15)


def test_explain_says_where_quantized_attention_is_served(refkv: Callable) -> None:
    """Platform, backend, what stays native, and that nobody tested it on such a model."""
    text = refkv("explain", ROOT / "tests" / "cases" / "valid" / "quantized_reuse.yaml").stdout
    assert "self-attention fp8 on npu, flash_attn (dense); native at steps 0-1,28-29, main[0,11]" in text
    assert "not tested" in text


PLAIN = """version: 1
kind: plan
name: plain
models: [wan2.1-t2v-1.3b, wan2.1-t2v-14b]
run:
  steps: [30]
  sampler: {name: dpm++, flow_shift: 5.0}
  guidance: 5.0
  shapes: [{size: 832x480, frames: 81}]
caches:
  - {name: text, tier: P0, method: text_kv, at: "main[all].text_kv"}
  - {name: middle, tier: S, method: residual_reuse, at: "main[8..21]", refresh: {interval: 2}}
acknowledgements:
  - {risk: lossy-main-cache, by: tests, date: 2026-01-01, reason: a test}
"""


def test_a_plan_for_plain_wan(refkv: Callable, tmp_path: Path) -> None:
    """Validated, locked and explained: a map without hints, ceilings without P1, a span's share of the FLOPs."""
    plan = tmp_path / "plain.yaml"
    plan.write_text(PLAIN)
    assert refkv("validate", plan).exit_code == 0
    assert refkv("compile", plan).exit_code == 0
    lock = plan.with_suffix(".lock").read_text()
    assert "sampler dpm++ flow_shift=5" in lock
    assert "main[8..21]      CRCRCR" in lock
    assert "hint" not in lock
    assert "vace" not in lock
    text = refkv("explain", plan).stdout
    assert "main[8-21]" in text
    assert not {"hint", "VACE", "P1"} & set(re.findall(r"\w+", text))
    value = json.loads(refkv("explain", plan, "--json").stdout)["predicted"]["832x480x81"]
    assert set(value["ceilings"]) == {"P0", "S"}
    # Fourteen of thirty blocks at fifteen of thirty steps, all blocks alike.
    assert value["ceilings"]["S"]["spared"] == pytest.approx(14 / 30 / 2, abs=1e-3)
    # The residual in float32, and K and V of 512 tokens in bfloat16, in two branches.
    assert value["bytes_peak"] == 2 * (32_760 * 1536 * 4 + 30 * 2 * 512 * 1536 * 2)
    mistyped = plan.read_text().replace("dpm++", "dpm+")
    plan.write_text(mistyped)
    assert "did you mean `dpm++`?" in refkv("validate", plan).stdout


def test_plans_and_models_are_listed(refkv: Callable) -> None:
    """The shipped plans and profiles are listed, for people and for machines."""
    plans = json.loads(refkv("plans", "--json").stdout)["plans"]
    assert {p["name"] for p in plans} >= {
        "wan21_p0", "wan21_p1_k2", "wan21_p1_k4", "wan21_p1_sigma11", "wan21_steps15of30"
    }  # fmt: skip
    assert "wan21_p1_k4" in refkv("plans").stdout
    models = {m["name"]: m for m in json.loads(refkv("models", "--json").stdout)["models"]}
    assert models["wan2.1-vace-14b"]["vace_at"] == [0, 5, 10, 15, 20, 25, 30, 35]
    assert {m["family"] for m in models.values()} == {"wan", "wan-vace"}
    text = refkv("models").stdout
    assert "30 main blocks" in text
    assert "0 VACE blocks" not in text


def test_unknown_plan_is_guessed(refkv: Callable) -> None:
    """A mistyped shipped plan names the nearest."""
    result = refkv("explain", "wan21_p1_k5")
    assert result.exit_code == 2
    assert "did you mean" in result.stderr


def test_a_gone_reader_is_no_fault_of_the_plan() -> None:
    """A reader that ends first (`refkv … | true`) gives 0, not the status of a plan that falls short."""
    for arguments in ("models", "rule", "schema plan"):
        command = f"{sys.executable} -m refkv_policy.cli {arguments} | true"
        done = subprocess.run(["bash", "-o", "pipefail", "-c", command], cwd=ROOT, capture_output=True, text=True)
        assert (arguments, done.returncode, done.stderr) == (arguments, 0, "")


@pytest.mark.skipif(sys.platform == "win32", reason="streams are closed by a POSIX shell")
@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        ("validate - <&-", "refkv: the standard input is closed"),
        ("models >&-", "refkv: the standard output is closed"),
        ("models >/dev/full", "refkv: cannot write the output: No space left on device; make room"),
    ],
)
def test_streams_that_cannot_be_used_are_told_in_a_sentence(arguments: str, told: str) -> None:
    """A closed or full stream is told as such, and not as a defect."""
    if "/dev/full" in arguments and not Path("/dev/full").exists():
        pytest.skip("no /dev/full here")
    command = f"{sys.executable} -m refkv_policy.cli {arguments}"
    done = subprocess.run(["bash", "-c", command], cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 2
    assert done.stderr.startswith(told)
    assert "REFKV_DEBUG" not in done.stderr


def test_an_encoding_that_cannot_show_the_output_is_named() -> None:
    """Where the terminal's encoding lacks a character, the sentence says what to set."""
    command = [sys.executable, "-m", "refkv_policy.cli", "rule", "RKV309"]
    environment = {**os.environ, "PYTHONIOENCODING": "latin-1"}
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, env=environment)
    assert (done.returncode, done.stderr) == (
        2,
        "refkv: the output cannot be written in latin-1; set PYTHONIOENCODING=utf-8\n",
    )


def test_compile_never_writes_over_a_plan(refkv: Callable, plan_file: Path) -> None:
    """A plan that has the name of a lock is refused, and stays as it is."""
    odd = plan_file.with_suffix(".lock")
    odd.write_text(text := plan_file.read_text())
    result = refkv("compile", odd)
    assert (result.exit_code, odd.read_text()) == (2, text)
    assert "has the name of a lock, which would overwrite it" in result.stderr


def test_two_plans_never_share_a_lock(refkv: Callable, plan_file: Path) -> None:
    """x.yaml and x.yml would overwrite each other's lock, so neither is compiled."""
    plan_file.with_suffix(".yml").write_text(plan_file.read_text().replace("interval: 2", "interval: 3"))
    for arguments in (("compile", "plans"), ("compile", "--check", "plans")):
        result = refkv(*arguments)
        assert result.exit_code == 2
        assert "tiny.yaml and plans/tiny.yml have one lock" in result.stderr
    assert not plan_file.with_suffix(".lock").exists()
    assert refkv("compile", "--stdout", "plans").exit_code == 0


@pytest.mark.parametrize("options", [("--check", "--stdout"), ("--stdout", "--json")])
def test_compile_refuses_options_that_contradict(refkv: Callable, plan_file: Path, options: tuple[str, ...]) -> None:
    """None of two options is passed over in silence."""
    result = refkv("compile", *options, plan_file)
    assert (result.exit_code, result.stdout) == (2, "")
    assert f"{options[0]} and {options[1]} say different things" in result.stderr


def test_a_missing_profile_is_the_fault_of_its_plan_alone(refkv: Callable, plan_file: Path) -> None:
    """`compile` tells it as `validate` does, exits with 1, and goes on to the other plans."""
    broken = plan_file.with_name("a.yaml")
    broken.write_text(plan_file.read_text().replace("[wan2.1-vace-mini]", "[nowhere.yaml]"))
    result = refkv("compile", "plans")
    assert result.exit_code == 1
    assert "plans/a.yaml:6:10: RKV214" in result.stderr
    assert plan_file.with_suffix(".lock").exists()
