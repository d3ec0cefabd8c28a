"""The header of each request tells the weights and adapters of that request."""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from peft import LoraConfig
from torch import Tensor, nn

from refkv_policy.audit import read_log, verify
from refkv_policy.runtime import attach, header
from refkv_policy.runtime.digest import weights_bytes, weights_digest, weights_form
from tests import tiny
from tests.runtime.test_held_weights import CHANGES, hot_swap, pipeline

HINTS = '  - {name: hints, tier: P1, method: hint_reuse, at: "hint[all]", refresh: {interval: 3}}\n'


def headers(path: Path) -> list[dict[str, Any]]:
    """The headers of a log that verifies."""
    assert verify(path).outcome == "ok", verify(path).problems
    return [dict(request.header.record) for request in read_log(path).requests]


@pytest.mark.parametrize("name", [n for n in CHANGES if n not in ("disable_adapters", "set_adapters")])
def test_the_digest_is_of_the_weights_that_ran(name: str, tmp_path: Path) -> None:
    """Whichever way weights change between requests, each header's digest is that of the weights of its request."""
    pipe, ran = pipeline(), []
    with attach(pipe, tiny.compiled(pipe.transformer, HINTS), audit=tmp_path / "run.jsonl"):
        for number in range(3):
            ran.append(weights_digest(pipe.transformer))
            tiny.run(pipe)
            if number == 1:
                with torch.no_grad():
                    CHANGES[name][0](pipe.transformer)
        ran.append(weights_digest(pipe.transformer))
        tiny.run(pipe)
    assert [h["digests"]["weights"] for h in headers(tmp_path / "run.jsonl")] == ran
    assert len(set(ran)) == 2


def test_an_unchanged_digest_is_not_worked_out_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Three requests of the same weights read them once; another dtype is read again, and told."""
    read = []
    monkeypatch.setattr(header, "weights_digest", lambda model: read.append(1) or f"sha256:{len(read)}")
    pipe = tiny.pipeline()
    with attach(pipe, tiny.compiled(pipe.transformer, HINTS), audit=tmp_path / "run.jsonl"):
        for _ in range(3):
            tiny.run(pipe)
        assert len(read) == 1
        pipe.transformer.to(torch.bfloat16)
        tiny.run(pipe)
    told = headers(tmp_path / "run.jsonl")
    assert [h["digests"]["weights"] for h in told] == ["sha256:1"] * 3 + ["sha256:2"]
    assert [h["weights"] for h in told] == [{"dtypes": ["float32"]}] * 3 + [{"dtypes": ["bfloat16"]}]
    assert [h["dtype"] for h in told] == ["float32"] * 3 + ["bfloat16"]


LATER: dict[str, tuple[Callable[[Any], Any], bool]] = {
    "nothing": (lambda m: None, True),
    "add_": (CHANGES["add_"][0], False),
    "data": (CHANGES["data add_"][0], False),
    "adapter added": (CHANGES["adapter added"][0], False),
    "scale": (CHANGES["set_adapters"][0], False),
    "hot swap": (hot_swap, False),
    "a load that finds nothing": (lambda m: m.load_lora_adapter({"no": torch.zeros(1)}), False),
    "other weights": (CHANGES["load_state_dict"][0], False),
}


@pytest.mark.parametrize(("change", "stays"), **tiny.settings(LATER))
def test_a_digest_that_was_given_is_dropped_once_it_is_not_known_to_be_true(
    change: Callable[[Any], Any], stays: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Above the limit a caller's digest is of the weights at attach: after a change no digest is better than that one."""
    monkeypatch.setattr(header, "CHEAP_WEIGHTS", 0)
    pipe = pipeline()
    given = {"digests": {"weights": "sha256:given", "clip": "sha256:00"}}
    with attach(pipe, tiny.compiled(pipe.transformer, HINTS), audit=tmp_path / "run.jsonl", header=given):
        tiny.run(pipe)
        with torch.no_grad():
            change(pipe.transformer)
        tiny.run(pipe)
    first, second = headers(tmp_path / "run.jsonl")
    assert first["digests"]["weights"] == "sha256:given"
    assert second["digests"].get("weights") == ("sha256:given" if stays else None)
    assert second["digests"]["clip"] == "sha256:00"


def test_adapters_are_told_with_their_scales(tmp_path: Path) -> None:
    """Names, scales, and whether active or fused, of each request: also of `attention_kwargs`, which scales for one call."""
    pipe = tiny.pipeline()
    model = pipe.transformer
    with attach(pipe, tiny.compiled(model, HINTS), audit=tmp_path / "run.jsonl"):
        tiny.run(pipe)
        model.add_adapter(LoraConfig(r=2, lora_alpha=4, target_modules=["to_q"]), "style")
        tiny.run(pipe)
        model.add_adapter(LoraConfig(r=2, lora_alpha=2, target_modules=["to_k"]), "4-steps")
        model.set_adapters(["style", "4-steps"], [0.5, 1.0])
        tiny.run(pipe)
        tiny.run(pipe, attention_kwargs={"scale": 0.5})
        model.disable_adapters()
        tiny.run(pipe)
        model.enable_adapters()
        model.fuse_lora()
        tiny.run(pipe)
        model.unload_lora()
        tiny.run(pipe)
    told = [h.get("adapters", []) for h in headers(tmp_path / "run.jsonl")]
    shown = [[(a["name"], a["scale"], a["active"], a["fused"]) for a in adapters] for adapters in told]
    assert shown == [
        [],
        [("style", 2.0, True, False)],
        [("style", 1.0, True, False), ("4-steps", 1.0, True, False)],
        [("style", 0.5, True, False), ("4-steps", 0.5, True, False)],
        [("style", 1.0, False, False), ("4-steps", 1.0, False, False)],
        [("style", 1.0, True, True), ("4-steps", 1.0, True, True)],
        [],
    ]


