"""A sweep on a tiny random model: every figure against one worked out by calling the pipeline by hand. Mechanics only."""

from __future__ import annotations

import json
import mmap
import subprocess
import sys
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image

import refkv_policy
from refkv_policy.audit import verify
from refkv_policy.compiler import HookTable
from refkv_policy.profiles import Profile
from refkv_policy.quality.baselines import respaced_table
from refkv_policy.quality.sweep import Sweep
from refkv_policy.quality.sweep_collect import Findings, collect
from refkv_policy.quality.sweep_text import sweep_json, sweep_text
from refkv_policy.quality.tasks import MANY_STEPS, Source, Store, Task
from refkv_policy.quality.tasks_bench import Bench, read_input, request_of, resident_peak
from refkv_policy.quality.tasks_run import run_stages
from refkv_policy.quality.turns import Pause, take_turns, twin_of
from refkv_policy.quality.variants import parse_vary
from refkv_policy.runtime.generate import generate
from refkv_policy.video import control, read_clip
from tests import sweeps, tiny


@pytest.fixture(scope="module")
def pipe() -> Any:
    """One tiny pipeline."""
    return tiny.pipeline()


def layout(pipe: Any, clips: list[Source], **more: Any) -> Sweep:
    """A small sweep of the tiny plan."""
    profile = Profile.from_transformer(pipe.transformer, text_tokens=8)
    varies = [parse_vary("refresh.interval=1,2,0")]
    return sweeps.sweep(clips, of=sweeps.plan(), profile=profile, varies=varies, **{"repeats": 1, **more})


@pytest.fixture(scope="module")
def swept(pipe: Any, tmp_path_factory: pytest.TempPathFactory) -> tuple[Sweep, Store, list[Task]]:
    """One clip, one seed, all of it run; with the tasks that were."""
    folder = tmp_path_factory.mktemp("sweep")
    made = layout(pipe, [sweeps.clip(folder, "a")])
    store = Store(folder / "results").open()
    done: list[Task] = []
    run_stages(made.stages(), store, lambda: Bench(pipe, made.conditions, [], store), on_done=done.append)
    return made, store, done


@pytest.fixture(scope="module")
def findings(swept: tuple[Sweep, Store, list[Task]]) -> Findings:
    """What it found."""
    return collect(swept[0], swept[1])


@pytest.fixture(scope="module")
def by_hand(pipe: Any, swept: tuple[Sweep, Store, list[Task]]) -> Callable[..., np.ndarray]:
    """The frames of one request, by diffusers' own call."""
    source = swept[0].clips[0]
    grey = control(read_clip(source.path, sweeps.FRAMES, (sweeps.SIZE, sweeps.SIZE)).frames, "grey")

    def run(steps: int, table: HookTable | None = None, seed: int = 0) -> np.ndarray:
        call = partial(
            pipe, prompt=source.prompt, negative_prompt="", video=[Image.fromarray(f) for f in grey], height=sweeps.SIZE,
            width=sweeps.SIZE, num_frames=sweeps.FRAMES, num_inference_steps=steps, guidance_scale=5.0,
            max_sequence_length=8, output_type="np", generator=torch.Generator().manual_seed(seed),
        )  # fmt: skip
        if table is None:
            return call().frames[0]
        with refkv_policy.attach(pipe, table):
            return call().frames[0]

    return run


def test_errors_are_those_of_runs_made_by_hand(
    swept: tuple[Sweep, Store, list[Task]], findings: Findings, by_hand: Callable[..., np.ndarray]
) -> None:
    """Plan, fewer steps, re-spaced steps, solver floor, noise floor and another seed: mean absolute difference by numpy."""
    made = swept[0]
    uncached, many = by_hand(4), by_hand(12)

    def error(frames: np.ndarray, reference: np.ndarray = uncached) -> Any:
        return pytest.approx(float(np.abs(frames.astype(np.float64) - reference).mean()), rel=1e-5)

    plan = by_hand(4, made.table)
    assert findings.value(findings.plan) == error(plan)
    assert findings.plan.error(findings.metric, MANY_STEPS).value == error(plan, many)
    rows = {row.entry.name: row for row in findings.rows}
    assert findings.value(rows["3 steps"]) == error(by_hand(3))
    respaced = respaced_table(made.plan, made.profile, 4, 3, "sqrt_sigma")
    assert findings.value(rows["3 of 4, sqrt_sigma"]) == error(by_hand(4, respaced))
    noise, solver, other = (figure.value for figure in findings.scale(findings.metric) if figure)
    assert noise == 0
    assert solver == error(uncached, many)
    assert other == error(uncached, by_hand(4, seed=1))
    readings = findings.plan.readings(findings.metric, "uncached")
    assert readings is not None
    assert readings[0][1].worst == pytest.approx(float(np.abs(plan - uncached).mean(axis=(1, 2, 3)).max()), rel=1e-5)
    interval_of_one = rows["refresh.interval=1"]
    assert findings.value(interval_of_one) == 0
    latents = next(m for m in findings.measures if m.name == "latent_l2")
    assert findings.plan.error(latents).value > 0


