"""The log of a session verifies, replays against its table, and says what the session says."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

from refkv_policy.audit import AuditError, AuditWriter, read_log, verify
from refkv_policy.runtime import Session, attach
from refkv_policy.runtime.digest import weights_digest
from tests import tiny

TEXT = '  - {name: text, tier: P0, method: text_kv, at: ["main[all].text_kv", "vace[all].text_kv"]}\n'
HINTS = '  - {name: hints, tier: P1, method: hint_reuse, at: "hint[all]", refresh: {interval: 3}}\n'
FORECAST = HINTS.replace("hint_reuse", "hint_forecast").replace("3}", "2}")
STALE = FORECAST.replace("all", "0-1").replace("refresh:", "params: {chain: stale}, refresh:")


@pytest.fixture(scope="module")
def pipe() -> Any:
    """Six main and three VACE blocks."""
    return tiny.pipeline(tiny.transformer((6, (0, 2, 4))))


def checked(path: Path, session: Session, table: Any) -> Any:
    """The one verified request of a log, whose totals are the session's."""
    verification = verify(path, table=table)
    assert verification.problems == ()
    assert verification.outcome == "ok"
    request = read_log(path).requests[0]
    summary = session.requests[0]
    assert request.seal is not None
    totals = request.seal["totals"]
    assert (totals["hits"], totals["misses"]) == (summary.total.hits, summary.total.misses)
    assert totals["departures"] == dict(summary.reasons)
    assert request.seal["bytes_peak"] == summary.total.bytes_peak
    assert request.seal["outcome"] == summary.outcome
    assert len(request.steps) == summary.calls
    return request


def swap_prompt(pipe: Any, step: int, t: Any, kwargs: Any) -> dict[str, Any]:
    """Another prompt from step 3 on."""
    return {"prompt_embeds": tiny.embeds(9)} if step == 2 else {}


def guidance_pauses(pipe: Any, step: int, t: Any, kwargs: Any) -> dict[str, Any]:
    """No guidance in the middle."""
    pipe._guidance_scale = 1.0 if step in (1, 2, 3) else 5.0
    return {}


def guidance_begins(pipe: Any, step: int, t: Any, kwargs: Any) -> dict[str, Any]:
    """Guidance from step 3 on."""
    pipe._guidance_scale = 5.0 if step >= 2 else 1.0
    return {}


def call_between(pipe: Any, step: int, t: Any, kwargs: Any) -> dict[str, Any]:
    """Calls of the model that are no step of the request."""
    pipe.transformer(**tiny.inputs(side=8))
    return {}


def interrupted(pipe: Any, step: int, t: Any, kwargs: Any) -> dict[str, Any]:
    """The pipeline's own interrupt."""
    pipe._interrupt = step >= 2
    return {}


DEPARTURES: dict[str, Any] = {
    "prompt": ({"callback_on_step_end": swap_prompt}, "incomplete"),
    "guidance off and on": ({"callback_on_step_end": guidance_pauses}, "incomplete"),
    "guidance late": (
        {"callback_on_step_end": guidance_begins, "guidance": 1.0, "negative_prompt_embeds": tiny.embeds(4)},
        "finished",
    ),
    "calls between": ({"callback_on_step_end": call_between}, "finished"),
    "interrupt": ({"callback_on_step_end": interrupted}, "cancelled"),
}


@pytest.mark.parametrize(("arguments", "outcome"), **tiny.settings(DEPARTURES))
@pytest.mark.parametrize("caches", [TEXT + HINTS, STALE], ids=["text and hints", "stale"])
def test_departures_are_legal(pipe: Any, caches: str, arguments: Any, outcome: str, tmp_path: Path) -> None:
    """Runs that depart from their plan verify: each departure is towards exactness and says why."""
    table = tiny.compiled(pipe.transformer, caches)
    more = {}
    if arguments.get("callback_on_step_end") is guidance_begins:
        more = {"callback_on_step_end_tensor_inputs": ["latents", "negative_prompt_embeds"]}
        more["callback_on_step_end"] = lambda p, s, t, k: {
            **guidance_begins(p, s, t, k),
            "negative_prompt_embeds": tiny.embeds(4),
        }
    with attach(pipe, table, audit=tmp_path / "run.jsonl") as session:
        tiny.run(pipe, **{**arguments, **more})
    checked(tmp_path / "run.jsonl", session, table)
    assert session.requests[0].outcome == outcome