class Quantized(Tensor):
    """A tensor of two others, as torchao's are."""

    @staticmethod
    def __new__(cls, values: Tensor, scale: Tensor) -> Quantized:
        return Tensor._make_wrapper_subclass(cls, values.shape, dtype=scale.dtype)

    def __init__(self, values: Tensor, scale: Tensor) -> None:
        self.values_, self.scale = values, scale

    def __tensor_flatten__(self) -> tuple[list[str], None]:
        return ["values_", "scale"], None

    @staticmethod
    def __tensor_unflatten__(inner: dict[str, Tensor], *_: Any) -> Quantized:
        return Quantized(inner["values_"], inner["scale"])

    @classmethod
    def __torch_dispatch__(cls, function: Any, _: Any, given: Any, named: Any = None) -> Any:
        if function in (torch.ops.aten.detach.default, torch.ops.aten.alias.default):
            return type(given[0])(given[0].values_, given[0].scale)
        plain = [g.values_ * g.scale if isinstance(g, Quantized) else g for g in given]
        return function(*plain, **(named or {}))


def of_library(kind: type, module: str) -> type:
    """The type as if it came from a library."""
    return type(kind.__name__, (kind,), {"__module__": module})


def quantize(model: Any) -> None:
    """Two projections held as bytes with a scale."""
    for block in model.blocks[:2]:
        linear = block.attn2.to_k
        scale = linear.weight.detach().abs().max() / 127
        values = (linear.weight.detach() / scale).round().to(torch.int8)
        linear.weight = nn.Parameter(TORCHAO(values, scale), requires_grad=False)


class Bits(nn.Linear):
    """A linear layer of a quantization library."""


TORCHAO = of_library(Quantized, "torchao.quantization.linear")


def test_quantized_weights_are_told_and_watched(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A wrapper's inner tensors are digested, counted, and watched: P0 stays bit-exact, the log says what they are."""
    caches = '  - {name: text, tier: P0, method: text_kv, at: "main[all].text_kv"}\n'
    results = []
    for attached in (False, True):
        pipe = tiny.pipeline()
        quantize(pipe.transformer)

        def rescale(pipe: Any, step: int, t: Any, kwargs: Any) -> dict[str, Any]:
            if step == 2:
                pipe.transformer.blocks[1].attn2.to_k.weight.scale.mul_(2)
            return {}

        if attached:
            with attach(pipe, tiny.compiled(pipe.transformer, caches), audit=tmp_path / "run.jsonl") as session:
                results.append(tiny.run(pipe, callback_on_step_end=rescale))
                tiny.run(pipe)
            assert session.requests[0].reasons == {"new_control": 8}
        else:
            results.append(tiny.run(pipe, callback_on_step_end=rescale))
    assert torch.equal(*results)
    first, second = headers(tmp_path / "run.jsonl")
    assert first["weights"] == {"dtypes": ["float32", "int8"], "quantized": {"torchao.Quantized": 2}}
    assert first["digests"]["weights"] != second["digests"]["weights"] == weights_digest(pipe.transformer)


@pytest.mark.parametrize(
    ("module", "name"),
    [
        ("bitsandbytes.nn.modules", "bitsandbytes.Bits"),
        ("diffusers.quantizers.gguf.utils", "diffusers.quantizers.Bits"),
        ("optimum.quanto.nn.qlinear", "optimum.Bits"),
        ("awq.modules.linear", "awq.Bits"),
    ],
)
def test_quantization_is_told_by_names_of_types(module: str, name: str) -> None:
    """Modules of quantization libraries are counted by name, and none of the libraries is imported for it."""
    model = nn.Sequential(of_library(Bits, module)(2, 2), nn.Linear(2, 2))
    assert weights_form(model) == {"dtypes": ["float32"], "quantized": {name: 1}}
    assert weights_form(nn.Sequential(nn.Linear(2, 2))) == {"dtypes": ["float32"]}
    assert module.split(".")[0] == "diffusers" or module.split(".")[0] not in sys.modules


def test_bytes_of_a_wrapper_are_those_inside() -> None:
    """A quantized weight counts the bytes of what it holds, not of what it stands for."""
    layer = nn.Linear(4, 4, bias=False)
    layer.weight = nn.Parameter(Quantized(torch.zeros(4, 4, dtype=torch.int8), torch.tensor(1.0)), requires_grad=False)
    assert weights_bytes(layer) == 16 + 4