def test_counts_speeds_and_logs(swept: tuple[Sweep, Store, list[Task]], findings: Findings) -> None:
    """Hits as predicted, calls by steps and branches, FLOP speed-ups, logs that verify and whose heads are recorded."""
    made, store, _ = swept
    plan = findings.plan
    assert plan.entry.prediction is not None
    assert plan.run["hits"] == plan.entry.prediction.tally.hits > 0
    assert plan.run["bytes_peak"] == plan.entry.prediction.bytes_peak
    calls = {row.entry.name: row.run["calls"] for row in findings.rows}
    assert (calls["uncached"], calls["3 steps"], calls["3 of 4, sigma"]) == (8, 6, 6)
    assert {r.entry.name: r.entry.speedup_flops for r in findings.rows}["3 of 4, sigma"] == pytest.approx(4 / 3)
    audit = plan.run["audit"]
    assert verify(store.folder / audit["log"], table=made.table, head=audit["head"]).outcome == "ok"
    pair = plan.pairs[0]
    assert pair["planned"]["audit"]["head"] != audit["head"]
    assert (pair["uncached"]["calls"], pair["planned"]["calls"]) == (8, 8)
    for side in ("uncached", "planned"):
        seconds = pair[side]["seconds"]
        assert all(seconds[part] > 0 for part in ("text", "denoiser", "vae", "io"))
        assert sum(seconds[part] for part in ("text", "denoiser", "vae", "io")) <= seconds["total"]


def test_nothing_was_run_twice_and_what_does_not_compile_is_told(
    swept: tuple[Sweep, Store, list[Task]], findings: Findings
) -> None:
    """Each task once; the plan's own K is the plan; K = 0 is reported in the table and in the JSON."""
    made, store, done = swept
    assert len({task.key for task in done}) == len(done)
    assert [e.name for e in made.entries if e.family in ("plan", "variant")] == ["plan tiny", "refresh.interval=1"]
    assert made.entries[1].varied == {"refresh.interval": 2}
    text, value = sweep_text(findings), sweep_json(findings, str(store.folder))
    assert "does not compile: refresh.interval=0: RKV106" in text
    assert value["does_not_compile"][0]["varied"] == {"refresh.interval": 0}
    assert json.loads(json.dumps(value, allow_nan=False))["rows"][1]["error"]["value"] == findings.value(findings.plan)
    assert "solver floor (uncached at 4 against 12 steps)" in text


def test_pairs_alternate_which_run_is_first(swept: tuple[Sweep, Store, list[Task]]) -> None:
    """So that warming caches or a heating chip favours neither."""
    made, store, _ = swept
    first = store.result(made.pairs(made.entries[1])[0])
    assert first is not None
    assert first["order"] == ["uncached", "planned"]


