"""Variants of a plan: one rule's values changed in the document, parsed and compiled anew. Needs no torch.

A variant goes the whole way a plan goes, so it can no more do what it does not say than the plan can.
"""

from __future__ import annotations

import copy
import itertools
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from refkv_policy import methods
from refkv_policy.compiler import HookTable, compile_plan
from refkv_policy.compiler.quantization import risks_of
from refkv_policy.compiler.rules import INTERVAL_ONE
from refkv_policy.plan import Plan, PlanError, parse_plan
from refkv_policy.plan.diagnostic import RefkvError, errors
from refkv_policy.plan.yaml_scalars import resolve
from refkv_policy.profiles import Profile

Value = str | int | float | bool
FORMS = (("interval",), ("steps",), ("spacing", "count"))
"""The forms of `refresh:`; setting a key of one removes the keys of the others."""
DEEPEST = 8
"""Keys of a path: a rule is not as deep."""
RFC_INTERVALS = (1, 2, 3, 4, 6, 8)
"""The K that the RFC enumerates (section 5.3)."""


class VaryError(RefkvError):
    """A `--vary` that cannot be understood, or that fits no rule; says what to do."""


@dataclass(frozen=True, slots=True)
class Vary:
    """Values to put at a path of a rule, such as ("refresh", "interval"), one variant each."""

    path: tuple[str, ...]
    values: tuple[Value, ...]

    @property
    def name(self) -> str:
        """The path as it is written: `refresh.interval`."""
        return ".".join(self.path)


@dataclass(frozen=True, slots=True)
class Variant:
    """A variant by what sets it apart. table is None where it does not compile, and fault says why."""

    varied: Mapping[str, Value]
    table: HookTable | None
    fault: str | None = None

    @property
    def name(self) -> str:
        """`refresh.interval=4`, several joined by commas."""
        return ", ".join(f"{path}={value}" for path, value in self.varied.items())


def parse_vary(text: str) -> Vary:
    """`PATH=VALUE,VALUE…` as on the command line. A value that has commas of its own is quoted, or has them in brackets.

    Raises VaryError.
    """
    path, equals, rest = text.partition("=")
    parts = tuple(part.strip() for part in path.split("."))
    if not equals or not all(parts) or len(parts) > DEEPEST:
        raise VaryError(f"--vary {text[:80]} is not PATH=VALUE,VALUE…, such as refresh.interval=1,2,4")
    values = []
    for item in _split(rest):
        quoted = len(item) > 1 and item[0] == item[-1] and item[0] in "'\""
        value = item[1:-1] if quoted else resolve(item)
        if not isinstance(value, (str, int, float)) or value == "":
            raise VaryError(
                f"--vary {text}: {item or 'an empty value'} is no value; write texts, whole numbers or numbers"
            )
        values.append(value)
    return Vary(parts, tuple(dict.fromkeys(values)))


def choose_rule(plan: Plan, name: str | None) -> int:
    """The index of the rule that is varied: the named one, the only lossy one, or the only one. Raises VaryError."""
    names = [rule.name for rule in plan.caches]
    if name is not None:
        if name not in names:
            raise VaryError(f"the plan has no rule {name!r}; its rules are {', '.join(names) or 'none'}")
        return names.index(name)
    for found in (lossy_rules(plan), tuple(range(len(names)))):
        if len(found) == 1:
            return found[0]
    raise VaryError(f"say which rule is varied with --rule: {', '.join(names) or 'the plan has none'}")


def lossy_rules(plan: Plan) -> tuple[int, ...]:
    """Indexes of the rules that carry a risk."""
    return tuple(i for i, rule in enumerate(plan.caches) if methods.get(rule.method).risks(rule.params))


def default_varies(plan: Plan, rule: int) -> tuple[Vary, ...]:
    """What is varied where nothing was asked for: the RFC's K, or as many refreshes around the plan's own count."""
    refresh = plan.caches[rule].refresh
    if refresh is None or refresh.steps is not None:
        return ()
    if refresh.interval is not None:
        return (Vary(("refresh", "interval"), tuple(sorted({*RFC_INTERVALS, refresh.interval}))),)
    assert refresh.count is not None
    counts = sorted({max(2, round(refresh.count * share)) for share in (0.5, 0.65, 0.8, 1.0, 1.25, 1.5)})
    return (Vary(("refresh", "count"), tuple(counts)),)


def make_variants(plan: Plan, profile: Profile, steps: int, rule: int, varies: Sequence[Vary]) -> tuple[Variant, ...]:
    """Every combination of the values, in order. One that is no sound plan is among them, with its fault."""
    if not varies:
        return ()
    combinations = itertools.product(*(vary.values for vary in varies))
    return tuple(
        _variant(plan, profile, steps, rule, dict(zip((v.path for v in varies), values, strict=True)))
        for values in combinations
    )


def edited(plan: Plan, change: Any) -> Plan:
    """The plan whose document value is `change` of a copy of this one's. Raises PlanError where that is no plan."""
    value = copy.deepcopy(plan.document.value)
    change(value)
    text = json.dumps(value, ensure_ascii=False, indent=1)
    found, diagnostics = parse_plan(text, plan.document.file)
    if found is None:
        raise PlanError(diagnostics)
    return found


def _variant(plan: Plan, profile: Profile, steps: int, rule: int, changes: Mapping[tuple[str, ...], Value]) -> Variant:
    def change(value: Any) -> None:
        for path, new in changes.items():
            _put(value["caches"][rule], path, new)

    def leave_out(value: Any) -> None:
        del value["caches"][rule]
        others = [one for index, one in enumerate(plan.caches) if index != rule]
        risks = {risk for one in others for risk in risks_of(plan, one, methods.get(one.method))}
        value["acknowledgements"] = [a for a in value.get("acknowledgements", ()) if a["risk"] in risks]

    varied = {".".join(path): value for path, value in changes.items()}
    try:
        return Variant(varied, compile_plan(edited(plan, change), profile, steps))
    except PlanError as error:
        found = errors(error.diagnostics)
    if {d.code for d in found} == {INTERVAL_ONE.code}:
        # No plan may say so, but K = 1 is the first point of the RFC's enumeration: the plan without the rule.
        return Variant(varied, compile_plan(edited(plan, leave_out), profile, steps))
    first = found[0]  # without its place, which would be one of a text that nobody wrote
    return Variant(varied, None, f"{first.code}: {first.message}; {first.help}" if first.help else first.message)


def _put(rule: dict[str, Any], path: tuple[str, ...], value: Value) -> None:
    holder = rule
    for key in path[:-1]:
        inner = holder.get(key)
        if not isinstance(inner, dict):
            inner = holder[key] = {}
        holder = inner
    if path[:-1] == ("refresh",):
        own = next((form for form in FORMS if path[-1] in form), (path[-1],))
        for form in FORMS:
            for key in form if form != own else ():
                holder.pop(key, None)
    holder[path[-1]] = value


def _split(text: str) -> list[str]:
    """Split at commas that stand neither in quotes nor in brackets."""
    items, depth, quote = [""], 0, ""
    for character in text:
        if quote:
            quote = "" if character == quote else quote
        elif character in "'\"":
            quote = character
        else:
            depth += (character in "[{") - (character in "]}")
        if character == "," and not quote and depth <= 0:
            items.append("")
        else:
            items[-1] += character
    return [item.strip() for item in items]
