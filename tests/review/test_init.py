"""`refkv init`: a first plan that validates as it stands, and never costs anyone a file or a signature."""

from __future__ import annotations

import datetime
from collections.abc import Callable
from pathlib import Path

import pytest

from refkv_policy import methods
from refkv_policy.compiler import check_plan
from refkv_policy.plan import Plan, load_plan, parse_plan
from refkv_policy.profiles import load_profile, names
from tests.review.conftest import ROOT

MODELS = [*names(), "any"]


def plan_of(text: str) -> Plan:
    """The plan of a text in which nothing at all is found, not even a warning."""
    plan, faults = parse_plan(text, "plans/p.yaml")
    assert plan is not None, faults
    assert not (*faults, *check_plan(plan))
    return plan


@pytest.mark.parametrize("model", MODELS)
@pytest.mark.parametrize("method", [n for n in methods.names() if methods.get(n).sites])
def test_every_method_scaffolds_a_sound_plan_on_every_model(refkv: Callable, method: str, model: str) -> None:
    """The plan has one rule of that method and validates in silence; a method that cannot says so in a sentence."""
    tier = methods.get(method).tier
    result = refkv("init", "--model", model, "--tier", tier, "--method", method, "--by", "video team", "--out", "-")
    if result.exit_code:
        # Without parameters that only a measurement or a choice gives, or without the sites it stands at, there is no plan.
        hintless = method.startswith("hint_") and model != "any" and not load_profile(model).vace_at
        assert hintless or "required" in methods.get(method).params_schema, result.stderr
        assert (result.exit_code, result.stdout) == (2, "")
        assert result.stderr.startswith(f"refkv: no plan of {method} can be scaffolded")
        return
    plan = plan_of(result.stdout)
    assert [(rule.method, rule.tier) for rule in plan.caches] == [(method, tier)]
    assert plan.models == (model,)
    assert plan.purpose == "reference"


@pytest.mark.parametrize(("tier", "method"), [("P0", "text_kv"), ("P1", "hint_reuse"), ("S", "step_schedule")])
def test_a_tier_has_a_simplest_method(refkv: Callable, tier: str, method: str) -> None:
    """Without --method the tier's simplest is taken, among the methods that ship."""
    result = refkv("init", "--model", "wan2.1-vace-1.3b", "--tier", tier, "--by", "a", "--out", "-")
    chosen = plan_of(result.stdout).caches[0].method
    assert methods.get(chosen).tier == tier.upper()
    if len([n for n in methods.names() if methods.get(n).tier == tier.upper()]) <= 2:
        assert chosen == method


