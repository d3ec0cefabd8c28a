"""The hook table: the compiled plan as data. For each site, branch and step one action, one ASCII character."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass, field
from functools import cached_property
from types import MappingProxyType
from typing import Any

from refkv_policy.canonical import json_digest
from refkv_policy.methods.method import leaves_out_hints
from refkv_policy.plan.selectors import Site
from refkv_policy.profiles.families import family
from refkv_policy.profiles.sites import BRANCHES as BRANCHES
from refkv_policy.profiles.sites import STEP, Tree

COMPUTE_KEEP, COMPUTE, REUSE, FORECAST, ONLINE, UNREACHED = "C", ".", "R", "F", "?", "-"
"""`C` compute and keep · `.` compute, keep nothing · `R` reuse · `F` forecast · `?` decided online · `-` not reached."""
ACTIONS = COMPUTE_KEEP + COMPUTE + REUSE + FORECAST + ONLINE + UNREACHED
SERVED, COMPUTED = frozenset(REUSE + FORECAST), frozenset(COMPUTE_KEEP + COMPUTE)

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
    budget: bytes for all branches together; None is unlimited. keeps: at a region, its `output` or its `residual`.
    longest: the most `?` steps in a row that are served; None where nothing bounds it. apart: each branch decides for itself.
    """

    name: str
    method: str
    tier: str
    risks: tuple[str, ...]
    history: int
    params: Mapping[str, Any] = field(default_factory=lambda: MappingProxyType({}))
    store_dtype: str = "native"
    store_device: str = "model"
    budget: int | None = None
    keeps: str = "output"
    longest: int | None = None
    apart: bool = False

    @property
    def hints_apart(self) -> bool:
        """Whether a kept residual leaves out the hints added inside it, and those that the table names are added."""
        return leaves_out_hints(self.params)

    def to_dict(self) -> dict[str, Any]:
        """JSON-ready. What has nothing to say is left out, so that tables of before keep the digests they have."""
        value = {name: getattr(self, name) for name in self.__dataclass_fields__}
        value["params"] = dict(self.params)
        value["risk"] = ", ".join(value.pop("risks")) or None
        for name, nothing in (("keeps", "output"), ("longest", None), ("apart", False)):
            if value[name] == nothing:
                del value[name]
        return value

    @classmethod
    def from_dict(cls, value: Mapping[str, Any]) -> TableRule:
        """The rule of a `to_dict` value. Raises KeyError, TypeError or AttributeError for another value."""
        fields = {**value, "params": MappingProxyType(dict(value["params"]))}
        risk = fields.pop("risk")
        return cls(**fields, risks=tuple(risk.split(", ")) if risk else ())


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

    rule is an index into the table's rules, None where nothing but the default (compute) governs the site.
    """

    at: Site
    cond: str
    uncond: str
    rule: int | None = None

    @property
    def site(self) -> str:
        """The site's name, such as `main[7].text_kv`, `main[8..29]` or `main`."""
        return str(self.at)

    def to_dict(self) -> dict[str, Any]:
        """JSON-ready."""
        site = {"stack": self.at.stack, "index": self.at.index, "part": self.at.part}
        span = {} if self.at.last is None else {"last": self.at.last}
        return {**site, **span, "cond": self.cond, "uncond": self.uncond, "rule": self.rule}

    @classmethod
    def from_dict(cls, value: Mapping[str, Any]) -> Row:
        """The row of a `to_dict` value. Raises KeyError or TypeError for another value."""
        fields = dict(value)
        site = Site(fields.pop("stack"), fields.pop("index"), fields.pop("part"), fields.pop("last", None))
        return cls(site, **fields)

    @property
    def counted(self) -> bool:
        """Whether its cells count as hits (served) or misses (computed): a rule governs it, and it holds values."""
        return self.rule is not None and self.at != STEP

    @property
    def keeps(self) -> bool:
        """Whether something is kept at the site in a run, or may be."""
        return bool({COMPUTE_KEEP, ONLINE} & {*self.cond, *self.uncond})

    def actions(self, branch: str) -> str:
        """The actions of one branch; raises KeyError for a branch that does not exist."""
        if branch not in BRANCHES:
            raise KeyError(branch)
        return self.cond if branch == "cond" else self.uncond


def retained(actions: str, step: int, history: int) -> int:
    """How many of the newest kept observations a later cell still reads, after `step` has been served.

    A later `R` reads the newest one, an `F` or `?` the newest `history`; each `C` between pushes one more in front. What no
    later cell reads is dropped at once, so that predicted and held bytes agree to the byte.
    """
    needed = pushed = 0
    for action in actions[step + 1 :]:
        if pushed >= history:
            break
        if action in SERVED or action == ONLINE:
            # A `?` may be served, from as many as there are, or computed and kept: the store must be ready for both.
            needed = max(needed, (1 if action == REUSE else history) - pushed)
        elif action == COMPUTE_KEEP:
            pushed += 1
    return needed


@dataclass(frozen=True)
class HookTable:
    """A plan compiled for one profile and one step count. Immutable, hashable by `digest`.

    steps: the nominal step count. evaluated: the nominal steps the sampler really runs, ascending (all of them unless
    a `step_schedule` leaves some out). sigmas: the sigma of each nominal step, of the sampler's own grid.
    attention_dtype: `native`, or the dtype that `quantized` tells the rest of.
    rows: in a fixed order: `step`; `cfg`, the main stack and its spans where a rule names them; main blocks, VACE blocks, hints,
    each followed by its parts that a rule names.
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
    def tree(self) -> Tree:
        """How the model's sites hang together, spans that have a row among them.

        Raises KeyError for a family that is not known, ValueError for spans that overlap.
        """
        layout = self.layout
        spans = (row.at for row in self.rows if row.at.last is not None)
        return family(layout.family).tree(layout.main_blocks, layout.vace_at).with_spans(spans)

    @cached_property
    def by_at(self) -> Mapping[Site, Row]:
        """Rows by site."""
        return MappingProxyType({row.at: row for row in self.rows})

    @cached_property
    def online(self) -> bool:
        """Whether some cells are decided in the run."""
        return any(ONLINE in actions for row in self.rows for actions in (row.cond, row.uncond))

    @cached_property
    def hints_apart(self) -> frozenset[Site]:
        """The sites whose kept residual leaves out the hints added inside it."""
        return frozenset(r.at for r in self.rows if r.rule is not None and self.rules[r.rule].hints_apart)

    def governed(self, rule: int) -> tuple[Row, ...]:
        """The rows of a rule's own sites, without the states that are kept for them."""
        return tuple(row for row in self.rows if row.rule == rule and not self.is_state(row))

    def history(self, row: Row) -> int:
        """Observations that a served cell of a row reads at most; the state of a chain is read newest only."""
        return 1 if row.rule is None or self.is_state(row) else self.rules[row.rule].history

    def is_state(self, row: Row) -> bool:
        """Whether a row is kept for others to go on from, and derived from theirs."""
        return self.tree[row.at].on_demand

    def keeps_residual(self, row: Row) -> bool:
        """Whether what is kept at a row is its output less its input."""
        return row.rule is not None and self.rules[row.rule].keeps == "residual" and self.tree[row.at].region

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
        value["rules"] = [r.to_dict() for r in self.rules]
        value["rows"] = [r.to_dict() for r in self.rows]
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
            rules = tuple(TableRule.from_dict(r) for r in value["rules"])
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
                rows=tuple(Row.from_dict(r) for r in value["rows"]),
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
