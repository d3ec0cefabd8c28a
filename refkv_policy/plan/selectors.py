"""Selectors: the texts by which a plan names sites and steps. One grammar, one parser.

    sites   = stack [ "[" ( terms | runs ) "]" ] [ "." part ] ;   (brackets: required for vace and hint, refused for step, cfg)
    stack   = "main" | "vace" | "hint" | "step" | "cfg" ;     (main without brackets: the whole stack, one site)
    part    = "self" | "cross" | "ffn" | "text_kv" ;          (of main and vace, with terms, only)
    runs    = INT ".." INT { "," INT ".." INT } ;             (main only: each run of blocks taken together is one site)
    terms   = term { "," term } ;
    term    = [ "!" ] ( INT | INT "-" INT | "all" | NAME ) ;  (NAME: a layer set of the model's profile)
    steps   = span { "," span } ;
    span    = INT | INT "-" INT ;
    window  = wterm { "," wterm } ;
    wterm   = [ "!" ] ( INT | INT ".." INT | "first" INT | "last" INT | "all" ) ;
    INT     = digit { digit } ;          NAME = letter { letter | digit | "_" } ;

Spaces may stand between any two tokens. Numbers count from 0 and ranges include both ends. Terms are taken from left to
right: each adds what it names, and with `!` removes it from what precedes. A term that names something which is not
there, an exclusion that removes nothing, and a selector that matches nothing are errors, never no-ops.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from functools import lru_cache
from typing import NamedTuple

from refkv_policy.plan import rules
from refkv_policy.plan.selector_parser import Parser, SelectorError, Term
from refkv_policy.plan.wording import cut, did_you_mean, listed

__all__ = [
    "NUMBERED",
    "PARTS",
    "STACKS",
    "WITH_PARTS",
    "SelectorError",
    "Site",
    "SiteSelector",
    "StepSelector",
    "Term",
    "Window",
    "parse_sites",
    "parse_steps",
    "parse_window",
    "site_named",
]

STACKS = ("step", "cfg", "main", "vace", "hint")
"""In the order of every map and log."""
NUMBERED = frozenset(("main", "vace", "hint"))
PARTS = ("self", "cross", "ffn", "text_kv")
WITH_PARTS = frozenset(("main", "vace"))
WITH_SPANS = frozenset(("main",))


class Site(NamedTuple):
    """A place where a cache decision is made: `step`, `main`, `main[7]`, `main[8..29]` (a span: one site), `main[7].self`.

    `index` is None for what is not numbered; `part` is None for a whole site; `last` is a span's last block, else None.
    """

    stack: str
    index: int | None = None  # type: ignore[assignment]  # not tuple.index, which nobody asks a site for
    part: str | None = None
    last: int | None = None

    def __str__(self) -> str:
        span = "" if self.last is None else f"..{self.last}"
        name = self.stack if self.index is None else f"{self.stack}[{self.index}{span}]"
        return name if self.part is None else f"{name}.{self.part}"

    @property
    def order(self) -> tuple[int, bool, str, int]:
        """Sorts sites as maps and logs show them: by stack, spans before blocks, the parts of a stack together."""
        return STACKS.index(self.stack), not self.is_span, self.part or "", -1 if self.index is None else self.index

    @property
    def is_span(self) -> bool:
        """Whether it is a run of blocks taken together, be it a whole stack."""
        return self.last is not None or (self.index is None and self.stack in NUMBERED)

    @property
    def kind(self) -> tuple[str, str | None]:
        """Stack and part, as methods declare where they may stand. A span is of its stack's kind with the part `span`."""
        return self.stack, "span" if self.is_span else self.part


@dataclass(frozen=True, slots=True)
class SiteSelector:
    """A parsed site selector."""

    text: str
    stack: str
    terms: tuple[Term, ...]
    part: str | None

    def resolve(
        self, counts: Mapping[str, int], sets: Mapping[str, Mapping[str, str]] | None = None
    ) -> tuple[Site, ...]:
        """The sites it names in a model, ascending.

        counts: how many sites each numbered stack has. sets: the profile's layer sets of each stack, as term texts.
        Raises SelectorError when a number is out of range, a set is unknown, or nothing is matched.
        """
        if self.stack not in NUMBERED:
            return (Site(self.stack),)
        count = counts.get(self.stack, 0)
        if count < 1:
            raise SelectorError(
                f"the model has no `{self.stack}` sites",
                f"choose one of {listed(s for s in STACKS if counts.get(s, 0) > 0 or s not in NUMBERED)}",
                0,
                len(self.stack),
                reason="no-such-stack",
            )
        if not self.terms:
            return (Site(self.stack),)
        if self.terms[0].kind == "span":
            return tuple(self._span(term, count) for term in self.terms)
        known = (sets or {}).get(self.stack, {})
        found = _resolve(self.text, self.terms, count, f"`{self.stack}`", lambda term: _named(term, known, count, self))
        return tuple(Site(self.stack, index, self.part) for index in sorted(found))

    def _span(self, term: Term, count: int) -> Site:
        """A run of blocks. The run of all of them is the stack, and of one is the block, so that one site has one name."""
        _within(term, term.last + 1, count, self.text, f"`{self.stack}`", f"`{self.stack}` has 0 to {count - 1}")
        whole = (term.first, term.last) == (0, count - 1)
        if whole or term.first == term.last:
            return Site(self.stack, None if whole else term.first)
        return Site(self.stack, term.first, None, term.last)


