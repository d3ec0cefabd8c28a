"""Content that is written in place is noticed; memory that somebody else writes to is not what is kept."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from refkv_policy.runtime import attach
from refkv_policy.runtime.watch import Watch, same
from tests import tiny

P0 = '  - {name: text, tier: P0, method: text_kv, at: ["main[all].text_kv", "vace[all].text_kv"]}\n'
HINTS = '  - {name: hints, tier: P1, method: hint_reuse, at: "hint[all]", refresh: {interval: 3}}\n'
STALE = (
    '  - {name: hints, tier: P1, method: hint_reuse, at: "hint[0-1]", refresh: {interval: 3}, params: {chain: stale}}\n'
)
MODES = [torch.no_grad, torch.inference_mode]


def numpy_write(content: Tensor) -> None:
    """A write through memory that NumPy shares."""
    content.numpy()[:] *= 0.5


WRITES: dict[str, Callable[[Tensor], Any]] = {
    "mul_": lambda content: content.mul_(0.5),
    "one element": lambda content: content.view(-1)[7].add_(1),
    "data": lambda content: content.data.mul_(0.5),
    "numpy": numpy_write,
    "a view": lambda content: content[:, 2:4].zero_(),
    "data exchanged": lambda content: setattr(content, "data", content * 2),
    "set_": lambda content: content.set_((content * 2).contiguous()),
}


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("write", argvalues=list(WRITES.values()), ids=list(WRITES))
def test_a_prompt_written_in_place_by_a_callback(write: Callable[[Tensor], Any], mode: Any) -> None:
    """However a callback writes to the prompt, K and V are projected anew: bit-equal to the uncached run."""

    def callback(pipe: Any, step: int, t: Any, kwargs: Any) -> dict[str, Any]:
        if step == 2:
            write(kwargs["prompt_embeds"])
        return {}

    told = {"callback_on_step_end": callback, "callback_on_step_end_tensor_inputs": ["latents", "prompt_embeds"]}
    with mode():
        before = tiny.run(tiny.pipeline(), **told)
        pipe = tiny.pipeline()
        with attach(pipe, tiny.compiled(pipe.transformer, P0)) as session:
            assert torch.equal(tiny.run(pipe, **told), before)
    assert session.summary.reasons == {"new_control": 6}
    assert session.summary.branches["uncond"].departures == 0


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("write", argvalues=list(WRITES.values()), ids=list(WRITES))
@pytest.mark.parametrize("name", ["encoder_hidden_states", "control_hidden_states"])
def test_inputs_of_a_bare_transformer_written_in_place(name: str, write: Callable[[Tensor], Any], mode: Any) -> None:
    """Hints of a prompt or control that was written to are computed anew, and served again after that."""
    model = tiny.transformer()
    with mode(), attach(model, tiny.compiled(model, HINTS)) as session:
        inputs = tiny.inputs()
        results = []
        for step in range(3):
            if step == 1:
                write(inputs[name])
            with session.step(step, branch="cond"):
                results.append(model(**inputs)[0])
        reasons = session.summary.reasons
    with mode():
        assert torch.equal(results[1], model(**inputs)[0])
    assert reasons == {"new_control": 2, "chain": 2}


@pytest.mark.parametrize("mode", MODES)
def test_content_that_is_not_written_to_is_served(mode: Any) -> None:
    """Without a write, inference mode serves all that is tabled, for other objects of the same content too."""
    with mode():
        pipe = tiny.pipeline()
        before = tiny.run(pipe)
        with attach(pipe, tiny.compiled(pipe.transformer, P0)) as session:
            assert torch.equal(tiny.run(pipe), before)
            tiny.run(
                pipe,
                callback_on_step_end=lambda p, i, t, kwargs: {"prompt_embeds": kwargs["prompt_embeds"].clone()},
                callback_on_step_end_tensor_inputs=["prompt_embeds"],
            )
    assert [request.outcome for request in session.requests] == ["finished", "finished"]


def test_content_is_compared_bit_by_bit() -> None:
    """NaN is itself, -0 is not 0, and a wider dtype or another shape of the same numbers is another content."""
    nan = torch.tensor([float("nan"), 1.0])
    assert same(nan, nan.clone())
    assert not same(torch.tensor([0.0]), torch.tensor([-0.0]))
    assert not same(torch.ones(2), torch.ones(2, dtype=torch.float64))
    assert not same(torch.ones(2), torch.ones(2, 1))
    assert same(torch.ones(2, dtype=torch.bfloat16), torch.ones(2, dtype=torch.bfloat16))
    assert same(torch.ones(2, 3).t(), torch.ones(3, 2))
    assert not same(None, torch.ones(1))
    assert same((1, "a"), (1, "a"))


def test_a_change_is_told_once() -> None:
    """After a change the new content is what is remembered, and the old one coming back is a change again."""
    content = torch.zeros(3)
    watch = Watch(content)
    assert not watch.changed(content)
    content.data.add_(1)
    assert watch.changed(content)
    assert not watch.changed(content.clone())
    assert watch.changed(torch.zeros(3))


def test_no_copy_is_made_where_writes_are_counted() -> None:
    """Asked not to copy, as for an accelerator's tensors, a watch goes by identity, count and value, in this order."""
    content = torch.zeros(3)
    watch = Watch(content, copied=False)
    assert watch._last is content
    assert not watch.changed(content)
    assert not watch.changed(content.clone())
    content = watch._last
    content.add_(1)
    assert watch.changed(content)


