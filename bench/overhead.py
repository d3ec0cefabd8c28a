"""What the executor costs: a table of `.` against diffusers' own forward, on the same weights, in interleaved calls.

    python bench/overhead.py               # both models, about three minutes on one core
    python bench/overhead.py --only stubs  # dispatch alone: blocks that return what they are given

Prints the median ratio of paired calls (attached over native) with a 95 % interval of that median. Goal: at most 1.01.
One thread and its CPU time, so that other work on the machine does not count. Each call is one that a pipeline makes:
under the branch's `cache_context`, with a timestep of the scheduler's.
"""

from __future__ import annotations

import argparse
import math
import statistics
import time
from collections.abc import Iterator
from typing import Any

import torch
from diffusers import UniPCMultistepScheduler, WanVACEPipeline, WanVACETransformer3DModel
from torch import Tensor, nn

from refkv_policy.compiler import layout_of
from refkv_policy.compiler.sigmas import sigma_grid
from refkv_policy.compiler.table import BRANCHES, HookTable, Row
from refkv_policy.plan.model import Sampler
from refkv_policy.plan.selectors import Site
from refkv_policy.profiles import Profile
from refkv_policy.runtime import attach

GOAL = 1.01
STEPS, SHIFT = 50, 3.0
TEXT = (1, 64, 64)
LAYERS = (30, tuple(range(0, 30, 2)))
"""The 1.3B's layer map: 30 main and 15 VACE blocks."""


class StubMain(nn.Module):
    """A main block that computes nothing."""

    def forward(self, hidden_states: Tensor, *_: Any) -> Tensor:
        """The main stream, unchanged."""
        return hidden_states


class StubVACE(nn.Module):
    """A VACE block that computes nothing."""

    def forward(self, hidden_states: Tensor, text: Tensor, control: Tensor, *_: Any) -> tuple[Tensor, Tensor]:
        """The control stream as hint and as itself."""
        return control, control


def build(heads: int, head_dim: int, layers: tuple[int, tuple[int, ...]]) -> WanVACETransformer3DModel:
    """A transformer with seeded random weights."""
    torch.manual_seed(0)
    return WanVACETransformer3DModel(
        num_attention_heads=heads,
        attention_head_dim=head_dim,
        text_dim=TEXT[2],
        freq_dim=256,
        ffn_dim=4 * heads * head_dim,
        num_layers=layers[0],
        vace_layers=list(layers[1]),
        rope_max_seq_len=64,
    ).eval()


def stub_blocks(model: WanVACETransformer3DModel) -> None:
    """Replace every block by one that computes nothing."""
    model.blocks = nn.ModuleList(StubMain() for _ in model.blocks)
    model.vace_blocks = nn.ModuleList(StubVACE() for _ in model.vace_blocks)


def computing_table(model: WanVACETransformer3DModel) -> HookTable:
    """The table that computes everything: one row a site, as the compiler writes it for a plan without rules."""
    layout = layout_of(Profile.from_transformer(model))
    sites = [Site("step")]
    for stack, count in (("main", layout.main_blocks), ("vace", len(layout.vace_at)), ("hint", len(layout.vace_at))):
        sites += [Site(stack, index) for index in range(count)]
    actions = "." * STEPS
    return HookTable(
        plan="nothing",
        plan_digest="",
        profile="bench",
        layout=layout,
        steps=STEPS,
        evaluated=tuple(range(STEPS)),
        sigmas=sigma_grid(Sampler("unipc", SHIFT), STEPS),
        sampler="unipc",
        flow_shift=SHIFT,
        guidance=(5.0,),
        rules=(),
        rows=tuple(Row(site, actions, actions) for site in sites),
    )


def pipeline(model: WanVACETransformer3DModel) -> WanVACEPipeline:
    """A pipeline that holds the transformer and a scheduler, and nothing that the loop does not need."""
    scheduler = UniPCMultistepScheduler(use_flow_sigmas=True, prediction_type="flow_prediction", flow_shift=SHIFT)
    pipe = WanVACEPipeline(tokenizer=None, text_encoder=None, vae=None, scheduler=scheduler, transformer=model)
    pipe.set_progress_bar_config(disable=True)
    return pipe


