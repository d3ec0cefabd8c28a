"""Replay: one request's decisions held against its table, step by step."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping
from typing import Any

from refkv_policy.audit.decide import Decider
from refkv_policy.audit.decision import Decision
from refkv_policy.audit.header import same_sigma
from refkv_policy.audit.legal import DROPPED, faults
from refkv_policy.audit.plausible import Plausible
from refkv_policy.audit.read import Header, StepLine
from refkv_policy.audit.record import OUTCOMES, plain, quoted
from refkv_policy.audit.totals import Totals
from refkv_policy.compiler.table import BRANCHES, COMPUTE, COMPUTE_KEEP, COMPUTED, SERVED
from refkv_policy.compiler.walk import online_rules

MANY = 5
"""Faults of one kind in one line that are told one by one."""
UNPLANNED = frozenset({"unknown_step", "error"})
"""Why a call may have no place in the table: its step or branch is not known, or the request gave the cache up."""


class Replay:
    """The state of one request as its lines are read. `step` and `seal` return what is wrong, as sentences.

    Held to: each evaluated step once a branch, in order, cond before uncond (a branch may be absent from some steps,
    for guidance can be switched off and on in mid-run); each site of the table once a line; each cell obeyed or a
    legal departure (`legal.faults`); each served value's age as the log's own history has it, and no older than the
    table's newest refresh; the sums of the seal. A request may leave steps out only as `incomplete`.
    """

    def __init__(self, header: Header) -> None:
        self.header = header
        self.table = header.table
        self.totals = Totals.none(self.table)
        self.lines = 0
        self.decisions = 0
        self.outcome: str | None = None
        self.branches_run: dict[int, list[str]] = {}
        self._bytes = 0
        self._last = (-1, -1)
        self._unknown = 0
        self._gap: str | None = None
        self._ordinal = {step: n for n, step in enumerate(self.table.evaluated)}
        self._kept: dict[tuple[str, str], int] = {}
        self._refreshed = {b: self._refreshes(b) for b in header.branches}
        rules = online_rules(self.table, header.branches)
        self._deciders = tuple(Decider(self.table, rule, header.branches) for rule in rules)
        self._plausible = Plausible(header)

    @property
    def whole(self) -> bool:
        """Whether every evaluated step was run in at least one branch."""
        return len(self.branches_run) == len(self.table.evaluated)

    def step(self, line: StepLine) -> list[str]:
        """Take one step line."""
        found = self._plausible.step(line) + self._sites(line)
        self.lines += 1
        self.decisions += len(line.decisions)
        self._bytes = max(self._bytes, line.bytes_held)
        self.totals = self.totals.plus(line.branch, line.decisions)
        if line.step is None or line.branch is None:
            self._unknown += 1
            return _few(found + self._uncached(line))
        misplaced = self._place(line, line.step, line.branch)
        if misplaced:
            return misplaced + _few(found)
        return _few(found + self._cells(line, line.step, line.branch))

    def seal(self, record: Mapping[str, Any]) -> list[str]:
        """Take the seal."""
        found = []
        outcome = record.get("outcome")
        self.outcome = outcome if isinstance(outcome, str) and outcome in OUTCOMES else quoted(outcome)
        if self.outcome not in OUTCOMES:
            found.append(f"the outcome is {self.outcome}, not one of {', '.join(OUTCOMES)}")
        if type(record.get("steps")) is not int or record["steps"] != self.lines:
            found.append(f"the seal counts {quoted(record.get('steps'))} step lines, and there are {self.lines}")
        peak = record.get("bytes_peak")
        if type(peak) is not int or peak < self._bytes:
            found.append(f"the seal says {quoted(peak)} bytes at the peak, and a step held {self._bytes}")
        if not isinstance(record.get("error"), (str, type(None))):
            found.append("the seal's error is not a text")
        found.extend(_few(self._plausible.end(peak)))
        found.extend(_few(self._sums(record.get("totals"))))
        if self.outcome == "finished" and not self.whole:
            ran, all_steps = len(self.branches_run), len(self.table.evaluated)
            found.append(f"the request is sealed as finished, and {ran} of its {all_steps} steps ran")
        if self._gap is not None and self.outcome != "incomplete":
            found.append(f"{self._gap}, which only an incomplete request may")
        return found

    def unsealed(self) -> list[str]:
        """Take the end of the log in place of a seal."""
        found = _few(self._plausible.end(None))
        return found if self._gap is None or self._unknown else [*found, self._gap]

    def notes(self) -> list[str]:
        """What is legal and worth telling: branches that were absent, calls without a place in the table."""
        told = []
        for branch in self.header.branches:
            absent = [step for step, ran in sorted(self.branches_run.items()) if branch not in ran]
            if absent:
                told.append(
                    f"{branch} did not run at {len(absent)} of the steps that ran, the first of them {absent[0]}"
                )
        told += [note for decider in self._deciders for note in decider.notes()]
        if self._unknown:
            told.append(f"calls without a place in the table, computed throughout: {self._unknown}")
        return told

    def _refreshes(self, branch: str) -> dict[str, list[int]]:
        """By site, for each step: the ordinal of the table's newest `C` before it, -1 where there is none."""
        result = {}
        for row in self.table.rows:
            newest, actions = -1, row.actions(branch)
            if not SERVED & set(actions):
                continue
            before = [-1] * self.table.steps
            for n, step in enumerate(self.table.evaluated):
                before[step] = newest
                if actions[step] == COMPUTE_KEEP:
                    newest = n
            result[row.site] = before
        return result

    def _sites(self, line: StepLine) -> list[str]:
        """Whether the line names each site of the table exactly once."""
        names = {d.site for d in line.decisions}
        known = self.table.by_site.keys()
        if len(names) == len(line.decisions) == len(known) and names == known:
            return []
        found = [f"{site} is no site of the table" for site in sorted(names - known)]
        found += [f"{site} has no decision" for site in known if site not in names]
        if len(names) < len(line.decisions):
            counts = Counter(d.site for d in line.decisions)
            found += [f"{site} has {n} decisions" for site, n in counts.items() if n > 1]
        return found

    def _uncached(self, line: StepLine) -> list[str]:
        """A call that has no place in the table: computed throughout, nothing kept, and said why."""
        return [
            f"{d.site}: a call without step or branch must be computed (`.`), for `unknown_step` or `error`"
            for d in line.decisions
            if d.action != COMPUTE or d.reason not in UNPLANNED
        ]

    def _place(self, line: StepLine, step: int, branch: str) -> list[str]:
        """Whether this step of this branch was due; notes it as run."""
        if branch not in self.header.branches:
            return [f"the header expects no {branch} branch"]
        if step not in self._ordinal:
            where = (
                "is left out by the table" if step < self.table.steps else f"is past the last, {self.table.steps - 1}"
            )
            return [f"step {step} {where}"]
        ordinal = self._ordinal[step]
        due = ordinal, BRANCHES.index(branch)
        if due <= self._last:
            ran = branch in self.branches_run.get(step, [])
            return [
                f"step {step} of {branch} {'ran before' if ran else 'comes too late: the steps ascend, cond first'}"
            ]
        if ordinal > self._last[0] + 1 and self._gap is None:
            missing = self.table.evaluated[self._last[0] + 1]
            self._gap = f"step {missing} did not run before step {step}"
        self._last = due
        self.branches_run.setdefault(step, []).append(branch)
        found = []
        if line.index != ordinal:
            found.append(
                f"step {step} is number {ordinal} of the evaluated steps, and the line says {quoted(line.index)}"
            )
        if not same_sigma(line.sigma, self.table.sigmas[step]):
            found.append(
                f"the sigma of step {step} is {self.table.sigmas[step]}, and the line says {quoted(line.sigma)}"
            )
        return found

    def _cells(self, line: StepLine, step: int, branch: str) -> list[str]:
        """Whether every cell was obeyed or legally departed from, and every age is true."""
        found, known = [], []
        rows, kept, refreshed = self.table.by_site, self._kept, self._refreshed[branch]
        now = self._ordinal[step]
        for d in line.decisions:
            row = rows.get(d.site)
            if row is None:
                continue
            cell = (row.cond if branch == "cond" else row.uncond)[step]
            if d.planned != cell:
                found.append(f"{d.site}: the line says {d.planned} was planned, and the table says {cell}")
                continue
            known.append(d)
            if d.action in SERVED:
                found.extend(
                    self._age(d, now, kept.get((branch, d.site)), refreshed.get(d.site, [-1] * (step + 1))[step])
                )
            elif d.age is not None:
                found.append(f"{d.site}: it was not served, and still has an age")
            elif d.action == COMPUTE_KEEP:
                kept[branch, d.site] = now
            elif d.action in COMPUTED and d.reason in DROPPED:
                kept.pop((branch, d.site), None)
        found += faults(known, self.table)
        for decider in self._deciders:
            found += decider.step(step, branch, known)
        return found

    def _age(self, d: Decision, now: int, kept: int | None, refreshed: int) -> list[str]:
        if kept is None:
            return [f"{d.site}: it was served, and nothing had been kept"]
        if d.age != now - kept:
            return [f"{d.site}: its age is {now - kept} steps, and the line says {quoted(d.age)}"]
        if kept < refreshed:
            return [f"{d.site}: it was served a value that is {d.age} steps old; the table refreshed it since"]
        return []

    def _sums(self, said: Any) -> list[str]:
        if not isinstance(said, dict):
            return ["the seal holds no totals"]
        return [
            f"the seal's {plain(name)} is {quoted(one)}; its steps add up to {quoted(other)}"
            for name, one, other in _differences("", said, self.totals.to_dict())
        ]


def _differences(under: str, said: Any, counted: Any) -> Iterator[tuple[str, Any, Any]]:
    """Each entry in which two JSON values differ, by its keys joined with dots."""
    if isinstance(said, dict) and isinstance(counted, dict):
        for key in sorted(said.keys() | counted.keys()):
            yield from _differences(f"{under}.{key}" if under else key, said.get(key), counted.get(key))
    elif type(said) is not type(counted) or said != counted:
        yield under, said, counted


def _few(found: list[str]) -> list[str]:
    if len(found) <= MANY:
        return found
    return [*found[:MANY], f"and {len(found) - MANY} more of this line"]
