"""`refkv run`: what it tells and leaves, and how each thing that can go wrong is told."""

from __future__ import annotations

import json
import os
import pickle
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from refkv_policy.audit import verify
from refkv_policy.video import read_clip, shipped_clip, write_clip

SMALL = ("--size", "32x32", "--frames", "5", "--device", "cpu")


def test_run_with_baseline(refkv: Callable, plan_file: Path, model_folder: Path, tmp_path: Path) -> None:
    """One run tells model, clip, map, predictions and measurements, and leaves log, lock, output and comparison."""
    plan_file.with_suffix(".lock").unlink(missing_ok=True)
    result = refkv("run", "--plan", plan_file, "--model", model_folder, *SMALL, "--baseline", "--json")
    assert result.exit_code == 0, result.output
    first = result.stderr.splitlines()[0]
    assert first.startswith("random (wan2.1-vace-mini) on bigbuckbunny.mp4")
    assert "Blender Foundation" in first
    for text in ("hint[3-5]", "CRC", "predicted (float32, cond and uncond)", "denoising: planned", "pixel difference"):
        assert text in result.stderr

    value = json.loads(result.stdout)
    out = tmp_path / "out" / "tiny"
    assert {p.name for p in out.iterdir()} == {"tiny.lock", "audit.jsonl", "output.mp4", "compare.mp4"}
    # Three hints, fresh on steps 0 and 2 of 4, two branches; the last fresh value is read once more on step 3.
    assert (value["measured"]["hits"], value["measured"]["misses"]) == (12, 12)
    assert value["measured"]["bytes_peak"] == value["predicted"]["bytes_peak"] == 8 * 128 * 4 * 3 * 2
    assert value["measured"]["sites"] == value["predicted"]["sites"]
    assert value["outcome"] == "finished"
    assert 0 < value["difference"]["mean"] < 0.5
    assert value["uncached"]["denoise_seconds"] > 0
    assert verify(out / "audit.jsonl").outcome == "ok"
    header = json.loads((out / "audit.jsonl").read_text().splitlines()[0])
    assert header["seed"] == 0
    assert read_clip(out / "output.mp4", 5, (32, 32)).frames.shape == (5, 32, 32, 3)