def test_a_run_that_fails_is_told_and_takes_no_part(
    pipe: Any, swept: tuple[Sweep, Store, list[Task]], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Frames that are no numbers are a fault of their own run: the others stand, and the table names it."""
    from refkv_policy.quality import tasks_bench
    from refkv_policy.runtime.generate import Generated, Request

    made, original = swept[0], tasks_bench.generate

    def spoilt(pipe: Any, request: Request, **more: Any) -> Generated:
        result = original(pipe, request, **more)
        if request.steps == 3:
            result.frames[:] = np.nan
        return result

    monkeypatch.setattr(tasks_bench, "generate", spoilt)
    store = Store(tmp_path).open()
    quick = Sweep(**{**{f: getattr(made, f) for f in made.__dataclass_fields__}, "repeats": 0})
    run_stages(quick.stages(), store, lambda: Bench(pipe, made.conditions, [], store))
    found = collect(quick, store)
    failed = next(row for row in found.rows if row.entry.name == "3 steps")
    assert "not finite" in failed.faults[0]
    assert failed not in found.frontier
    assert "failed: 3 steps: a.mp4, seed 0" in sweep_text(found)
    assert sweep_json(found, "")["rows"][found.rows.index(failed)]["failed"] == list(failed.faults)
    assert not found.timed


def test_resident_memory_is_the_peak_since_it_was_asked() -> None:
    """Memory that is taken and given back inside counts; what was taken before does not have to be there."""
    with resident_peak() as peak:
        # Pages of its own: an allocator may hand out, and keep, what is resident already.
        with mmap.mmap(-1, 60_000_000) as block:
            block.write(b"x" * len(block))
        first = peak()
    with resident_peak() as peak:
        second = peak()
    if first is None or second is None:
        pytest.skip("this system does not tell resident memory")
    assert first - second > 40_000_000


def test_the_command_sweeps_once_and_tells_it_again(
    refkv: Callable[..., Any], tiny_folder: Path, plan_file: Path, clips: Path, tmp_path: Path
) -> None:
    """JSON on stdout, the table on stderr; a second call runs nothing and says the same; a new value runs only itself."""
    arguments = ("sweep", plan_file, "--model", tiny_folder, "--clips", clips, "--device", "cpu", "--size", "16x16",
                 "--frames", "5", "--seeds", "1", "--repeats", "0", "--baselines", "2", "--features", "none", "--json",
                 "--results", tmp_path / "results")  # fmt: skip
    first = refkv(*arguments, "--vary", "refresh.interval=1,2,0")
    assert first.exit_code == 1, first.output  # one value that was asked for is not measured
    told = first.stderr.splitlines()
    assert next(line for line in told if "does not compile" in line).startswith(
        "note: does not compile and is left out: refresh.interval=0: RKV106"
    )
    assert told.index(next(t for t in told if "left out" in t)) < told.index(next(t for t in told if "to be made" in t))
    value = json.loads(first.stdout)
    assert [row["name"] for row in value["rows"][:3]] == ["uncached", "plan tiny", "refresh.interval=1"]
    assert value["rows"][1]["error"]["interval"]["method"] == "bootstrap"
    assert {clip["name"]: clip["prompt"] for clip in value["clips"]} == {"a.mp4": "a blue ball", "b.mp4": ""}
    assert value["rows"][2]["error"]["value"] == 0
    again = refkv(*arguments, "--vary", "refresh.interval=1,2,0")
    assert "0 of " in again.stderr
    assert again.exit_code == 1
    assert json.loads(again.stdout) == value
    more = refkv(*arguments, "--vary", "refresh.interval=1,2,3")
    assert "2 of " in more.stderr
    assert (more.exit_code, "at the pace of the results that are there" in more.stderr) == (0, True)


@pytest.mark.parametrize(
    ("arguments", "status", "text"),
    [
        (("--vary", "refresh.interval"), 2, "is not PATH=VALUE"),
        (("--vary", "refresh.intrval=2"), 2, "did you mean `interval`"),
        (("--vary", "refresh.interval=2,4", "--vary", "parms.cap=2"), 2, "did you mean `params`"),
        (("--vary", "method=hint_reus,hint_forecst"), 2, "there is no method 'hint_reus'"),
        (("--vary", "at=hint[0-99]"), 2, "no variant compiles, so nothing was run"),
        (("--vary", "tier=p1"), 2, "`tier` cannot be"),
        (("--rule", "nope", "--vary", "at=hint[all]"), 2, "no rule 'nope'"),
        (("--clips", "nowhere"), 2, "is not a folder"),
        (("--clips", "plans"), 2, "is not a video"),
        (("--steps", "9"), 1, "not reviewed for 9 steps"),
        (("--features", "nowhere"), 2, "nowhere is not a folder"),
        (("--metric", "foo"), 2, "errors cannot be of foo"),
        (("--vary", ".".join("x" * 2000) + "=1"), 2, "is not PATH=VALUE"),
        (("--results", "plans/tiny.yaml"), 2, "choose another with --results"),
    ],
)
def test_what_goes_wrong_is_a_sentence(
    refkv: Callable[..., Any], tiny_folder: Path, plan_file: Path, arguments: tuple[str, ...], status: int, text: str
) -> None:
    """Every expected failure is told before anything is run."""
    small = ("--size", "16x16", "--frames", "5", "--device", "cpu", "--features", "none")
    result = refkv("sweep", plan_file, "--model", tiny_folder, *small, *arguments)
    assert (result.exit_code, text in result.stderr) == (status, True), result.output
    assert "Traceback" not in result.stderr
    assert "are to be made" not in result.stderr


@pytest.mark.parametrize(
    ("command", "arguments", "text"),
    [
        ("sweep", ("--vary", "refresh.intrval=2"), "did you mean `interval`"),
        ("sweep", ("--clips", "nowhere"), "is not a folder"),
        ("sweep", ("--size", "17x16"), "takes multiples of 16x16"),
        ("gate", ("--steps", "9"), "not reviewed for 9 steps"),
        ("gate", ("--guidance", "1"), "not gated at guidance 1"),
        ("gate", ("--out", "plans/tiny.yaml"), "would overwrite"),
        ("gate", ("--guardrails", "none.yaml"), "there are no guardrails"),
        ("drift", ("--out", "plans/tiny.yaml"), "would overwrite"),
        ("drift", ("--clips", "nowhere"), "is not a folder"),
    ],
)
def test_wrong_arguments_are_told_before_torch_is_imported(
    tiny_folder: Path, plan_file: Path, tmp_path: Path, command: str, arguments: tuple[str, ...], text: str
) -> None:
    """Importing torch takes seconds: none of what is wrong with a command line waits for it."""
    words = [
        "refkv",
        command,
        str(plan_file),
        "--model",
        str(tiny_folder),
        "--size",
        "16x16",
        "--frames",
        "5",
        *arguments,
    ]
    code = (
        f"import sys; sys.argv = {words!r}\n"
        "from refkv_policy.cli import main\n"
        "try:\n    main()\nexcept SystemExit as stop:\n    status = stop.code\n"
        "assert not {'torch', 'diffusers', 'transformers'} & set(sys.modules), 'imported'\nsys.exit(status)\n"
    )
    done = subprocess.run([sys.executable, "-c", code], cwd=tmp_path, capture_output=True, text=True, check=False)
    assert (done.returncode in (1, 2), text in done.stderr) == (True, True), done.stderr
    assert "imported" not in done.stderr


def test_a_sweep_in_which_nothing_could_be_measured_fails(
    refkv: Callable[..., Any], tiny_folder: Path, plan_file: Path, clips: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Every run but the uncached ones gives no numbers: the table says so, and the exit status is 2."""
    from refkv_policy.quality import tasks_bench
    from refkv_policy.runtime.generate import Generated, Request

    original = tasks_bench.generate

    def spoilt(pipe: Any, request: Request, **more: Any) -> Generated:
        result = original(pipe, request, **more)
        if request.steps < 4 or "forward" in vars(pipe.transformer):
            result.frames[:] = np.nan
        return result

    monkeypatch.setattr(tasks_bench, "generate", spoilt)
    result = refkv("sweep", plan_file, "--model", tiny_folder, "--clips", clips, "--device", "cpu", "--size", "16x16",
                   "--frames", "5", "--seeds", "1", "--repeats", "0", "--baselines", "2", "--features", "none",
                   "--results", "r")  # fmt: skip
    assert (result.exit_code, "nothing could be measured" in result.stderr) == (2, True), result.output


def test_progress_without_a_terminal_is_a_line_every_so_often(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """The first after five seconds, then one in thirty, each with what is done, what is left and for how long."""
    from refkv_policy.cli import progress

    now = [0.0]
    monkeypatch.setattr(progress.time, "monotonic", lambda: now[0])
    with progress.progress("measuring", 400, lambda: "a.mp4, seed 0") as step:
        for _ in range(100):
            now[0] += 1
            step(4)
    lines = capsys.readouterr().err.splitlines()
    assert lines[0] == "measuring: 20 of 400 steps (a.mp4, seed 0), 5 s so far, about 95 s left".replace(
        "95 s", "2 min"
    )
    assert [int(line.split()[1]) for line in lines] == [20, 140, 260, 380]
    assert [progress.span(s) for s in (0.4, 89, 90, 3600, 5399, 12000)] == [
        "0 s", "89 s", "2 min", "60 min", "1 h 30 min", "3 h 20 min",
    ]  # fmt: skip


def open_tiny(conditions: Any, folder: Path) -> Bench:
    """A bench of a tiny model, in whichever process."""
    torch.set_num_threads(1)
    return Bench(tiny.pipeline(), conditions, [], Store(folder))


def test_encoding_once_changes_nothing(
    pipe: Any, swept: tuple[Sweep, Store, list[Task]], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Two runs of a clip encode its control once; frames equal those of a pipeline whose encoder is asked every time."""
    made, store, _ = swept
    asked: list[torch.Tensor] = []
    encode = type(pipe.vae).encode

    def counted(self: Any, x: torch.Tensor, **more: Any) -> Any:
        asked.append(x)
        return encode(self, x, **more)

    monkeypatch.setattr(type(pipe.vae), "encode", counted)
    bench = Bench(pipe, made.conditions, [], Store(tmp_path / "results").open())
    uncached = made.uncached(made.clips[0], 0)
    bench.perform(made.many(made.clips[0], 0))
    first = len(asked)
    bench.perform(uncached)
    assert (first > 0, len(asked), "encode" in vars(pipe.vae)) == (True, first, False)
    again, known = bench.store.arrays(uncached.key)[0], store.arrays(uncached.key)[0]
    assert np.array_equal(again, known)


@pytest.mark.ray
@pytest.mark.slow
def test_two_ray_workers_find_the_same(
    pipe: Any, swept: tuple[Sweep, Store, list[Task]], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The same tasks on a local Ray of two workers: every error equal to the last digit."""
    pytest.importorskip("ray")
    monkeypatch.setenv("RAY_worker_niceness", "0")  # 15 otherwise: a busy machine would hardly run them
    made, local, _ = swept
    store = Store(tmp_path / "results").open()
    opener = partial(open_tiny, made.conditions, store.folder)
    run_stages(made.stages(), store, opener, executor="ray", workers=2)
    for one, other in zip(collect(made, local).rows, collect(made, store).rows, strict=True):
        assert one.samples[0].result.get("comparisons") == other.samples[0].result.get("comparisons")


def test_runs_in_turns_are_the_runs_alone(swept: tuple[Sweep, Store, list[Task]]) -> None:
    """On two pipelines of the same weights, step by step: bit-equal to each run by itself, and the first is left as it was."""
    made, _, _ = swept
    pipe = tiny.pipeline()
    twin = twin_of(pipe)
    assert twin.transformer is not pipe.transformer
    for ours, its in zip(pipe.transformer.parameters(), twin.transformer.parameters(), strict=True):
        assert ours.data_ptr() == its.data_ptr()
    source = made.clips[0]
    inputs = read_input(source, made.conditions, 4)[1]
    request = request_of(made.conditions, source, 0, made.steps, inputs)
    alone = generate(pipe, request).latents
    with refkv_policy.attach(pipe, made.table):
        planned_alone = generate(pipe, request).latents
    assert not np.array_equal(alone, planned_alone)

    def planned(pause: Pause) -> Any:
        with refkv_policy.attach(twin, made.table):
            assert "forward" not in vars(pipe.transformer)
            return generate(twin, request, pause=pause).latents

    found = take_turns([lambda pause: generate(pipe, request, pause=pause).latents, planned], (made.steps, made.steps))
    assert np.array_equal(found[0], alone)
    assert np.array_equal(found[1], planned_alone)


def test_waiting_does_not_count(pipe: Any, swept: tuple[Sweep, Store, list[Task]]) -> None:
    """A pause after each step but the last is in none of the times; without one the same call takes as long."""
    made, _, _ = swept
    source = made.clips[0]
    request = request_of(made.conditions, source, 0, made.steps, read_input(source, made.conditions, 4)[1])
    paused: list[float] = []

    def pause() -> None:
        began = time.perf_counter()
        while time.perf_counter() < began + 0.3:
            pass  # busy, so that processor time passes too
        paused.append(time.perf_counter() - began)

    generate(pipe, request)
    began = time.perf_counter()
    made_in_turns = generate(pipe, request, pause=pause)
    whole = time.perf_counter() - began
    assert len(paused) == made.steps - 1
    assert made_in_turns.total_seconds < whole - 0.99 * sum(paused)
    assert made_in_turns.denoise_seconds < made_in_turns.total_seconds
    assert made_in_turns.denoise_cpu <= made_in_turns.cpu_seconds < whole
    assert made_in_turns.cpu_seconds < 0.9 * sum(paused) + made_in_turns.total_seconds
