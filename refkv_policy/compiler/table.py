"""The hook table: the compiled plan as data. For each site, branch and step one action, one ASCII character."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass, field
from functools import cached_property
from types import MappingProxyType
from typing import Any

from refkv_policy.canonical import json_digest

COMPUTE_KEEP, COMPUTE, REUSE, FORECAST, ONLINE, UNREACHED = "C", ".", "R", "F", "?", "-"
"""`C` compute and keep · `.` compute, keep nothing · `R` reuse · `F` forecast · `?` decided online · `-` not reached."""
ACTIONS = COMPUTE_KEEP + COMPUTE + REUSE + FORECAST + ONLINE + UNREACHED
SERVED, COMPUTED = frozenset(REUSE + FORECAST), frozenset(COMPUTE_KEEP + COMPUTE)

BRANCHES = ("cond", "uncond")
FORMAT = 1


@dataclass(frozen=True, slots=True)
class Layout:
    """What of a model the table depends on: a model whose layout differs is refused.

    vace_at[j] is the main block after which hint j is added.
    """

    family: str
    main_blocks: int
    vace_at: tuple[int, ...]
    dim: int
    ffn_dim: int
    heads: int
    patch: tuple[int, int, int]


@dataclass(frozen=True, slots=True)
class TableRule:
    """What the runtime needs of a plan's rule, for the rows that point to it by index.

    history: how many of the newest fresh observations a served cell reads at most (1 reuse, 2 linear forecast).
    budget: bytes for all branches together; None is unlimited.
    """

    name: str
    method: str
    tier: str
    risk: str | None
    history: int
    params: Mapping[str, Any] = field(default_factory=lambda: MappingProxyType({}))
    store_dtype: str = "native"
    store_device: str = "model"
    budget: int | None = None


@dataclass(frozen=True, slots=True)
class Quantized:
    """Self-attention in the table's `attention_dtype`, except at the steps and blocks that stay native.

    platform, backend and path (`dense` or `block-sparse`): what computes it. native_sites: block names, such as `main[0]`.
    """

    platform: str
    backend: str
    path: str
    native_steps: tuple[int, ...] = ()
    native_sites: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Row:
    """One site's actions. `cond` and `uncond` are strings of one action a nominal step; left-out steps hold `-`.

    stack is `step`, `main`, `vace` or `hint`; index is None for `step`; part is None or `text_kv` and the like.
    rule is an index into the table's rules, None where nothing but the default (compute) governs the site.
    """

    stack: str
    index: int | None
    part: str | None
    cond: str
    uncond: str
    rule: int | None = None

    @property
    def site(self) -> str:
        """The site's name, such as `main[7].text_kv`."""
        name = self.stack if self.index is None else f"{self.stack}[{self.index}]"
        return name if self.part is None else f"{name}.{self.part}"

    @property
    def counted(self) -> bool:
        """Whether its cells count as hits (served) or misses (computed): a rule governs it, and it holds values."""
        return self.rule is not None and self.stack != "step"

    def actions(self, branch: str) -> str:
        """The actions of one branch; raises KeyError for a branch that does not exist."""
        if branch not in BRANCHES:
            raise KeyError(branch)
        return self.cond if branch == "cond" else self.uncond


def retained(actions: str, step: int, history: int) -> int:
    """How many of the newest kept observations a later cell still reads, after `step` has been served.

    A later `R` reads the newest one, an `F` the newest `history`; each `C` between pushes one more in front. What no
    later cell reads is dropped at once, so that predicted and held bytes agree to the byte.
    """
    needed = pushed = 0
    for action in actions[step + 1 :]:
        if pushed >= history:
            break
        if action in SERVED:
            needed = max(needed, (history if action == FORECAST else 1) - pushed)
        elif action == COMPUTE_KEEP:
            pushed += 1
    return needed


