"""`refkv import` and `refkv export`: data on stdout, the rest on stderr, and what they exit with."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
import yaml
from click.testing import Result

from refkv_policy.plan import parse_plan

P1 = "--enable-vace-hint-cache-lossy --vace-hint-cache-warning-acknowledged --vace-hint-refresh-interval 4"


def test_flags_become_a_plan_that_validates(refkv: Callable[..., Result], tmp_path: Path) -> None:
    """Quoted, in words, or from the standard input; printed, or written where nothing is yet."""
    quoted = refkv("import", "--from", "vllm-omni-flags", "--by", "team", P1)
    assert quoted.exit_code == 0, quoted.output
    words = refkv("import", "--from", "vllm-omni-flags", "--by", "team", *P1.split())
    read = refkv("import", "--from", "vllm-omni-flags", "--by", "team", "-", input=f"vllm serve W --omni {P1}\n")
    assert quoted.stdout == words.stdout == read.stdout
    plan, faults = parse_plan(quoted.stdout)
    assert plan is not None, faults
    for status in (0, 2):
        done = refkv("import", "--from", "vllm-omni-flags", "--by", "team", "--out", "plans/x.yaml", P1)
        assert done.exit_code == status
        assert (tmp_path / "plans" / "x.yaml").read_text() == quoted.stdout
    assert refkv("validate", "plans").exit_code == 0


@pytest.mark.parametrize(
    ("arguments", "status", "words"),
    [
        (["--from", "vllm-omni-flags", P1], 1, "--by"),
        (["--from", "vllm-omni-flags", "--enable-ref-target-kv"], 1, "no decoupled reference"),
        (["--from", "vllm-omni-flags", "--unknown"], 1, "not a flag of caches"),
        (["--from", "vllm-omni-config", "none.yaml"], 2, "none.yaml"),
        (["--from", "vllm-omni-config", "a.yaml", "b.yaml"], 2, "one file"),
        (["--from", "vllm-omni-flags", "--model", "wan", "--omni"], 2, "no profile 'wan'"),
        (["--from", "vllm-omni-flags", "--model", "./mine.yaml", "--omni"], 2, "is a file"),
        (["--from", "vllm-omni-flags", "--size", "big", "--omni"], 2, "WIDTHxHEIGHT"),
        (["--from", "vllm-omni-flags", "--frames", "16", "--omni"], 1, "4n+1"),
        (["--from", "other", "x"], 2, "other"),
        (["--from", "vllm-omni-flags"], 2, "SOURCE"),
    ],
)
def test_what_cannot_be_imported_is_told(
    refkv: Callable[..., Result], arguments: list[str], status: int, words: str
) -> None:
    """One sentence a reason on stderr, nothing on stdout, no traceback."""
    result = refkv("import", *arguments)
    assert result.exit_code == status, result.output
    assert words in result.stderr
    assert result.stdout == ""
    assert "Traceback" not in result.stderr


def test_a_configuration_is_imported(refkv: Callable[..., Result], tmp_path: Path) -> None:
    """From YAML or JSON; a fault is told with its line."""
    (tmp_path / "c.json").write_text(json.dumps({"enable_text_cross_attn_cache": True}))
    assert "method: text_kv" in refkv("import", "--from", "vllm-omni-config", "c.json").stdout
    (tmp_path / "c.yaml").write_text("enable_text_cross_attn_cache: true\nenable_transfr: true\n")
    result = refkv("import", "--from", "vllm-omni-config", "c.yaml")
    assert result.exit_code == 1
    assert "c.yaml:2:1: RKV101" in result.stderr


def test_quantized_attention_goes_there_and_back(refkv: Callable[..., Result], tmp_path: Path) -> None:
    """Imported as a plan that validates, for the platform that has it; exported as YAML, flags and JSON that agree."""
    flags = "--diffusion-kv-cache-dtype fp8 --diffusion-kv-cache-skip-layers 0-2"
    result = refkv("import", "--from", "vllm-omni-flags", flags)
    assert result.exit_code == 0
    (tmp_path / "q.yaml").write_text(result.stdout)
    assert "platform: npu" in result.stdout
    assert refkv("validate", "q.yaml").exit_code == 0
    deploy = refkv("export", "q.yaml", "--to", "vllm-omni")
    assert deploy.exit_code == 0, deploy.output
    fields = {"diffusion_kv_cache_dtype": "fp8", "diffusion_kv_cache_skip_layers": "0-2"}
    assert yaml.safe_load(deploy.stdout) == {"stages": [{"stage_id": 0, **fields}]}
    assert "not told: the audit log" in deploy.stderr
    assert refkv("export", "q.yaml", "--to", "vllm-omni", "--format", "flags").stdout == flags + "\n"
    value = json.loads(refkv("export", "q.yaml", "--to", "vllm-omni", "--format", "json").stdout)
    assert (value["fields"], value["flags"], value["release"]) == (fields, flags, "0.30.0")
    (tmp_path / "d.yaml").write_text(deploy.stdout)
    assert refkv("import", "--from", "vllm-omni-deploy", "d.yaml").stdout == result.stdout


def test_a_plan_that_can_be_told_nothing(refkv: Callable[..., Result]) -> None:
    """Every rule is listed, the fragment is empty, and the last line and the exit status say so, in every format."""
    assert refkv("export", "wan21_p1_k4", "--to", "vllm-omni", "--format", "json").exit_code == 1
    result = refkv("export", "wan21_p1_k4", "--to", "vllm-omni")
    assert result.exit_code == 1
    assert yaml.safe_load(result.stdout) == {"stages": []}
    assert "not told: rule deep-hints (P1, hint_reuse)" in result.stderr
    assert result.stderr.endswith("can be told nothing of this plan\n")
    assert refkv("export", "wan21_p1_k4", "--to", "vllm-omni", "--format", "flags").stdout == ""


def test_what_cannot_be_exported_is_told(refkv: Callable[..., Result], tmp_path: Path) -> None:
    """Unsound plans, layers that have no index of their own, and layers of several models."""
    text = refkv(
        "import", "--from", "vllm-omni-flags", "--diffusion-kv-cache-dtype fp8 --diffusion-kv-cache-skip-layers 20"
    ).stdout
    (tmp_path / "one.yaml").write_text(text.replace("main[20]", "main[2]"))
    result = refkv("export", "one.yaml", "--to", "vllm-omni")
    assert result.exit_code == 1
    assert "add vace[2]" in result.stderr
    (tmp_path / "many.yaml").write_text(text.replace("[wan2.1-vace-1.3b]", "[wan2.1-vace-1.3b, wan2.1-vace-14b]"))
    result = refkv("export", "many.yaml", "--to", "vllm-omni")
    assert result.exit_code == 2
    assert "--model" in result.stderr
    assert refkv("export", "many.yaml", "--to", "vllm-omni", "--model", "wan2.1-vace-14b").exit_code == 0
    (tmp_path / "bad.yaml").write_text(
        text.replace("caches: []", 'caches: [{name: t, tier: P1, method: text_kv, at: "main[0].text_kv"}]')
    )
    result = refkv("export", "bad.yaml", "--to", "vllm-omni")
    assert result.exit_code == 1
    assert "RKV301" in result.stderr


def test_no_torch_is_imported() -> None:
    """Import and export need the base install only."""
    code = (
        "import sys; from refkv_policy.cli import refkv\n"
        "for words in (['import', '--from', 'vllm-omni-flags', '--omni'], ['export', 'wan21_p0', '--to', 'vllm-omni']):\n"
        "    try: refkv.main(words)\n"
        "    except SystemExit as e: assert e.code == (words[0] == 'export'), e.code\n"
        "assert not {'torch', 'diffusers', 'numpy', 'rich'} & set(sys.modules)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
