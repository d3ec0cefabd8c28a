"""Caches of VACE hints against fewer steps, over samplers, guidance, dtype, step counts and two sets of weights.

    python bench/study.py run [--only A-30-shift3 …] [--threads 1] [--out out/study]
    python bench/study.py table [--full] [--out out/study] [--keep docs/study.json]

Each setting is one sweep of the product's own: every cached way of running, plain fewer steps and re-spaced ones, on the
held-out clips of `bench/evidence_clips.py`, against the uncached run and one of three times the steps. One thing is
changed at a time from the first setting. Speed is by FLOPs of the denoising, which is exact. What has been run is kept
under --out and not run again. `table` prints what docs/evidence.md shows, from --keep where nothing was run here.
"""

from __future__ import annotations

import argparse
import json
import shutil
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
from evidence_clips import write

from refkv_policy.cli.measuring import fewer, ready
from refkv_policy.compiler import HookTable, Workload, compile_plan, predict
from refkv_policy.mini import model_path
from refkv_policy.plan import parse_plan
from refkv_policy.plan.diagnostic import PlanError
from refkv_policy.quality.baselines import SPACINGS, respaced_table
from refkv_policy.quality.gate_items import compare_with_line
from refkv_policy.quality.statistics import figure_of
from refkv_policy.quality.sweep import Entry
from refkv_policy.quality.sweep_collect import Findings, Row, collect
from refkv_policy.quality.tasks import MANY_STEPS, UNCACHED, Work

ROOT = Path(__file__).resolve().parent.parent
B = ROOT / "models" / "wan2.1-vace-mini-b"
BASELINES = (0.8, 2 / 3, 0.4)
"""Shares of the nominal steps."""
USUAL, LONG = 17, 81
"""Frames: what the embedded model was trained on, and just over five seconds at 16 a second."""
Rule = tuple[str, dict[str, Any]]
CACHES: dict[str, list[Rule]] = {
    "reuse, every 2": [("hint_reuse", {"interval": 2})],
    "reuse, every 4": [("hint_reuse", {"interval": 4})],
    "reuse, every 8": [("hint_reuse", {"interval": 8})],
    "reuse, 11 in sigma": [("hint_reuse", {"spacing": "sigma", "count": 11})],
    "forecast, 16 in sigma": [("hint_forecast", {"spacing": "sigma", "count": 16})],
    "forecast, 11 in sigma": [("hint_forecast", {"spacing": "sigma", "count": 11})],
    "forecast, 8 in sigma": [("hint_forecast", {"spacing": "sigma", "count": 8})],
    "forecast, 11 in root sigma": [("hint_forecast", {"spacing": "sqrt_sigma", "count": 11})],
    "forecast, 8 in root sigma": [("hint_forecast", {"spacing": "sqrt_sigma", "count": 8})],
    "20 steps in sigma, forecast 12": [
        ("step_schedule", {"spacing": "sigma", "count": 20}),
        ("hint_forecast", {"spacing": "sigma", "count": 12}),
    ],
    "15 steps in sigma, forecast 9": [
        ("step_schedule", {"spacing": "sigma", "count": 15}),
        ("hint_forecast", {"spacing": "sigma", "count": 9}),
    ],
}
"""Rules by name, at 30 steps; counts are scaled to other step counts, intervals are not."""
OF_LONG = ("reuse, every 4", "forecast, 11 in sigma", "20 steps in sigma, forecast 12")
"""What is run of them on long clips, where a run takes five times as long."""


@dataclass(frozen=True)
class Setting:
    """What is varied from setting to setting. clips: how many of them; seeds: on each."""

    weights: str = "A"
    steps: int = 30
    shift: float = 3.0
    guidance: float = 3.0
    dtype: str = "float32"
    clips: int = 4
    seeds: int = 1
    frames: int = USUAL

    @property
    def name(self) -> str:
        """Such as `A-30-shift3-guidance3-float32`."""
        long = "" if self.frames == USUAL else f"-{self.frames}frames"
        return f"{self.weights}-{self.steps}-shift{self.shift:g}-guidance{self.guidance:g}-{self.dtype}{long}"


