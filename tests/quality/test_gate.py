"""The gate's items on made-up results, against arithmetic by hand, and the evidence that comes of them."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from functools import partial
from operator import ge, gt, le, lt
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from refkv_policy.evidence import (
    GATE_ITEMS,
    Evidence,
    Interval,
    Item,
    MeasuredScope,
    make_item,
    read_evidence,
    write_evidence,
)
from refkv_policy.quality.abpack import Ratings, key_path
from refkv_policy.quality.gate import GateError, check_gateable, measured_scope, verdict_text
from refkv_policy.quality.gate_items import compare_with_line, gate_items
from refkv_policy.quality.sweep import Entry, Sweep
from refkv_policy.quality.sweep_collect import Findings, collect
from refkv_policy.quality.sweep_text import sweep_text
from refkv_policy.quality.variants import parse_vary
from tests import sweeps

FEATURED = partial(sweeps.comparison, drop=3.0)


def errors_of(plan: float, fewer: float = 0.01, respaced: float = 0.01, **variants: float) -> sweeps.Errors:
    """Errors by family; baselines' grow with what they leave out. The second clip's are half as large."""

    def error(entry: Entry, clip: str, seed: int, reference: str) -> float:
        share = 1.0 if clip == "a.mp4" else 0.5
        if entry.family == "plan":
            return share * plan
        if entry.family == "variant":
            return share * variants.get(entry.name.replace("refresh.interval=", "k"), 2 * plan)
        return share * (fewer if entry.family == "fewer_steps" else respaced) * (entry.speedup_flops - 1)

    return error


def gated(tmp_path: Path, errors: sweeps.Errors, clips: tuple[str, ...] = ("a.mp4", "b.mp4"), **more: Any) -> Findings:
    """The findings of a made-up sweep."""
    settings = {
        key: more.pop(key) for key in ("varies", "seeds", "of", "guidance", "repeats", "plan_alone") if key in more
    }
    made = sweeps.sweep(sweeps.made_up(clips), baselines=6, **settings)
    return collect(made, sweeps.fill(made, tmp_path, errors, **more))


def items(
    findings: Findings, ratings: Ratings | None = None, budget: int | None = 1 << 20, **limits: float
) -> dict[str, Item]:
    """The gate's items by name."""
    return {item.name: item for item in gate_items(findings, ratings, budget, limits)}


def test_all_nine_in_order_and_honest_about_what_was_not_measured(tmp_path: Path) -> None:
    """A stand-in gates nothing, nobody rated, no clip is long: each says so."""
    found = gated(tmp_path, errors_of(0.001), compare=partial(sweeps.comparison, drop=3.0, stand_in=True))
    by = items(found)
    assert list(by) == [requirement.name for requirement in GATE_ITEMS]
    for name in ("mean_drop", "worst_frame_drop", "second_half_decay"):
        assert by[name].verdict == "not_measured"
        assert "only EfficientNet-Lite0 (stand-in) ran" in by[name].why
    assert "--ab-pack" in by["subjective"].why
    assert by["second_half_decay"].why.endswith("; the clip lasts 1.06 s")
    long = partial(sweeps.comparison, drop=3.0, stand_in=True, slope=0.25)
    decay = items(gated(tmp_path / "3", errors_of(0.001), compare=long))["second_half_decay"]
    assert (decay.measured, decay.verdict) == (None, "not_measured")
    assert decay.why.endswith("; there +0.250 (+0.250–+0.250) points a second")
    short = items(gated(tmp_path / "2", errors_of(0.001), compare=FEATURED))
    assert "the clip lasts 1.06 s" in short["second_half_decay"].why
    assert short["second_half_decay"].measured is None