def test_output_equals_the_pipeline_called_by_hand(
    refkv: Callable, plan_file: Path, model_folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The frames are those of diffusers' pipeline on the grey clip, with the same seed, table and prompt."""
    import torch
    from diffusers import WanVACEPipeline
    from PIL import Image

    import refkv_policy
    from refkv_policy.cli import results

    written: list[np.ndarray] = []
    monkeypatch.setattr(results, "write_clip", lambda path, frames, fps: written.append(frames))
    prompt = ("--prompt", "a red ball", "--negative-prompt", "blue", "--seed", "7")
    assert refkv("run", "--plan", plan_file, "--model", model_folder, *SMALL, *prompt).exit_code == 0

    pipe = WanVACEPipeline.from_pretrained(model_folder)
    pipe.set_progress_bar_config(disable=True)
    clip = read_clip(shipped_clip(), 5, (32, 32)).frames
    grey = [Image.fromarray(f).convert("L").convert("RGB") for f in clip]
    table = refkv_policy.compile_plan(refkv_policy.load_plan(plan_file), pipe.transformer, 4)
    with refkv_policy.attach(pipe, table):
        frames = pipe(
            prompt="a red ball",
            negative_prompt="blue",
            video=grey,
            height=32,
            width=32,
            num_frames=5,
            num_inference_steps=4,
            guidance_scale=5.0,
            max_sequence_length=32,
            generator=torch.Generator().manual_seed(7),
        ).frames[0]
    # Pillow rounds luma its own way: a level of 255 in a few pixels.
    assert np.abs(written[0].astype(int) - np.rint(frames * 255)).max() <= 2


def test_mask_reference_and_video(refkv: Callable, plan_file: Path, model_folder: Path, tmp_path: Path) -> None:
    """A clip of one's own of odd size, a mask and two reference images: notes say what was done, references add tokens."""
    rng = np.random.default_rng(0)
    write_clip(tmp_path / "odd.mp4", rng.integers(0, 256, (9, 50, 70, 3), np.uint8), 10)
    white = np.full((8, 8, 3), 255, np.uint8)
    from PIL import Image

    Image.fromarray(white).save(tmp_path / "white.png")
    inputs = ("--video", "odd.mp4", "--mask", "white.png", "--reference", "white.png", "--reference", "white.png")
    result = refkv("run", "--plan", plan_file, "--model", model_folder, *SMALL, *inputs, "--frames", "7", "--json")
    assert result.exit_code == 0, result.output
    assert "70x50 was resized and cropped in the centre to 32x32" in result.stderr
    assert "5 frames instead of 7: the model takes 4n+1" in result.stderr
    value = json.loads(result.stdout)
    # 4 tokens a latent frame: two of the clip and one of each reference image.
    assert value["measured"]["bytes_peak"] == 4 * (2 + 2) * 128 * 4 * 3 * 2
    assert value["fps"] == 10


def test_the_plans_shift_is_what_runs(refkv: Callable, plan_file: Path, model_folder: Path) -> None:
    """A plan for another shift than the folder's runs at the plan's, and says so; the hits are those of its table."""
    plan_file.write_text(plan_file.read_text().replace("flow_shift: 3.0", "flow_shift: 8.0"))
    result = refkv("run", "--plan", plan_file, "--model", model_folder, *SMALL, "--json")
    assert (result.exit_code, "flow_shift 8, as the plan says, instead of the model folder's 3" in result.stderr) == (
        0,
        True,
    ), result.output
    value = json.loads(result.stdout)
    assert value["measured"]["hits"] == value["predicted"]["hits"] > 0


@pytest.mark.parametrize("name", ["euler", "dpm++"])
def test_the_plans_sampler_is_what_runs(refkv: Callable, plan_file: Path, model_folder: Path, name: str) -> None:
    """A plan for another sampler than the folder's runs with that, at its shift, and says so; the log replays."""
    text = plan_file.read_text()
    assert "name: unipc, flow_shift: 3.0" in text
    plan_file.write_text(text.replace("name: unipc, flow_shift: 3.0", f"name: {name}, flow_shift: 8.0"))
    out = plan_file.parent / "out"
    result = refkv("run", "--plan", plan_file, "--model", model_folder, *SMALL, "--out", out, "--json")
    assert result.exit_code == 0, result.output
    assert f"sampler {name} with flow_shift 8, as the plan says, instead of the model folder's UniPC" in result.stderr
    value = json.loads(result.stdout)
    assert value["measured"]["hits"] == value["predicted"]["hits"] > 0
    assert refkv("audit", "verify", out / "audit.jsonl").exit_code == 0


@pytest.mark.parametrize(
    "arguments",
    [
        ("--plan", "none.yaml"),
        ("--video", "none.mp4"),
        ("--video", "plans/tiny.yaml"),
        ("--mask", "none.png"),
        ("--reference", "none.png"),
        ("--model", "nowhere/at/all"),
        ("--steps", "5"),
        ("--guidance", "3"),
        ("--size", "100x100"),
        ("--frames", "41"),
        ("--start", "35"),
        ("--locked",),
        ("--out", "/dev/null/x"),
        ("--out", "plans/tiny.yaml"),
    ],
)
def test_what_is_wrong_is_told_before_torch_is_imported(
    plan_file: Path, model_folder: Path, tmp_path: Path, arguments: tuple[str, ...]
) -> None:
    """Importing torch takes seconds: none of what is wrong with a command line waits for it."""
    words = ["refkv", "run", "--plan", str(plan_file), "--model", str(model_folder), *SMALL, *arguments]
    code = (
        f"import sys; sys.argv = {words!r}\n"
        "from refkv_policy.cli import main\n"
        "try:\n    main()\nexcept SystemExit as stop:\n    status = stop.code\n"
        "assert not {'torch', 'diffusers', 'transformers'} & set(sys.modules), 'imported'\nsys.exit(status)\n"
    )
    done = subprocess.run([sys.executable, "-c", code], cwd=tmp_path, capture_output=True, text=True)
    assert done.returncode in (1, 2), done.stderr
    assert ("imported" in done.stderr, "Traceback" in done.stderr) == (False, False), done.stderr
    assert done.stdout == ""


@pytest.mark.parametrize(
    ("given", "found"),
    [
        ({}, {"OMP_WAIT_POLICY": "PASSIVE", "GOMP_SPINCOUNT": "0", "KMP_BLOCKTIME": "0"}),
        ({"OMP_WAIT_POLICY": "ACTIVE"}, {"OMP_WAIT_POLICY": "ACTIVE"}),
        ({"GOMP_SPINCOUNT": "1000"}, {"GOMP_SPINCOUNT": "1000"}),
        ({"KMP_BLOCKTIME": "200"}, {"KMP_BLOCKTIME": "200"}),
    ],
)
def test_threads_wait_asleep_unless_the_environment_says_otherwise(
    given: dict[str, str], found: dict[str, str]
) -> None:
    """The policy is in the environment when torch, which reads it once, is imported."""
    code = (
        "import builtins, json, os\n"
        "names = ('OMP_WAIT_POLICY', 'GOMP_SPINCOUNT', 'KMP_BLOCKTIME')\n"
        "real = builtins.__import__\n"
        "def watched(name, *more):\n"
        "    if name == 'torch':\n"
        "        print(json.dumps({n: os.environ[n] for n in names if n in os.environ}), flush=True)\n"
        "        os._exit(0)\n"
        "    return real(name, *more)\n"
        "builtins.__import__ = watched\n"
        "from refkv_policy.cli.libraries import choose_device\n"
        "choose_device(None)\n"
    )
    names = ("OMP_WAIT_POLICY", "GOMP_SPINCOUNT", "KMP_BLOCKTIME")
    environment = {k: v for k, v in os.environ.items() if k not in names} | given
    done = subprocess.run([sys.executable, "-c", code], env=environment, capture_output=True, text=True, check=True)
    assert json.loads(done.stdout) == found


def test_a_terminal_is_told_what_is_loaded(plan_file: Path, model_folder: Path, tmp_path: Path) -> None:
    """Seconds pass before the first step: on a terminal one line says for what, and elsewhere none does."""
    folder = tmp_path / "spoilt"
    shutil.copytree(model_folder, folder)
    (folder / "vae" / "diffusion_pytorch_model.safetensors").write_bytes(b"x" * 64)
    command = [sys.executable, "-m", "refkv_policy", "run", "--plan", str(plan_file), "--model", str(folder), *SMALL]
    ours, theirs = os.openpty()
    try:
        subprocess.run(command, cwd=tmp_path, stdout=subprocess.PIPE, stderr=theirs)
        told = os.read(ours, 1 << 16).decode()
    finally:
        os.close(ours)
        os.close(theirs)
    assert told.index("loading torch") < told.index("loading spoilt") < told.index("cannot be loaded")
    piped = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True)
    assert (piped.returncode, "loading" in piped.stderr) == (2, False)


