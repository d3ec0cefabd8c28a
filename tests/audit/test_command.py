"""`refkv audit verify | show | summary`."""

import json

import pytest
from click.testing import CliRunner

from refkv_policy.cli import refkv


@pytest.fixture
def call():
    """Run a command line as a shell would; gives (status, stdout, stderr)."""

    def run(*args):
        done = CliRunner().invoke(refkv, ["audit", *map(str, args)])
        assert done.exception is None or isinstance(done.exception, SystemExit)
        return done.exit_code, done.stdout, done.stderr

    return run


@pytest.fixture
def log(tools, tmp_path):
    """A log of two requests, the second with a departure and a call that did not know its step."""
    run = tools.obeying()
    run.at(1).put("hint[2]", "C", "no_state")
    run.at(2).put("hint[2]", "R", None, 1)
    for site in ("vace[1]", "vace[2]"):
        run.at(1).put(site, ".", "chain")
    run.calls[-1].step = run.calls[-1].index = run.calls[-1].sigma = None
    for d in list(run.calls[-1].decisions):
        run.calls[-1].put(d.site, ".", "unknown_step", None, planned=".")
    run.outcome = "incomplete"
    return tools.write(tmp_path / "run.jsonl", tools.obeying(), run)


def test_verify_of_a_sound_log_prints_its_head_and_exits_with_0(call, tools, log):
    """The last line is the head, to be recorded elsewhere; --head and --table-digest hold it to what was recorded."""
    status, out, err = call("verify", log)
    head = tools.records(log)[-1]["hash"]
    assert (status, err, out.splitlines()[-1]) == (0, "", f"head {head}")
    assert out.splitlines()[0] == 'ok: 33 lines, 504 decisions; requests: "r1" finished, "r2" incomplete'
    assert call("verify", log, "--head", head, "--table-digest", tools.table.digest)[0] == 0
    assert call("verify", log, "--head", "sha256:0")[0] == 1
    status, out, _ = call("verify", log, "--table-digest", "sha256:0")
    assert status == 1
    assert f'line 1: request "r1" ran the table {tools.table.digest}, not "sha256:0"' in out


def test_verify_of_a_broken_or_unsealed_log_exits_with_1(call, log):
    """Each fault is a line with its place; an unsealed log says so."""
    lines = log.read_bytes().splitlines(keepends=True)
    log.write_bytes(b"".join(lines[:5]))
    status, out, _ = call("verify", log)
    assert status == 1
    assert "unsealed: 5 lines" in out
    assert 'note: request "r1" has no seal' in out
    log.write_bytes(b"".join([*lines[:5], *lines[6:]]))
    status, out, _ = call("verify", log)
    assert status == 1
    assert out.startswith("broken: 32 lines")
    assert "\nline 6: it does not follow line 5" in out


def test_equal_faults_of_neighbouring_lines_are_told_once(call, log):
    """A copy with other line ends, a doubled log and one whose every line was touched: a handful of lines, verdict first."""
    text = log.read_bytes()
    for spoilt in (text.replace(b"\n", b"\r\n"), text + text, text.replace(b'":', b'": '), text.replace(b'"', b"'")):
        log.write_bytes(spoilt)
        status, out, _ = call("verify", log)
        assert (status, out.split(":")[0]) == (1, "broken")
        assert len(out.splitlines()) <= 17, out
        assert len(json.loads(call("verify", log, "--json")[1])["problems"]) > 17


def test_several_logs_in_one_call(call, log, tmp_path):
    """Each is named with its verdict; one that cannot be read does not keep the others from being verified."""
    broken = tmp_path / "broken.jsonl"
    broken.write_bytes(b"".join(log.read_bytes().splitlines(keepends=True)[:-3]))
    status, out, _ = call("verify", log, broken)
    assert (status, [line.split(": ")[1] for line in out.splitlines() if " lines, " in line]) == (1, ["ok", "unsealed"])
    status, out, err = call("verify", tmp_path / "none.jsonl", log)
    assert (status, f"{log}: ok" in out, "cannot be read" in err) == (2, True, True)
    found = json.loads(call("verify", log, broken, "--json")[1])["logs"]
    assert [(one["log"], one["outcome"]) for one in found] == [(str(log), "ok"), (str(broken), "unsealed")]
    assert call("verify", log, broken, "--head", "sha256:0")[0] == 2
    status, out, _ = call("summary", log, broken)
    assert (status, [line for line in out.splitlines() if line.endswith(".jsonl")]) == (0, [str(log), str(broken)])


