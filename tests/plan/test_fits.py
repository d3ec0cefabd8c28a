"""The quick yes-or-no check of a JSON Schema agrees with jsonschema wherever it says yes."""

from __future__ import annotations

import copy
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from refkv_policy.plan import load_plan
from refkv_policy.plan.fits import fits
from refkv_policy.plan.schema import _validator_class, plan_schema

PLANS = sorted((Path(__file__).resolve().parents[2] / "plans").glob("wan21_*.yaml"))
JUNK = st.one_of(
    st.none(), st.booleans(), st.integers(-3, 2000), st.floats(), st.text(max_size=5), st.just([]), st.just({}),
    st.just([1, 1]), st.just({"x": 1}), st.just("P1"), st.just("\n"), st.just("30x30"),
)  # fmt: skip


@pytest.mark.parametrize("path", PLANS, ids=lambda p: p.stem)
def test_shipped_plans_fit(path: Path) -> None:
    """Every shipped plan is accepted without jsonschema's help."""
    assert fits(load_plan(path).document.value, plan_schema())


@settings(max_examples=200, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(st.data())
def test_whatever_fits_is_valid_for_jsonschema(data: st.DataObject) -> None:
    """A plan with values replaced, removed and added at random: accepted exactly when jsonschema finds no error."""
    value = copy.deepcopy(load_plan(data.draw(st.sampled_from(PLANS))).document.value)
    for _ in range(data.draw(st.integers(1, 3))):
        mutate(value, data)
    assert fits(value, plan_schema()) == _validator_class()(plan_schema()).is_valid(value)


def mutate(value: Any, data: st.DataObject) -> None:
    """Change one place of a nested value."""
    places = [
        (holder, key)
        for holder in holders(value)
        for key in (holder if isinstance(holder, dict) else range(len(holder)))
    ]
    if not places:
        return
    holder, key = data.draw(st.sampled_from(places))
    match data.draw(st.sampled_from(["replace", "remove", "add"])):
        case "replace":
            holder[key] = copy.deepcopy(data.draw(JUNK))
        case "remove":
            del holder[key]
        case _ if isinstance(holder, dict):
            holder[data.draw(st.sampled_from(["x", "window", "models", "store", "count"]))] = copy.deepcopy(
                data.draw(JUNK)
            )
        case _:
            holder.append(copy.deepcopy(data.draw(JUNK)))


def holders(value: Any) -> list[Any]:
    """Every list and mapping in a nested value."""
    if not isinstance(value, (dict, list)):
        return []
    return [value, *(h for v in (value.values() if isinstance(value, dict) else value) for h in holders(v))]


@pytest.mark.parametrize(
    "schema", [{"unheardOf": 1}, {"oneOf": [{"unheardOf": 1}, True]}, {"$ref": "#"}, {"patternProperties": {}}]
)
def test_what_it_does_not_know_is_left_to_jsonschema(schema: dict[str, Any]) -> None:
    """A keyword that it does not know is never taken for a fit."""
    assert not fits({"a": 1}, schema)