def test_drops_are_shares_of_the_gates_own_model(tmp_path: Path) -> None:
    """3 % of drop is 0.03 under 0.08; the worst frame of all samples is judged, not a mean of worst ones."""

    def drops(value: float) -> dict[str, Any]:
        return sweeps.comparison(value, drop=100 * value, slope=value)

    by = items(gated(tmp_path, errors_of(0.06), compare=drops))
    assert by["mean_drop"].measured == pytest.approx((0.06 + 0.03) / 2)
    assert by["mean_drop"].metric == "dinov2_b_14_drop"
    assert by["mean_drop"].interval is not None
    assert (by["mean_drop"].interval.low, by["mean_drop"].interval.high) == pytest.approx((0.03, 0.06))
    assert by["mean_drop"].verdict == "green"
    assert by["worst_frame_drop"].measured == pytest.approx(0.12)
    assert "a.mp4" in by["worst_frame_drop"].why
    assert by["second_half_decay"].measured == pytest.approx(0.045)
    red = items(gated(tmp_path / "2", errors_of(0.09), compare=drops))
    # The mean, 0.0675, is within 0.08, and its interval's end is not.
    assert red["mean_drop"].verdict == "red"
    assert red["worst_frame_drop"].verdict == "red"


def test_speed_is_judged_by_the_interval_of_pairs(tmp_path: Path) -> None:
    """1.25 times as fast saves 20 %; one pair has no interval; without pairs it is not measured, whatever FLOPs say."""
    quick = gated(tmp_path, errors_of(0.001), speeds={"plan tiny": (1.25, 1.25)})
    item = items(quick)["speedup"]
    assert (item.measured, item.verdict) == (pytest.approx(0.2), "green")
    mixed = items(gated(tmp_path / "2", errors_of(0.001), speeds={"plan tiny": (1.25, 1.05)}))["speedup"]
    assert mixed.verdict == "red"
    assert items(gated(tmp_path / "3", errors_of(0.001), repeats=1))["speedup"].verdict == "not_measured"
    untimed = items(gated(tmp_path / "4", errors_of(0.001), repeats=0))["speedup"]
    assert untimed.measured is None
    assert "% by FLOPs" in untimed.why


def test_the_plan_alone_may_be_timed(tmp_path: Path) -> None:
    """Its speed-up is judged then; with the others it is compared at equal FLOPs, as no two kinds of speed are."""
    found = gated(tmp_path, errors_of(0.001), speeds={"plan tiny": (1.5, 1.5)}, plan_alone=True)
    timed = [entry.name for entry in found.sweep.entries if found.sweep.pairs(entry)]
    assert timed == ["plan tiny"]
    by = items(found)
    assert by["speedup"].measured == pytest.approx(1 / 3)
    assert f"at {found.plan.entry.speedup_flops:.2f} x by FLOPs" in by["fewer_steps"].why
    scope = measured_scope(found, model="m", command=("refkv",), ratings=None, thresholds={})
    assert scope.levels.step_latency is not None
    assert scope.levels.step_latency.speedup.value == pytest.approx(1.5)
    assert scope.setting.timed_pairs == 2


def _interpolated(
    findings: Findings, family: str, spacing: str | None, clip: str, errors: sweeps.Errors, at: float
) -> float:
    """The error of a line of baselines at a speed, by numpy."""
    rows = [e for e in findings.sweep.entries if e.family == family and e.varied.get("spacing") == spacing]
    points = sorted([(1.0, 0.0), *((e.speedup_flops, errors(e, clip, 0, "uncached")) for e in rows)])
    return float(np.interp(at, *zip(*points, strict=True)))


def test_fewer_steps_at_equal_latency(tmp_path: Path) -> None:
    """The plan's error beyond each line's at its own speed, paired by clip, by numpy; the harder spacing is named."""
    errors = errors_of(0.001, fewer=0.05, respaced=0.0001)
    found = gated(tmp_path, errors, repeats=0, floor=1e-5)
    speed = found.plan.entry.speedup_flops
    by = items(found)
    for family, spacing in (("fewer_steps", None), ("respaced_steps", "sigma")):
        beyond = [
            errors(found.plan.entry, clip, 0, "uncached") - _interpolated(found, family, spacing, clip, errors, speed)
            for clip in ("a.mp4", "b.mp4")
        ]
        assert by[family].measured == pytest.approx(np.mean(beyond))
        assert by[family].interval is not None
        assert (by[family].interval.low, by[family].interval.high) == pytest.approx((min(beyond), max(beyond)))
    assert by["fewer_steps"].verdict == "green"
    assert "no farther from the uncached run" in by["fewer_steps"].why
    assert by["respaced_steps"].verdict == "red"
    assert "by FLOPs" in by["respaced_steps"].why