@dataclass(frozen=True)
class HookTable:
    """A plan compiled for one profile and one step count. Immutable, hashable by `digest`.

    steps: the nominal step count. evaluated: the nominal steps the sampler really runs, ascending (all of them unless
    a `step_schedule` leaves some out). sigmas: the sigma of each nominal step, of the sampler's own grid.
    attention_dtype: `native`, or the dtype that `quantized` tells the rest of.
    rows: in a fixed order: `step`, then main blocks, VACE blocks, hints, each followed by its parts that a rule names.
    """

    plan: str
    plan_digest: str
    profile: str
    layout: Layout
    steps: int
    evaluated: tuple[int, ...]
    sigmas: tuple[float, ...]
    sampler: str
    flow_shift: float
    guidance: tuple[float, ...]
    rules: tuple[TableRule, ...]
    rows: tuple[Row, ...]
    attention_dtype: str = "native"
    acknowledgements: tuple[Mapping[str, Any], ...] = ()
    quantized: Quantized | None = None

    @cached_property
    def by_site(self) -> Mapping[str, Row]:
        """Rows by site name."""
        return MappingProxyType({row.site: row for row in self.rows})

    @property
    def left_out(self) -> tuple[int, ...]:
        """Nominal steps the sampler does not visit."""
        return tuple(sorted(set(range(self.steps)) - set(self.evaluated)))

    def to_dict(self) -> dict[str, Any]:
        """A JSON-ready copy, complete: `from_dict` gives back an equal table."""
        value = {k: v for k, v in self.__dict__.items() if k in self.__dataclass_fields__}
        value["layout"] = asdict(self.layout)
        value["rules"] = [{**asdict_rule(r)} for r in self.rules]
        value["rows"] = [asdict(r) for r in self.rows]
        value["acknowledgements"] = [dict(a) for a in self.acknowledgements]
        # Left out where there is nothing to say, so that tables of native attention keep the digests they have.
        if self.quantized is None:
            del value["quantized"]
        else:
            value["quantized"] = asdict(self.quantized)
        value["format"] = FORMAT
        return json.loads(json.dumps(value))

    @classmethod
    def from_dict(cls, value: Mapping[str, Any]) -> HookTable:
        """The table of a `to_dict` value. Raises ValueError (never another) when the value is not one."""
        try:
            if value["format"] != FORMAT:
                raise ValueError(f"table format {value['format']!r} is not {FORMAT}")
            layout = dict(value["layout"])
            layout["vace_at"], layout["patch"] = tuple(layout["vace_at"]), tuple(layout["patch"])
            rules = tuple(TableRule(**{**r, "params": MappingProxyType(dict(r["params"]))}) for r in value["rules"])
            quantized = None
            if value.get("quantized") is not None:
                facts = dict(value["quantized"])
                facts["native_steps"], facts["native_sites"] = (
                    tuple(facts["native_steps"]),
                    tuple(facts["native_sites"]),
                )
                quantized = Quantized(**facts)
            rest = {k: value[k] for k in ("plan", "plan_digest", "profile", "steps", "sampler", "flow_shift")}
            return cls(
                **rest,
                layout=Layout(**layout),
                evaluated=tuple(value["evaluated"]),
                sigmas=tuple(value["sigmas"]),
                guidance=tuple(value["guidance"]),
                rules=rules,
                rows=tuple(Row(**r) for r in value["rows"]),
                attention_dtype=value["attention_dtype"],
                acknowledgements=tuple(MappingProxyType(dict(a)) for a in value["acknowledgements"]),
                quantized=quantized,
            )
        except (KeyError, TypeError, AttributeError) as error:
            raise ValueError(f"not a hook table: {error!r}") from error

    @cached_property
    def digest(self) -> str:
        """`sha256:…` of everything that changes behaviour; names of plan and rules and acknowledgements do not count."""
        value = self.to_dict()
        for name in ("plan", "plan_digest", "acknowledgements"):
            del value[name]
        for entry in value["rules"]:
            del entry["name"]
        return json_digest(value)

    def cells(self, branches: tuple[str, ...] = BRANCHES) -> Iterator[tuple[Row, str, int, str]]:
        """Every (row, branch, step, action) of the evaluated steps."""
        for row in self.rows:
            for branch in branches:
                actions = row.actions(branch)
                for step in self.evaluated:
                    yield row, branch, step, actions[step]


def asdict_rule(rule: TableRule) -> dict[str, Any]:
    """`dataclasses.asdict` for a rule whose params are a read-only mapping."""
    value = {name: getattr(rule, name) for name in rule.__dataclass_fields__}
    value["params"] = dict(rule.params)
    return value
