"""Regional `torch.compile`: blocks compiled with `fullgraph=True` keep working under a session, without breaks."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from refkv_policy.runtime import attach
from tests import tiny

CACHES = (
    '  - {name: hints, tier: P1, method: hint_forecast, at: "hint[all]", refresh: {interval: 2}}\n'
    '  - {name: text, tier: P0, method: text_kv, at: ["main[all].text_kv", "vace[all].text_kv"]}\n'
)


def test_blocks_compiled_in_full_graphs() -> None:
    """Kept and served K/V pass through compiled blocks as graph inputs and outputs; a second run compiles nothing new.

    The eager backend traces and guards as every backend does, and generates no code.
    """
    pipe = tiny.pipeline()
    table = tiny.compiled(pipe.transformer, CACHES)
    with attach(pipe, table):
        expected = tiny.run(pipe)
    compiled: list[Any] = []

    def backend(graph: Any, _inputs: Any) -> Any:
        compiled.append(graph)
        return graph.forward

    torch._dynamo.reset()
    torch._dynamo.utils.counters.clear()
    pipe.transformer.compile_repeated_blocks(fullgraph=True, backend=backend)
    with attach(pipe, table) as session:
        assert torch.equal(tiny.run(pipe), expected)
        first = len(compiled)
        assert torch.equal(tiny.run(pipe), expected)
    assert len(compiled) == first
    assert not torch._dynamo.utils.counters["graph_break"]
    assert [r.outcome for r in session.requests] == ["finished", "finished"]
    assert first <= 9, "main, first VACE and other VACE blocks, each with text, with a sink, with kept K/V"


@pytest.mark.slow
def test_inductor() -> None:
    """With inductor's code the run is close to eager, and each request equal to the one before."""
    pipe = tiny.pipeline()
    table = tiny.compiled(pipe.transformer, CACHES)
    with attach(pipe, table):
        eager = tiny.run(pipe, steps=6)
    torch._dynamo.reset()
    pipe.transformer.compile_repeated_blocks(fullgraph=True)
    with attach(pipe, table):
        runs = [tiny.run(pipe) for _ in range(2)]
    assert torch.equal(*runs)
    assert torch.allclose(runs[0], eager, atol=1e-3)
