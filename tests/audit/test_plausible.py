"""A header's operating point is one of its table's, and the bytes of the lines can be true."""

from __future__ import annotations

from dataclasses import replace

import pytest

from refkv_policy.audit import verify

SHAPES = {"latent": [1, 16, 2, 4, 4], "tokens": 8, "text_tokens": 8, "batch": 1}
HINT, TEXT = 8 * 8 * 4, 2 * 8 * 8 * 4
"""Bytes of one hint and of one K and V in float32, the table 8 wide."""
KEPT = 7 * TEXT + 2 * HINT
"""What one branch holds after its first step: seven text sites and two hints."""


def run_of(tools, **header):
    """A lawful run that says where it stands, and holds what it keeps."""
    run = tools.obeying()
    run.header = {"guidance": 5.0, "shapes": SHAPES, "dtype": "float32", **header}
    for call in run.calls:
        call.bytes_held = KEPT if (call.index, call.branch) == (0, "cond") else 2 * KEPT
    run.bytes_peak = 2 * KEPT
    return run


@pytest.mark.parametrize(
    "header",
    [
        {},
        {"guidance": 5},
        {"guidance": [5.0]},
        {"shapes": {k: v for k, v in SHAPES.items() if k != "text_tokens"}},
        {"dtype": "bfloat16"},
    ],
    ids=["whole", "an integer", "bare transformer", "no text length", "weights wider than latents"],
)
def test_a_header_that_can_be_true_verifies(tools, tmp_path, header):
    """What the runtime writes, and what is left out of it, is no fault."""
    assert verify(tools.write(tmp_path / "run.jsonl", run_of(tools, **header))).problems == ()


@pytest.mark.parametrize(
    ("header", "sentence"),
    [
        ({"guidance": 99}, "guidance 99, and its table is reviewed for [5.0]"),
        ({"guidance": "5"}, "reviewed for [5.0]"),
        ({"guidance": None}, "reviewed for [5.0]"),
        ({"guidance": True}, "reviewed for [5.0]"),
        ({"guidance": [5.0, 99.0]}, "lists guidance [5.0,99.0]"),
        ({"shapes": {**SHAPES, "tokens": 9}}, "do not agree"),
        ({"shapes": {**SHAPES, "batch": 2}}, "do not agree"),
        ({"shapes": {**SHAPES, "latent": [1, 16, 2, 5, 4]}}, "do not agree"),
        ({"shapes": {**SHAPES, "latent": [1, 16, 2, 4]}}, "do not agree"),
        ({"shapes": {**SHAPES, "latent": [1, 16, 2, 4, -4]}}, "do not agree"),
        ({"shapes": {**SHAPES, "text_tokens": 0}}, "do not agree"),
        ({"shapes": "832x480"}, "do not agree"),
    ],
)
def test_a_header_of_another_operating_point_is_found(tools, tmp_path, header, sentence):
    """Guidance that the table does not list, and shapes that contradict themselves or the patch, are faults."""
    found = verify(tools.write(tmp_path / "run.jsonl", run_of(tools, **header)))
    assert found.outcome == "broken"
    assert sentence in "\n".join(map(str, found.problems))


def test_branches_are_those_of_the_guidance(tools, tmp_path):
    """Guidance above 1 has two branches, and one of 1 the first alone."""
    for guidance, branches, sound in ((5.0, ["cond"], False), (1.0, ["cond"], True), (1.0, ["cond", "uncond"], False)):
        run = tools.obeying(replace(tools.table, guidance=(5.0, 1.0)), branches)
        run.header = {"guidance": guidance}
        found = verify(tools.write(tmp_path / "run.jsonl", run))
        assert (found.outcome == "ok") is sound, (guidance, branches)
        assert sound or "lists branches" in "\n".join(map(str, found.problems))


def test_a_refused_request_may_have_stood_anywhere(tools, tmp_path):
    """A request that no line of has a place in the table says what it asked for, and is no fault."""
    run = run_of(tools, guidance=9.0)
    run.calls, run.outcome, run.bytes_peak = [], "failed", 0
    assert verify(tools.write(tmp_path / "run.jsonl", run)).outcome == "ok"


def every(value):
    """All lines say this many bytes."""
    return lambda call: setattr(call, "bytes_held", value)


def late(call):
    """Nothing is held after the second step, though the hints of step 0 are served at step 2."""
    call.bytes_held = 0 if call.step == 1 else call.bytes_held


def early(call):
    """More is held than one branch's first call can have kept."""
    call.bytes_held = 2 * KEPT if call.step == 0 else call.bytes_held


@pytest.mark.parametrize(
    ("bend", "sentence"),
    [
        (every(0), "step line 1 says 0 bytes"),
        (every(KEPT // 33), "what later lines serve from them is larger"),
        (every(10**12), "what was kept so far takes"),
        (late, "step line 3 says 0 bytes"),
        (early, f"this line says {2 * KEPT} bytes are held"),
    ],
    ids=["nothing", "too little", "far too much", "too little once", "too much once"],
)
def test_bytes_that_cannot_be_true_are_found(tools, tmp_path, bend, sentence):
    """Too few bytes for what is served from them later, or more than all that was kept takes, are faults."""
    run = run_of(tools)
    for call in run.calls:
        bend(call)
    run.bytes_peak = max(call.bytes_held for call in run.calls)
    found = verify(tools.write(tmp_path / "run.jsonl", run))
    assert found.outcome == "broken"
    assert sentence in "\n".join(map(str, found.problems))


def test_a_peak_that_cannot_be_true_is_found(tools, tmp_path):
    """The seal's peak is bounded as the lines are."""
    run = run_of(tools)
    run.bytes_peak = 10**12
    assert "the seal says" in str(verify(tools.write(tmp_path / "run.jsonl", run)).problems)
