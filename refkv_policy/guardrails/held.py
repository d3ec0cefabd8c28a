"""What is being judged: a plan, its tables and the guardrails, and the faults found so far."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property

from refkv_policy.compiler import HookTable, plan_profiles
from refkv_policy.guardrails.model import Guardrails
from refkv_policy.plan.catalogue import Rule
from refkv_policy.plan.diagnostic import Diagnostic
from refkv_policy.plan.model import CacheRule, Path, Plan
from refkv_policy.profiles import Profile, ProfileError, load_profile, names_of, shipped_as

Tables = Mapping[tuple[str, int], HookTable]
"""What `compile_all` gives: tables by profile name and step count."""


@dataclass(frozen=True, slots=True)
class Breach:
    """One thing in which a plan breaks its guardrails.

    path: what of the plan breaks it; None for a guardrail that cannot be held against the plan. rail: the guardrail.
    """

    diagnostic: Diagnostic
    path: Path | None
    rail: Path


class Case:
    """One plan under guardrails. given: profiles by name, before the plan's own and the shipped ones."""

    def __init__(self, plan: Plan, tables: Tables, guardrails: Guardrails, given: Mapping[str, Profile]) -> None:
        self.plan, self.tables, self.guardrails, self.given = plan, tables, guardrails, given
        self._found: dict[tuple[object, ...], Breach] = {}

    @property
    def found(self) -> tuple[Breach, ...]:
        """Everything told so far."""
        return tuple(self._found.values())

    @cached_property
    def rules(self) -> Mapping[str, CacheRule]:
        """The plan's rules by name."""
        return {rule.name: rule for rule in self.plan.caches}

    @cached_property
    def _own(self) -> Mapping[str, Profile]:
        return {profile.name: profile for profile in plan_profiles(self.plan)}

    def profile(self, name: str) -> Profile:
        """The profile of a table. Raises ProfileError for one that is not given, the plan's or shipped."""
        return self.given.get(name) or self._own.get(name) or load_profile(name)

    def names(self, name: str) -> tuple[str, ...]:
        """The names that a table's model goes by, of which its profile's is the first."""
        try:
            return names_of(self.profile(name))
        except ProfileError:  # a table of a profile that nobody handed in
            return (name,)

    def sets(self, name: str) -> Mapping[str, Mapping[str, str]]:
        """The layer sets of a table's model: where a shipped profile is of the same model, its sets before the plan's own."""
        profile = self.profile(name)
        own, same = profile.sets, shipped_as(profile)
        shipped = {} if same is None else same.sets
        return {stack: {**own.get(stack, {}), **shipped.get(stack, {})} for stack in {*own, *shipped}}

    def tell(self, rule: Rule, path: Path, rail: Path, **fields: object) -> None:
        """Note a fault at a path of the plan (of a whole section, at its key), naming file and line of a guardrail.

        One mistake shows at every model and step count; a person needs it once a place and guardrail.
        """
        if (rule.code, path, rail) not in self._found:
            document = self.plan.document
            span = document.span(path, key=len(path) == 1)
            found = rule.at(document.file, span, rails=self.guardrails.place(rail), **fields)
            self._found[rule.code, path, rail] = Breach(found, path, rail)

    def tell_of_rails(self, found: Diagnostic, rail: Path) -> None:
        """Note a fault of the guardrails themselves, which only this plan's model or step count shows."""
        self._found.setdefault((found.code, found.file, found.span), Breach(found, None, rail))

    def refresh_path(self, rule: CacheRule) -> Path:
        """Where a rule says how often it refreshes; its method where it does not."""
        keys: tuple[Path, ...] = (("refresh", "interval"), ("refresh", "count"), ("refresh", "steps"), ("method",))
        return next((*rule.path, *key) for key in keys if (*rule.path, *key) in self.plan.document.values)
