"""Replay: legal runs pass, illegal ones fail with a sentence."""

from dataclasses import replace

import pytest

from refkv_policy.audit import AuditWriter, Decision, verify


def calls_of(run, branch):
    """The calls of one branch."""
    return [c for c in run.calls if c.branch == branch]


def no_state(run):
    """An early refresh was lost: computed and kept anew, and ages count from there."""
    run.at(1).put("hint[1]", "C", "no_state")
    run.at(1).put("vace[1]", ".", "chain")
    run.at(2).put("hint[1]", "R", None, 1)


def deeper_hint(run):
    """The deepest hint departs, and the chain below it runs, with its text."""
    run.at(5, "uncond").put("hint[2]", "C", "budget")
    run.at(6, "uncond").put("hint[2]", "F", None, 1)
    for site in ("vace[1]", "vace[2]", "vace[1].text_kv", "vace[2].text_kv"):
        run.at(5, "uncond").put(site, ".", "chain")


def uncached(run):
    """After an error everything is computed and nothing kept."""
    for call in run.calls:
        for d in list(call.decisions):
            if call.step >= 4 and d.action in "CRF":
                call.put(d.site, ".", "error")
    run.reached([5, 6])


def guidance_off(run):
    """The uncond branch is absent over a refresh; when it is back the hints' state is gone, the text's is not."""
    run.calls = [c for c in run.calls if not (c.branch == "uncond" and c.step in (4, 5))]
    for site in ("hint[1]", "hint[2]"):
        run.at(6, "uncond").put(site, ".", "no_state")
    for site in ("vace[1]", "vace[2]", "vace[1].text_kv", "vace[2].text_kv"):
        run.at(6, "uncond").put(site, ".", "chain")


def cond_only(run):
    """Guidance was off from the start to the end."""
    run.calls = calls_of(run, "cond")


def stopped(run):
    """The request failed in the middle of a step."""
    run.calls, run.outcome = run.calls[:5], "failed"


def unknown_call(run):
    """One call did not know its step: computed, not cached, and the request is incomplete."""
    run.calls[4].step = run.calls[4].index = run.calls[4].sigma = None
    for d in list(run.calls[4].decisions):
        run.calls[4].put(d.site, ".", "unknown_step", None, planned=".")
    run.outcome = "incomplete"


def given_up(run):
    """From the start the request was run without the cache, because of an error."""
    for call in run.calls:
        call.step = call.index = call.sigma = None
        for d in list(call.decisions):
            call.put(d.site, ".", "error", None, planned=".")
    run.outcome = "incomplete"


def not_kept(run):
    """A refresh was computed and, for want of budget, not kept; what would read it is computed too."""
    for step in (4, 5, 6):
        run.at(step).put("hint[2]", ".", "budget")
    for step in (5, 6):
        for n in (1, 2):
            run.at(step).put(f"vace[{n}]", ".", "chain")


LEGAL = [no_state, deeper_hint, uncached, guidance_off, cond_only, stopped, unknown_call, given_up, not_kept]


@pytest.mark.parametrize("bend", [lambda run: None, *LEGAL], ids=lambda f: f.__name__)
def test_a_legal_run_verifies(tools, tmp_path, bend):
    """A run that obeys its table, or departs legally, has nothing against it."""
    run = tools.obeying()
    bend(run)
    found = verify(tools.write(tmp_path / "run.jsonl", run))
    assert (found.outcome, found.problems) == ("ok", ())
    assert found.decisions == len(run.calls) * len(tools.table.rows)


def put(step, site, action, reason=None, age=None, branch="cond", **other):
    """A run in which another thing happened at one cell."""

    def bend(run):
        run.at(step, branch).put(site, action, reason, age, **other)

    bend.__name__ = f"{site}@{step}={action}{reason or ''}"
    return bend


def change(step, branch="cond", **fields):
    """A run in which one call says something else."""

    def bend(run):
        call = run.at(step, branch)
        for name, value in fields.items():
            setattr(call, name, value)

    bend.__name__ = f"{step}.{'-'.join(fields)}"
    return bend


