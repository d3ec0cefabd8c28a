"""The site tree as data: what each site lies inside, what it is computed from, what it costs. One function a family.

    step ⊃ cfg ⊃ main ⊃ main[8..29] (a span) ⊃ main[7] ⊃ main[7].self, .cross ⊃ .text_kv, .ffn

`step` is a denoising step, `cfg` the forward of one guidance branch in it. Whoever asks how sites hang together (lowering,
predictions, explanations, guardrails, the executor's plans, the audit's replay) reads it here, and names no stack.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from types import MappingProxyType
from typing import NamedTuple

from refkv_policy.plan.selectors import Site

STEP, CFG = Site("step"), Site("cfg")
BRANCHES = ("cond", "uncond")
"""Of classifier-free guidance, in the order of their calls."""


@dataclass(frozen=True, slots=True)
class SiteFacts:
    """How one site hangs together with the others.

    inside: the site it is reached in: only where that is computed. needs: the sites it is computed from in the same call.
    on_demand: it is computed only where one that needs it is. added: its value is added to the stream of what it lies
    inside, so that a residual can be kept with it or apart from it. region: its output has the form of its input, so that
    a method may keep their difference. component: what its FLOPs are counted under. branches: the guidance branches whose
    call of it may be served. passes_with: the site with whose input it goes in where it is served, and with whose output it
    comes out where it is computed; by itself, where None.
    """

    site: Site
    inside: Site | None
    needs: tuple[Site, ...] = ()
    on_demand: bool = False
    added: bool = False
    region: bool = False
    component: str = ""
    branches: tuple[str, ...] = BRANCHES
    passes_with: Site | None = None


class Cost(NamedTuple):
    """flops: of the site's own work in one call; what lies inside it is not counted. elements: of one kept value of it."""

    flops: int
    elements: int


class Tree:
    """The sites of one model, outer before inner, in the order in which one call reaches them."""

    def __init__(self, facts: Iterable[SiteFacts]) -> None:
        self.facts: Mapping[Site, SiteFacts] = MappingProxyType({f.site: f for f in facts})
        self._required: dict[Site, frozenset[Site]] = {}

    def __contains__(self, site: object) -> bool:
        return site in self.facts

    def __getitem__(self, site: Site) -> SiteFacts:
        return self.facts[site]

    @cached_property
    def order(self) -> tuple[Site, ...]:
        """Every site, outer before inner."""
        return tuple(self.facts)

    @cached_property
    def needed_by(self) -> Mapping[Site, tuple[Site, ...]]:
        """By site: those that are computed from it in the same call."""
        found: dict[Site, tuple[Site, ...]] = {}
        for fact in self.facts.values():
            for source in fact.needs:
                found[source] = (*found.get(source, ()), fact.site)
        return MappingProxyType(found)

    def users(self, site: Site) -> tuple[Site, ...]:
        """Those that are computed from a site and are reached by themselves: a chain's hint, not its next block."""
        return tuple(u for u in self.needed_by.get(site, ()) if not self.facts[u].on_demand)

    def goes_on(self, site: Site) -> tuple[Site, ...]:
        """Those that are computed from a site on demand themselves: the next block of a chain."""
        return tuple(u for u in self.needed_by.get(site, ()) if self.facts[u].on_demand)

    @cached_property
    def around(self) -> Mapping[Site, tuple[Site, ...]]:
        """By site: what it lies inside, innermost first."""
        found: dict[Site, tuple[Site, ...]] = {}
        for site, fact in self.facts.items():
            found[site] = () if fact.inside is None else (fact.inside, *found[fact.inside])
        return MappingProxyType(found)

    @cached_property
    def moments(self) -> tuple[tuple[Site, bool], ...]:
        """Each site twice, in the order of one call: when it is reached (False) and when it is computed (True)."""
        last = {site: n for n, site in enumerate(self.facts)}
        for site in reversed(self.order):
            inside = self.facts[site].inside
            if inside is not None:
                last[inside] = max(last[inside], last[site])
        ends: dict[int, list[Site]] = {}
        for site, n in last.items():
            ends.setdefault(n, []).append(site)
        # A kept state that stands in for what is computed on demand is taken when the call begins, whenever it is asked for.
        starts: dict[Site, list[Site]] = {}
        passing: dict[Site, list[Site]] = {}
        for site, fact in self.facts.items():
            if fact.passes_with is not None:
                passing.setdefault(fact.passes_with, []).append(site)
            elif fact.on_demand and fact.inside is not None:
                starts.setdefault(fact.inside, []).append(site)
        late = {site for group in (*starts.values(), *passing.values()) for site in group}
        found: list[tuple[Site, bool]] = []
        for n, site in enumerate(self.facts):
            with_it = [*starts.get(site, ()), *passing.get(site, ())]
            found += [(each, False) for each in (*(() if site in late else (site,)), *with_it)]
            for each in reversed(ends.get(n, [])):
                if self.facts[each].passes_with is None:
                    found += [*((inner, True) for inner in passing.get(each, ())), (each, True)]
        return tuple(found)

    def encloses(self, outer: Site, inner: Site) -> bool:
        """Whether `inner` lies inside `outer`."""
        return outer in self.around[inner]

    def sources(self, site: Site) -> tuple[Site, ...]:
        """All that a site is computed from in the same call, nearest first."""
        found = list(self.facts[site].needs)
        for each in found:
            found.extend(s for s in self.facts[each].needs if s not in found)
        return tuple(found)

    def required(self, site: Site) -> frozenset[Site]:
        """All that may have to be computed for a site to be: what lies inside it, and what those and it are computed from."""
        if site not in self._required:
            found = {s for s in self.facts if site in self.around[s]}
            sources = {s for each in (site, *found, *self.around[site]) for s in self.sources(each)}
            sources |= {s for s in self.around[site] if self.facts[s].on_demand}
            found |= sources | {s for s in self.facts if sources.intersection(self.around[s])}
            self._required[site] = frozenset(found - {site})
        return self._required[site]

    def with_spans(self, spans: Iterable[Site]) -> Tree:
        """The tree with spans of blocks in it, each around its blocks. Raises ValueError when two overlap in part."""
        tree = self
        # The widest first, so that each next one lies inside all that hold its blocks.
        for span in sorted(spans, key=lambda s: ((s.index or 0) - (s.last or 0), s.index)):
            if span not in tree:
                tree = tree._with(span)
        return tree

    def _with(self, span: Site) -> Tree:
        assert span.index is not None and span.last is not None
        blocks = [Site(span.stack, index) for index in range(span.index, span.last + 1)]
        outer = {self.facts[block].inside for block in blocks}
        if len(outer) > 1:
            other = next(site for site in outer if site is not None and site.last is not None)
            raise ValueError(f"{span} and {other} overlap, and neither holds the other")
        first = self.facts[blocks[0]]
        facts: list[SiteFacts] = []
        for fact in self.facts.values():
            if fact.site == blocks[0]:
                facts.append(SiteFacts(span, first.inside, region=True, component=first.component))
            facts.append(replace(fact, inside=span) if fact.site in blocks else fact)
        return Tree(facts)