def test_within_the_solver_floor_counts_as_equal_and_is_said(tmp_path: Path) -> None:
    """Losing by less than the solver floor is green, with the reason; by more it is red."""
    errors = errors_of(0.003, fewer=0.0, respaced=0.0)
    by = items(gated(tmp_path, errors, floor=0.004))
    assert by["fewer_steps"].equal_within == pytest.approx(0.004)
    assert (by["fewer_steps"].verdict, by["respaced_steps"].verdict) == ("green", "green")
    assert "within the solver floor of 0.0040, which counts as equal" in by["fewer_steps"].why
    assert items(gated(tmp_path / "2", errors, floor=0.002))["fewer_steps"].verdict == "red"


def test_a_plan_slower_than_the_uncached_run_is_compared_with_it(tmp_path: Path) -> None:
    """There is no fewer-steps run that slow: the uncached one does better at error 0."""
    found = gated(tmp_path, errors_of(0.001), speeds={"plan tiny": (0.9, 0.9)})
    beyond = compare_with_line(found, found.of("fewer_steps"), "")
    assert beyond is not None
    assert (beyond.speed, beyond.beyond.value) == (1.0, pytest.approx(0.00075))


def test_a_plan_beyond_every_baseline_is_not_compared(tmp_path: Path) -> None:
    """Nothing is extrapolated."""
    item = items(gated(tmp_path, errors_of(0.001), speeds={"plan tiny": (9.0, 9.0)}))["fewer_steps"]
    assert (item.verdict, "faster than any" in item.why) == ("not_measured", True)


def test_one_clip_gives_no_interval_to_judge_by(tmp_path: Path) -> None:
    """Seeds of one clip are not independent: what is judged by an interval is then not measured."""
    by = items(gated(tmp_path, errors_of(0.001), ("a.mp4",), seeds=3, compare=FEATURED))
    for name in ("mean_drop", "fewer_steps", "respaced_steps"):
        assert (by[name].verdict, by[name].measured is None) == ("not_measured", False)
        assert "one clip gives no interval" in by[name].why


def test_pareto_counts_variants_that_are_surely_better(tmp_path: Path) -> None:
    """K = 4 is faster and nearer on both clips: red. Nearer on one clip only: equal within the interval, and said."""
    varies = [parse_vary("refresh.interval=1,2,4")]
    by = items(gated(tmp_path, errors_of(0.002, k1=0.0, k4=0.001), varies=varies))
    assert (by["pareto"].measured, by["pareto"].verdict) == (1.0, "red")
    assert "faster and nearer: refresh.interval=4" in by["pareto"].why

    def mixed(entry: Entry, clip: str, seed: int, reference: str) -> float:
        if entry.name == "refresh.interval=4":
            return 0.0001 if clip == "a.mp4" else 0.002
        return errors_of(0.002, k1=0.0)(entry, clip, seed, reference)

    unsure = items(gated(tmp_path / "2", mixed, varies=varies))["pareto"]
    assert (unsure.measured, unsure.verdict) == (0.0, "green")
    assert "counted as equal: refresh.interval=4" in unsure.why
    assert items(gated(tmp_path / "3", errors_of(0.002)))["pareto"].verdict == "not_measured"
    assert items(gated(tmp_path / "4", errors_of(0.0)))["pareto"].verdict == "green"


def test_the_largest_k_within_the_redline_is_chosen(tmp_path: Path) -> None:
    """Errors that do not rise with K: of those whose whole interval keeps to the solver floor the largest, K = 6."""
    varies = [parse_vary("refresh.interval=1,2,3,4,6,8")]
    errors = errors_of(0.001, k1=0.0, k3=0.009, k4=0.001, k6=0.003, k8=0.02)
    found = gated(tmp_path, errors, varies=varies, floor=0.004)
    rows, chosen = found.chosen()
    assert len(rows) == 6
    assert chosen is not None
    assert chosen.entry.name == "refresh.interval=6"
    assert "largest K whose whole interval stays within 0.0040: refresh.interval=6" in items(found)["pareto"].why