def test_budget_and_uncached_runs_are_legal(pipe: Any, tmp_path: Path, monkeypatch: Any) -> None:
    """So do runs over budget, and runs that gave the cache up, from the start or in the middle."""
    budget = tiny.compiled(pipe.transformer, HINTS.replace("refresh:", "store: {budget: 2KiB}, refresh:"))
    with attach(pipe, budget, audit=tmp_path / "budget.jsonl") as session:
        tiny.run(pipe)
    assert "budget" in checked(tmp_path / "budget.jsonl", session, budget).seal["totals"]["departures"]

    table = tiny.compiled(pipe.transformer, FORECAST)
    with attach(pipe, table, audit=tmp_path / "steps.jsonl", on_error="uncached") as session:
        tiny.run(pipe, steps=3)
    checked(tmp_path / "steps.jsonl", session, table)

    from refkv_policy import methods

    monkeypatch.setattr(type(methods.get("hint_forecast")), "predict", lambda *_: 1 / 0)
    with attach(pipe, table, audit=tmp_path / "error.jsonl", on_error="uncached") as session:
        tiny.run(pipe)
    request = checked(tmp_path / "error.jsonl", session, table)
    assert request.seal["error"] == "ZeroDivisionError: division by zero"
    assert request.seal["outcome"] == "incomplete"


def test_failed_and_cancelled_requests_are_sealed(pipe: Any, tmp_path: Path) -> None:
    """A session with a failed, a cancelled and a finished request and calls outside any leaves one log that verifies."""
    table = tiny.compiled(pipe.transformer, HINTS)

    def fail(error: BaseException) -> Any:
        def callback(pipe: Any, step: int, t: Any, kwargs: Any) -> dict[str, Any]:
            raise error

        return callback

    path = tmp_path / "run.jsonl"
    with attach(pipe, table, audit=path) as session:
        for error in (ValueError("mine"), KeyboardInterrupt()):
            with pytest.raises(type(error)):
                tiny.run(pipe, callback_on_step_end=fail(error))
        with torch.no_grad():
            pipe.transformer(**tiny.inputs())
        tiny.run(pipe)
    verification = verify(path, table=table)
    assert verification.outcome == "ok", verification.problems
    assert list(verification.requests.values()) == ["failed", "cancelled", "finished"]
    assert [r.outcome for r in session.requests] == ["failed", "cancelled", "finished"]


def test_header_says_what_ran(tmp_path: Path) -> None:
    """Dtype, shapes, guidance, branches and digests, the caller's own fields, and the weights' digest where cheap."""
    pipe = tiny.pipeline(tiny.transformer(dtype=torch.bfloat16))
    table = tiny.compiled(pipe.transformer, '  - {name: t, tier: P0, method: text_kv, at: "main[all].text_kv"}\n')
    with attach(pipe, table, audit=tmp_path / "run.jsonl", header={"seed": 7, "digests": {"clip": "sha256:00"}}):
        tiny.run(pipe, guidance=1.0)
    header = read_log(tmp_path / "run.jsonl").requests[0].header.record
    assert header["dtype"] == "bfloat16"
    assert header["shapes"] == {"latent": [1, 16, 2, 4, 4], "tokens": 8, "text_tokens": tiny.TEXT_LENGTH, "batch": 1}
    assert (header["guidance"], header["branches"], header["seed"]) == (1.0, ["cond"], 7)
    assert header["digests"]["weights"] == weights_digest(pipe.transformer)
    assert header["digests"]["clip"] == "sha256:00"
    assert header["digests"]["table"] == table.digest
    assert set(header["versions"]) >= {"torch", "diffusers", "python"}


def test_writer_of_ones_own_stays_open(pipe: Any, tmp_path: Path) -> None:
    """A writer that was passed in is the caller's: two sessions may write to it, one after the other."""
    table = tiny.compiled(pipe.transformer, HINTS)
    with AuditWriter(tmp_path / "run.jsonl") as writer:
        with attach(pipe, table, audit=writer):
            tiny.run(pipe)
        writer.event(None, "between")
    assert verify(tmp_path / "run.jsonl", table=table).outcome == "ok"


def test_existing_log_is_refused_before_anything_changes(pipe: Any, tmp_path: Path) -> None:
    """A log is never written over, and a session that could not begin leaves the model alone."""
    (tmp_path / "run.jsonl").write_text("mine\n")
    with pytest.raises(AuditError, match="exists"):
        attach(pipe, tiny.compiled(pipe.transformer, HINTS), audit=tmp_path / "run.jsonl")
    assert "forward" not in vars(pipe.transformer)
    attach(pipe, tiny.compiled(pipe.transformer, HINTS)).detach()


def test_weights_digest_follows_values() -> None:
    """Equal weights give one digest, wherever and however they lie; one changed bit gives another."""
    one, two = tiny.transformer(), tiny.transformer()
    assert weights_digest(one) == weights_digest(two)
    with torch.no_grad():
        weight = two.proj_out.weight
        weight.data = weight.t().contiguous().t()
    assert weights_digest(one) == weights_digest(two)
    with torch.no_grad():
        two.proj_out.bias[0] += 1e-3
    assert weights_digest(one) != weights_digest(two)