def calls(pipe: WanVACEPipeline, inputs: dict[str, Tensor]) -> Iterator[float]:
    """Seconds of CPU time of one call after another, request after request, as the pipeline makes them."""
    scheduler, model = pipe.scheduler, pipe.transformer
    while True:
        scheduler.set_timesteps(STEPS)
        with pipe.progress_bar(total=STEPS):
            for index, t in enumerate(scheduler.timesteps):
                scheduler._step_index, pipe._current_timestep = index, t
                for branch in BRANCHES:
                    start = time.thread_time()
                    with model.cache_context(branch):
                        model(timestep=t.expand(1), return_dict=False, **inputs)
                    yield time.thread_time() - start


def median_interval(values: list[float]) -> tuple[float, float, float]:
    """The median and its 95 % interval by order statistics (no distribution assumed)."""
    ordered, n = sorted(values), len(values)
    half = 0.98 * math.sqrt(n)
    low, high = max(0, math.floor(n / 2 - half)), min(n - 1, math.ceil(n / 2 + half))
    return statistics.median(ordered), ordered[low], ordered[high]


@torch.no_grad()
def measure(name: str, model: WanVACETransformer3DModel, side: int, frames: int, pairs: int) -> None:
    """Print one line of the table."""
    twin = build(model.config.num_attention_heads, model.config.attention_head_dim, layers_of(model))
    if isinstance(model.blocks[0], StubMain):
        stub_blocks(twin)
    twin.load_state_dict(model.state_dict(), assign=True)
    inputs = {
        "hidden_states": torch.randn(1, 16, frames, side, side),
        "encoder_hidden_states": torch.randn(TEXT),
        "control_hidden_states": torch.randn(1, 96, frames, side, side),
        "control_hidden_states_scale": torch.ones(len(model.config.vace_layers)),
    }
    native, attached = pipeline(model), pipeline(twin)
    ratios, times = [], []
    with attach(attached, computing_table(twin)):
        theirs, ours = calls(native, inputs), calls(attached, inputs)
        for _ in range(5):
            next(theirs), next(ours)
        for pair in range(pairs):
            if pair % 2:
                b, a = next(ours), next(theirs)
            else:
                a, b = next(theirs), next(ours)
            ratios.append(b / a)
            times.append(a)
    median, low, high = median_interval(ratios)
    verdict = "met" if median <= GOAL else "missed"
    tokens = frames * (side // 2) ** 2
    print(
        f"{name:<28} {model.patch_embedding.out_channels:>5} {tokens:>6} {statistics.median(times) * 1e3:>10.2f} ms "
        f"{median:>8.4f}  [{low:.4f}, {high:.4f}]  {pairs:>5}  {verdict}"
    )


def layers_of(model: WanVACETransformer3DModel) -> tuple[int, tuple[int, ...]]:
    """A model's layer map."""
    return model.config.num_layers, tuple(model.config.vace_layers)


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", choices=("stubs", "real"))
    parser.add_argument("--pairs", type=int, default=None, help="paired calls (400 stubbed, 30 real)")
    options = parser.parse_args()
    torch.set_num_threads(1)
    head = f"{'model':<28} {'width':>5} {'tokens':>6} {'native call':>13} {'ratio':>8}  {'95 % interval':<16}"
    print(f"{head}  {'pairs':>5}  goal {GOAL}")
    if options.only != "real":
        model = build(2, 12, LAYERS)
        stub_blocks(model)
        measure("45 stubbed blocks", model, 4, 1, options.pairs or 400)
    if options.only != "stubs":
        measure("4 main and 2 VACE blocks", build(6, 128, (4, (0, 2))), 16, 8, options.pairs or 30)


if __name__ == "__main__":
    main()
