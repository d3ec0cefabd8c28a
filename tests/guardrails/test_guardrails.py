"""Finding and reading guardrails, the thresholds of the gate, and bounds against an independent count."""

from __future__ import annotations

import re
import string
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from jsonschema import Draft202012Validator

from refkv_policy.compiler import Workload, bytes_bound, compile_all, compile_plan, predict
from refkv_policy.evidence import GATE
from refkv_policy.guardrails import (
    OWN,
    SENSES,
    check_guardrails,
    find_guardrails,
    guardrails_schema,
    parse_guardrails,
    read_guardrails,
    thresholds,
)
from refkv_policy.guardrails import rules as texts
from refkv_policy.guardrails.known import known_risks
from refkv_policy.plan import PlanError, Rule, load_plan
from refkv_policy.profiles import load_profile
from tests.guardrails.test_cases import CASES, TODAY
from tests.plan.test_schema import subschemas
from tests.plans import hints, plan_of

ROOT = Path(__file__).resolve().parents[2]
HEAD = "version: 1\nkind: guardrails\n"
RULES = [rule for rule in vars(texts).values() if isinstance(rule, Rule)]


def touch(path: Path) -> Path:
    """An empty file, with its folders."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.touch()
    return path


def test_the_nearest_file_decides(tmp_path: Path) -> None:
    """Upward from the plan, the first folder that has guardrails is where they are; further ones are not looked at."""
    plan = str(tmp_path / "a" / "b" / "x.yaml")
    assert find_guardrails(plan, tmp_path) == ()
    top = touch(tmp_path / ".refkv" / "guardrails.yaml")
    assert find_guardrails(plan, tmp_path) == (top,)
    near = touch(tmp_path / "a" / "guardrails.yaml")
    assert find_guardrails(plan, tmp_path) == (near,)
    nearest = touch(tmp_path / "a" / "b" / "guardrails.yaml")
    assert find_guardrails(plan, tmp_path) == (nearest,)


def test_nothing_above_the_top_is_found(tmp_path: Path) -> None:
    """The search ends with the top folder, and a plan outside it has its own folder only."""
    touch(tmp_path / "guardrails.yaml")
    (tmp_path / "a").mkdir()
    assert find_guardrails(str(tmp_path / "a" / "x.yaml"), tmp_path / "a") == ()
    assert find_guardrails(str(tmp_path / "a" / "x.yaml"), tmp_path / "elsewhere") == ()
    assert find_guardrails(str(tmp_path / "x.yaml"), tmp_path / "elsewhere") == (tmp_path / "guardrails.yaml",)


def test_two_in_one_folder_are_both_told(tmp_path: Path) -> None:
    """Neither is nearer, and the caller gets both."""
    both = (touch(tmp_path / "guardrails.yaml"), touch(tmp_path / ".refkv" / "guardrails.yaml"))
    assert find_guardrails(str(tmp_path / "x.yaml"), tmp_path) == both


def test_what_cannot_be_read_is_a_diagnostic(tmp_path: Path) -> None:
    """A missing file, a folder, bad YAML and bad bytes each give one."""
    (tmp_path / "bytes.yaml").write_bytes(b"version: \xff")
    (tmp_path / "yaml.yaml").write_text("version: [")
    for name, code in (("none.yaml", "RKV001"), (".", "RKV002"), ("bytes.yaml", "RKV006"), ("yaml.yaml", "RKV010")):
        guardrails, faults = read_guardrails(tmp_path / name)
        assert guardrails is None
        assert [d.code for d in faults] == [code]


@pytest.mark.parametrize(
    ("name", "schema"), [*subschemas(dict(guardrails_schema()), "guardrails")][1:], ids=lambda v: v if isinstance(v, str) else ""
)  # fmt: skip
def test_every_key_is_explained_to_editors(name: str, schema: dict[str, Any]) -> None:
    """Each key has a title, a description and examples that fit it; every mapping is closed."""
    assert schema["title"]
    assert schema["description"].endswith(".")
    assert schema["examples"]
    for example in [*schema["examples"], *([schema["default"]] if "default" in schema else [])]:
        Draft202012Validator(schema).validate(example)
    assert schema["type"] != "object" or schema["additionalProperties"] is False


def test_the_published_schema_accepts_every_sound_case() -> None:
    """An editor that knows only the schema accepts what passes, and the schema itself is one."""
    Draft202012Validator.check_schema(guardrails_schema())
    validator = Draft202012Validator(guardrails_schema())
    for case in sorted((CASES / "passing").iterdir()):
        guardrails, _ = read_guardrails(case / "guardrails.yaml")
        assert guardrails is not None
        validator.validate(guardrails.document.value)


@pytest.mark.parametrize("rule", RULES, ids=lambda rule: rule.code)
def test_texts_are_one_line_sentences_with_named_fields(rule: Rule) -> None:
    """A message and a help are one line without a final stop; the reason is whole sentences."""
    assert re.fullmatch(r"RKV6\d\d", rule.code)
    for text in (rule.message, rule.help):
        assert "\n" not in text
        assert not text.endswith((".", " "))
        assert all(name is None or name.isidentifier() for _, name, _, _ in string.Formatter().parse(text))
    assert rule.why[0].isupper()
    assert rule.why.endswith(".")


def test_thresholds_are_named_as_the_gate_names_them() -> None:
    """Each item that guardrails may bound is the gate's, with the gate's own sense; memory has `bytes`."""
    known = guardrails_schema()["properties"]["evidence"]["items"]["properties"]["thresholds"]["properties"]
    assert set(known) == set(SENSES) == set(GATE) - {"memory"}
    assert all(GATE[name].must_be == sense for name, sense in SENSES.items())


def test_the_strictest_threshold_of_those_that_apply_counts() -> None:
    """Demands for another purpose, tier or model are left out; without guardrails there are none."""
    body = """evidence:
  - {status: green, thresholds: {mean_drop: 0.08, speedup: 0.1}}
  - {status: green, purpose: recommended, tiers: [P1], thresholds: {mean_drop: 0.05, speedup: 0.05, subjective: 0.9}}
  - {status: green, models: [wan2.1-vace-14b], thresholds: {mean_drop: 0.01}}