def again(run):
    """A step of one branch twice."""
    run.calls.insert(6, run.calls[4])


def backwards(run):
    """Two steps in the wrong order."""
    run.calls[2:6] = run.calls[4:6] + run.calls[2:4]


def uncond_first(run):
    """The branches of a step in the wrong order."""
    run.calls[2], run.calls[3] = run.calls[3], run.calls[2]


def left_out_step(run):
    """A step that the table leaves out."""
    run.at(4).step = 3


def past_the_end(run):
    """A step beyond the last."""
    run.at(7).step = 8


def skipped(run):
    """A step of both branches is missing from a finished request."""
    run.calls = [c for c in run.calls if c.step != 5]


def skipped_and_cancelled(run):
    """A step is missing before the end of a cancelled request."""
    skipped(run)
    run.calls, run.outcome = run.calls[:-1], "cancelled"


def unfinished(run):
    """Sealed as finished with the last step missing."""
    run.calls = run.calls[:-2]


def unexpected_branch(run):
    """The uncond branch runs though the header expects cond only."""
    run.branches = ["cond"]


def missing_site(run):
    """A line without one of the table's sites."""
    del run.at(2).decisions[3]


def strange_site(run):
    """A line with a site that the table has not."""
    run.at(2).decisions.append(Decision("main[9]", ".", "."))


def twofold_site(run):
    """A line with one site twice."""
    run.at(2).decisions.append(run.at(2).decisions[0])


def cached_unknown(run):
    """A call that does not know its step, and serves from the cache."""
    run.at(2).step = None
    run.outcome = "incomplete"


def stale(run):
    """The uncond branch misses a refresh and is then served the value from before it."""
    run.calls = [c for c in run.calls if not (c.branch == "uncond" and c.step == 4)]
    for step, index in ((5, 4), (6, 5)):
        run.at(step, "uncond").put("hint[1]", "R", None, index)
        run.at(step, "uncond").put("hint[2]", "F", None, index)


def after_drop(run):
    """Served at the step after its state was dropped."""
    run.at(1).put("hint[2]", ".", "budget")
    run.at(1).put("vace[2]", ".", "chain")
    run.at(1).put("vace[1]", ".", "chain")


ILLEGAL = [
    (put(0, "hint[1]", "R", None, 1), "may only depart towards computing"),
    (put(0, "hint[1]", "R", "no_state", 1), "may only depart towards computing"),
    (put(0, "main[0]", "R", None, 1), "may only depart towards computing"),
    (put(1, "vace[1]", "R", None, 1), "may only depart towards computing"),
    (put(5, "hint[2]", "R", None, 1), "may only depart towards computing"),
    (put(1, "hint[1]", "F", None, 1), "may only depart towards computing"),
    (put(0, "main[2]", "-"), "was skipped"),
    (put(1, "hint[1]", "-"), "was skipped"),
    (put(0, "main[2]", "C", "no_state"), "keeps a value"),
    (put(0, "main[2]", "C"), "without a reason"),
    (put(0, "hint[1]", "."), "without a reason"),
    (put(1, "hint[2]", "C"), "without a reason"),
    (put(1, "hint[2]", ".", "because"), "no reason to depart"),
    (put(1, "hint[2]", ".", "chain"), "no reason to depart"),
    (put(1, "hint[2]", "C", "budget"), "was not reached"),
    (put(1, "vace[2]", ".", "chain"), "no departed site needs it"),
    (put(1, "vace[2]", ".", "no_state"), "no departed site needs it"),
    (put(1, "vace[2]", "."), "without a reason"),
    (put(1, "vace[2]", "C", "chain"), "only be computed and not kept"),
    (put(1, "hint[1]", "R", "budget", 1), "for doing what the table says"),
    (put(0, "main[1]", ".", "error"), "for doing what the table says"),
    (put(2, "hint[1]", "R", None, 1), "its age is 2 steps, and the line says 1"),
    (put(2, "hint[1]", "R", None, None), "its age is 2 steps, and the line says null"),
    (put(0, "hint[1]", "C", None, 0), "was not served, and still has an age"),
    (put(0, "hint[1]", ".", None, planned="."), "the line says . was planned, and the table says C"),
    (put(1, "hint[1]", "C", "no_state", planned="F"), "the line says F was planned"),
    (change(2, index=3), "number 2 of the evaluated steps"),
    (change(2, index=None), "number 2 of the evaluated steps"),
    (change(2, sigma=0.9), "the sigma of step 2 is 0.93"),
    (change(2, sigma=None), "the sigma of step 2"),
    (change(2, bytes_held=1001), "1000 bytes at the peak, and a step held 1001"),
    (change(2, bytes_held=-1), "not a number of bytes"),
    (again, "step 2 of cond ran before"),
    (backwards, "step 1 of cond comes too late"),
    (uncond_first, "step 1 of cond comes too late"),
    (left_out_step, "step 3 is left out by the table"),
    (past_the_end, "step 8 is past the last"),
    (skipped, "6 of its 7 steps ran"),
    (skipped_and_cancelled, "step 5 did not run before step 6"),
    (unfinished, "sealed as finished, and 6 of its 7 steps ran"),
    (unexpected_branch, "expects no uncond branch"),
    (missing_site, "has no decision"),
    (strange_site, "main[9] is no site of the table"),
    (twofold_site, "step has 2 decisions"),
    (cached_unknown, "must be computed"),
    (stale, "the table refreshed it since"),
    (after_drop, "nothing had been kept"),
]


