"""The verdict of a report: what each scope and log is worth, in words first, and the worst of them."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

from refkv_policy.audit import Verification
from refkv_policy.compiler import HookTable
from refkv_policy.evidence import GATE, Evidence, MeasuredScope, Scope
from refkv_policy.evidence.status import differences, entry_status
from refkv_policy.report.words import count, item_says, listed

Tone = Literal["good", "bad", "open", "void"]
"""green and ok · red and broken · incomplete, unsealed, missing · stale and edited: says nothing any more."""

WORDS: dict[str, Tone] = {
    "edited": "void",
    "broken": "bad",
    "stale": "void",
    "red": "bad",
    "unsealed": "open",
    "incomplete": "open",
    "missing": "open",
    "green": "good",
    "ok": "good",
}
"""Every verdict there is, the worst first."""

ANSWERS: dict[Tone, str] = {"void": "No", "bad": "No", "open": "Not yet", "good": "Yes"}
"""To the question whether a plan should be approved, by the evidence of it."""

PROMISES = {
    "mean_drop": "to keep the features of its frames near the uncached run's",
    "worst_frame_drop": "to keep the features of its worst frame near the uncached run's",
    "speedup": "to save {} of the denoising time",
    "pareto": "to be the best of its own variants",
    "second_half_decay": "to hold through the second half of long clips",
    "subjective": "to look the same to raters",
    "fewer_steps": "to be as near the uncached run as fewer steps of the same speed",
    "respaced_steps": "to be as near the uncached run as re-spaced fewer steps of the same speed",
    "memory": "to keep to its memory budget",
}
"""What a plan was to do, by the gate's item; `{}` is the threshold. A red item is not shown to be so."""


@dataclass(frozen=True, slots=True)
class Standing:
    """What something is worth: the verdict's word, and why in a sentence.

    reasons: of a red scope what it was not shown to do, of an incomplete one what was not measured, each by itself.
    """

    word: str
    why: str
    reasons: tuple[str, ...] = ()

    @property
    def tone(self) -> Tone:
        """By it the page chooses colour and sign."""
        return WORDS[self.word]


@dataclass(frozen=True, slots=True)
class Bindings:
    """What a plan compiles to today, for telling what is stale. Both by profile name, tables by step count too."""

    tables: Mapping[tuple[str, int], HookTable]
    profiles: Mapping[str, str]
    scopes: tuple[Scope, ...]


def scope_standing(document: Evidence, entry: MeasuredScope, bindings: Bindings | None) -> Standing:
    """What one scope is worth; stale only where the plan is at hand."""
    if document.edited:
        return Standing("edited", "the file was changed after it was written: its digest does not fit what it holds")
    scope = entry.scope
    if bindings is not None:
        table = bindings.tables.get((scope.profile, scope.steps))
        if table is None or scope not in bindings.scopes:
            return Standing("stale", "the plan no longer lists this model, step count or guidance")
        if entry_status(document, scope, bindings.tables, profiles=bindings.profiles) == "stale":
            told = differences(entry, table, bindings.profiles.get(scope.profile))
            return Standing("stale", f"it was measured of something else: {', '.join(told)}")
    return Standing(entry.verdict, _why(entry), tuple(_reasons(entry)))


def _reasons(entry: MeasuredScope) -> Iterator[str]:
    wanted = "red" if entry.verdict == "red" else "not_measured"
    items = {item.name: item for item in entry.gate}
    for name, found in entry.verdicts.items():
        title = items[name].title if name in items else GATE[name].title
        if found == wanted == "red" and name in PROMISES:
            yield PROMISES[name].format(item_says(items[name])(items[name].threshold))
        elif found == wanted:
            yield title if wanted == "not_measured" else f"to keep the threshold of: {title}"


def _why(entry: MeasuredScope) -> str:
    verdicts = entry.verdicts
    red = [name for name, found in verdicts.items() if found == "red"]
    open_ = [name for name, found in verdicts.items() if found == "not_measured"]
    if red:
        more = f"; not measured: {listed(open_)}" if open_ else ""
        falls = "falls" if len(red) == 1 else "fall"
        return f"{count(len(red), 'item')} of {len(verdicts)} {falls} short: {listed(red)}{more}"
    if open_:
        fine = "nothing is red, and " if len(open_) < len(verdicts) else ""
        return f"{fine}{count(len(open_), 'item')} of {len(verdicts)} not measured: {listed(open_)}"
    return f"every one of {count(len(verdicts), 'item')} keeps its threshold"


def log_standing(found: Verification) -> Standing:
    """What an audit log is worth."""
    ended = ", ".join(f"{n} {outcome}" for outcome, n in _tally(found.requests.values()))
    ran = f"{count(len(found.requests), 'request')} ({ended}), {count(found.decisions, 'decision')}"
    if found.outcome == "broken":
        return Standing("broken", f"{count(len(found.problems), 'fault')}, the first at {found.problems[0]}")
    if found.outcome == "unsealed":
        return Standing("unsealed", f"whole as far as it goes, but it breaks off: {'; '.join(found.notes[:2])}")
    if any(outcome != "finished" for outcome in found.requests.values()):
        return Standing("incomplete", f"whole and lawful, but not every request finished: {ran}")
    return Standing("ok", f"whole, sealed, and it obeyed its table: {ran}")


def worst(standings: Iterable[Standing]) -> str | None:
    """The worst word; None of nothing."""
    found = {standing.word for standing in standings}
    return next((word for word in WORDS if word in found), None)


def headline(scopes: Sequence[Standing], logs: Sequence[Standing]) -> Standing:
    """The report's own verdict. A log can spoil it, and makes it only where there is no evidence."""
    spoilt = [s for s in logs if s.word in ("broken", "unsealed")] if scopes else list(logs)
    everything = [*scopes, *spoilt]
    word = worst(everything)
    if word is None:
        return Standing("missing", "nothing in this report was judged: it holds no evidence and no audit log")
    of_it = [s for s in everything if s.word == word]
    told = _told(word, of_it)
    if len(everything) == 1:
        return Standing(word, told)
    what = "scope" if scopes and not any(s in spoilt for s in of_it) else "log" if not scopes else "scope or log"
    share = f"{len(of_it)} of {count(len(everything), what)}"
    return Standing(word, f"{share} {'is' if len(of_it) == 1 else 'are'} {word}: {told}")


LEADS = {"red": "not shown ", "incomplete": "nothing is red, but not measured: "}


def _told(word: str, standings: Sequence[Standing]) -> str:
    """The reasons of them all; one that is not everybody's says of how many it is."""
    named = all(s.reasons for s in standings)
    tally = sorted(_tally(reason for s in standings for reason in (s.reasons or (s.why,))), key=lambda pair: -pair[1])
    told = [
        reason if n == len(standings) or (n == 1 and not named) else f"{reason} ({n:,} of {len(standings):,})"
        for reason, n in tally
    ]
    return (LEADS.get(word, "") if named else "") + listed(told, last="or" if word == "red" else "and")


def _tally(outcomes: Iterable[str]) -> list[tuple[str, int]]:
    counted: dict[str, int] = {}
    for outcome in outcomes:
        counted[outcome] = counted.get(outcome, 0) + 1
    return list(counted.items())
