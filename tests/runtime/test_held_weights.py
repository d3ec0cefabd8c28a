"""Weights that change in mid-run: text K/V of other weights are never served, whichever way the weights were changed."""

from __future__ import annotations

import copy
import inspect
from collections.abc import Callable
from typing import Any

import pytest
import torch
from peft import LoraConfig
from peft.utils import get_peft_model_state_dict
from torch import nn

from refkv_policy.runtime import attach
from refkv_policy.runtime.watch import Weights
from tests import tiny

P0 = '  - {name: text, tier: P0, method: text_kv, at: ["main[all].text_kv", "vace[all].text_kv"]}\n'
HINTS = '  - {name: hints, tier: P1, method: hint_reuse, at: "hint[all]", refresh: {interval: 3}}\n'
ADAPTER = {"r": 2, "target_modules": ["to_k", "to_v"], "init_lora_weights": False}


def pipeline() -> Any:
    """A pipeline with one adapter on the projections."""
    model = tiny.transformer()
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(1)
        model.add_adapter(LoraConfig(**ADAPTER), "one")
    return tiny.pipeline(model.eval())


def projection(model: Any) -> Any:
    """The text's value projection of a main block, without its adapter."""
    return model.blocks[1].attn2.to_v.base_layer


def hot_swap(model: Any) -> None:
    """Write another adapter over the one that is loaded."""
    state = get_peft_model_state_dict(model, adapter_name="one")
    model.load_lora_adapter(
        {k: torch.ones_like(v) * 0.3 for k, v in state.items()}, prefix=None, adapter_name="one", hotswap=True
    )