@pytest.mark.parametrize(("bend", "sentence"), ILLEGAL, ids=[f.__name__ for f, _ in ILLEGAL])
def test_an_illegal_run_is_broken(tools, tmp_path, bend, sentence):
    """A run that departs otherwise than legally, logged honestly with every hash right, fails and says where."""
    run = tools.obeying()
    bend(run)
    found = verify(tools.write(tmp_path / "run.jsonl", run))
    assert found.outcome == "broken"
    assert sentence in "\n".join(map(str, found.problems))
    assert all(1 <= p.line <= found.lines for p in found.problems)


@pytest.mark.parametrize("outcome", ["failed", "cancelled", "incomplete"])
def test_other_outcomes_than_finished_may_stop_early(tools, tmp_path, outcome):
    """What failed, was cancelled or is incomplete need not have run to the end."""
    run = tools.obeying()
    run.calls, run.outcome = run.calls[:3], outcome
    found = verify(tools.write(tmp_path / "run.jsonl", run))
    assert (found.outcome, found.requests) == ("ok", {"r1": outcome})


@pytest.mark.parametrize(
    ("kind", "field", "value"),
    [
        ("seal", "steps", 13),
        ("seal", "bytes_peak", 599),
        ("seal", "outcome", "fine"),
        ("seal", "error", 3),
        ("seal", "totals", None),
        ("seal", "totals.hits", 1),
        ("seal", "totals.departures", {"budget": 1}),
        ("seal", "totals.sites.step.cond", [0, 6]),
        ("seal", "totals.unserved", 1),
        ("request", "sampler", "euler"),
        ("request", "flow_shift", 5.0),
        ("request", "sigmas", [1.0] * 8),
        ("request", "sigmas", None),
        ("request", "evaluated", list(range(8))),
        ("request", "left_out", []),
        ("request", "steps", 9),
        ("request", "branches", ["uncond", "cond"]),
        ("request", "schema", 2),
        ("request", "session", "s-other"),
        ("request", "digests.table", "sha256:0"),
        ("request", "table.flow_shift", 5.0),
        ("request", "table.rows", []),
        ("close", "requests", 2),
        ("close", "session", "s-other"),
        ("event", "event", None),
        ("event", "fields", None),
        ("event", "request", "r9"),
    ],
)
def test_every_claim_of_header_seal_and_close_is_checked(tools, tmp_path, kind, field, value):
    """A header that disagrees with its table, or a seal or close that miscounts, breaks a log with true hashes."""
    path = tools.write(tmp_path / "run.jsonl", tools.obeying())
    records = tools.records(path)
    records.insert(1, {"kind": "event", "request": "r1", "event": "grid_supplied", "fields": {}})
    path.write_bytes(tools.rechained(records))
    assert verify(path).outcome == "ok"
    at = next(r for r in records if r["kind"] == kind)
    keys = field.split(".")
    for key in keys[:-1]:
        at = at[key]
    at[keys[-1]] = value
    path.write_bytes(tools.rechained(records))
    assert verify(path).outcome == "broken"