FIRST = Setting(clips=6)
SETTINGS = (
    FIRST,
    replace(FIRST, shift=1.0, clips=4),
    replace(FIRST, shift=8.0, clips=4),
    replace(FIRST, guidance=5.0, clips=3),
    replace(FIRST, steps=20, clips=3),
    replace(FIRST, dtype="bfloat16", clips=3),
    replace(FIRST, steps=50, clips=2),
    replace(FIRST, weights="B", clips=4),
    replace(FIRST, weights="B", shift=1.0, clips=3),
    replace(FIRST, weights="B", shift=8.0, clips=3),
    replace(FIRST, weights="B", guidance=5.0, clips=3),
    replace(FIRST, frames=LONG, clips=3),
    replace(FIRST, weights="B", steps=20, clips=3),
    replace(FIRST, weights="B", dtype="bfloat16", clips=3),
    replace(FIRST, weights="B", steps=50, clips=2),
)
"""One thing is changed at a time, on both sets of weights. What takes long on a CPU, or is there to confirm, has fewer clips."""


def plan_text(setting: Setting, rules: Sequence[Rule]) -> str:
    """A plan of these rules at a setting."""
    caches: list[dict[str, Any]] = []
    risks = set()
    for method, refresh in rules:
        scaled = {k: max(2, round(v * setting.steps / 30)) if k == "count" else v for k, v in refresh.items()}
        hints = method != "step_schedule"
        risks.add("lossy-hint-cache" if hints else "fewer-steps")
        rule = {"name": method.replace("_", "-"), "tier": "P1" if hints else "S", "method": method, "refresh": scaled}
        caches.append({**rule, "at": "hint[all]" if hints else "step", **({"branches": "together"} if hints else {})})
    return json.dumps(
        {
            "version": 1,
            "kind": "plan",
            "name": "study",
            "purpose": "reference",
            "description": "One way of running, of bench/study.py.",
            "models": ["wan2.1-vace-mini"],
            "run": {
                "steps": [setting.steps],
                "sampler": {"name": "unipc", "flow_shift": setting.shift},
                "guidance": setting.guidance,
                "shapes": [{"size": "96x96", "frames": setting.frames}],
            },
            "caches": caches,
            "acknowledgements": [
                {"risk": risk, "by": "bench/study.py", "date": "2026-11-30", "reason": "To learn what it costs."}
                for risk in sorted(risks)
            ],
        },
        indent=1,
    )


def second_model(folder: Path) -> Path:
    """A pipeline folder with the second control's transformer, everything else the embedded model's."""
    target = folder / "model-b"
    shutil.rmtree(target, ignore_errors=True)
    shutil.copytree(model_path(), target, ignore=shutil.ignore_patterns("transformer", "*.jpg", "*.md"))
    shutil.copytree(B / "transformer", target / "transformer")
    return target


def measure(setting: Setting, out: Path) -> Findings:
    """Run what is missing of a setting."""
    model = "mini" if setting.weights == "A" else str(second_model(out))
    usual = setting.frames == USUAL
    chosen = out / (f"clips-{setting.clips}" if usual else f"clips-{setting.clips}-{setting.frames}")
    write(chosen, setting.clips, setting.frames)
    plan = out / f"{setting.name}.yaml"
    plan.write_text(plan_text(setting, CACHES["forecast, 11 in sigma"]))
    options: dict[str, Any] = {
        "model": model, "clips": chosen, "prompt": None, "negative_prompt": "", "control": "grey",
        "seeds": setting.seeds, "steps": setting.steps, "guidance": setting.guidance, "size": None, "frames": setting.frames,
        "fps": None, "dtype": setting.dtype, "device": "cpu", "offload": False, "as_json": False, "varies": (),
        "rule": None, "baselines": 2, "repeats": 0, "timed": "all", "clock": "wall",
        "features": "none" if usual else "stand-in", "metric": None,
        "results": out / "results", "executor": "local", "workers": 1,
    }  # fmt: skip
    measuring = ready(options, str(plan))
    measuring = fewer(measuring, entries=entries(setting, measuring.sweep.entries[:2], measuring))
    measuring.run(options)
    return collect(measuring.sweep, measuring.store, None, "wall")