"""
    guardrails, faults = parse_guardrails(HEAD + body)
    assert guardrails is not None, faults
    mini, p1 = "wan2.1-vace-mini", frozenset({"P1"})
    assert thresholds(guardrails, "recommended", [mini], p1) == {"mean_drop": 0.05, "speedup": 0.1, "subjective": 0.9}
    assert thresholds(guardrails, "reference", [mini], p1) == {"mean_drop": 0.08, "speedup": 0.1}
    assert thresholds(guardrails, "recommended", [mini], frozenset({"S"})) == {"mean_drop": 0.08, "speedup": 0.1}
    assert thresholds(guardrails, "reference", ["wan2.1-vace-14b"], p1) == {"mean_drop": 0.01, "speedup": 0.1}
    assert thresholds(guardrails, "recommended", [mini], frozenset({"P0"})) == {}
    assert thresholds(None, "recommended", [mini], p1) == {}


def test_risks_are_those_of_the_methods() -> None:
    """A risk that only a parameter brings is known too."""
    assert {"lossy-hint-cache", "stale-chain", "fewer-steps"} <= set(known_risks())


@given(interval=st.integers(2, 9), first=st.integers(0, 3), last=st.integers(0, 3), largest=st.integers(1, 12))
@settings(max_examples=60, deadline=None)
def test_refresh_bounds_equal_a_count_on_paper(interval: int, first: int, last: int, largest: int) -> None:
    """An interval is broken exactly when a walk over the steps by the plan's words finds a longer one; so is a count."""
    steps = 12
    plan = plan_of(hints("'hint[all]'", f"interval: {interval}", more=f", window: '{first}..{steps - 1 - last}'"))
    fresh, age = [], 0
    for step in range(steps):
        inside = first <= step <= steps - 1 - last
        age = 0 if step == 0 or not inside or age + 1 == interval else age + 1
        if age == 0:
            fresh.append(step)
    longest = max(b - a for a, b in zip(fresh, [*fresh[1:], steps], strict=True))
    count = len(fresh)
    body = f"refresh:\n  - {{largest_interval: {largest}}}\n  - {{smallest_count: {largest}}}\n"
    guardrails, _ = parse_guardrails(HEAD + body, "rails.yaml")
    assert guardrails is not None
    try:
        tables = compile_all(plan, TODAY)
    except PlanError:  # the window leaves nothing to reuse
        return
    told = [d.code for d in check_guardrails(plan, tables, guardrails)]
    assert told == ["RKV615"] * (longest > largest) + ["RKV616"] * (count < largest)


def test_profiles_may_be_files(tmp_path: Path) -> None:
    """A profile file is allowed by where it lies, whatever it is called; an entry for it holds by its name."""
    text = (ROOT / "refkv_policy" / "profiles" / "wan2.1-vace-mini.yaml").read_text()
    (tmp_path / "mine.yaml").write_text(text.replace("name: wan2.1-vace-mini", "name: mine"))
    (tmp_path / "other.yaml").write_text(text.replace("name: wan2.1-vace-mini", "name: mine"))
    (tmp_path / "plans").mkdir()
    base = (CASES / "plan.yaml").read_text()
    body = "allow:\n  models: [mine.yaml]\nrefresh:\n  - {largest_interval: 3, models: [mine.yaml]}\n"
    (tmp_path / "guardrails.yaml").write_text(HEAD + body)
    guardrails, faults = read_guardrails(tmp_path / "guardrails.yaml")
    assert guardrails is not None, faults
    for name, codes in (("mine", ["RKV615"]), ("other", ["RKV613", "RKV615"])):
        path = tmp_path / "plans" / f"for_{name}.yaml"
        path.write_text(base.replace("wan2.1-vace-mini", f"../{name}.yaml"))
        plan = load_plan(path)
        assert [d.code for d in check_guardrails(plan, compile_all(plan, TODAY), guardrails)] == codes


