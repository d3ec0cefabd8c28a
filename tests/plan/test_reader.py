"""Text → Plan: what a plan holds, its digest, the order of diagnostics, and that one fault is told once."""

from __future__ import annotations

import datetime
import hashlib
import subprocess
import sys
from pathlib import Path

import pytest

from refkv_policy.plan import (
    Acknowledgement,
    AttentionQuantization,
    PlanError,
    Refresh,
    Run,
    Sampler,
    Shape,
    Store,
    load_plan,
    parse_plan,
    plan_digest,
    read_plan,
)

VALID = Path(__file__).resolve().parents[1] / "cases" / "valid"
FULL = (VALID / "full.yaml").read_text(encoding="utf-8")


def codes(text: str) -> list[str]:
    """The codes that a text gives."""
    return [d.code for d in parse_plan(text)[1]]


def test_the_designs_plan_becomes_this_plan() -> None:
    """Every key of the example in the design arrives in its field, with its unit converted."""
    plan = load_plan(VALID / "full.yaml")
    assert (plan.version, plan.name, plan.purpose) == (1, "wan21-p1-k4", "reference")
    assert plan.models == ("wan2.1-vace-1.3b", "wan2.1-vace-mini")
    assert plan.run == Run((30, 50), Sampler("unipc", 3.0), (5.0,), (Shape(832, 480, 81), Shape(96, 96, 17)))
    (rule,) = plan.caches
    assert (rule.name, rule.tier, rule.method, rule.at) == ("deep-hints", "P1", "hint_reuse", ("hint[deep]",))
    assert (rule.models, rule.refresh, rule.window) == (("wan2.1-vace-1.3b",), Refresh(interval=4), "1..27")
    assert (rule.branches, dict(rule.params), rule.store) == ("together", {}, Store(budget=2 * 1024**3))
    assert plan.document.value["caches"][0] is not None
    assert plan.acknowledgements == (
        Acknowledgement(
            risk="lossy-hint-cache",
            by="video-serving team",
            date=datetime.date(2026, 11, 29),
            expires=datetime.date(2027, 5, 31),
            reason="Offline tuning of the deep layers only; see the gate report.",
            evidence="evidence/wan21_p1_k4.json",
            path=("acknowledgements", 0),
        ),
    )


def test_what_is_left_out_has_its_default() -> None:
    """Optional keys that are left out have the defaults of the model classes."""
    plan = load_plan(VALID / "interval.yaml")
    (rule,) = plan.caches
    assert (plan.purpose, plan.description) == ("reference", "")
    assert (rule.models, rule.window, rule.branches, rule.store) == (None, None, "together", Store())
    assert plan.quantization.attention == AttentionQuantization()
    assert load_plan(VALID / "text_kv.yaml").caches[0].refresh is None


def test_lists_and_single_values_become_tuples() -> None:
    """`at`, `guidance` and `skip_layers` may be one value or a list; the plan always has a tuple."""
    assert load_plan(VALID / "guidance_list.yaml").run.guidance == (1.0, 5.0, 7.5)
    assert load_plan(VALID / "text_kv.yaml").caches[0].at == ("main[all].text_kv", "vace[all].text_kv")
    assert load_plan(VALID / "skip_layers_text.yaml").quantization.attention.skip_layers == ("main[0]",)


@pytest.mark.parametrize(
    ("written", "expected"),
    [("2GiB", 2 << 30), ("512MiB", 512 << 20), ("1.5 KiB", 1536), ("7B", 7), ("4096", 4096), ("0x10", 16)],
)
def test_budgets_are_bytes(written: str, expected: int) -> None:
    """A budget is a number of bytes, with the binary units of IEC 80000-13."""
    plan, diagnostics = parse_plan(FULL.replace("2GiB", written))
    assert not diagnostics
    assert plan is not None
    assert plan.caches[0].store.budget == expected


def test_a_broken_plan_raises_with_every_diagnostic() -> None:
    """`load_plan` raises PlanError, which carries all diagnostics and prints them with their mends."""
    path = VALID.parent / "invalid" / "many_faults.yaml"
    with pytest.raises(PlanError) as caught:
        load_plan(path)
    assert caught.value.diagnostics == read_plan(path)[1]
    assert len(caught.value.diagnostics) == 6
    assert f"{path}:9:7: RKV105" in str(caught.value)
    assert "help: " in str(caught.value)


def test_diagnostics_come_in_the_order_of_the_text() -> None:
    """Faults found by different passes are sorted by place."""
    _, diagnostics = read_plan(VALID.parent / "invalid" / "many_faults.yaml")
    assert list(diagnostics) == sorted(diagnostics, key=lambda d: (d.span.line, d.span.column) if d.span else (0, 0))