def entries(setting: Setting, first: Sequence[Entry], measuring: Any) -> tuple[Entry, ...]:
    """The uncached run and the plan, every other cached way, and the baselines."""
    sweep = measuring.sweep
    made = [first[0], replace(first[1], name="forecast, 11 in sigma")]

    def add(name: str, family: Any, varied: dict[str, Any], table: HookTable) -> None:
        figures = predict(table, sweep.profile, workload, setting.dtype, ("cond", "uncond"))
        made.append(
            Entry(name, family, varied, Work(table.steps, table.to_dict(), table.digest), figures.speedup, figures)
        )

    shared = sweep.conditions
    workload = Workload(sweep.profile.tokens(shared.width, shared.height, shared.frames), shared.text_tokens)
    for name, rules in CACHES.items():
        if name == made[1].name or (setting.frames != USUAL and name not in OF_LONG):
            continue
        plan, diagnostics = parse_plan(plan_text(setting, rules), "study.yaml")
        try:
            if plan is None:
                raise PlanError(diagnostics)
            add(name, "variant", {"rules": name}, compile_plan(plan, sweep.profile, setting.steps))
        except PlanError as error:
            print(f"{setting.name}: {name} is no plan here: {error.diagnostics[0].message}", flush=True)
    for share in BASELINES if setting.frames == USUAL else BASELINES[:2]:
        count = round(share * setting.steps)
        made.append(Entry(f"{count} steps", "fewer_steps", {"steps": count}, Work(count), setting.steps / count))
        for spacing in SPACINGS if setting.frames == USUAL else SPACINGS[:1]:
            table = respaced_table(sweep.plan, sweep.profile, setting.steps, count, spacing)
            add(f"{count} of {setting.steps}, {spacing}", "respaced_steps", {"spacing": spacing, "count": count}, table)
    return tuple(made)


def told(findings: Findings, setting: Setting) -> dict[str, Any]:
    """A setting's figures as JSON."""
    floor = findings.scale(findings.metric)

    def figure(found: Any) -> list[float] | None:
        if found is None:
            return None
        bounds = (found.value,) if found.interval is None else (found.value, found.interval.low, found.interval.high)
        return [float(f"{v:.6g}") for v in bounds]

    rows = []
    for row in findings.rows:
        about: dict[str, Any] = {
            "name": row.entry.name,
            "family": row.entry.family,
            "speed": round(row.entry.speedup_flops, 4),
        }
        if row.faults:
            rows.append({**about, "failed": list(row.faults)})
            continue
        about |= {
            "error": figure(row.error(findings.metric)),
            "error_many": figure(row.error(findings.metric, MANY_STEPS)),
        }
        if setting.frames != USUAL:
            about |= {"feature": next(m.model for m in findings.measures if m.model), **over_time(row, figure)}
        if row.entry.family in ("plan", "variant"):
            about |= {"hits": row.run["hits"], "misses": row.run["misses"], "beyond": beyond(findings, row, figure)}
        rows.append(about)
    return {
        "setting": setting.name,
        "weights": findings.sweep.conditions.weights,
        "clips": [clip.sha256 for clip in findings.sweep.clips],
        "seeds": len(findings.sweep.seeds),
        "noise_floor": figure(floor[0]),
        "solver_floor": figure(floor[1]),
        "other_seed": figure(floor[2]),
        "rows": rows,
    }


def over_time(row: Row, figure: Any) -> dict[str, Any]:
    """What the feature model says of a row's clips: drop in percent, mean and worst frame, and the decay in points a second."""
    clips = [sample.clip for sample in row.samples]
    found = [c["features"][0] for sample in row.samples if (c := sample.comparison(UNCACHED)) is not None]
    if len(found) < len(clips):
        return {}  # the uncached run itself
    drops = [model["drop"] for model in found]
    return {
        "drop": figure(figure_of([drop["mean"] for drop in drops], groups=clips)),
        "worst": max(drop["worst"] for drop in drops),
        "decay": figure(figure_of([model["decay"]["slope"] for model in found], groups=clips)),
    }