def test_two_runs_into_one_folder_are_kept_apart(
    refkv: Callable, plan_file: Path, model_folder: Path, tmp_path: Path
) -> None:
    """While one run holds the folder another is refused, and leaves it as it is; afterwards it is free."""
    from refkv_policy.cli.outputs import held

    out = tmp_path / "out"
    arguments = ("run", "--plan", plan_file, "--model", model_folder, *SMALL, "--out", out)
    with held(out):
        result = refkv(*arguments)
        assert (result.exit_code, "another run is writing into" in result.stderr) == (2, True), result.output
        assert not list(out.iterdir())
    assert refkv(*arguments).exit_code == 0


def test_what_an_earlier_run_left_is_kept_together(
    refkv: Callable, plan_file: Path, model_folder: Path, tmp_path: Path
) -> None:
    """A second clip, or an edited plan, overwrites neither the video nor the lock that the earlier log accounts for."""
    out = tmp_path / "out"
    arguments = ("run", "--plan", plan_file, "--model", model_folder, *SMALL, "--out", out)
    assert refkv(*arguments, "--baseline").exit_code == 0
    before = {name: (out / name).read_bytes() for name in ("output.mp4", "audit.jsonl", "compare.mp4", "tiny.lock")}
    plan_file.write_text(plan_file.read_text().replace("interval: 2", "interval: 3"))
    assert refkv(*arguments, "--seed", "1", "--start", "3").exit_code == 0
    kept = {path.stem.split("-")[0] + path.suffix: path for path in out.iterdir() if "-" in path.name}
    assert {name: path.read_bytes() for name, path in kept.items()} == before
    assert len({path.stem.partition("-")[2] for path in kept.values()}) == 1, "one stamp for what belongs together"
    assert (out / "output.mp4").read_bytes() != before["output.mp4"]
    assert verify(kept["audit.jsonl"]).outcome == "ok"
    assert refkv(*arguments).exit_code == 0
    assert len(list(out.glob("output-*.mp4"))) == 2