def test_a_profile_may_be_given() -> None:
    """A table of a profile that the plan does not list is judged on the one that is handed in."""
    plan = load_plan(CASES / "failing" / "RKV614_any" / "plan.yaml")
    table = compile_plan(plan, load_profile("wan2.1-vace-mini"), 12, TODAY)
    guardrails, _ = parse_guardrails(HEAD + 'never_cached:\n  - {sites: "hint[0]"}\n')
    assert guardrails is not None
    profiles = {"wan2.1-vace-mini": load_profile("wan2.1-vace-mini")}
    told = check_guardrails(plan, {("wan2.1-vace-mini", 12): table}, guardrails, profiles=profiles)
    assert [d.code for d in told] == ["RKV618"]


@given(data=st.data())
@settings(max_examples=150, deadline=None)
def test_no_mutation_gives_a_traceback(data: st.DataObject) -> None:
    """Guardrails garbled anywhere are read to diagnostics or to guardrails that can be held against a plan."""
    case = data.draw(st.sampled_from(sorted((CASES / "passing").iterdir())))
    text = (case / "guardrails.yaml").read_text()
    at, cut = data.draw(st.integers(0, len(text))), data.draw(st.integers(0, 6))
    piece = data.draw(st.text(alphabet="aP1[]{}:,-! \n\"'.0&*é", max_size=4))
    guardrails, faults = parse_guardrails(text[:at] + piece + text[at + cut :], "garbled.yaml")
    if guardrails is None:
        assert faults
    else:
        plan = load_plan(CASES / "plan.yaml")
        check_guardrails(plan, compile_all(plan, TODAY), guardrails, {})


@pytest.mark.parametrize("name", ["wan21_p0", "wan21_p1_sigma11"])
def test_the_cheap_bound_is_a_bound(name: str) -> None:
    """What spares a prediction is never below it, and with forecasts kept twice not far above."""
    plan = load_plan(ROOT / "plans" / f"{name}.yaml")
    for (model, _), table in compile_all(plan, TODAY).items():
        profile = load_profile(model)
        work = Workload(profile.tokens(96, 96, 17), profile.text_tokens)
        peak = predict(table, profile, work, "bfloat16").bytes_peak
        assert peak <= sum(bytes_bound(table, profile, work, "bfloat16").values()) <= 1.1 * peak


def test_the_documents_example_is_sound() -> None:
    """What docs/guardrails.md shows can be copied."""
    example = re.search(r"```yaml\n(.*?)```", (ROOT / "docs" / "guardrails.md").read_text(encoding="utf-8"), re.DOTALL)
    assert example is not None
    guardrails, faults = parse_guardrails(example[1])
    assert faults == ()
    assert guardrails is not None
    assert guardrails.evidence[0].thresholds["subjective"] == 0.9


def test_a_profile_of_another_name_is_the_same_model(tmp_path: Path) -> None:
    """A copy of a shipped profile under another name, with other layer sets, is held as the shipped one."""
    text = (ROOT / "refkv_policy" / "profiles" / "wan2.1-vace-mini.yaml").read_text()
    own = text.replace("name: wan2.1-vace-mini", "name: mine").replace('shallow: "0-2"', 'shallow: "0"')
    (tmp_path / "mine.yaml").write_text(own.replace('deep: "3-5"', 'deep: "2-5"'))
    path = tmp_path / "plan.yaml"
    path.write_text((CASES / "plan.yaml").read_text().replace("wan2.1-vace-mini", "mine.yaml"))
    plan = load_plan(path)
    entries = (
        ('never_cached:\n  - {sites: "hint[shallow]", models: [wan2.1-vace-mini]}\n', ["RKV618"]),
        ("refresh:\n  - {largest_interval: 2, models: [wan2.1-vace-mini]}\n", ["RKV615"]),
        ("refresh:\n  - {largest_interval: 2, models: [wan2.1-vace-14b]}\n", []),
    )
    for entry, codes in entries:
        guardrails, faults = parse_guardrails(HEAD + entry)
        assert guardrails is not None, faults
        assert [d.code for d in check_guardrails(plan, compile_all(plan, TODAY), guardrails)] == codes


def test_the_gates_own_thresholds_are_those_of_the_gate() -> None:
    """What evidence is judged by where guardrails state no threshold is what `refkv gate` judges by."""
    assert {name: item.threshold for name, item in GATE.items() if name != "memory"} == dict(OWN)