def test_the_digest_is_of_the_meaning() -> None:
    """Comments, layout, quotes and the order of keys leave the digest as it is; a changed value does not."""
    original, _ = parse_plan(FULL)
    flow = FULL.replace(
        "name: wan21-p1-k4\npurpose: reference", "purpose: 'reference' # now\n\nname:   \"wan21-p1-k4\""
    )
    reordered, _ = parse_plan(flow)
    changed, _ = parse_plan(FULL.replace("interval: 4", "interval: 5"))
    assert original is not None
    assert reordered is not None
    assert changed is not None
    assert plan_digest(original) == plan_digest(reordered) != plan_digest(changed)


def test_the_digest_is_sha256_of_canonical_json() -> None:
    """The digest equals one computed by hand from the JSON form of the plan."""
    text = (
        '{"caches":[],"description":"\\u00e9","kind":"plan","models":["any"],"name":"a","run":{"guidance":5,'
        '"sampler":{"flow_shift":3,"name":"unipc"},"shapes":[{"frames":17,"size":"96x96"}],"steps":[30]},"version":1}'
    )
    plan, _ = parse_plan(text)
    assert plan is not None
    assert plan_digest(plan) == "sha256:" + hashlib.sha256(text.encode()).hexdigest()


@pytest.mark.parametrize(
    ("old", "new", "expected"),
    [
        # a mistyped required key: not also missing
        ("    tier: P1", "    teir: P1", ["RKV101"]),
        ("kind: plan", "knd: plan", ["RKV101"]),
        # a mistyped form of refresh: not also formless
        ("{interval: 4}", "{intervall: 4}", ["RKV101"]),
        # a wrong type: not also out of range, of wrong form or without form
        ("interval: 4", "interval: '0'", ["RKV103"]),
        ("{interval: 4}", "4", ["RKV103"]),
        ("size: 832x480", "size: 832", ["RKV103"]),
        # an alias, a tag or an infinite number: not also of wrong type
        ("{interval: 4}", "*x", ["RKV014"]),
        ("[30, 50]", "!x y", ["RKV015"]),
        ("flow_shift: 3.0", "flow_shift: -.inf", ["RKV018"]),
        # a merge key: what it might bring is not missing
        ("    tier: P1\n", "    <<: {tier: P1}\n", ["RKV016"]),
        # a refused rule: its selectors are not read, others are
        ("hint[deep]", "hint[0:3]", ["RKV204"]),
        # a wrong version or kind: nothing is said by rules that may not apply
        ("version: 1\nkind: plan\nname: wan21-p1-k4", "version: 9\nkind: plan\nnmae: X", ["RKV107"]),
        ("kind: plan\nname: wan21-p1-k4", "kind: profile\nnmae: X", ["RKV108"]),
        # two faults of one value are one
        ("2026-11-29", "''", ["RKV105"]),
        # a repeated key counts once
        ("    tier: P1\n", "    tier: P1\n    tier: [P9]\n", ["RKV013"]),
    ],
)
def test_one_fault_is_one_diagnostic(old: str, new: str, expected: list[str]) -> None:
    """A single mistake is reported once, without what follows from it."""
    assert FULL.count(old) == 1
    assert codes(FULL.replace(old, new)) == expected


@pytest.mark.parametrize(
    ("old", "new", "says"),
    [
        ("interval: 4", "intervall: 4", "did you mean `interval`?"),
        ("    window:", "    interval: 4\n    window:", "`interval` belongs in `refresh`"),
        ("tier: P1", "tier: p1", "did you mean `P1`?"),
        ('window: "1..27"', "window: 5", 'put it in quotes: "5"'),
        ("[30, 50]", "30", "write a list: [30]"),
        ("guidance: 5.0", "guidance: no", "write for example `5.0`"),
        ("interval: 4", "interval: 4.0", "write 4"),
        ("interval: 4", "interval: '4'", "write it without quotes: 4"),
        ("2GiB", "2GB", "write for example 2GiB or 512MiB or 1048576"),
        ("method: hint_reuse", "method:", "write a value, such as `hint_reuse`"),
        ("    tier: P1\n", "", "add it: `tier: P1`"),
        ("version: 1", "version: 2", "use a newer refkv"),
        ("kind: plan", "kind: Plan", "did you mean `plan`?"),
    ],
)
def test_mends_say_what_to_write(old: str, new: str, says: str) -> None:
    """The help of a fault names the text to write wherever that can be known."""
    (found,) = parse_plan(FULL.replace(old, new, 1))[1]
    assert says in found.help


def test_a_plan_is_read_without_heavy_imports() -> None:
    """Importing the plan language loads neither torch nor rich nor click, and jsonschema only when a plan is read."""
    program = (
        "import sys, refkv_policy.plan as p\n"
        "heavy = ('torch', 'diffusers', 'numpy', 'rich', 'click')\n"
        "assert not [m for m in (*heavy, 'jsonschema', 'difflib') if m in sys.modules]\n"
        f"assert p.read_plan({str(VALID / 'full.yaml')!r})[0]\n"
        "assert not [m for m in heavy if m in sys.modules]\n"
    )
    subprocess.run([sys.executable, "-c", program], check=True, cwd=VALID.parents[2])