@pytest.mark.parametrize(
    ("device", "cpu_seconds", "said", "unsaid"),
    [
        ("cpu", (8.0, 12.0), "one run each, in processor time: 1.50x", "one run each: "),
        ("cpu", (4.0, 12.0), "the machine was busy meanwhile: the two times are not comparable", "one run each"),
        ("cpu", (2.0, 1.0), "the machine was busy meanwhile", "one run each"),
        ("cuda:0", (0.1, 0.1), "one run each: 0.75x", "processor time"),
    ],
)
def test_one_pair_of_runs_is_no_property_of_the_plan(
    plan_file: Path, model_folder: Path, device: str, cpu_seconds: tuple[float, float], said: str, unsaid: str
) -> None:
    """A ratio is told with what it is of, or not at all; beside it stands what FLOPs predict, and how to measure it."""
    from types import SimpleNamespace

    from refkv_policy.cli.job import prepare
    from refkv_policy.cli.results import Results

    job, _ = prepare(
        plan=str(plan_file), model=str(model_folder), steps=None, guidance=None, size="32x32", frames=5, references=0,
        seed=0, prompt="", negative_prompt="", out=None, locked=False,
    )  # fmt: skip
    results = Results(job, "float32", device)
    for name, wall, cpu in (("planned", 8.0, cpu_seconds[0]), ("uncached", 6.0, cpu_seconds[1])):
        setattr(results, name, SimpleNamespace(denoise_seconds=wall, denoise_cpu=cpu, total_seconds=9.0))
    if said.endswith("1.50x"):
        results.uncached.denoise_seconds = 12.0  # as much of the machine as the planned run had
    text = "\n".join(results._latency())
    assert said in text
    assert unsaid not in text
    assert f"predicted by FLOPs: {results.predicted.speedup:.2f}x at most; `refkv gate" in text


def test_an_earlier_log_is_kept(refkv: Callable, plan_file: Path, model_folder: Path, tmp_path: Path) -> None:
    """A second run into the same folder keeps the first run's log under another name, and says so."""
    out = tmp_path / "kept"
    out.mkdir()
    (out / "audit.jsonl").write_text("earlier\n")
    result = refkv("run", "--plan", plan_file, "--model", model_folder, *SMALL, "--out", out)
    assert result.exit_code == 0, result.output
    assert "the earlier audit.jsonl is kept as" in result.stderr
    kept = [p for p in out.glob("audit-*.jsonl") if p.read_text() == "earlier\n"]
    assert len(kept) == 1