@pytest.mark.parametrize(
    ("raters", "pairs", "unnoticed", "verdict"),
    [(5, 20, 95, "green"), (5, 20, 89, "red"), (4, 20, 80, "not_measured"), (5, 19, 95, "not_measured")],
)
def test_ratings_need_the_rfcs_numbers(tmp_path: Path, raters: int, pairs: int, unnoticed: int, verdict: str) -> None:
    """Fewer than five raters or twenty pairs are no test; 90 % of the answers decide."""
    ratings = Ratings(raters, pairs, raters * pairs, unnoticed, raters, 0)
    item = items(gated(tmp_path, errors_of(0.001)), ratings)["subjective"]
    assert item.verdict == verdict
    if verdict != "not_measured":
        assert item.interval is not None
        assert item.interval.method == "wilson"


def test_memory_is_held_against_the_plans_budget(tmp_path: Path) -> None:
    """Within it green, over it red, without one not measured."""
    found = gated(tmp_path, errors_of(0.001), bytes_peak=100)
    assert items(found, budget=100)["memory"].verdict == "green"
    assert items(found, budget=99)["memory"].verdict == "red"
    assert items(found, budget=None)["memory"].verdict == "not_measured"


def test_guardrails_thresholds_take_the_place_of_the_gates(tmp_path: Path) -> None:
    """A stricter limit on speed is the one that is judged by."""
    found = gated(tmp_path, errors_of(0.001), speeds={"plan tiny": (1.25, 1.25)})
    assert items(found, speedup=0.3)["speedup"].verdict == "red"


def test_evidence_holds_what_was_found(tmp_path: Path) -> None:
    """Written and read back: bound to the table, budgets and levels filled, the frontier's points, metrics with both ends."""
    varies = [parse_vary("refresh.interval=1,4")]
    found = gated(tmp_path / "r", errors_of(0.001), varies=varies, compare=FEATURED)
    scope = measured_scope(found, model="tiny", command=["refkv", "gate"])
    write_evidence(tmp_path / "e.json", Evidence("tiny", (scope,)))
    evidence, faults = read_evidence(tmp_path / "e.json")
    assert faults == ()
    assert evidence is not None
    (back,) = evidence.scopes
    assert back.bound.table == found.sweep.table.digest
    assert (back.memory.budget, back.memory.cache) == (1 << 20, 100)  # type: ignore[union-attr]
    assert back.levels.frontier is not None
    families = [p.family for p in back.levels.frontier.points]
    assert families[:4] == ["uncached", "plan", "variant", "variant"]
    assert {"fewer_steps", "respaced_steps"} <= set(families)
    assert back.levels.frontier.points[0].error.value == 0
    metric = next(m for m in back.metrics if m.name == "pixel_difference")
    assert (metric.noise.value, metric.solver.value, metric.other_seed.value) == (0.0, 0.004, 0.2)  # type: ignore[union-attr]
    assert {m.reference for m in back.metrics if m.name == "pixel_difference"} == {"uncached", "many_steps"}
    assert next(m for m in back.metrics if m.name == "dinov2_b_14_drop").mean.value == pytest.approx(0.03)
    step = back.levels.step_latency
    assert step is not None
    assert step.planned.value == pytest.approx(1.0 / 12)
    # One audit head for each run and each pair of the plan.
    assert len(back.audits) == 2 + 2
    assert back.evaluations.planned == 24


def _item(**changes: Any) -> Item:
    """An item of the gate, judged by its interval."""
    given = {"name": "fewer_steps", "measured": 0.002323, "interval": Interval(0.001543, 0.003103, 0.95, "bootstrap"),
             "judged_by": "interval", "equal_within": 0.001464, "why": "so"}  # fmt: skip
    return make_item(**{**given, **changes})