class InPlace(nn.Module):
    """A block that zeroes the input it was given, once it has used it."""

    def __init__(self, block: nn.Module, argument: int) -> None:
        super().__init__()
        self.block, self.argument = block, argument

    def forward(self, *given: Any) -> Any:
        """The block's own output."""
        result = self.block(*given)
        copied = tuple(r.clone() for r in result) if isinstance(result, tuple) else result.clone()
        given[self.argument].zero_()
        return copied


class Buffered(nn.Module):
    """A block that hands out the same memory each time, as a CUDA graph does."""

    def __init__(self, block: nn.Module) -> None:
        super().__init__()
        self.block = block
        self.buffers: dict[Any, Tensor] = {}

    def forward(self, *given: Any) -> Any:
        """The block's own output, in its buffers."""
        result = self.block(*given)
        parts = result if isinstance(result, tuple) else (result,)
        held = tuple(self.buffers.setdefault(n, torch.empty_like(part)).copy_(part) for n, part in enumerate(parts))
        return held if isinstance(result, tuple) else held[0]


def zero_main(model: Any) -> None:
    """Main blocks that work in place on the stream."""
    model.blocks = nn.ModuleList(InPlace(block, 0) for block in model.blocks)


def zero_vace(model: Any) -> None:
    """VACE blocks from the second on that work in place on the control they are given."""
    model.vace_blocks = nn.ModuleList(
        InPlace(block, 2) if index else block for index, block in enumerate(model.vace_blocks)
    )


def buffered_vace(model: Any) -> None:
    """VACE blocks with memory of their own for hint and state."""
    model.vace_blocks = nn.ModuleList(map(Buffered, model.vace_blocks))


def buffered_both(model: Any) -> None:
    """All blocks with memory of their own."""
    model.blocks = nn.ModuleList(map(Buffered, model.blocks))
    buffered_vace(model)


BLOCKS: dict[str, Callable[[Any], None]] = {
    "main in place": zero_main,
    "vace in place": zero_vace,
    "vace buffers": buffered_vace,
    "all buffers": buffered_both,
}
LATE = (
    '  - {name: shallow, tier: P1, method: hint_reuse, at: "hint[0-1]", refresh: {interval: 3}}\n'
    '  - {name: deep, tier: P1, method: hint_reuse, at: "hint[2]", refresh: {interval: 3}, store: {budget: 1B}}\n'
)
"""Without room for hint 2 it is computed at each step, from block 0 on, after main blocks have run."""


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize(
    "caches",
    [HINTS, STALE, HINTS.replace("reuse", "forecast"), LATE],
    ids=["reuse", "stale", "forecast", "late"],
)
@pytest.mark.parametrize("spoil", argvalues=list(BLOCKS.values()), ids=list(BLOCKS))
def test_blocks_that_write_to_what_they_get_or_gave(spoil: Callable[[Any], None], caches: str, mode: Any) -> None:
    """Blocks that write to their input, or hand out one buffer again and again, change nothing that is kept or served."""
    results = []
    with mode():
        for change in (lambda model: None, spoil):
            model = tiny.transformer((6, (0, 2, 4)))
            table = tiny.compiled(model, caches)
            change(model)
            pipe = tiny.pipeline(model)
            with attach(pipe, table) as session:
                results.append(tiny.run(pipe))
            assert session.requests[0].outcome == ("incomplete" if caches is LATE else "finished")
    assert torch.equal(*results)


@pytest.mark.parametrize("fused", [False, True], ids=["plain", "fused"])
def test_projections_that_hand_out_one_buffer(fused: bool) -> None:
    """Kept K and V are not the projection's own memory, which another prompt's are written to."""
    pipe = tiny.pipeline()
    if fused:
        pipe.transformer.fuse_qkv_projections()
    before = tiny.run(pipe)
    for block in (*pipe.transformer.blocks, *pipe.transformer.vace_blocks):
        for name in ("to_kv",) if fused else ("to_k", "to_v"):
            setattr(block.attn2, name, Buffered(getattr(block.attn2, name)))
        block.attn2.norm_k = Buffered(block.attn2.norm_k)
    with attach(pipe, tiny.compiled(pipe.transformer, P0)) as session:
        assert torch.equal(tiny.run(pipe), before)
    assert session.requests[0].outcome == "finished"


def test_copies_are_one_a_refresh_and_one_a_restart() -> None:
    """What is kept is copied once; a chain state is copied at each restart but the last, which is given the state itself."""
    model = tiny.transformer((6, (0, 2, 4)))
    copies = []
    hint = 8 * 24 * 4
    moved, cloned = Tensor.to, Tensor.clone

    def counted_to(tensor: Tensor, *args: Any, **kwargs: Any) -> Tensor:
        if kwargs.get("copy"):
            copies.append(tensor.numel() * tensor.element_size())
        return moved(tensor, *args, **kwargs)

    def counted_clone(tensor: Tensor) -> Tensor:
        if tensor.numel() * tensor.element_size() == hint:
            copies.append(hint)
        return cloned(tensor)

    pipe = tiny.pipeline(model)
    patch = pytest.MonkeyPatch()
    with attach(pipe, tiny.compiled(model, STALE)) as session:
        patch.setattr(Tensor, "to", counted_to)
        patch.setattr(Tensor, "clone", counted_clone)
        tiny.run(pipe, guidance=1.0)
        patch.undo()
    refreshes, restarts = 2 * (2 + 1), 2 * 1
    assert copies == [hint] * (refreshes + restarts), "hints 0 and 1 and state 1 at steps 0 and 3; restarts at 1 and 4"
    assert session.summary.bytes_peak == 3 * hint
