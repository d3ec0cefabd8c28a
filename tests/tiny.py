"""Tiny Wan models and pipelines, VACE and plain, with seeded random weights: the real classes, the real layer maps, no width.

Random hints carry no meaning: for tests of mechanics only.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import pytest
import torch
from diffusers import (
    AutoencoderKLWan,
    UniPCMultistepScheduler,
    WanPipeline,
    WanTransformer3DModel,
    WanVACEPipeline,
    WanVACETransformer3DModel,
)
from diffusers.hooks import apply_group_offloading
from torch import Tensor, nn
from transformers import UMT5EncoderModel

from refkv_policy import methods
from refkv_policy.compiler import HookTable, Row, TableRule, compile_plan, layout_of
from refkv_policy.compiler.sigmas import sigma_grid
from refkv_policy.mini.architecture import build_tokenizer, text_encoder_config
from refkv_policy.plan import Sampler, Site
from refkv_policy.profiles import Profile
from tests.plans import plan_of

torch.set_num_threads(1)

MAP_SMALL = (4, (0, 2))
MAP_1_3B = (30, tuple(range(0, 30, 2)))
MAP_14B = (40, tuple(range(0, 40, 5)))
MAP_PLAIN = (4, ())
MAP_T2V_1_3B = (30, ())
MAP_T2V_14B = (40, ())
"""Main blocks, and the main block after which each hint is added; a model without hints is plain Wan."""

TEXT_DIM = 64
TEXT_LENGTH = 8


def transformer(
    layers: tuple[int, tuple[int, ...]] = MAP_SMALL, *, seed: int = 0, dtype: torch.dtype = torch.float32, **more: Any
) -> Any:
    """A transformer of a layer map, 24 wide. Every parameter is random, norms and biases too. more: of its config."""
    kind, hints = WanTransformer3DModel, {}
    if layers[1]:
        kind, hints = WanVACETransformer3DModel, {"vace_layers": list(layers[1]), "vace_in_channels": 96}
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        model = kind(
            patch_size=(1, 2, 2),
            num_attention_heads=2,
            attention_head_dim=12,
            text_dim=TEXT_DIM,
            freq_dim=32,
            ffn_dim=32,
            num_layers=layers[0],
            rope_max_seq_len=64,
            **{"in_channels": 16, "out_channels": 16, **hints, **more},
        )
        with torch.no_grad():
            for parameter in model.parameters():
                parameter.add_(torch.randn_like(parameter) * 0.05)
    return _cast(model.eval(), dtype)


def _cast(model: Any, dtype: torch.dtype) -> Any:
    """The model in a dtype, with what diffusers keeps in float32 when it loads one left so."""
    kept = tuple(model._keep_in_fp32_modules)
    for name, tensor in (*model.named_parameters(), *model.named_buffers()):
        if not any(part in kept for part in name.split(".")):
            tensor.data = tensor.data.to(dtype)
    return model


def scheduler(flow_shift: float = 3.0) -> UniPCMultistepScheduler:
    """The flow-matching UniPC scheduler of the Wan2.1 folders."""
    return UniPCMultistepScheduler(
        num_train_timesteps=1000,
        prediction_type="flow_prediction",
        use_flow_sigmas=True,
        flow_shift=flow_shift,
        solver_order=2,
    )


def pipeline(model: Any = None, *, flow_shift: float = 3.0) -> Any:
    """A complete pipeline around a tiny transformer (a VACE one unless given), silent."""
    model = transformer() if model is None else model
    kind = WanVACEPipeline if isinstance(model, WanVACETransformer3DModel) else WanPipeline
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        pipe = kind(
            tokenizer=build_tokenizer(),
            text_encoder=UMT5EncoderModel(text_encoder_config()).eval(),
            vae=AutoencoderKLWan(
                base_dim=4,
                z_dim=16,
                dim_mult=[1, 1, 1, 1],
                num_res_blocks=1,
                attn_scales=[],
                temperal_downsample=[False, True, True],
            ).eval(),
            scheduler=scheduler(flow_shift),
            transformer=model,
        )
    pipe.set_progress_bar_config(disable=True)
    return pipe


def noise(*shape: int, seed: int = 0, dtype: torch.dtype = torch.float32) -> Tensor:
    """Seeded normal noise."""
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed)).to(dtype)


def embeds(seed: int, dtype: torch.dtype = torch.float32) -> Tensor:
    """A made-up prompt, already embedded."""
    return noise(1, TEXT_LENGTH, TEXT_DIM, seed=seed, dtype=dtype)


def run(
    pipe: Any,
    *,
    steps: int = 6,
    guidance: float = 5.0,
    size: int = 32,
    frames: int = 5,
    seed: int = 0,
    text: int = 1,
    clip: int = 3,
    **others: Any,
) -> Tensor:
    """Latents of one generation. text, clip: seeds of a made-up prompt and video; others: arguments of the pipeline."""
    dtype = pipe.transformer.dtype
    control: dict[str, Any] = {}
    if isinstance(pipe, WanVACEPipeline):
        video = noise(1, frames, 3, size, size, seed=clip).sigmoid()
        control = {"video": video, "mask": torch.ones(1, frames, 3, size, size)}
    arguments: dict[str, Any] = {
        "prompt_embeds": embeds(text, dtype),
        "negative_prompt_embeds": embeds(text + 100, dtype),
        **control,
        "height": size,
        "width": size,
        "num_frames": frames,
        "num_inference_steps": steps,
        "guidance_scale": guidance,
        "output_type": "latent",
        "generator": torch.Generator().manual_seed(seed),
    }
    return pipe(**{**arguments, **others}).frames


def with_lora(pipe: Any) -> tuple[Tensor, Tensor]:
    """Give a pipeline a LoRA that acts, in full and at half its scale; the latents of the two."""
    from peft import LoraConfig

    without = run(pipe)
    pipe.transformer.add_adapter(
        LoraConfig(r=2, lora_alpha=2, init_lora_weights=False, target_modules=["to_q", "to_k", "to_v"]), "style"
    )
    full, half = run(pipe), run(pipe, attention_kwargs={"scale": 0.5})
    assert not torch.equal(without, full)
    assert not torch.equal(full, half)
    return full, half


def inputs(
    *,
    seed: int = 0,
    dtype: torch.dtype = torch.float32,
    batch: int = 1,
    frames: int = 2,
    side: int = 4,
    plain: bool = False,
) -> dict[str, Any]:
    """Keyword arguments of one forward of a bare transformer. plain: one without a control."""
    control = (
        {} if plain else {"control_hidden_states": noise(batch, 96, frames, side, side, seed=seed + 2, dtype=dtype)}
    )
    return {
        "hidden_states": noise(batch, 16, frames, side, side, seed=seed, dtype=dtype),
        "timestep": torch.full((batch,), 700, dtype=torch.int64),
        "encoder_hidden_states": noise(batch, TEXT_LENGTH, TEXT_DIM, seed=seed + 1, dtype=dtype),
        **control,
        "return_dict": False,
    }


def compiled(
    model: Any,
    caches: str,
    *,
    steps: int = 6,
    guidance: str = "[5.0, 1.0]",
    shift: float = 3.0,
    sampler: str = "unipc",
) -> HookTable:
    """The table of a plan whose rules are the given YAML list, each entry a line or block indented by two."""
    lines = [
        f"  - {{risk: {risk}, by: tests, date: 2026-01-01, reason: needed by a test}}\n" for risk in risks_of(caches)
    ]
    plan = plan_of(
        caches, models="[any]", steps=f"[{steps}]", guidance=guidance, shift=shift, sampler=sampler,
        shape="{size: 32x32, frames: 5}",
        rest="acknowledgements:\n" + "".join(lines) if lines else "",
    )  # fmt: skip
    return compile_plan(plan, model, steps)


def risks_of(caches: str) -> list[str]:
    """The risks that rules carry, from their text alone: each `method:` with a `chain: stale` that follows it."""
    found: dict[str, None] = {}
    for rule in caches.split("- {name")[1:] or caches.split("- name")[1:]:
        name = re.search(r"method: (\w+)", rule)
        params = {"chain": "stale"} if "chain: stale" in rule else {}
        if name is not None and name[1] in methods.names():
            found |= dict.fromkeys(methods.get(name[1]).risks(params))
    return list(found)


def written(
    model: Any,
    steps: int,
    rows: Mapping[str, str | tuple[str, str]] | None = None,
    *,
    rules: tuple[TableRule, ...] = (),
    shift: float = 3.0,
    guidance: tuple[float, ...] = (5.0, 1.0),
) -> HookTable:
    """A table written by hand, without the compiler: the given rows, `.` at every other site.

    rows: actions by site, or a pair for cond and uncond. Each row that is given is governed by the rule whose index ends
    its site (`hint[1]@0`), or by rule 0 where rules are given.
    """
    layout, given = layout_of(Profile.from_transformer(model)), dict(rows or {})
    rows_by_site: dict[str, tuple[str | tuple[str, str], int | None]] = {}
    for site, actions in given.items():
        name, _, rule = site.partition("@")
        rows_by_site[name] = actions, int(rule or 0) if rules else None
    count = {"main": layout.main_blocks, "vace": len(layout.vace_at), "hint": len(layout.vace_at)}
    sites = [Site("step")]
    for stack in ("main", "vace", "hint"):
        for index in range(count[stack]):
            sites.append(Site(stack, index))
            for part in ("self", "cross", "text_kv", "ffn"):
                if f"{stack}[{index}].{part}" in rows_by_site:
                    sites.append(Site(stack, index, part))
    result = []
    for site in sites:
        actions, rule = rows_by_site.pop(str(site), ("." * steps, None))
        cond, uncond = (actions, actions) if isinstance(actions, str) else actions
        result.append(Row(site, cond, uncond, rule))
    assert not rows_by_site, f"no such sites: {list(rows_by_site)}"
    return HookTable(
        plan="by hand",
        plan_digest="",
        profile="any",
        layout=layout,
        steps=steps,
        evaluated=tuple(range(steps)),
        sigmas=sigma_grid(Sampler("unipc", shift), steps),
        sampler="unipc",
        flow_shift=shift,
        guidance=guidance,
        rules=rules,
        rows=tuple(result),
    )


def rule(method: str = "hint_reuse", *, history: int = 1, tier: str = "P1", **others: Any) -> TableRule:
    """A rule of a table written by hand."""
    return TableRule(name="by hand", method=method, tier=tier, risks=(), history=history, **others)


def offload_groups(model: Any, level: str) -> None:
    """Put diffusers' group offloading on a model (`block_level`, one block a group, or `leaf_level`), onto the CPU."""
    blocks = 1 if level == "block_level" else None
    try:
        apply_group_offloading(
            model, onload_device=torch.device("cpu"), offload_type=level, num_blocks_per_group=blocks
        )
    except AttributeError:  # 0.37
        pytest.skip("this diffusers offloads groups to an accelerator only")


@dataclass
class Counts:
    """Calls of sub-modules by name, in the order they came."""

    calls: list[str] = field(default_factory=list)

    def of(self, *names: str) -> int:
        """How often any of the named modules was called."""
        return sum(call in names for call in self.calls)


@contextmanager
def counting(model: nn.Module, wanted: Callable[[str], bool]) -> Iterator[Counts]:
    """Counts calls of the sub-modules whose name is wanted, through torch's own forward hooks."""
    counts = Counts()

    def note(name: str) -> Callable[..., None]:
        return lambda *_: counts.calls.append(name)

    handles = [module.register_forward_pre_hook(note(n)) for n, module in model.named_modules() if wanted(n)]
    try:
        yield counts
    finally:
        for handle in handles:
            handle.remove()


def is_vace_block(name: str) -> bool:
    """Whether a module name is a VACE block's."""
    return name.startswith("vace_blocks.") and name.count(".") == 1


def settings(named: Mapping[str, Iterable[Any]]) -> dict[str, Any]:
    """Arguments of `pytest.mark.parametrize` with names for each value."""
    return {"argvalues": list(named.values()), "ids": list(named)}
