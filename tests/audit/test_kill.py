"""A killed process leaves a log that verifies up to its last whole line."""

import json
import random
import subprocess
import sys

from refkv_policy.audit import read_log, verify

KILLS = 24
SCRIPT = """
import json, os, random, signal, sys, time
from refkv_policy.audit import AuditWriter, Decision
from refkv_policy.compiler.table import HookTable

folder, kills = sys.argv[1], int(sys.argv[2])
table = HookTable.from_dict(json.loads(sys.stdin.read()))
assert "torch" not in sys.modules


def write(path):
    writer, n = AuditWriter(path), 0
    while True:
        n, kept = n + 1, {}
        writer.begin(f"r{n}", {"branches": ["cond", "uncond"]}, table)
        for index, step in enumerate(table.evaluated):
            for branch in ("cond", "uncond"):
                decisions = []
                for row in table.rows:
                    action = row.actions(branch)[step]
                    if action == "C":
                        kept[row.site, branch] = index
                    age = index - kept[row.site, branch] if action in "RF" else None
                    decisions.append(Decision(row.site, action, action, None, age))
                writer.step(f"r{n}", step=step, index=index, branch=branch, sigma=table.sigmas[step],
                            decisions=decisions, bytes_held=100)
        writer.seal(f"r{n}", outcome="finished", bytes_peak=100)


for kill in range(kills):
    path = os.path.join(folder, f"{kill}.jsonl")
    child = os.fork()
    if child == 0:
        write(path)
    while kill and not os.path.exists(path):
        time.sleep(0.001)
    time.sleep(random.Random(kill).uniform(0, 0.06))
    os.kill(child, signal.SIGKILL)
    assert os.waitpid(child, 0)[1] == signal.SIGKILL
"""


def test_sigkill_at_random_times_leaves_a_verifiable_prefix(tools, tmp_path):
    """Killed at 24 random times, the writer leaves lines that verify and read `unsealed`; half of one, if any, is told."""
    done = subprocess.run(
        [sys.executable, "-c", SCRIPT, str(tmp_path), str(KILLS)],
        input=json.dumps(tools.table.to_dict()),
        text=True,
        capture_output=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    lengths = set()
    for kill in range(KILLS):
        path = tmp_path / f"{kill}.jsonl"
        if kill == 0 and not path.exists():
            continue
        found = verify(path)
        assert (found.outcome, found.problems) == ("unsealed", ()), kill
        # A kernel may end a long write half-way for a process that is killed in it.
        broken = path.read_bytes()[-1:] not in (b"", b"\n")
        assert any("half a line" in note for note in found.notes) == broken
        assert len(read_log(path).requests) == len(found.requests)
        assert list(found.requests.values())[:-1] == ["finished"] * (len(found.requests) - 1)
        lengths.add(found.lines)
    assert len(lengths) > 4


def test_a_prefix_of_any_length_reads_unsealed(tools, tmp_path):
    """A log that breaks off anywhere, at the end of a line or within one, is unsealed, and half a line is told."""
    whole = tools.write(tmp_path / "run.jsonl", tools.obeying(tools.tiny)).read_bytes()
    path = tmp_path / "cut.jsonl"
    rng = random.Random(0)
    for length in sorted({*rng.sample(range(len(whole)), 200), len(whole) - 1, 0, 1}):
        path.write_bytes(whole[:length])
        found = verify(path)
        assert (found.outcome, found.problems) == ("unsealed", ()), length
        broken = length > 0 and whole[length - 1 : length] != b"\n"
        assert any("half a line" in note for note in found.notes) == broken
        assert (read_log(path).half is not None) == broken
