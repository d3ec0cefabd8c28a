"""Placing rules: selectors resolved on a profile, refreshes on a step count, each rule lowered by its method."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field

from refkv_policy.compiler import rules
from refkv_policy.compiler.sigmas import fresh_steps
from refkv_policy.compiler.table import BRANCHES
from refkv_policy.methods.method import Grid, Method, MethodError, Placement
from refkv_policy.plan.catalogue import Rule
from refkv_policy.plan.diagnostic import Diagnostic
from refkv_policy.plan.model import CacheRule, Path, Plan
from refkv_policy.plan.selectors import SelectorError, Site, parse_sites, parse_window
from refkv_policy.plan.source import text_span
from refkv_policy.profiles import Profile
from refkv_policy.profiles.cost import Workload
from refkv_policy.profiles.sites import STEP


def branches_of_rule(rule: CacheRule) -> tuple[str, ...]:
    """The branches a rule acts on."""
    return BRANCHES if rule.branches in ("together", "apart") else (rule.branches,)


@dataclass(frozen=True, slots=True)
class Placed:
    """A rule at its sites. fresh: nominal steps at which they are computed, before any of them is found unreached."""

    rule: CacheRule
    method: Method
    sites: tuple[Site, ...]
    fresh: frozenset[int]

    @property
    def branches(self) -> tuple[str, ...]:
        """The branches it acts on."""
        return branches_of_rule(self.rule)


@dataclass
class Placing:
    """One pass over a plan's rules for one model and step count, collecting faults. tree: with the spans placed so far."""

    plan: Plan
    profile: Profile
    steps: int
    diagnostics: list[Diagnostic] = field(default_factory=list)
    claimed: dict[Site, CacheRule] = field(default_factory=dict)
    selectors: dict[Site, Path] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.tree = self.profile.tree
        self.costs = self.profile.costs(Workload(1, 1))

    @property
    def where(self) -> dict[str, object]:
        """The fields that every message about this pass takes."""
        return {"model": self.profile.name, "steps": self.steps}

    def selector_of(self, rule: CacheRule, site: Site) -> Path:
        """Where the plan names a site of a rule."""
        return self.selectors.get(site, (*rule.path, "at"))

    def place(self, entries: Iterable[tuple[CacheRule, Method]], grid: Grid) -> Iterator[Placed]:
        """Each rule that fits; the faults of the others go to `diagnostics`."""
        for rule, method in entries:
            sites = self._sites(rule, method)
            fresh = self._fresh(rule, method, grid)
            if sites is None or fresh is None:
                continue
            try:  # here, at all the steps that are run, so that each rule's fault is told; the pass lowers it site by site
                for site in sites if method.by_site else sites[:1]:
                    method.lower(Placement(rule.params, site, BRANCHES[0], grid, fresh))
            except MethodError as error:
                self.report(rules.REFRESH_UNFIT, (*rule.path, error.field), message=error.message, help=error.help)
                continue
            yield Placed(rule, method, sites, fresh)

    def _sites(self, rule: CacheRule, method: Method) -> tuple[Site, ...] | None:
        found: dict[Site, Path] = {}
        single = not isinstance(self.plan.document.value["caches"][rule.path[1]]["at"], list)
        sound = True
        for index, text in enumerate(rule.at):
            path = (*rule.path, "at") if single else (*rule.path, "at", index)
            try:
                resolved = parse_sites(text).resolve(self.profile.counts, self.profile.sets)
            except SelectorError as error:
                self.report(rules.UNRESOLVED, path, inside=error, message=error.message, help=error.help)
                sound = False
                continue
            for site in resolved:
                found.setdefault(site, path)
        for site, path in found.items():
            if site.kind not in method.sites:
                allowed = ", ".join(sorted(_kind(*kind) for kind in method.sites))
                self.report(rules.WRONG_SITE, path, method=method.name, site=site, allowed=allowed, because="")
                return None
            if (why := self._unaccounted(site, method)) is not None:
                self.report(
                    rules.WRONG_SITE, path, method=method.name, site=site, allowed="another", because=f": {why}"
                )
                return None
            if site in self.claimed:
                self.report(rules.SITE_TWICE, path, site=site, other=self.claimed[site].name)
                return None
        if not sound:
            return None
        try:
            self.tree = self.tree.with_spans(site for site in found if site.last is not None)
        except ValueError as error:
            self.report(rules.SPANS_OVERLAP, next(iter(found.values())), message=error)
            return None
        self.claimed.update(dict.fromkeys(found, rule))
        self.selectors.update(found)
        return tuple(sorted(found, key=lambda s: (s.stack, s.index or 0, s.part or "", s.last or 0)))

    def _unaccounted(self, site: Site, method: Method) -> str | None:
        """Why a rule at a site could not be accounted for: what it costs, holds or spares is not known."""
        if method.schedules != (site == STEP):
            return "only a step schedule stands at `step`, and nowhere else"
        if site.last is None and (site not in self.tree or site not in self.costs):
            return f"{self.profile.family} has no such site"
        if site in self.tree and self.tree[site].on_demand:
            return "it is computed for what needs it; a rule stands at that (`hint`), and keeps it with `chain: stale`"
        return None

    def _fresh(self, rule: CacheRule, method: Method, grid: Grid) -> frozenset[int] | None:
        try:
            window = (
                frozenset(range(self.steps)) if rule.window is None else parse_window(rule.window).resolve(self.steps)
            )
        except SelectorError as error:
            path = (*rule.path, "window")
            self.report(rules.STEPS_UNRESOLVED, path, inside=error, message=error.message, help=error.help)
            return None
        if rule.refresh is None:  # a rule that finds its refreshes itself has them outside its window, too
            return method.fresh_without_refresh(grid) | (frozenset(grid.evaluated) - window)
        refresh = (*rule.path, "refresh")
        try:
            return fresh_steps(
                rule.refresh, window, grid.evaluated, grid.sigmas, self.steps, from_first=not method.schedules
            )
        except SelectorError as error:
            self.report(
                rules.STEPS_UNRESOLVED, (*refresh, "steps"), inside=error, message=error.message, help=error.help
            )
        except ValueError as error:
            key = "steps" if rule.refresh.steps is not None else "count"
            help = "list steps that are run, the first among them" if key == "steps" else "lower the count"
            self.report(rules.REFRESH_UNFIT, (*refresh, key), message=str(error), help=help)
        return None

    def report(self, kind: Rule, path: Path, inside: SelectorError | None = None, **fields: object) -> None:
        """A fault of this pass at a place of the plan, or at the offsets of a selector's error inside it."""
        document = self.plan.document
        span = document.span(path) if inside is None else text_span(document, path, inside.start, inside.end)
        self.diagnostics.append(kind.at(document.file, span, **{**self.where, **fields}))


def _kind(stack: str, part: str | None) -> str:
    return f"a span of {stack}" if part == "span" else stack if part is None else f"{stack}.{part}"
