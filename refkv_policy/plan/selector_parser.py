"""Tokens and terms of selectors, with the usual mistakes named. The grammar stands in `plan.selectors`."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import NamedTuple, NoReturn

from refkv_policy.plan import rules
from refkv_policy.plan.catalogue import Rule
from refkv_policy.plan.wording import cut, did_you_mean

Reason = str
"""Of a resolution error: `out-of-range`, `unknown-set`, `matches-nothing`, `no-such-stack` or `bad-set`."""


class SelectorError(ValueError):
    """A selector that cannot be read or resolved.

    start and end are character offsets in the selector's text. `rule` is the catalogue's rule of a syntax error, and
    None for an error of resolution, whose `reason` says which kind it is; the compiler has rules for those.
    """

    def __init__(
        self, message: str, help: str, start: int, end: int, *, rule: Rule | None = None, reason: Reason | None = None
    ) -> None:
        super().__init__(message)
        self.message, self.help, self.start, self.end = message, help, start, end
        self.rule, self.reason = rule, reason


@dataclass(frozen=True, slots=True)
class Term:
    """One term, not yet resolved.

    kind: `range` (first to last), `span` (first to last, taken together), `all`, `name`, `first` or `last` (`last` many).
    """

    kind: str
    start: int
    end: int
    exclude: bool = False
    first: int = 0
    last: int = 0
    name: str = ""


class Token(NamedTuple):
    """A word, number or mark of a selector. kind: `number`, `name`, the mark itself, `other` or `end`."""

    kind: str
    text: str
    start: int
    end: int


_TOKEN = re.compile(
    r"""[\ \t\r\n]* (?: (?P<number>[0-9]+) | (?P<name>[A-Za-z_][A-Za-z0-9_]*)
    | (?P<mark>\.\.|[\[\],.!:\-]) | (?P<end>\Z) | (?P<other>.) )""",
    re.DOTALL | re.VERBOSE,
)
_EXAMPLES = {"selector": "`hint[8-14]` or `main[0-2,10].self`", "window": "`1..27` or `all,!last 3`"}
_EXAMPLE = "`0,1,38-39`"
_LONGEST_NUMBER = 6


def _token(match: re.Match[str]) -> Token:
    group = match.lastgroup or "end"
    text = match.group(group)
    return Token(text if group == "mark" else group, text, match.start(group), match.end())


class Parser:
    """A cursor over the tokens of one text, with one method for each kind of term."""

    def __init__(self, text: str, what: str, dash: str) -> None:
        self.text, self.what, self.dash = text, what, dash
        self.tokens = [_token(match) for match in _TOKEN.finditer(text)]
        self.at = 0
        if not text.strip():
            advice = "write what it should select, or leave the key out if it is optional"
            self.fail(rules.EMPTY_SELECTOR, 0, len(text), problem=f"the {what} is empty", advice=advice)

    def peek(self, ahead: int = 0) -> Token:
        """The next token, or one further ahead."""
        return self.tokens[min(self.at + ahead, len(self.tokens) - 1)]

    def take(self, kind: str) -> Token | None:
        """The next token, passed over, if it is of that kind."""
        token = self.peek()
        if token.kind != kind:
            return None
        self.at += 1
        return token

    def fail(self, rule: Rule, start: int, end: int, **fields: object) -> NoReturn:
        """Raise the rule's error about text[start:end]."""
        raise SelectorError(rule.message.format(**fields), rule.help.format(**fields), start, end, rule=rule)

    def unexpected(self, wanted: str, *, at: Token | None = None) -> NoReturn:
        """Raise a syntax error about the next token, or the one given."""
        token = at or self.peek()
        found = "the text ends" if token.kind == "end" else f"`{cut(token.text)}` stands"
        problem = f"{found} where the {self.what} needs {wanted}"
        advice = f"write for example {_EXAMPLES.get(self.what, _EXAMPLE)}"
        last = len(self.text.rstrip())
        start, end = (last - 1, last) if token.kind == "end" else (token.start, token.end)
        self.fail(rules.SELECTOR_SYNTAX, start, end, problem=problem, advice=advice)

    def terms(self, term: Callable[[Token, bool], Term]) -> tuple[Term, ...]:
        """One or more terms between commas."""
        found: list[Term] = []
        while not found or self.take(","):
            start = self.peek()
            exclude = self.take("!") is not None
            parsed = term(start, exclude)
            if exclude and not found:
                self.fail(rules.NOTHING_TO_EXCLUDE, parsed.start, parsed.end, text=self.text[parsed.start : parsed.end])
            found.append(parsed)
        return tuple(found)

    def site_term(self, start: Token, exclude: bool) -> Term:
        """A term within brackets."""
        if token := self.take("name"):
            return Term("all" if token.text == "all" else "name", start.start, token.end, exclude, name=token.text)
        return self.numbers(start, exclude, "a number, a range, `all` or a layer set's name")

    def is_span(self) -> bool:
        """Whether the brackets begin with a run of blocks taken together."""
        return self.peek().kind == "number" and self.peek(1).kind == ".."

    def span_term(self, start: Token, exclude: bool) -> Term:
        """A run of blocks taken together, within brackets."""
        if exclude or not self.is_span():
            self.unexpected("a run of blocks, such as `8..29`; runs and numbers do not mix", at=start)
        self.dash = ".."
        return replace(self.numbers(start, exclude, "a run of blocks"), kind="span")

    def step_term(self, start: Token, exclude: bool) -> Term:
        """A term of a list of steps."""
        if exclude:
            self.unexpected("a step or a range of steps", at=start)
        return self.numbers(start, exclude, "a step or a range of steps")

    def window_term(self, start: Token, exclude: bool) -> Term:
        """A term of a window."""
        word = self.take("name")
        if word is None:
            return self.numbers(start, exclude, "a step, a range, `first N`, `last N` or `all`")
        if word.text == "all":
            return Term("all", start.start, word.end, exclude)
        if word.text not in ("first", "last"):
            problem = f"`{cut(word.text)}` is not a word of windows"
            guess = did_you_mean(word.text, ("first", "last", "all"))
            advice = f"{guess}a window knows `first N`, `last N`, `all` and `A..B`"
            self.fail(rules.SELECTOR_SYNTAX, word.start, word.end, problem=problem, advice=advice)
        if self.peek().kind != "number":
            self.unexpected(f"a number after `{word.text}`")
        many, end = self.number()
        if many < 1:
            problem, advice = f"`{word.text} 0` selects nothing", f"write `{word.text} 1` or leave it out"
            self.fail(rules.EMPTY_SELECTOR, word.start, end, problem=problem, advice=advice)
        return Term(word.text, start.start, end, exclude, last=many)

    def numbers(self, start: Token, exclude: bool, wanted: str) -> Term:
        """INT or INT dash INT, with the usual mistakes named."""
        begin = self.peek()
        if begin.kind == "-" and self.peek(1).kind == "number":
            end = self.peek(1).end
            advice = "write `last N`" if self.dash == ".." else "write the number itself, counted from 0"
            self.fail(rules.NEGATIVE_NUMBER, begin.start, end, text=self.text[begin.start : end], advice=advice)
        if begin.kind == ":" or (begin.kind == "number" and self.peek(1).kind == ":"):
            self.slice(begin)
        if begin.kind != "number":
            self.unexpected(wanted)
        first, end = self.number()
        if self.peek().kind not in ("-", ".."):
            return Term("range", start.start, end, exclude, first=first, last=first)
        dash = self.peek()
        if dash.kind != self.dash:
            problem = f"a range in a {self.what} is written with `{self.dash}`, not with `{dash.text}`"
            follows = self.peek(1).text if self.peek(1).kind == "number" else "…"
            advice = f"write `{begin.text}{self.dash}{follows}`; both ends are included"
            self.fail(rules.SELECTOR_SYNTAX, dash.start, dash.end, problem=problem, advice=advice)
        self.at += 1
        if self.peek().kind != "number":
            self.unexpected(f"a number after `{self.dash}`")
        last, end = self.number()
        if self.peek().kind in ("-", ".."):
            self.unexpected("`,`")
        if last < first:
            text, swapped = self.text[begin.start : end], f"{last}{self.dash}{first}"
            self.fail(rules.REVERSED_RANGE, begin.start, end, text=text, swapped=swapped)
        return Term("range", start.start, end, exclude, first=first, last=last)

    def number(self) -> tuple[int, int]:
        """The number that comes next, and the offset where it ends."""
        token = self.take("number")
        assert token is not None
        if len(token.text) > _LONGEST_NUMBER:
            problem = f"`{cut(token.text, 20)}` is too large a number"
            advice = "write a number that the model or the run has"
            self.fail(rules.SELECTOR_SYNTAX, token.start, token.end, problem=problem, advice=advice)
        return int(token.text), token.end

    def slice(self, begin: Token) -> NoReturn:
        """Raise the error about a Python slice."""
        last = self.at
        while self.tokens[last].kind in ("number", ":", "-"):
            last += 1
        end = self.tokens[last - 1].end
        text = self.text[begin.start : end]
        sides = [side.strip() for side in text.split(":")]
        advice = f"write an inclusive range, such as `0{self.dash}2`"
        if len(sides) == 2 and all(s.isdecimal() and len(s) <= _LONGEST_NUMBER for s in sides):
            a, b = int(sides[0]), int(sides[1])
            if b > a:
                advice = f"write `{a}{self.dash}{b - 1}` to leave {b} out, `{a}{self.dash}{b}` to have it in"
        self.fail(rules.SLICE, begin.start, end, text=cut(text), advice=advice)