@pytest.mark.parametrize("command", ["verify", "show", "summary"])
def test_what_cannot_be_read_exits_with_2_and_one_sentence(call, tmp_path, command):
    """A missing file and a folder are one sentence on stderr."""
    for path in (tmp_path, tmp_path / "no.jsonl"):
        status, out, err = call(command, path)
        assert (status, out, len(err.splitlines())) == (2, "", 1)
        assert "cannot be read" in err


def test_verify_json_is_one_object(call, log):
    """--json gives the verdict, the requests and the problems to a machine."""
    found = json.loads(call("verify", log, "--json")[1])
    assert (found["outcome"], found["lines"], found["problems"]) == ("ok", 33, [])
    assert [r["outcome"] for r in found["requests"]] == ["finished", "incomplete"]


def test_show_draws_what_happened(call, log):
    """One character a cell: actions as they happened, `!` where the run departed, blank where no step ran."""
    status, out, _ = call("show", log, "--request", "r2", "--branch", "cond")
    assert status == 0
    assert out.splitlines()[:3] == [
        '"r2" cond, incomplete',
        "                   0",
        "                   01234567",
    ]
    assert "hint[2]            C!R CFF.\n" in out
    assert "hint[1]            CRR CRR.\n" in out
    assert "main[0-3].text_kv  CRR RRRR\n" in out
    assert "vace[1-2]          .!- .--.\n" in out
    assert '"r2" step unknown, branch uncond' not in out
    assert '"r2" step unknown, branch uncond' in call("show", log, "--request", "r2")[1]
    assert "vace[1-2]          .-- .--.\n" in call("show", log, "--request", "r1", "--branch", "uncond")[1]


def test_show_of_a_step_tells_every_decision(call, log):
    """--step prints age and reason of each site at that step."""
    status, out, _ = call("show", log, "--step", "1", "--branch", "cond", "--request", "r2")
    assert status == 0
    assert out.startswith('"r2" step 1, branch cond: sigma 0.97, 200 bytes held\n')
    assert "  hint[2]  C  planned R  reason no_state\n" in out
    assert "  main[0-3].text_kv  R  age 1\n" in out
    status, out, err = call("show", log, "--step", "3", "--request", "r1")
    assert (status, out) == (0, "")
    assert "logged no step 3" in err


def test_show_json_holds_the_steps_that_were_asked_for(call, log):
    """--json gives the folded decisions of the chosen request, branch and step."""
    found = json.loads(call("show", log, "--json", "--request", "r1", "--branch", "uncond", "--step", "5")[1])
    assert [(s["step"], s["index"], s["branch"]) for s in found[0]["steps"]] == [(5, 4, "uncond")]
    assert {"site": "hint[2]", "action": "F", "age": 1} in found[0]["steps"][0]["decisions"]


def test_show_suggests_a_request_that_exists(call, log):
    """A request that the log does not hold is an error that names the closest."""
    status, out, err = call("show", log, "--request", "r22")
    assert (status, out) == (2, "")
    assert 'no request "r22"; did you mean' in err


def test_summary_is_a_table_of_requests(call, log):
    """Outcome, steps, hits, misses, departures and peak bytes; then hits and misses by site."""
    status, out, _ = call("summary", log)
    lines = out.splitlines()
    assert status == 0
    assert lines[0].split() == [
        "request",
        "outcome",
        "steps",
        "hits",
        "misses",
        "hit",
        "rate",
        "departures",
        "peak",
    ]
    assert lines[1].split() == ["r1", "finished", "7/7", "84", "26", "76.4%", "none", "1000", "B"]
    assert lines[2].startswith("r2       incomplete    7/7")
    assert "2 chain, 1 no_state, 18 unknown_step" in lines[2]
    assert "main[0-3].text_kv    12       2" in out


def test_summary_json_agrees_with_the_seal(call, tools, log):
    """--json has the totals that the writer sealed."""
    found = json.loads(call("summary", log, "--json")[1])
    seals = [r for r in tools.records(log) if r["kind"] == "seal"]
    for entry, seal in zip(found["requests"], seals, strict=True):
        assert {k: entry[k] for k in ("hits", "misses", "departures", "branches", "unserved")} == {
            k: seal["totals"][k] for k in ("hits", "misses", "departures", "branches", "unserved")
        }


def test_a_damaged_log_is_summed_up_as_far_as_it_goes_and_exits_with_1(call, log):
    """What can be read is printed; what is wrong goes to stderr."""
    lines = log.read_bytes().splitlines(keepends=True)
    log.write_bytes(b"".join([*lines[:3], b"junk\n", *lines[3:20], b'{"half":']))
    status, out, err = call("summary", log)
    assert status == 1
    assert out.splitlines()[1].startswith("r1       finished")
    assert "problem: line 4: it is not JSON" in err
    assert "half a line" in err
    assert "unsealed" in err
