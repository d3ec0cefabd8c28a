"""What guardrails name must exist: methods, models, sites, risks; and every entry must limit something."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path as FilePath
from typing import Any

from refkv_policy import methods
from refkv_policy.compiler.attention import RISKS
from refkv_policy.guardrails import rules
from refkv_policy.methods import Method
from refkv_policy.plan import rules as language
from refkv_policy.plan.catalogue import Rule
from refkv_policy.plan.checks import bytes_of, size_of
from refkv_policy.plan.diagnostic import Diagnostic
from refkv_policy.plan.document import Document
from refkv_policy.plan.model import Path
from refkv_policy.plan.selectors import SelectorError, parse_sites, parse_window
from refkv_policy.plan.source import text_span
from refkv_policy.plan.wording import did_you_mean, listed, quoted
from refkv_policy.profiles import ANY, Profile, ProfileError, load_profile, names


def known_faults(document: Document) -> tuple[Diagnostic, ...]:
    """Every fault of these kinds in a document that fits the schema."""
    return tuple(_Known(document).faults())


class _Known:
    """One document."""

    def __init__(self, document: Document) -> None:
        self.document, self.value = document, document.value
        self.base = FilePath(document.file).parent

    def faults(self) -> Iterator[Diagnostic]:
        yield from self.emptiness()
        yield from self.allowed()
        for key in ("refresh", "always_computed", "never_cached", "bytes", "evidence"):
            for path, entry in self.entries(key):
                yield from self.models((*path, "models"), entry.get("models", ()))
        for path, entry in self.entries("always_computed"):
            yield from self.window((*path, "steps"), entry["steps"])
        for path, entry in self.entries("never_cached"):
            single = isinstance(entry["sites"], str)
            for index, text in enumerate([entry["sites"]] if single else entry["sites"]):
                place: Path = (*path, "sites") if single else (*path, "sites", index)
                yield from self.sites(place, text, entry.get("models"))
        for path, entry in self.entries("bytes"):
            yield from self.limit(path, entry)
        yield from self.risks()

    def entries(self, key: str) -> Iterator[tuple[Path, Mapping[str, Any]]]:
        for index, entry in enumerate(self.value.get(key, ())):
            yield (key, index), entry

    def tell(self, rule: Rule, path: Path, **fields: object) -> Diagnostic:
        return rule.at(self.document.file, self.document.span(path), **fields)

    def emptiness(self) -> Iterator[Diagnostic]:
        asks = ("allow", "acknowledgements")
        places: list[tuple[Path, str, Mapping[str, Any], tuple[str, ...]]] = [
            ((key,), f"`{key}`", self.value[key], _KEYS[key]) for key in asks if key in self.value
        ]
        places += [(path, "this entry of `refresh`", e, _KEYS["refresh"]) for path, e in self.entries("refresh")]
        for path, place, entry, keys in places:
            if not any(key in entry for key in keys):
                yield self.tell(rules.SAYS_NOTHING, path, place=place, keys=listed(keys))

    def allowed(self) -> Iterator[Diagnostic]:
        allow = self.value.get("allow", {})
        for index, name in enumerate(allow.get("methods", ())):
            try:
                methods.get(name)
            except KeyError:
                known = methods.names()
                fields = {"method": name, "guess": did_you_mean(name, known), "known": listed(known)}
                yield self.tell(rules.UNKNOWN_METHOD, ("allow", "methods", index), **fields)
        yield from self.models(("allow", "models"), allow.get("models", ()), also=ANY)

    def models(self, path: Path, listed: Iterable[str], also: str | None = None) -> Iterator[Diagnostic]:
        for index, name in enumerate(listed):
            try:
                if name != also:
                    load_profile(name, self.base)
            except ProfileError as error:
                yield self.tell(rules.UNKNOWN_MODEL, (*path, index), message=str(error))

    def window(self, path: Path, text: str) -> Iterator[Diagnostic]:
        try:
            parse_window(text)
        except SelectorError as error:
            yield self.selector(path, error)

    def sites(self, path: Path, text: str, models: Iterable[str] | None) -> Iterator[Diagnostic]:
        """A selector must resolve on each model that the entry, or else `allow`, names; or on a shipped one."""
        try:
            selector = parse_sites(text)
        except SelectorError as error:
            yield self.selector(path, error)
            return
        named = tuple(self.profiles(models if models is not None else self.value.get("allow", {}).get("models", ())))
        first: Diagnostic | None = None
        for profile in named or map(load_profile, names()):
            try:
                selector.resolve(profile.counts, profile.sets)
                if not named:
                    return
            except SelectorError as error:
                # A shipped model without such sites says nothing about the numbers, which those with them do.
                if named or error.reason != "no-such-stack":
                    first = first or unresolved(self.document, path, error, profile.name)
        if first is not None:
            yield first

    def profiles(self, references: Iterable[str]) -> Iterator[Profile]:
        """Those that exist; the others are told elsewhere."""
        for name in references:
            try:
                if name != ANY:
                    yield load_profile(name, self.base)
            except ProfileError:
                pass

    def selector(self, path: Path, error: SelectorError) -> Diagnostic:
        rule = error.rule or language.SELECTOR_SYNTAX
        span = text_span(self.document, path, error.start, error.end)
        return Diagnostic(rule.code, rule.severity, error.message, self.document.file, span, error.help)

    def limit(self, path: Path, entry: Mapping[str, Any]) -> Iterator[Diagnostic]:
        if bytes_of(entry["largest"]) is None:
            given = quoted(str(entry["largest"]))
            yield self.tell(language.BUDGET_FRACTION, (*path, "largest"), given=given)
        for index, shape in enumerate(entry.get("shapes", ())):
            for profile in self.profiles(entry.get("models", ())):
                try:
                    profile.tokens(*size_of(shape["size"]), shape["frames"])
                except ValueError as error:
                    place = (*path, "shapes", index)
                    yield self.tell(rules.SHAPE_UNFIT, place, message=str(error), model=profile.name)
                    break

    def risks(self) -> Iterator[Diagnostic]:
        parties = self.value.get("acknowledgements", {}).get("parties", ())
        known = known_risks() if parties else ()
        for index, entry in enumerate(parties):
            if entry["risk"] not in known:
                path = ("acknowledgements", "parties", index, "risk")
                guess = did_you_mean(entry["risk"], known)
                yield self.tell(rules.UNKNOWN_RISK, path, risk=entry["risk"], guess=guess, known=listed(known))


_KEYS: dict[str, tuple[str, ...]] = {
    "allow": ("tiers", "methods", "models"),
    "acknowledgements": ("expires", "longest_days", "parties"),
    "refresh": ("largest_interval", "smallest_count"),
}
"""Of which at least one makes the place a limit."""


def unresolved(document: Document, path: Path, error: SelectorError, model: str) -> Diagnostic:
    """The diagnostic, in the guardrails, of a selector that does not resolve on a model."""
    span = text_span(document, path, error.start, error.end)
    fields = {"message": error.message, "help": error.help, "model": model}
    return rules.SITES_UNRESOLVED.at(document.file, span, **fields)


def known_risks() -> tuple[str, ...]:
    """Every risk that a method carries, be it by one of the choices of its parameters or under quantized attention."""
    found = {*RISKS} | {risk for name in methods.names() for risk in _risks(methods.get(name))}
    return tuple(sorted(found))


def _risks(method: Method) -> Iterator[str]:
    yield from method.risks({})
    for key, schema in method.params_schema.get("properties", {}).items():
        for choice in schema.get("enum", ()):
            yield from method.risks({key: choice})