def test_nothing_may_follow_a_seal_or_the_close(tools, tmp_path):
    """A line of a sealed request, or any line after the log was closed, breaks the log."""
    path = tools.write(tmp_path / "run.jsonl", tools.obeying(), tools.obeying())
    records = tools.records(path)
    for extra, at, sentence in (
        (records[3], -1, "comes after the seal"),
        ({"kind": "event", "request": "r1", "event": "x", "fields": {}}, -1, "comes after the seal"),
        ({"kind": "event", "request": None, "event": "x", "fields": {}}, len(records), "after the log was closed"),
        (records[0], -1, "begins a second time"),
        ({**records[0], "request": "r3"}, len(records), "after the log was closed"),
    ):
        changed = list(records)
        changed.insert(at if at > 0 else len(records) - 1, extra)
        path.write_bytes(tools.rechained(changed))
        assert sentence in "\n".join(map(str, verify(path).problems))


def test_absent_branches_and_unknown_calls_are_told(tools, tmp_path):
    """What is legal and remarkable is a note: a branch that did not run, calls whose step was not known."""
    absent, unknown = tools.obeying(), tools.obeying()
    cond_only(absent)
    unknown_call(unknown)
    notes = verify(tools.write(tmp_path / "run.jsonl", absent, unknown)).notes
    assert notes == (
        'request "r1": uncond did not run at 7 of the steps that ran, the first of them 0',
        'request "r2": cond did not run at 1 of the steps that ran, the first of them 2',
        'request "r2": calls without a place in the table, computed throughout: 1',
    )


def test_requests_may_interleave(tools, tmp_path):
    """Two requests open at once in one session are each replayed by themselves."""
    one, two = tools.obeying(), tools.obeying()
    no_state(two)
    with AuditWriter(tmp_path / "run.jsonl") as writer:
        for name in ("a", "b"):
            writer.begin(name, {"branches": one.branches}, one.table)
        for left, right in zip(one.calls, two.calls, strict=True):
            writer.step("a", **vars(left))
            writer.step("b", **vars(right))
        for name in ("b", "a"):
            writer.seal(name, outcome="finished", bytes_peak=1000)
    found = verify(tmp_path / "run.jsonl")
    assert (found.outcome, found.problems) == ("ok", ())


ONLINE = {"signal": 0.04, "threshold": 0.05}


@pytest.mark.parametrize(
    ("hint", "reason", "age", "block", "legal"),
    [
        ("R", None, 1, "-", True),
        ("F", None, 1, "-", True),
        ("C", None, None, ".", True),
        (".", None, None, ".", True),
        (".", "no_state", None, ".", True),
        ("R", None, 1, ".", True),
        ("R", "budget", 1, "-", False),
        (".", "because", None, ".", False),
        ("-", None, None, "-", False),
        ("C", None, None, "-", False),
    ],
)
def test_a_cell_decided_online_may_go_either_way(tools, tmp_path, hint, reason, age, block, legal):
    """`?` is served or computed as its rule decided; a block is skipped only where the hint above it was served."""
    rows = [replace(r, cond="C?") if r.at.stack == "hint" else replace(r, cond="..") for r in tools.tiny.rows]
    run = tools.obeying(replace(tools.tiny, rows=tuple(rows)), ["cond"])
    run.at(1).put("hint[0]", hint, reason, age, **ONLINE)
    run.at(1).put("vace[0]", block)
    found = verify(tools.write(tmp_path / "run.jsonl", run))
    assert (found.outcome == "ok") == legal, found.problems
    assert tools.records(tmp_path / "run.jsonl")[2]["decisions"][-1]["signal"] == 0.04
