"""Helps that fit what a newcomer writes: other tools' settings, plans that save nothing, names that are nearly right."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest

RULE = "  - name: deep-hints\n"


@pytest.mark.parametrize(
    ("old", "new", "code", "help"),
    [
        ("hint_reuse", "easy_cache", "RKV213", "nearest to it is `teacache`"),
        ("hint_reuse", "mag_cache", "RKV213", "did you mean `magcache`"),
        ("hint_reuse", "taylorseer", "RKV213", "nearest to it is `taylor`"),
        ("hint_reuse", "first_block_cache", "RKV213", "nearest to it is `firstblock`"),
        ("hint_reuse", "cache_dit", "RKV213", "nearest to it is `dbcache`"),
        ("hint_reuse", "deep_cache", "RKV213", "nearest to it is `residual_reuse`"),
        ("hint_reuse", "hint_reus", "RKV213", "did you mean `hint_reuse`"),
        (RULE, RULE + "    rel_l1_thresh: 0.2\n", "RKV101", "a setting of TeaCache"),
        (RULE, RULE + "    Fn_compute_blocks: 8\n", "RKV101", "a setting of cache-dit"),
        (RULE, RULE + "    residual-diff-threshold: 8\n", "RKV101", "a setting of FirstBlockCache and cache-dit"),
        ("name: tiny", "name: tiny\ncache_config: {max_warmup_steps: 8}", "RKV101", "`caches:` with `- {name:"),
        ("interval: 2", "interval: [2, 4, 8]", "RKV103", "a rule for each group of sites"),
        ("interval: 2", "interval: {a: 2, b: 4}", "RKV103", "a rule for each group of sites"),
        ("  - name: deep-hints\n    ", "  deep-hints:\n    ", "RKV103", "write a list, each entry after a dash"),
        ("[wan2.1-vace-mini]", "[Wan-AI/Wan2.1-VACE-1.3B-diffusers]", "RKV214", "did you mean `wan2.1-vace-1.3b`"),
        ("[wan2.1-vace-mini]", "[Wan2.1-VACE-14B]", "RKV214", "did you mean `wan2.1-vace-14b`"),
        ("[wan2.1-vace-mini]", "[someone/wan2.1-vace-mini]", "RKV214", "did you mean `wan2.1-vace-mini`"),
        ("tier: P1", "tier: p1", "RKV104", "did you mean `P1`"),
        ("interval: 2", "interval: 1", "RKV305", "raise the interval, or remove the rule"),
    ],
)
def test_what_a_newcomer_writes_is_answered(
    refkv: Callable, plan_file: Path, old: str, new: str, code: str, help: str
) -> None:
    """Each is an error at its line, which says what is nearest here or what to write."""
    plan_file.write_text(plan_file.read_text().replace(old, new))
    result = refkv("validate", "--format", "json", plan_file)
    found = [d for d in json.loads(result.stdout)["diagnostics"] if d["code"] == code]
    assert result.exit_code == 1
    assert [d["severity"] for d in found] == ["error"], result.stdout
    assert help in found[0]["message"] + found[0]["help"], found[0]


def test_a_plan_that_caches_nothing_is_told(refkv: Callable, plan_file: Path) -> None:
    """`caches: []` is a warning, unless attention is quantized; without the key the help shows a rule, not an empty list."""
    text = plan_file.read_text()
    head = text[: text.index("caches:")]
    plan_file.write_text(head + "caches: []\n")
    result = refkv("validate", plan_file)
    assert (result.exit_code, "warning RKV322" in result.stdout) == (0, True)
    assert "1 warning" in result.stderr
    dry = refkv("run", "--dry-run", "--plan", plan_file)
    assert "RKV322" in dry.stderr
    plan_file.write_text(head)
    assert "add it: `caches: [{name: deep-hints" in refkv("validate", plan_file).stdout
    plan_file.write_text(head + "caches: []\nquantization: {attention: {dtype: fp8, platform: npu, backend: fa3}}\n")
    assert "RKV322" not in refkv("validate", plan_file).stdout


def test_a_dry_run_warns_of_what_validate_warns_of(refkv: Callable, plan_file: Path) -> None:
    """A budget that is too small, and evidence that nobody named, are told; notes are not."""
    small = plan_file.read_text().replace("{interval: 2}\n", "{interval: 2}\n    store: {budget: 1KiB}\n")
    plan_file.write_text(small.replace("purpose: reference", "purpose: recommended"))
    result = refkv("run", "--dry-run", "--plan", plan_file)
    assert result.exit_code == 0, result.output
    told = {line.split("RKV")[1][:3] for line in result.stderr.splitlines() if line.startswith("warning: ")}
    validated = json.loads(refkv("validate", "--format", "json", plan_file).stdout)["diagnostics"]
    assert told == {d["code"][3:] for d in validated if d["severity"] == "warning"} > {"310", "520"}


def test_the_embedded_model_is_named_as_the_default(refkv: Callable, plan_file: Path) -> None:
    """A plan for another model, run without --model, is told which one is run and how to name another."""
    plan_file.write_text(plan_file.read_text().replace("wan2.1-vace-mini", "wan2.1-vace-1.3b"))
    result = refkv("run", "--plan", plan_file)
    assert (result.exit_code, "RKV219" in result.stderr) == (1, True)
    assert "--model (without it, the embedded one is run)" in result.stderr


@pytest.mark.parametrize(("asked", "used"), [(80, 77), (16, 13), (3, 1), (17, 17)])
def test_explain_rounds_frames_as_run_does(refkv: Callable, plan_file: Path, asked: int, used: int) -> None:
    """Both take the next 4n+1 below and say so."""
    explained = refkv("explain", plan_file, "--frames", asked, "--json")
    dry = refkv("run", "--dry-run", "--plan", plan_file, "--frames", asked, "--json")
    assert (explained.exit_code, dry.exit_code) == (0, 0), explained.output
    assert json.loads(dry.stdout)["frames"] == used
    assert f"{used} frame{'s' * (used > 1)} instead of {asked}: the model takes 4n+1" in dry.stderr or used == asked
    assert [line for line in explained.stderr.splitlines() if "instead of" in line] == [
        line for line in dry.stderr.splitlines() if "instead of" in line
    ]


@pytest.mark.parametrize(
    ("name", "told"),
    [
        ("nosuch", "there is no rule nosuch. `refkv rule` lists them"),
        ("qqq", "there is no rule qqq. `refkv rule`"),
        ("interval", "of that name are interval-of-one, interval-beyond-the-run"),
        ("saves-no-blok", "did you mean 'saves-no-block'"),
    ],
)
def test_a_rule_is_guessed_only_where_it_is_likely(refkv: Callable, name: str, told: str) -> None:
    """No guess is better than a silly one."""
    result = refkv("rule", name)
    assert (result.exit_code, told in result.stderr) == (2, True), result.stderr


def test_a_scaffold_has_a_budget_that_holds_what_it_keeps(refkv: Callable) -> None:
    """The store's budget is stated, so that a gate can judge memory, and is no less than the need in float32."""
    from refkv_policy.compiler import Workload, bytes_needed, compile_plan
    from refkv_policy.plan import parse_plan
    from refkv_policy.profiles import load_profile

    for model, method in (("wan2.1-vace-mini", "hint_reuse"), ("wan2.1-vace-14b", "hint_forecast")):
        arguments = ("--model", model, "--tier", "P1", "--method", method, "--by", "a", "--out", "-")
        plan, faults = parse_plan(refkv("init", *arguments).stdout)
        assert plan is not None, faults
        profile, shape = load_profile(model), plan.run.shapes[0]
        work = Workload(profile.tokens(shape.width, shape.height, shape.frames), profile.text_tokens)
        need = max(bytes_needed(compile_plan(plan, profile, 30), profile, work, "float32").values())
        budget = plan.caches[0].store.budget
        assert budget is not None
        assert need <= budget < max(2 * need, 1 << 21)