def test_ctrl_c_seals_the_log(plan_file: Path, model_folder: Path, tmp_path: Path) -> None:
    """Interrupted in mid-run: exit status 130, a log sealed `cancelled` that verifies, no output and no half-written file."""
    plan_file.write_text(plan_file.read_text().replace("steps: [4]", "steps: [200]"))
    out = tmp_path / "out"
    command = [sys.executable, "-m", "refkv_policy.cli", "run", "--plan", str(plan_file), "--model", str(model_folder)]
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    process = subprocess.Popen(
        [*command, *SMALL, "--out", str(out)],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        env=environment,
        # A job in the background of a shell inherits that SIGINT is ignored.
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),
    )
    log = out / "audit.jsonl"
    deadline = time.monotonic() + 240
    while time.monotonic() < deadline and not (log.exists() and log.read_bytes().count(b"\n") > 4):
        assert process.poll() is None, process.stderr and process.stderr.read().decode()
        time.sleep(0.02)
    process.send_signal(signal.SIGINT)
    _, errors = process.communicate(timeout=240)
    assert process.returncode == 130, errors
    assert b"Traceback" not in errors
    records = [json.loads(line) for line in log.read_text().splitlines()]
    assert [r["outcome"] for r in records if r["kind"] == "seal"] == ["cancelled"]
    assert verify(log).outcome == "ok"
    assert {p.name for p in out.iterdir()} == {"audit.jsonl", "tiny.lock"}


def test_dry_run_predicts_and_leaves_nothing(
    refkv: Callable, plan_file: Path, model_folder: Path, tmp_path: Path
) -> None:
    """--dry-run needs no torch, prints map and figures at the size asked for, and makes no folder."""
    code = (
        "import sys; sys.argv = ['refkv', 'run', '--dry-run', '--json', '--size', '64x32', '--frames', '9',\n"
        f"  '--plan', {str(plan_file)!r}, '--model', {str(model_folder)!r}]\n"
        "from refkv_policy.cli import main\n"
        "try:\n    main()\nexcept SystemExit as stop:\n    assert not stop.code\n"
        "assert not {'torch', 'diffusers', 'numpy'} & set(sys.modules)\n"
    )
    done = subprocess.run([sys.executable, "-c", code], cwd=tmp_path, capture_output=True, text=True, check=True)
    value = json.loads(done.stdout)
    assert value["predicted"]["bytes_peak"] == 3 * (4 * 2) * 128 * 2 * 3 * 2
    assert "hint[3-5]" in done.stderr
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize(
    ("arguments", "status", "text"),
    [
        (["--plan", "none.yaml"], 2, "there is no plan none.yaml"),
        (["--plan", "wan21_p1_k3"], 2, "did you mean"),
        (["--plan", "plans"], 2, "is a folder"),
        (["--model", "nowhere/at/all"], 2, "there is no model folder"),
        (["--model", "owner/name"], 2, "the hub is switched off"),
        (["--steps", "5"], 1, "not reviewed for 5 steps; it lists 4"),
        (["--guidance", "3"], 1, "tiny.yaml:10:13: RKV222 the plan is not reviewed for guidance 3; it lists 5"),
        (["--size", "100x100"], 2, "multiples of 16x16; the nearest is 96x96"),
        (["--size", "big"], 2, "not WIDTHxHEIGHT"),
        (["--frames", "41"], 2, "has 37 frames, and the output is to have 41; ask for 37 frames"),
        (["--video", "none.mp4"], 2, "none.mp4 does not exist"),
        (["--mask", "none.png"], 2, "none.png does not exist"),
        (["--reference", "none.png"], 2, "none.png does not exist"),
        (["--device", "cuda:9"], 2, "--device cuda:9 cannot be used here"),
        (["--locked"], 1, "RKV701"),
        (["--offload"], 2, "no accelerator"),
        (["--out", "/dev/null/x"], 2, "choose another folder with --out"),
        (["--control", "depth"], 2, "'depth' is not one of"),
    ],
)
def test_what_goes_wrong_is_a_sentence(
    refkv: Callable,
    plan_file: Path,
    model_folder: Path,
    monkeypatch: pytest.MonkeyPatch,
    arguments: list[str],
    status: int,
    text: str,
) -> None:
    """Each expected failure says what is wrong and what to do, with the exit status that tells plan from command."""
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    result = refkv("run", "--plan", plan_file, "--model", model_folder, *SMALL, *arguments)
    assert result.exit_code == status, result.output
    assert text in result.stderr
    assert "Traceback" not in result.stderr