@dataclass(frozen=True, slots=True)
class StepSelector:
    """A parsed list of steps."""

    text: str
    terms: tuple[Term, ...]

    def resolve(self, steps: int) -> tuple[int, ...]:
        """The steps it names of a run of `steps`, ascending. Raises SelectorError when one is out of range."""
        return tuple(sorted(_resolve(self.text, self.terms, steps, "the run", _no_names)))


@dataclass(frozen=True, slots=True)
class Window:
    """A parsed window: the steps where a rule may act."""

    text: str
    terms: tuple[Term, ...]

    def resolve(self, steps: int) -> frozenset[int]:
        """The steps it names of a run of `steps`. Raises SelectorError when one is out of range or none is left."""
        return frozenset(_resolve(self.text, self.terms, steps, "the run", _no_names))


@lru_cache(maxsize=256)
def parse_sites(text: str) -> SiteSelector:
    """Read a site selector. Raises SelectorError with the offsets of the fault."""
    parser = Parser(text, "selector", dash="-")
    stack = parser.take("name")
    if stack is None:
        parser.unexpected("a stack (`main`, `vace`, `hint`, `step` or `cfg`)")
    if stack.text not in STACKS:
        if parser.peek().kind == "number" or stack.text in PARTS:
            parser.unexpected("a stack (`main`, `vace`, `hint`, `step` or `cfg`)", at=stack)
        suggestion = did_you_mean(stack.text, STACKS)
        parser.fail(rules.UNKNOWN_STACK, stack.start, stack.end, name=cut(stack.text), suggestion=suggestion)
    terms: tuple[Term, ...] = ()
    opening = parser.take("[")
    if opening is not None and stack.text not in NUMBERED:
        problem = f"`{stack.text}` is a single site and takes no brackets"
        parser.fail(rules.BRACKETS, opening.start, len(text), problem=problem, advice=f"write `{stack.text}`")
    if opening is None and stack.text in NUMBERED and not (stack.text in WITH_SPANS and parser.peek().kind == "end"):
        follows = parser.peek()
        if follows.kind not in ("end", "."):
            parser.unexpected("`[`")
        problem = f"`{stack.text}` does not say which of its sites"
        advice = f"write `{stack.text}[all]` or the numbers, such as `{stack.text}[0-2]`"
        parser.fail(rules.BRACKETS, stack.start, stack.end, problem=problem, advice=advice)
    if opening is not None:
        if parser.peek().kind == "]":
            problem, advice = "the brackets are empty", f"write `{stack.text}[all]` or the numbers"
            parser.fail(rules.EMPTY_SELECTOR, opening.start, parser.peek().end, problem=problem, advice=advice)
        term = parser.span_term if stack.text in WITH_SPANS and parser.is_span() else parser.site_term
        terms = parser.terms(term)
        if parser.take("]") is None:
            parser.unexpected("`,` or `]`")
    dot = parser.take(".")
    if dot is not None and terms and terms[0].kind == "span":
        problem, advice = "a span of blocks has no parts", "name the blocks, such as `main[8-29].self`"
        parser.fail(rules.UNKNOWN_PART, dot.start, len(text), problem=problem, advice=advice)
    part = _part(parser, stack.text) if dot else None
    if parser.peek().kind != "end":
        parser.unexpected("to end" if part or stack.text not in WITH_PARTS else "a part (such as `.self`) or to end")
    return SiteSelector(text, stack.text, terms, part)


@lru_cache(maxsize=8192)
def site_named(text: str) -> Site:
    """The site of one name as `str(site)` writes it. Raises ValueError for anything else."""
    match = _SITE.fullmatch(text)
    if match is None:
        raise ValueError(f"{text!r} is not a site")
    stack, first, last, part = match.groups()
    return Site(stack, None if first is None else int(first), part, None if last is None else int(last))


_NUMBER = "(0|[1-9][0-9]{0,3})"
_SITE = re.compile(rf"({'|'.join(STACKS)})(?:\[{_NUMBER}(?:\.\.{_NUMBER})?\])?(?:\.([a-z][a-z0-9_]{{0,31}}))?")


