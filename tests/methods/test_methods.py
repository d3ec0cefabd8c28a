"""What all shipped methods have in common, and the arithmetic of hint forecasts and step schedules."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from typing import Any

import jsonschema
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from refkv_policy import methods
from refkv_policy.methods import Method, Now, Observation, Placement
from refkv_policy.methods.hint_forecast import ratio
from refkv_policy.plan.selectors import Site
from tests.methods.placements import MAIN, SITES, place, placements

HINT = SITES["hint", None]
CAPS = st.floats(0.1, 10)

PARAMS: dict[str, Callable[[Placement], st.SearchStrategy[dict[str, Any]]]] = {
    "cfg_reuse": lambda at: st.fixed_dictionaries({}, optional={"skip": st.booleans()}),
    "dbcache": lambda at: st.fixed_dictionaries(
        {"delta": st.floats(0.01, 1)}, optional=dict.fromkeys(("k", "most", "retain"), st.integers(1, 9))
    ),
    "firstblock": lambda at: st.fixed_dictionaries({"delta": st.floats(0.01, 1)}),
    "hint_forecast": lambda at: st.fixed_dictionaries({}, optional={"cap": CAPS, "gain": st.floats(0.1, 1)}),
    "hint_reuse": lambda at: st.just({}),
    "magcache": lambda at: st.fixed_dictionaries(
        {"delta": st.floats(0.01, 1), "ratios": st.lists(st.floats(0.8, 1.1), min_size=1, max_size=50)},
        optional={"k": st.integers(1, 9), "retain": st.floats(0, 1)},
    ),
    "profilingdit": lambda at: st.just({}),
    "residual_forecast": lambda at: st.fixed_dictionaries({}, optional={"cap": CAPS, "gain": st.floats(0.1, 3)}),
    "residual_reuse": lambda at: st.fixed_dictionaries({}, optional={"hints": st.sampled_from(["with", "apart"])}),
    "taylor": lambda at: st.fixed_dictionaries(
        {}, optional={"order": st.integers(1, 3), "variable": st.sampled_from(["sigma", "step"]), "cap": CAPS}
    ),
    "teacache": lambda at: st.fixed_dictionaries(
        {
            "delta": st.floats(0.01, 1),
            "polynomial": st.lists(st.floats(-3, 3), min_size=1, max_size=5),
            "signals": st.lists(st.floats(0, 1), min_size=len(at.grid.evaluated), max_size=len(at.grid.evaluated)),
        },
        optional={"retain": st.integers(1, 9), "last": st.integers(0, 9)},
    ),
    "text_kv": lambda at: st.just({}),
}
"""Parameters that each method which caches anything may be given at a placement."""

KINDS = [(name, kind) for name in sorted(PARAMS) for kind in sorted(methods.get(name).sites, key=str)]


@pytest.mark.parametrize(("name", "kind"), KINDS)
@given(data=st.data())
def test_a_lowered_row_says_what_is_done_at_each_step_and_reads_what_was_kept(
    name: str, kind: tuple[str, str | None], data: st.DataObject
) -> None:
    """On random grids, refreshes and parameters, at each kind of site that a method may stand at.

    One action a nominal step, `-` exactly where the site is not reached, `C` at every fresh step; nothing is served before the
    first `C`, and a forecast has two fresh values to read unless it reads none.
    """
    method = methods.get(name)
    at = data.draw(placements(site=SITES[kind], refreshed=bool(method.refreshes) or name == "text_kv"))
    at = place(
        at.grid.steps,
        at.fresh,
        data.draw(PARAMS[name](at)),
        site=at.site,
        branch="uncond" if kind == ("cfg", None) else at.branch,
        evaluated=at.grid.evaluated,
    )
    jsonschema.validate(dict(at.params), dict(method.params_schema))
    lowered = method.lower(at)
    row = lowered.actions
    assert {s for s, action in enumerate(row) if action != "-"} == set(at.grid.evaluated)
    assert len(row) == at.grid.steps
    assert set(row) <= set("CRF?-")
    assert all(row[s] == "C" for s in at.fresh)
    assert row[at.grid.evaluated[0]] == "C"
    for step, action in enumerate(row):
        assert action != "F" or row[:step].count("C") >= min(2, lowered.history)
    assert ("?" in row) <= (method.probe(at) is not None)
    assert ("F" in row) <= (lowered.history != 1)
    assert method.lower(at) == lowered


@given(placements(most=200))
def test_a_fresh_step_outside_a_window_is_computed_by_rules_that_decide_themselves(at: Placement) -> None:
    """MagCache, TeaCache, DBCache and FBCache compute what a window tells them to, be the values ever so still."""
    count = len(at.grid.evaluated)
    still: dict[str, dict[str, Any]] = {
        "magcache": {"delta": 0.1, "ratios": [1.0], "k": 500, "retain": 0.0},
        "teacache": {"delta": 0.1, "polynomial": [0.0], "signals": [0.0] * count, "last": 0},
        "dbcache": {"delta": 0.1},
        "firstblock": {"delta": 0.1},
    }
    for name, params in still.items():
        site = MAIN if "block" not in name and name != "dbcache" else SITES["main", "span"]
        row = (
            methods.get(name)
            .lower(place(at.grid.steps, at.fresh, params, site=site, evaluated=at.grid.evaluated))
            .actions
        )
        assert {s for s, action in enumerate(row) if action == "C"} == at.fresh | {at.grid.evaluated[0]}


@pytest.mark.parametrize("name", methods.names())
def test_a_method_takes_what_its_schema_describes_and_nothing_else(name: str) -> None:
    """Each schema is a JSON Schema, describes every parameter, and refuses a key that it does not name."""
    schema = dict(methods.get(name).params_schema)
    jsonschema.Draft202012Validator.check_schema(schema)
    assert all("description" in each for each in schema["properties"].values())
    valid = dict.fromkeys(schema.get("required", ()), 1)
    assert any(
        e.validator == "additionalProperties"
        for e in jsonschema.Draft202012Validator(schema).iter_errors(valid | {"x": 1})
    )


@pytest.mark.parametrize(
    ("name", "params"),
    [
        ("magcache", {"delta": 0.02}),
        ("magcache", {"delta": 0.02, "ratios": []}),
        ("magcache", {"delta": 0, "ratios": [1.0]}),
        ("magcache", {"delta": 0.02, "ratios": [1.0], "k": 0}),
        ("magcache", {"delta": 0.02, "ratios": [1.0], "retain": 1.5}),
        ("teacache", {"delta": 0.02, "polynomial": [1.0]}),
        ("teacache", {"delta": 0.02, "polynomial": [1.0], "signals": [-0.1]}),
        ("teacache", {"delta": 0.02, "polynomial": [1.0], "signals": [0.1], "retain": 0}),
        ("taylor", {"order": 0}),
        ("taylor", {"order": 4}),
        ("taylor", {"variable": "time"}),
        ("residual_forecast", {"gain": 0}),
        ("dbcache", {}),
        ("dbcache", {"delta": 0.1, "k": 0}),
        ("firstblock", {"delta": 0.1, "k": 3}),
        ("cfg_reuse", {"skip": "yes"}),
        ("cfg_reuse", {"hints": "with"}),
        ("residual_reuse", {"hints": "without"}),
    ],
)
def test_parameters_that_make_no_sense_do_not_fit(name: str, params: dict[str, Any]) -> None:
    """A bound of zero, a share above one, an order that is not offered, a calibration that is missing or empty."""
    with pytest.raises(jsonschema.ValidationError):
        jsonschema.validate(params, dict(methods.get(name).params_schema))


def test_hints_are_kept_apart_where_the_rule_says_so() -> None:
    """Every method that keeps a residual of the main stack has the parameter, and no other."""
    for name in methods.names():
        method = methods.get(name)
        has = "hints" in method.params_schema["properties"]
        assert has == (
            method.keeps == "residual"
            and any(stack == "main" and part in (None, "span") for stack, part in method.sites)
        )
        assert not method.hints_apart({})
        assert not has or method.hints_apart({"hints": "apart"})


@pytest.mark.parametrize("name", methods.names())
def test_a_method_describes_itself(name: str) -> None:
    """As the predicate of a sentence, without a full stop, whatever optional parameters are left out."""
    required = {"delta": 0.1, "ratios": [1.0], "polynomial": [1.0], "signals": [0.0]}
    told = methods.get(name).describe({k: required[k] for k in methods.get(name).params_schema.get("required", ())})
    assert told
    assert not told.endswith(".")


def test_every_shipped_method_is_found_by_the_name_of_its_file() -> None:
    """The registry is discovered, not listed, and each method declares where it stands and its tier."""
    assert {"hint_forecast", "hint_reuse", "step_schedule", "text_kv"} <= set(methods.names())
    for name in methods.names():
        method = methods.get(name)
        assert isinstance(method, Method)
        assert method.name == name
        assert method.sites
        assert method.tier in ("P0", "P1", "P2", "S")
        assert (method.risk is None) == (method.tier == "P0")
    with pytest.raises(KeyError):
        methods.get("hint-reuse")


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_a_forecast_is_exact_where_hints_are_linear_in_sigma(dtype: torch.dtype) -> None:
    """On h(σ) = a + σb the forecast equals the true hint: to 1e-5 in fp32, to (1 + 2ρ)·2⁻⁹ of its size in bf16."""
    generator = torch.Generator().manual_seed(1)
    a, b = torch.randn(2, 64, 8, generator=generator)
    s0, s1, s = 0.9, 0.8, 0.65
    hints = {sigma: (a + sigma * b).to(dtype) for sigma in (s0, s1)}
    history = [Observation(s1, hints[s1]), Observation(s0, hints[s0])]
    forecast = methods.get("hint_forecast").predict(history, Now(s, 0, HINT), {})
    assert forecast.dtype == torch.float32
    truth = a + s * b
    # Rounding to bf16 moves h by at most 2⁻⁹ of its size; the forecast passes it on as (1 + ρ)|δ₁| + ρ|δ₀|.
    size = (a.abs() + b.abs()).max()
    bound = 1e-5 if dtype == torch.float32 else float((1 + 2 * ratio(s, s1, s0)) * 2**-9 * size)
    assert float((forecast - truth).abs().max()) <= bound


@given(at=placements(site=HINT), cap=CAPS, gain=st.floats(0.1, 1))
def test_a_forecast_is_made_within_the_cap_alone(at: Placement, cap: float, gain: float) -> None:
    """The ratio that `predict` takes, seen from a value that rises by 1 from h₀ to h₁, is at most the cap at every `F`."""
    method, params = methods.get("hint_forecast"), {"cap": cap, "gain": gain}
    at = place(at.grid.steps, at.fresh, params, site=HINT, evaluated=at.grid.evaluated)
    row = method.lower(at).actions
    for step in at.grid.evaluated:
        seen = sorted((s for s in at.fresh if s < step), reverse=True)[:2]
        if row[step] == "C" or len(seen) < 2:
            assert row[step] != "F"
            continue
        history = [Observation(at.grid.sigmas[s], torch.tensor([float(-n)])) for n, s in enumerate(seen)]
        rise = float(method.predict(history, Now(at.grid.sigmas[step], step, HINT), params)) / gain
        if abs(rise - cap) > 1e-4 * cap:
            assert row[step] == ("F" if rise < cap else "R")


def test_a_gain_damps_the_forecast() -> None:
    """The forecast difference is multiplied by the gain."""
    history = [Observation(0.8, torch.tensor([2.0])), Observation(0.9, torch.tensor([1.0]))]
    method = methods.get("hint_forecast")
    assert float(method.predict(history, Now(0.7, 0, HINT), {})) == pytest.approx(3.0)
    assert float(method.predict(history, Now(0.7, 0, HINT), {"gain": 0.25})) == pytest.approx(2.25)


def test_a_step_schedule_leaves_steps_out_and_keeps_the_first() -> None:
    """Steps not named are not reached; a schedule without step 0 or with one step is refused."""
    schedule = methods.get("step_schedule")
    assert schedule.lower(place(12, {0, 2, 11}, site=Site("step"))).actions == ".-.--------."
    for fresh in (frozenset({1, 2}), frozenset({0})):
        with pytest.raises(methods.MethodError):
            schedule.lower(place(12, fresh, site=Site("step")))


def test_methods_import_no_torch() -> None:
    """Looking a method up works on the base install."""
    code = "import sys; from refkv_policy import methods; methods.names(); print('torch' in sys.modules)"
    assert (
        subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout.strip()
        == "False"
    )