def beyond(findings: Findings, row: Row, figure: Any) -> dict[str, Any]:
    """Its error less that of fewer steps at equal FLOPs, by line; None where the line does not reach so far."""
    shown = replace(findings, rows=(findings.rows[0], row, *(r for r in findings.rows[1:] if r is not row)))
    lines = {"plain": list(findings.of("fewer_steps"))}
    lines |= {s: [r for r in findings.of("respaced_steps") if r.entry.varied["spacing"] == s] for s in SPACINGS}
    found = {name: compare_with_line(shown, rows, name) for name, rows in lines.items()}
    return {name: None if compared is None else figure(compared.beyond) for name, compared in found.items()}


LINES = {"plain": "fewer steps", "re-spaced": "re-spaced fewer steps"}


def short(name: str) -> str:
    """`A-30-shift3-guidance3-float32` as a column head: what is not the first setting's."""
    weights, steps, *rest = name.split("-")
    usual = ["shift3", "guidance3", "float32"]
    changed = [
        new.replace("shift", "shift ").replace("guidance", "guidance ")
        for new, old in zip(rest, usual, strict=True)
        if new != old
    ]
    changed += [] if steps == "30" else [f"{steps} steps"]
    return f"{weights}, {' '.join(changed) or 'shift 3'}"


def hardest(less: dict[str, Any], line: str) -> list[float] | None:
    """The error beyond a line; of re-spaced ones beyond the better of both spacings."""
    if line == "plain":
        found: list[float] | None = less.get("plain")
        return found
    return max((v for s in SPACINGS if (v := less.get(s))), key=lambda v: v[0], default=None)


def summary(settings: Sequence[dict[str, Any]]) -> str:
    """Markdown: errors of every way of running by setting; then those less that of fewer steps at equal FLOPs."""
    head = [
        "| | × FLOPs | " + " | ".join(short(one["setting"]) for one in settings) + " |",
        "|---" * (len(settings) + 2) + "|",
    ]
    # Rows stand in the same order in every setting; step counts are named as the first setting has them.
    places = {row["name"]: i for i, row in enumerate(settings[0]["rows"]) if i}
    speeds = {row["name"]: row["speed"] for row in settings[0]["rows"]}
    names = sorted(places, key=lambda name: speeds[name])

    def of(one: dict[str, Any], name: str) -> dict[str, Any] | None:
        row = one["rows"][places[name]] if places[name] < len(one["rows"]) else None
        return None if row is None or row.get("failed") else row

    def cells(name: str, read: Any) -> str:
        return " | ".join("" if (row := of(one, name)) is None else read(one, row) for one in settings)

    def error(one: dict[str, Any], row: dict[str, Any]) -> str:
        return f"{1e4 * row['error'][0]:.1f}"

    floors = " | ".join(f"{1e4 * one['solver_floor'][0]:.1f}" for one in settings)
    text = [*head, f"| solver floor | | {floors} |"]
    text += [f"| {name} | {speeds[name]:.2f} | {cells(name, error)} |" for name in names]
    for line, words in LINES.items():

        def less(one: dict[str, Any], row: dict[str, Any], line: str = line) -> str:
            return judged(one, hardest(row["beyond"], line))

        text += ["", f"Less the error of {words} at equal FLOPs:", "", *head]
        cached = [name for name in names if "beyond" in settings[0]["rows"][places[name]]]
        text += [f"| {name} | {speeds[name]:.2f} | {cells(name, less)} |" for name in cached]
    return "\n".join(text)


def judged(one: dict[str, Any], figure: list[float] | None) -> str:
    """A difference: bold where its whole interval is on one side of zero, in brackets where it is within the solver floor."""
    if figure is None:
        return ""
    value = f"{1e4 * figure[0]:+.1f}"
    sure = len(figure) == 3 and figure[1] * figure[2] > 0
    value = f"**{value}**" if sure else value
    return f"({value})" if abs(figure[0]) <= one["solver_floor"][0] else value