def add_adapter(model: Any) -> None:
    """A second adapter, active beside the first."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(2)
        model.add_adapter(LoraConfig(**ADAPTER), "two")
    model.set_adapters(["one", "two"], [1.0, 0.5])


def through_numpy(model: Any) -> None:
    """A write that PyTorch cannot count."""
    projection(model).weight.detach().numpy()[:] *= 1.5


def other_parameter(model: Any) -> None:
    """Another parameter in the place of one."""
    projection(model).weight = nn.Parameter(projection(model).weight * 1.5)


def other_module(model: Any) -> None:
    """Another module in the place of one."""
    norm = copy.deepcopy(model.vace_blocks[0].attn2.norm_k)
    norm.weight.data.mul_(2)
    model.vace_blocks[0].attn2.norm_k = norm


def load_weights(model: Any) -> None:
    """Other weights, loaded into the same parameters."""
    state = {name: value * 1.25 for name, value in model.state_dict().items()}
    model.load_state_dict(state)


def swap(model: Any) -> None:
    """Two tensors exchange what they are."""
    torch.utils.swap_tensors(projection(model).weight, nn.Parameter(projection(model).weight * 1.5))


CHANGES: dict[str, tuple[Callable[[Any], Any], int]] = {
    "disable_adapters": (lambda m: m.disable_adapters(), 12),
    "set_adapters": (lambda m: m.set_adapters(["one"], [0.25]), 12),
    "hot swap": (hot_swap, 12),
    "adapter added": (add_adapter, 12),
    "fuse_lora": (lambda m: m.fuse_lora(), 12),
    "unload_lora": (lambda m: m.unload_lora(), 12),
    "add_": (lambda m: projection(m).weight.add_(0.1), 12),
    "data add_": (lambda m: projection(m).weight.data.add_(0.1), 12),
    "data exchanged": (lambda m: setattr(projection(m).weight, "data", projection(m).weight.data * 1.5), 12),
    "numpy": (through_numpy, 12),
    "swap_tensors": (swap, 12),
    "load_state_dict": (load_weights, 12),
    "parameter replaced": (other_parameter, 12),
    "module replaced": (other_module, 12),
    "norm of the key": (lambda m: m.blocks[0].attn2.norm_k.weight.mul_(2), 12),
    "embedder of the text": (lambda m: m.condition_embedder.text_embedder.linear_1.bias.add_(1), 12),
    "something else's weights": (lambda m: m.blocks[0].ffn.net[2].weight.mul_(1.5), 0),
}


@pytest.mark.parametrize(("change", "departures"), **tiny.settings(CHANGES))
@pytest.mark.parametrize("mode", [torch.no_grad, torch.inference_mode])
def test_weights_changed_in_mid_run_are_noticed(mode: Any, change: Callable[[Any], Any], departures: int) -> None:
    """K and V are projected anew once the weights that make them are others: bit-equal to the uncached run."""

    def in_mid_run(pipe: Any, step: int, t: Any, kwargs: Any) -> dict[str, Any]:
        if step == 2:
            change(pipe.transformer)
        return {}

    with mode():
        before = tiny.run(pipeline(), callback_on_step_end=in_mid_run)
        pipe = pipeline()
        with attach(pipe, tiny.compiled(pipe.transformer, P0)) as session:
            assert torch.equal(tiny.run(pipe, callback_on_step_end=in_mid_run), before)
    assert session.summary.reasons == ({"new_control": departures} if departures else {})
    assert session.requests[0].outcome == ("incomplete" if departures else "finished")


def test_adapters_switched_off_and_on_again() -> None:
    """Each switch is noticed, the one back to what was kept first too."""

    def switch(pipe: Any, step: int, t: Any, kwargs: Any) -> dict[str, Any]:
        (pipe.disable_lora if step == 1 else pipe.enable_lora)() if step in (1, 3) else None
        return {}

    before = tiny.run(pipeline(), callback_on_step_end=switch)
    pipe = pipeline()
    with attach(pipe, tiny.compiled(pipe.transformer, P0)) as session:
        assert torch.equal(tiny.run(pipe, callback_on_step_end=switch), before)
    assert session.summary.reasons == {"new_control": 2 * 12}


@pytest.mark.parametrize("name", ["disable_adapters", "add_", "data add_", "parameter replaced", "hot swap"])
def test_weights_changed_between_the_branches_are_noticed(name: str) -> None:
    """A hook that changes weights between the two calls of a step is noticed by the second."""
    results = []
    for caches in (None, P0):
        pipe, calls = pipeline(), []

        def between(*_: Any, pipe: Any = pipe, calls: list[int] = calls) -> None:
            calls.append(1)
            if len(calls) == 5:
                CHANGES[name][0](pipe.transformer)

        pipe.transformer.register_forward_hook(between)
        if caches is None:
            results.append(tiny.run(pipe))
        else:
            with attach(pipe, tiny.compiled(pipe.transformer, caches)) as session:
                results.append(tiny.run(pipe))
    assert torch.equal(*results)
    assert session.summary.reasons == {"new_control": 12}


@pytest.mark.parametrize("name", ["disable_adapters", "add_", "data exchanged", "something else's weights"])
def test_hints_of_other_weights_are_dropped(name: str) -> None:
    """Hints depend on every weight: the step after a change computes them, and from then on they are reused again."""

    def in_mid_run(pipe: Any, step: int, t: Any, kwargs: Any) -> dict[str, Any]:
        if step == 3:
            CHANGES[name][0](pipe.transformer)
        return {}

    pipe = pipeline()
    with attach(pipe, tiny.compiled(pipe.transformer, HINTS)) as session:
        tiny.run(pipe, callback_on_step_end=in_mid_run)
    assert session.summary.reasons["new_control"] == 2 * 2
    assert session.summary.hits == 2 * 2 * 3, "steps 1, 2 and 5; step 4 is computed"


def test_arithmetic_that_changes_is_noticed() -> None:
    """K and V that were made outside autocast are not those inside it."""
    results = []
    for caches in (None, P0):
        pipe = tiny.pipeline()
        region = torch.autocast("cpu", dtype=torch.bfloat16)

        def enter(pipe: Any, step: int, t: Any, kwargs: Any, region: Any = region) -> dict[str, Any]:
            if step == 2:
                region.__enter__()
            return {}

        try:
            if caches is None:
                results.append(tiny.run(pipe, callback_on_step_end=enter))
            else:
                with attach(pipe, tiny.compiled(pipe.transformer, caches)) as session:
                    results.append(tiny.run(pipe, callback_on_step_end=enter))
        finally:
            region.__exit__(None, None, None)
    assert torch.equal(*results)
    assert session.summary.reasons == {"new_control": 12}


def test_hooks_that_move_weights_are_no_change() -> None:
    """Layerwise casting gives every weight other memory around each forward: nothing is dropped for it."""
    pipe = tiny.pipeline()
    pipe.transformer.enable_layerwise_casting(storage_dtype=torch.bfloat16, compute_dtype=torch.float32)
    before = tiny.run(pipe)
    with attach(pipe, tiny.compiled(pipe.transformer, P0)) as session:
        assert torch.equal(tiny.run(pipe), before)
    assert session.requests[0].outcome == "finished"


def test_a_table_that_keeps_nothing_watches_nothing() -> None:
    """No work is done for state that there is not: no copy of prompt or control, no list of weights."""
    model = tiny.transformer()
    with torch.no_grad(), attach(model, tiny.written(model, 3)) as session:
        for step in range(2):
            with session.step(step, branch="cond"):
                model(**tiny.inputs())
        assert session._request is not None
        assert not session._request._watches
        assert session._held is not None
        assert session._held.weights(2) == ()


def test_other_weights_are_let_go_with_the_request() -> None:
    """Nothing that watches weights lives on between requests, which would keep replaced ones in memory."""
    pipe = tiny.pipeline()
    with attach(pipe, tiny.compiled(pipe.transformer, P0)) as session:
        tiny.run(pipe)
        assert session._held is None


FORMS: dict[str, Callable[[], torch.Tensor]] = {
    "one element": lambda: torch.zeros(1),
    "transposed": lambda: torch.zeros(7, 5).t(),
    "slice": lambda: torch.zeros(40)[3:23],
    "half": lambda: torch.zeros(33, dtype=torch.float16),
    "bytes": lambda: torch.zeros(64, dtype=torch.uint8),
    "scalar": lambda: torch.zeros(()),
    "long": lambda: torch.zeros(100_003),
    "inference": lambda: inference_tensor(),
}


def inference_tensor() -> torch.Tensor:
    """A tensor without a count of writes."""
    with torch.inference_mode():
        return torch.zeros(20)


@pytest.mark.parametrize("make", argvalues=list(FORMS.values()), ids=list(FORMS))
def test_uncounted_writes_are_seen_whatever_the_form(make: Callable[[], torch.Tensor]) -> None:
    """A write through `.data` that touches all of a tensor is seen, for every size, dtype and order of memory."""
    module = nn.Module()
    module.register_buffer("value", make())
    weights = Weights([module])
    assert not weights.differ()
    with torch.inference_mode():
        module.value.data.add_(1)
    assert weights.differ()
    assert not Weights([module]).differ()


def test_weights_that_are_not_numbers_are_equal_to_themselves() -> None:
    """NaN in a weight is no change at every call; -0 for 0 is one."""
    module = nn.Linear(2, 2)
    with torch.no_grad():
        module.weight.fill_(float("nan"))
        module.bias.zero_()
    weights = Weights([module])
    assert not weights.differ()
    module.bias.data.neg_()
    assert weights.differ()


def test_the_signature_of_load_lora_adapter_stays() -> None:
    """The session counts loads without changing how the method is called, and takes its counter away at the end."""
    pipe = tiny.pipeline()
    before = inspect.signature(pipe.transformer.load_lora_adapter)
    with attach(pipe, tiny.compiled(pipe.transformer, P0)):
        assert inspect.signature(pipe.transformer.load_lora_adapter) == before
        assert "load_lora_adapter" in vars(pipe.transformer)
    assert "load_lora_adapter" not in vars(pipe.transformer)
