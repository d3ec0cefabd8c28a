"""The guardrails that hold for a plan on the command line: those that are found, a file, or none."""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from refkv_policy.cli.group import Failure
from refkv_policy.guardrails import (
    FILES,
    OWN,
    Breach,
    Guardrails,
    breaches,
    find_guardrails,
    parse_guardrails,
    read_guardrails,
    thresholds,
)
from refkv_policy.guardrails import rules as texts
from refkv_policy.plan import Diagnostic, Plan, PlanError, in_order
from refkv_policy.plan.yaml_subset import read_text
from refkv_policy.repository import repository_root, shown

if TYPE_CHECKING:
    from refkv_policy.compiler import HookTable
    from refkv_policy.evidence import Evidence, Scope

    Tables = Mapping[tuple[str, int], HookTable]

# Evidence is imported where it is needed: most plans have no guardrails, and `validate` should start fast.

NONE = "none"
_KIND = re.compile(r"""^kind:[ \t]*['"]?guardrails\b""", re.MULTILINE)


class Guards:
    """Finds and reads guardrails, each file once; its own faults are told once.

    choice: a file for every plan, `none`, or None: those nearest to each plan. Raises Failure for a file that is not
    there.
    """

    def __init__(self, choice: str | None = None) -> None:
        if choice not in (None, NONE) and not os.path.isfile(choice):
            raise Failure(f"there are no guardrails {choice}; name a file, or `none`")
        self.choice = choice
        self._read: dict[str, tuple[Guardrails | None, tuple[Diagnostic, ...]]] = {}
        self._found: dict[str, tuple[Path, ...]] = {}
        self._told: set[Diagnostic] = set()

    def of(self, plan_file: str, sources: dict[str, str]) -> tuple[Guardrails | None, tuple[Diagnostic, ...]]:
        """The guardrails that hold for a plan, None without any, and their own faults, unless they were told before.

        The text of faulty ones goes to `sources`.
        """
        guardrails, faults = self.read(plan_file)
        new = self._once(faults)
        for file in {d.file for d in new}:
            if (text := read_text(file)[0]) is not None:
                sources[file] = text
        return guardrails, new

    def read(self, plan_file: str) -> tuple[Guardrails | None, tuple[Diagnostic, ...]]:
        """The same, with all of their faults, whether told before or not."""
        if self.choice == NONE:
            return None, ()
        found = (Path(self.choice),) if self.choice else self._nearest(plan_file)
        if not found:
            return None, ()
        file = shown(found[0])
        if len(found) > 1:
            return None, (texts.TWO_FILES.at(file, None, other=shown(found[1])),)
        if file not in self._read:
            self._read[file] = read_guardrails(file)
        return self._read[file]

    def own(self, text: str, file: str) -> tuple[Diagnostic, ...] | None:
        """The faults of a text that says it is guardrails, each told once; None for any other text."""
        if not _KIND.search(text):
            return None
        return self._once(parse_guardrails(text, file)[1])

    def faults(
        self,
        plan: Plan,
        sources: dict[str, str],
        told: Iterable[Diagnostic] = (),
        tables: Tables | None = None,
        statuses: Mapping[Scope, str] | None = None,
    ) -> tuple[Diagnostic, ...]:
        """Every fault of a plan under its guardrails, and theirs.

        told: what has been told of the plan; where that has an error of its evidence, guardrails say nothing of evidence.
        tables: of `compile_all`, called unless given. statuses: of the plan's evidence, where they are known already.
        """
        guardrails, faults = self.of(plan.document.file, sources)
        if guardrails is None:
            return faults
        tables = _compiled(plan) if tables is None else tables
        judge = not any(d.code.startswith("RKV51") and d.severity == "error" for d in told)
        breached = held_against(guardrails, plan, tables, judge_evidence=judge, statuses=statuses)
        found = in_order(b.diagnostic for b in breached)
        file = guardrails.document.file
        if any(d.file == file for d in found):
            sources[file] = guardrails.document.text
        return (*faults, *(d for d in found if d.file != file), *self._once(d for d in found if d.file == file))

    def _nearest(self, plan_file: str) -> tuple[Path, ...]:
        """The guardrails of a plan's folder, which is looked for once."""
        folder = os.path.dirname(os.path.abspath(plan_file))
        if folder not in self._found:
            self._found[folder] = _nearest(plan_file)
        return self._found[folder]

    def _once(self, diagnostics: Iterable[Diagnostic]) -> tuple[Diagnostic, ...]:
        new = tuple(d for d in diagnostics if d not in self._told)
        self._told.update(new)
        return new