def test_a_plan_that_does_not_list_the_model(refkv: Callable, plan_file: Path, model_folder: Path) -> None:
    """The profile is chosen by the transformer's config: a plan for the 1.3B only is refused on this folder."""
    plan_file.write_text(plan_file.read_text().replace("models: [wan2.1-vace-mini]", "models: [wan2.1-vace-1.3b]"))
    result = refkv("run", "--plan", plan_file, "--model", model_folder, *SMALL)
    assert result.exit_code == 1
    assert "the plan is not for wan2.1-vace-mini" in result.stderr


def test_model_from_the_environment(
    refkv: Callable, plan_file: Path, model_folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """REFKV_MODEL names the model where --model does not."""
    monkeypatch.setenv("REFKV_MODEL", str(model_folder))
    result = refkv("run", "--plan", plan_file, "--dry-run")
    assert result.exit_code == 0, result.output
    assert result.stdout.startswith("random (wan2.1-vace-mini)")


@pytest.mark.parametrize(
    ("spoil", "text"),
    [
        (lambda f: (f / "model_index.json").unlink(), "has no model_index.json"),
        (lambda f: (f / "model_index.json").write_text("{"), "cannot be read"),
        (lambda f: (f / "model_index.json").write_text("[" * 200_000), "cannot be read"),
        (lambda f: _edit(f, _class_name="WanPipeline"), "holds a WanPipeline"),
        (lambda f: _edit(f, transformer=["my_code", "Evil"]), "only diffusers's own classes"),
        (lambda f: _edit(f, boundary_ratio=0.9), "two transformers"),
        (lambda f: _pickle_only(f), "which could run code when loaded"),
        (lambda f: (f / "vae" / "diffusion_pytorch_model.safetensors").unlink(), "holds no weights"),
        (lambda f: (f / "vae" / "diffusion_pytorch_model.safetensors").write_bytes(b"x" * 64), "cannot be loaded"),
    ],
)
def test_folders_that_are_refused(
    refkv: Callable, plan_file: Path, model_folder: Path, tmp_path: Path, spoil: Callable[[Path], None], text: str
) -> None:
    """A folder that is no WanVACEPipeline, is not whole, or could run code is refused before it is loaded."""
    folder = tmp_path / "spoilt"
    shutil.copytree(model_folder, folder)
    spoil(folder)
    result = refkv("run", "--plan", plan_file, "--model", folder, *SMALL)
    assert result.exit_code == 2, result.output
    assert text in result.stderr


def _edit(folder: Path, **changes: object) -> None:
    index = folder / "model_index.json"
    index.write_text(json.dumps(json.loads(index.read_text()) | changes))


def _pickle_only(folder: Path) -> None:
    (folder / "transformer" / "diffusion_pytorch_model.safetensors").unlink()
    (folder / "transformer" / "diffusion_pytorch_model.bin").write_bytes(pickle.dumps({}))


def test_missing_libraries_are_named(
    refkv: Callable, plan_file: Path, model_folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Without torch the command says which extra to install."""
    monkeypatch.setitem(sys.modules, "torch", None)
    result = refkv("run", "--plan", plan_file, "--model", model_folder, *SMALL)
    assert result.exit_code == 2
    assert "pip install 'refkv-policy[run]'" in result.stderr