def test_a_lossy_tier_needs_a_party(
    refkv: Callable, tmp_path: Path, git: Callable, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nobody's name is signed by itself: without --by there is no file, and git's user is offered, not used."""
    git(tmp_path, "init", "--quiet")
    git(tmp_path, "config", "user.name", "Grace Hopper")
    result = refkv("init", "--model", "wan2.1-vace-1.3b", "--tier", "P1")
    assert result.exit_code == 2
    assert 'say who, such as --by "Grace Hopper"' in result.stderr
    assert not list(tmp_path.rglob("*.yaml"))
    assert refkv("init", "--model", "wan2.1-vace-1.3b", "--tier", "P1", "--by", "  ").exit_code == 2
    assert refkv("init", "--model", "wan2.1-vace-1.3b", "--tier", "P0").exit_code == 0


def test_the_acknowledgement_is_honest(refkv: Callable) -> None:
    """It names the party that was given, is dated today, expires, and says that nothing was measured."""
    party = 'video: "serving" team #1'
    text = refkv("init", "--model", "wan2.1-vace-14b", "--tier", "P1", "--by", party, "--out", "-").stdout
    (entry,) = plan_of(text).acknowledgements
    assert entry.by == party
    assert entry.date == datetime.date.today()
    assert entry.expires is not None
    assert 150 < (entry.expires - entry.date).days < 200
    assert "not yet measured" in entry.reason
    assert entry.evidence is None
    assert "acknowledgements" not in refkv("init", "--model", "any", "--tier", "P0", "--out", "-").stdout


def test_a_file_is_never_overwritten(refkv: Callable, tmp_path: Path) -> None:
    """The default place is plans/NAME.yaml; what is there stays, and so does a --out that exists."""
    arguments = ("init", "--model", "wan2.1-vace-1.3b", "--tier", "P0")
    first = refkv(*arguments)
    path = tmp_path / "plans" / "wan2.1-vace-1.3b-text-kv.yaml"
    assert (first.exit_code, first.stdout) == (0, "")
    assert f"wrote {path.relative_to(tmp_path)}" in first.stderr
    assert load_plan(path).name == "wan2.1-vace-1.3b-text-kv"
    path.write_text("mine")
    again = refkv(*arguments)
    assert again.exit_code == 2
    assert "overwrites nothing" in again.stderr
    assert path.read_text() == "mine"
    assert refkv(*arguments, "--out", path).exit_code == 2
    assert [p.name for p in path.parent.iterdir()] == [path.name]


def test_guardrails_that_ask_for_more_are_named(refkv: Callable, tmp_path: Path) -> None:
    """Where the repository's guardrails are not kept by the scaffold, it is written and does not claim to validate."""
    (tmp_path / "plans").mkdir()
    (tmp_path / "plans" / "guardrails.yaml").write_text(
        "version: 1\nkind: guardrails\nrefresh: [{largest_interval: 2}]\n"
    )
    result = refkv("init", "--model", "wan2.1-vace-mini", "--tier", "P1", "--by", "a", "--name", "mine")
    assert result.exit_code == 0
    assert "wrote plans/mine.yaml. The guardrails here ask for more (RKV615): `refkv validate" in result.stderr
    assert refkv("validate", "plans").exit_code == 1


def test_the_modeline_finds_the_schema(refkv: Callable, tmp_path: Path) -> None:
    """The first line names the nearest schema upward; where there is none it says how to put one there."""
    arguments = ("init", "--model", "any", "--tier", "P0", "--out")
    absent = refkv(*arguments, "plans/a.yaml")
    assert "refkv schema plan > schemas/plan.v1.schema.json" in absent.stderr
    schema = tmp_path / "schemas" / "plan.v1.schema.json"
    schema.parent.mkdir()
    schema.write_text("{}")
    present = refkv(*arguments, "serving/video/plans/b.yaml")
    assert "schema" not in present.stderr
    first = (tmp_path / "serving" / "video" / "plans" / "b.yaml").read_text().splitlines()[0]
    assert first == "# yaml-language-server: $schema=../../../schemas/plan.v1.schema.json"
    assert (tmp_path / "plans" / "a.yaml").read_text().startswith("# yaml-language-server: $schema=../schemas/")


def test_every_key_is_commented(refkv: Callable) -> None:
    """A reader learns from the scaffold what its lines mean, and the comments are aligned."""
    text = refkv("init", "--model", "wan2.1-vace-1.3b", "--tier", "P1", "--by", "a", "--out", "-").stdout
    keys = "purpose models run sampler guidance shapes tier method at refresh acknowledgements"
    for key in keys.split():
        (line,) = [row for row in text.splitlines() if row.strip().startswith(f"{key}:")]
        assert " # " in line
    assert text.endswith("\n")
    assert max(map(len, text.splitlines())) <= 120


def test_options_are_obeyed(refkv: Callable) -> None:
    """Models, steps, size, frames and name appear in the plan."""
    result = refkv(
        "init", "--model", "wan2.1-vace-1.3b", "--model", "wan2.1-vace-14b", "--tier", "S", "--by", "a", "--name", "mine",
        "--steps", "50", "--steps", "30", "--size", "1280x720", "--frames", "49", "--out", "-",
    )  # fmt: skip
    plan = plan_of(result.stdout)
    assert (plan.name, plan.models, plan.run.steps) == ("mine", ("wan2.1-vace-1.3b", "wan2.1-vace-14b"), (50, 30))
    assert str(plan.run.shapes[0]) == "1280x720x49"


def test_a_profile_of_ones_own(refkv: Callable, tmp_path: Path) -> None:
    """A profile's path is taken from here and written from the plan's folder; its name makes the plan's."""
    own = (ROOT / "refkv_policy" / "profiles" / "wan2.1-vace-mini.yaml").read_text()
    (tmp_path / "profiles").mkdir()
    (tmp_path / "profiles" / "Mine.yaml").write_text(own.replace("name: wan2.1-vace-mini", "name: mine"))
    result = refkv("init", "--model", "profiles/Mine.yaml", "--tier", "P0")
    assert result.exit_code == 0, result.stderr
    plan = load_plan(tmp_path / "plans" / "mine-text-kv.yaml")
    assert plan.models == ("../profiles/Mine.yaml",)
    assert not check_plan(plan)


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        (("--model", "wan2.1-vace-1.3c", "--tier", "P0"), "did you mean `wan2.1-vace-1.3b`?"),
        (("--model", "any", "--model", "wan2.1-vace-1.3b", "--tier", "P0"), "stands alone"),
        (("--model", "any", "--tier", "P0", "--method", "hint_reuse"), "is of tier P1, not P0; say --tier P1"),
        (("--model", "any", "--tier", "P1", "--method", "hint_forcast", "--by", "a"), "did you mean 'hint_forecast'?"),
        (("--model", "any", "--tier", "P0", "--size", "wide"), "is not WIDTHxHEIGHT"),
        (("--model", "wan2.1-t2v-1.3b", "--tier", "P0", "--size", "100x96"), "RKV115"),
        (("--model", "wan2.1-vace-14b", "--tier", "P0", "--frames", "80"), "or 81"),
        (("--model", "wan2.1-t2v-14b", "--tier", "P1", "--by", "a"), "has no `hint` sites"),
        (("--model", "any", "--tier", "P0", "--name", "My plan"), "RKV105"),
        (("--model", "wan2.1-vace-1.3b", "--tier", "S", "--by", "a", "--steps", "1"), "no plan of step_schedule"),
    ],
)
def test_what_cannot_be_is_refused(refkv: Callable, tmp_path: Path, arguments: tuple[str, ...], told: str) -> None:
    """One sentence on stderr, exit status 2, and no file."""
    result = refkv("init", *arguments)
    assert result.exit_code == 2
    assert told in result.stderr
    assert "Traceback" not in result.stderr
    assert not list(tmp_path.rglob("*.yaml"))