def parse_steps(text: str) -> StepSelector:
    """Read a list of steps such as `0,1,38-39`. Raises SelectorError with the offsets of the fault."""
    parser = Parser(text, "list of steps", dash="-")
    terms = parser.terms(parser.step_term)
    if parser.peek().kind != "end":
        parser.unexpected("`,` or the end")
    return StepSelector(text, terms)


def parse_window(text: str) -> Window:
    """Read a window such as `1..27` or `all,!last 3`. Raises SelectorError with the offsets of the fault."""
    parser = Parser(text, "window", dash="..")
    terms = parser.terms(parser.window_term)
    if parser.peek().kind != "end":
        parser.unexpected("`,` or the end")
    return Window(text, terms)


def _part(parser: Parser, stack: str) -> str:
    part = parser.take("name")
    if part is None:
        parser.unexpected("a part (`self`, `cross`, `ffn` or `text_kv`)")
    if part.text not in PARTS:
        problem = f"`{cut(part.text)}` is not a part of a block"
        advice = f"{did_you_mean(part.text, PARTS)}the parts are {listed(PARTS, 'and')}"
        parser.fail(rules.UNKNOWN_PART, part.start, part.end, problem=problem, advice=advice)
    if stack not in WITH_PARTS:
        problem = f"the sites of `{stack}` have no parts"
        advice = f"delete `.{part.text}`; blocks of `main` and `vace` have parts"
        parser.fail(rules.UNKNOWN_PART, part.start, part.end, problem=problem, advice=advice)
    return part.text


# Resolution ----------------------------------------------------------------------------------------------------------


def _resolve(
    text: str, terms: Iterable[Term], count: int, owner: str, named: Callable[[Term], frozenset[int]]
) -> frozenset[int]:
    found: frozenset[int] = frozenset()
    for term in terms:
        match term.kind:
            case "all":
                hit = frozenset(range(count))
            case "name":
                hit = named(term)
            case "first" | "last":
                _within(term, term.last, count, text, owner, f"{owner} has {count}")
                hit = frozenset(range(term.last) if term.kind == "first" else range(count - term.last, count))
            case _:
                _within(term, term.last + 1, count, text, owner, f"{owner} has 0 to {count - 1}")
                hit = frozenset(range(term.first, term.last + 1))
        if term.exclude and not hit & found:
            raise SelectorError(
                f"`{text[term.start : term.end]}` excludes nothing: what precedes it does not have it",
                "delete it, or correct the numbers",
                term.start,
                term.end,
                reason="matches-nothing",
            )
        found = found - hit if term.exclude else found | hit
    if not found:
        message = f"`{cut(text)}` matches nothing: everything is excluded again"
        raise SelectorError(message, "exclude less", 0, len(text), reason="matches-nothing")
    return found


def _within(term: Term, needed: int, count: int, text: str, owner: str, has: str) -> None:
    if needed > count:
        raise SelectorError(
            f"`{text[term.start : term.end]}` is out of range: {has}",
            f"stay within 0 to {count - 1}"
            if term.kind in ("range", "span")
            else f"write at most `{term.kind} {count}`",
            term.start,
            term.end,
            reason="out-of-range",
        )


def _named(term: Term, known: Mapping[str, str], count: int, selector: SiteSelector) -> frozenset[int]:
    if term.name not in known:
        there = f"the model has no named sets of `{selector.stack}`; write numbers or `all`"
        if known:
            there = f"the model's sets of `{selector.stack}` are {listed(sorted(known), 'and')}"
        raise SelectorError(
            f"`{cut(term.name)}` is not a named set of `{selector.stack}`",
            did_you_mean(term.name, (*known, "all")) + there,
            term.start,
            term.end,
            reason="unknown-set",
        )
    text = known[term.name]
    try:
        terms = _terms_of_set(text)
        return _resolve(text, terms, count, f"`{selector.stack}`", _no_names)
    except SelectorError as error:
        raise SelectorError(
            f"the profile's set `{term.name}` of `{selector.stack}` ({text}) is faulty: {error.message}",
            f"correct the profile: {error.help}",
            term.start,
            term.end,
            reason="bad-set",
        ) from error


def _terms_of_set(text: str) -> tuple[Term, ...]:
    parser = Parser(text, "layer set", dash="-")
    terms = parser.terms(parser.site_term)
    if parser.peek().kind != "end":
        parser.unexpected("`,` or the end")
    return terms


def _no_names(term: Term) -> frozenset[int]:
    message = f"`{term.name}` is a name, and only numbers and `all` may stand here"
    raise SelectorError(message, "write numbers", term.start, term.end, reason="bad-set")