def long_table(one: dict[str, Any]) -> str:
    """Markdown: the long clips' errors, and what the feature model says of them over time."""
    text = [f"| | × FLOPs | error | {one['rows'][1]['feature']}: drop, % | worst frame, % | decay, points a second |"]
    text += ["|---|---|---|---|---|---|"]
    for row in sorted(one["rows"], key=lambda r: r["speed"]):
        if "decay" in row:
            drop, decay = thousandths(row["drop"]), thousandths(row["decay"], "+")
            cells = [spread(row["error"]), drop, f"{row['worst']:.3f}", decay]
            text.append(f"| {row['name']} | {row['speed']:.2f} | {' | '.join(cells)} |")
    return "\n".join(text)


def thousandths(figure: Sequence[float], sign: str = "") -> str:
    """A figure with its interval, to three decimals."""
    value, low, high = figure
    return f"{value:{sign}.3f} ({low:{sign}.3f} … {high:{sign}.3f})"


def tables(settings: Sequence[dict[str, Any]]) -> str:
    """Markdown: for each setting every way of running, by speed."""
    text = []
    for one in settings:
        floors = ", ".join(
            f"{name.replace('_', ' ')} {1e4 * one[name][0]:.1f}"
            for name in ("noise_floor", "solver_floor", "other_seed")
        )
        text += [f"### {one['setting']}", "", f"{len(one['clips'])} clips, {one['seeds']} seeds a clip; {floors}.", ""]
        text += ["| | × FLOPs | error | against many steps | − plain | − re-spaced |", "|---|---|---|---|---|---|"]
        for row in sorted(one["rows"], key=lambda r: (r["family"] != "uncached", r["speed"])):
            if row.get("failed"):
                text.append(f"| {row['name']} | {row['speed']:.2f} | failed: {row['failed'][0]} | | | |")
                continue
            less = row.get("beyond", {})
            hardest = max((v for s in SPACINGS if (v := less.get(s))), key=lambda v: v[0], default=None)
            cells = [
                spread(row["error"]),
                spread(row["error_many"]),
                spread(less.get("plain"), "+"),
                spread(hardest, "+"),
            ]
            text.append(f"| {row['name']} | {row['speed']:.2f} | {' | '.join(cells)} |")
        text.append("")
    return "\n".join(text)


def spread(figure: list[float] | None, sign: str = "") -> str:
    """In ten-thousandths of full scale: the value, and its interval where there is one."""
    if figure is None:
        return ""
    value = f"{1e4 * figure[0]:{sign}.1f}"
    return value if len(figure) == 1 else f"{value} ({1e4 * figure[1]:{sign}.1f} … {1e4 * figure[2]:{sign}.1f})"


def main() -> None:
    """Run settings, or print their tables."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", choices=["run", "table"])
    parser.add_argument("--only", action="append", help="beginning of a setting's name; may be repeated")
    parser.add_argument("--full", action="store_true", help="table: every setting by itself, with intervals")
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--out", type=Path, default=Path("out/study"))
    parser.add_argument("--keep", type=Path, default=ROOT / "docs" / "study.json")
    args = parser.parse_args()
    torch.set_num_threads(args.threads)
    chosen = [s for s in SETTINGS if not args.only or any(s.name.startswith(o) for o in args.only)]
    if args.what == "run":
        for setting in chosen:
            path = args.out / f"{setting.name}.json"
            if not path.is_file():
                print(f"== {setting.name}", flush=True)
                path.write_text(json.dumps(told(measure(setting, args.out), setting), indent=1) + "\n")
        return
    made = [json.loads(p.read_text()) for s in chosen if (p := args.out / f"{s.name}.json").is_file()]
    if made:
        args.keep.write_text(json.dumps({"settings": made}, indent=1) + "\n")
    else:
        made = json.loads(args.keep.read_text())["settings"]
    usual, long = ([one for one in made if ("frames" in one["setting"]) == is_long] for is_long in (False, True))
    if args.full:
        print(tables(made))
        return
    if usual:
        print(summary(usual))
    for one in long:
        floors = f"solver floor {1e4 * one['solver_floor'][0]:.1f}, another seed {1e4 * one['other_seed'][0]:.1f}"
        print(f"\n{one['setting']}, {len(one['clips'])} clips; {floors}:\n\n{long_table(one)}")


if __name__ == "__main__":
    main()