def held_against(
    guardrails: Guardrails,
    plan: Plan,
    tables: Tables,
    *,
    judge_evidence: bool = True,
    statuses: Mapping[Scope, str] | None = None,
) -> tuple[Breach, ...]:
    """Everything in which a plan breaks guardrails, its evidence (unless it is not to be judged) read where they ask for it.

    statuses: of its evidence, where they are known already.
    """
    if not guardrails.evidence or not judge_evidence:
        return breaches(plan, tables, guardrails)
    if not any(entry.evidence for entry in plan.acknowledgements):
        return breaches(plan, tables, guardrails, {})  # all of it is missing, which needs no look
    if statuses is None:
        from refkv_policy.evidence import examine

        statuses = examine(plan, tables).statuses
    return breaches(plan, tables, guardrails, statuses, verdicts=judged_again(plan, tables, guardrails))


def _nearest(plan_file: str) -> tuple[Path, ...]:
    folder = Path(os.path.abspath(plan_file)).parent
    if not any(os.path.lexists(place / name) for place in (folder, *folder.parents) for name in FILES):
        return ()
    return find_guardrails(plan_file, repository_root(plan_file))


def _compiled(plan: Plan) -> Tables:
    """The plan's tables; none of a plan that does not compile, whose faults are told elsewhere."""
    from refkv_policy.compiler import compile_all

    try:
        return compile_all(plan)
    except PlanError:
        return {}


def judged_again(plan: Plan, tables: Tables, guardrails: Guardrails) -> dict[Scope, dict[str, str]]:
    """The verdicts of the evidence that a plan names, by scope and item.

    Judged by the guardrails' thresholds, or by the gate's own where they state none, whatever it was written with.
    """
    from refkv_policy.compiler import plan_profiles
    from refkv_policy.evidence import judge
    from refkv_policy.profiles import names_of

    found: dict[Scope, dict[str, str]] = {}
    profiles = {profile.name: profile for profile in plan_profiles(plan)}
    for evidence in _documents(plan):
        for entry in evidence.scopes:
            table = tables.get((entry.scope.profile, entry.scope.steps))
            if table is None:
                continue
            tiers = frozenset(rule.tier for rule in table.rules)
            profile = profiles.get(entry.scope.profile)
            models = (entry.scope.profile,) if profile is None else names_of(profile)
            limits = {**OWN, **thresholds(guardrails, plan.purpose, models, tiers)}
            items = {item.name: item for item in entry.gate}
            verdicts = found.setdefault(entry.scope, {})
            for name in limits.keys() & items.keys():
                verdict = judge(replace(items[name], threshold=limits[name]))
                verdicts[name] = "red" if "red" in (verdict, verdicts.get(name)) else verdict
    return found


def _documents(plan: Plan) -> Iterator[Evidence]:
    """The evidence files that a plan names and that can be read, each once."""
    from refkv_policy.evidence import locate, read_evidence

    root = repository_root(plan.document.file)
    for name in dict.fromkeys(entry.evidence for entry in plan.acknowledgements if entry.evidence):
        path, _ = locate(root, name)
        if path is not None and (evidence := read_evidence(path)[0]) is not None:
            yield evidence