@pytest.mark.parametrize(
    ("item", "told"),
    [
        (_item(), "0.002323 (0.001543 to 0.003103), and 0.003103 > 0 + 0.001464: so"),
        (_item(equal_within=0.004), "0.002323 (0.001543 to 0.003103), and 0.003103 <= 0 + 0.004: so"),
        (
            _item(name="speedup", measured=0.1, interval=Interval(0.09, 0.2, 0.95, "bootstrap"), equal_within=0.0),
            "0.1 (0.09 to 0.2), and 0.09 < 0.1: so",
        ),
        (_item(name="speedup", measured=0.1, interval=None, judged_by="value", equal_within=0.0), "0.1 >= 0.1: so"),
        (_item(name="mean_drop", measured=0.0800001, interval=None, judged_by="value", equal_within=0.0),
         "0.0800001 > 0.08: so"),
        (_item(name="memory", measured=3000.0, interval=None, judged_by="value", equal_within=0.0, threshold=2000.0),
         "2.93 KiB > 1.95 KiB: so"),
        (_item(name="speedup", measured=None, interval=None, equal_within=0.0), "so (must be >= 0.1)"),
    ],
)  # fmt: skip
def test_the_relation_that_is_told_is_true(item: Item, told: str) -> None:
    """Red says by what the threshold is missed, green by what it is kept: by the end of the interval that decides."""
    from refkv_policy.quality.gate import _judged

    assert _judged(item) == told
    if item.measured is None:
        return
    number = r"(-?[\d.]+)"
    left, sign, right, *_ = re.search(rf"{number}(?: KiB)? (<=|>=|<|>) {number}(?: \+ {number})?", told).groups()  # type: ignore[union-attr]
    assert {"<=": le, ">=": ge, "<": lt, ">": gt}[sign](float(left), float(right) + item.equal_within)


