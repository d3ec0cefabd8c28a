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


PLAIN_TEXT = '  - {name: text, tier: P0, method: text_kv, at: "main[all].text_kv"}\n'
MAIN = "  - {name: main, tier: S, method: residual_reuse, at: main, refresh: {interval: 2}}\n"
SPAN = "  - {name: span, tier: S, method: residual_forecast, at: 'main[1..2]', refresh: {interval: 2}}\n"
APART = MAIN.replace("interval: 2}", "interval: 2}, params: {hints: apart}")
PLANS = {
    "hints and text": (tiny.MAP_SMALL, CACHES, 9),
    "main": (tiny.MAP_SMALL, MAIN + CACHES.splitlines(keepends=True)[1], 9),
    "main, hints apart": (tiny.MAP_SMALL, APART + CACHES, 9),
    "span": (tiny.MAP_SMALL, SPAN + CACHES.splitlines(keepends=True)[1], 9),
    "plain: text": (tiny.MAP_PLAIN, PLAIN_TEXT, 3),
    "plain: main": (tiny.MAP_PLAIN, MAIN + PLAIN_TEXT, 3),
    "plain: span": (tiny.MAP_PLAIN, SPAN + PLAIN_TEXT, 3),
    "plain: guidance": (
        tiny.MAP_PLAIN,
        PLAIN_TEXT + "  - {name: c, tier: S, method: cfg_reuse, at: cfg, refresh: {interval: 2}}\n",
        3,
    ),
}


@pytest.mark.parametrize(("layers", "caches", "most"), **tiny.settings(PLANS))
def test_blocks_compiled_in_full_graphs(layers: Any, caches: str, most: int) -> None:
    """Kept and served K/V pass through compiled blocks as graph inputs and outputs; a second run compiles nothing new.

    The eager backend traces and guards as every backend does, and generates no code. Graphs: main, first VACE and other VACE
    blocks, each with text, with a sink, with kept K/V.
    """
    pipe = tiny.pipeline(tiny.transformer(layers))
    table = tiny.compiled(pipe.transformer, caches)
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
    assert first <= most


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