def test_sweep_and_verdict_keep_to_eighty_columns(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """No line is longer and no word is broken, with intervals, long names of variants and every kind of line."""
    varies = [parse_vary("refresh.interval=1,2,4,0"), parse_vary("at='hint[3-5]','hint[deep]'")]
    found = gated(tmp_path, errors_of(0.001), varies=varies, compare=FEATURED)
    scope = measured_scope(found, model="tiny", command=["refkv"])
    drawn: dict[str, list[str]] = {}
    for width in ("80", ""):
        monkeypatch.setenv("COLUMNS", width)
        drawn[width] = [sweep_text(found), verdict_text(scope)]
    for narrow, wide in zip(drawn["80"], drawn[""], strict=True):
        assert max(map(len, narrow.splitlines())) <= 80 < max(map(len, wide.splitlines()))
        assert sorted(narrow.split()) == sorted(wide.split())


def test_a_plan_of_two_rules_is_gated_without_being_varied(
    refkv: Callable[..., Any], tiny_folder: Path, plan_file: Path, clips: Path, tmp_path: Path
) -> None:
    """Nothing says which rule to vary, and nothing has to: it is said, and the plan is judged."""
    text = plan_file.read_text()
    rules = (
        "  - {name: text, tier: P0, method: text_kv, at: 'main[all].text_kv'}\n"
        "  - {name: steps, tier: S, method: step_schedule, at: step, refresh: {spacing: sigma, count: 3}}\n"
    )
    accepted = "acknowledgements:\n  - {risk: fewer-steps, by: t, date: 2026-01-01, reason: r}\n"
    text = text.replace("acknowledgements:\n", rules + accepted)
    plan_file.write_text(text)
    result = refkv("gate", plan_file, "--model", tiny_folder, "--clips", clips, "--device", "cpu", "--size", "16x16",
                   "--frames", "5", "--seeds", "1", "--repeats", "0", "--baselines", "2", "--features", "none",
                   "--results", tmp_path / "results", "--guardrails", "none")  # fmt: skip
    assert result.exit_code in (0, 1), result.output
    assert "nothing is varied, since the plan has several rules: say which rule is varied with --rule" in result.stderr
    assert (tmp_path / "evidence" / "tiny.json").exists()


def test_a_stand_in_is_recorded_as_one(tmp_path: Path) -> None:
    """Its metric is there, marked, and no item names it."""
    found = gated(tmp_path, errors_of(0.001), compare=partial(sweeps.comparison, drop=3.0, stand_in=True))
    scope: MeasuredScope = measured_scope(found, model="tiny", command=["refkv"])
    marked = [m for m in scope.metrics if m.stand_in]
    assert [m.name for m in marked] == ["efficientnet_lite0_stand_in_drop"]
    assert not any(item.metric == marked[0].name for item in scope.gate)
    assert scope.verdict != "green"


def test_what_cannot_be_gated(tmp_path: Path) -> None:
    """Guidance 1, clips of different rates, and a plan whose own run failed."""
    with pytest.raises(GateError, match="not gated at guidance 1"):
        check_gateable(1.0, sweeps.made_up())
    rates = (*sweeps.made_up(("a",), 16.0), *sweeps.made_up(("b",), 24.0))
    with pytest.raises(GateError, match=r"16, 24 frames a second.*--fps"):
        check_gateable(5.0, rates)
    made: Sweep = sweeps.sweep(sweeps.made_up())
    store = sweeps.fill(made, tmp_path, errors_of(0.001))
    store.write(made.run(made.entries[1], *made.samples[0]), {"failed": "it would not"})
    with pytest.raises(GateError, match="it would not"):
        measured_scope(collect(made, store), model="tiny", command=["refkv"])


def test_the_command_gates_packs_and_takes_ratings(
    refkv: Callable[..., Any], tiny_folder: Path, plan_file: Path, clips: Path, tmp_path: Path
) -> None:
    """Evidence that reads back, exit status by its verdict, a second scope beside the first, a pack and its ratings."""
    common = ("gate", plan_file, "--model", tiny_folder, "--clips", clips, "--device", "cpu", "--size", "16x16",
              "--frames", "5", "--seeds", "1", "--repeats", "0", "--baselines", "2", "--features", "none",
              "--vary", "refresh.interval=1,2", "--results", tmp_path / "results", "--guardrails", "none")  # fmt: skip
    out = tmp_path / "evidence" / "tiny.json"
    packed = refkv(*common, "--ab-pack", tmp_path / "pack")
    assert packed.exit_code == 0, packed.output
    assert "2 pairs; for the gate the RFC asks for 20" in packed.stderr
    key = json.loads(key_path(tmp_path / "pack").read_text())
    answers = {str(pair["pair"]): "same" for pair in key["pairs"]}
    given = {"format": 1, "kind": "refkv-ab-answers", "pack": key["pack"], "rater": "r", "answers": answers}
    (tmp_path / "r.json").write_text(json.dumps(given))
    result = refkv(*common, "--json", "--ratings", tmp_path / "r.json", "--key", key_path(tmp_path / "pack"))
    evidence, faults = read_evidence(out)
    assert faults == (), result.output
    assert evidence is not None
    (scope,) = evidence.scopes
    assert result.exit_code == (1 if scope.verdict == "red" else 0)
    assert json.loads(result.stdout)["verdict"] == scope.verdict
    assert "2 of 2 answers by 1 raters on 2 pairs" in {i.name: i for i in scope.gate}["subjective"].why
    assert scope.bound.weights == key["weights"]
    assert scope.audits != ()
    again = refkv(*common)
    assert "0 of " in again.stderr
    assert len(read_evidence(out)[0].scopes) == 1  # type: ignore[union-attr]
    out.write_text(out.read_text().replace('"batch": 1', '"batch": 2'))
    assert "is not evidence that can be added to" in refkv(*common).stderr
    write_evidence(out, Evidence("another-plan", (scope,)))
    refused = refkv(*common)
    assert (refused.exit_code, "is evidence of the plan another-plan" in refused.stderr) == (2, True)
    assert read_evidence(out)[0].plan == "another-plan"  # type: ignore[union-attr]
    over = refkv(*common, "--out", plan_file)
    assert (over.exit_code, "would overwrite" in over.stderr) == (2, True)
    assert "is there already" in refkv(*common, "--ab-pack", tmp_path / "pack").stderr
    assert "errors cannot be of foo" in refkv(*common, "--out", "new.json", "--metric", "foo").stderr
    assert refkv(*common, "--fps", "-1").exit_code == 2
    assert "longer than 4000" in refkv(*common, "--prompt", "x" * 5000).stderr
    assert refkv(*common, "--guidance", "1").exit_code == 2
    assert "belong together" in refkv(*common, "--ratings", "r.json").stderr
