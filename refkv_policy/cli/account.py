"""What `refkv explain` tells of a plan at a size, as data and as JSON."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import asdict, dataclass
from typing import Any

from refkv_policy.cli.summary import figures
from refkv_policy.compiler import HookTable, Prediction, Workload, branches_of, predict
from refkv_policy.compiler.attention import MODELS, SOURCE
from refkv_policy.compiler.lock import attention_text
from refkv_policy.compiler.reasons import reasons
from refkv_policy.compiler.spend import Ceiling, Spend, ceilings, spend
from refkv_policy.compiler.words import rules_in_words
from refkv_policy.plan import Diagnostic, Plan, Shape
from refkv_policy.plan.wording import json_text
from refkv_policy.profiles import Profile

FORMAT_VERSION = 1


@dataclass(frozen=True, slots=True)
class Account:
    """A table's figures at one size. alone: the prediction of each branch that runs, without the other.

    best, best_spend: the same where all that may be served in the run is; None for a table that decides nothing there.
    """

    shape: Shape
    prediction: Prediction
    alone: dict[str, Prediction]
    spend: Spend
    ceilings: tuple[Ceiling, ...]
    best: Prediction | None = None
    best_spend: Spend | None = None


def account(table: HookTable, profile: Profile, work: Workload, shape: Shape, dtype: str) -> Account:
    """The figures at a workload, bytes counted in `dtype`, on the branches that the table's largest guidance runs."""
    branches = branches_of(table)
    found = spend(table, profile, work, branches)
    return Account(
        shape,
        predict(table, profile, work, dtype, branches),
        {branch: predict(table, profile, work, dtype, (branch,)) for branch in branches},
        found,
        ceilings(table, found, profile, work),
        predict(table, profile, work, dtype, branches, "best") if table.online else None,
        spend(table, profile, work, branches, "best") if table.online else None,
    )


def account_json(
    plan: Plan,
    table: HookTable,
    profile: Profile,
    accounts: Iterable[Account],
    dtype: str,
    warnings: Iterable[Diagnostic] = (),
) -> str:
    """Everything that `explain` shows, and the table itself. Shares are of FLOPs, 0 to 1; memory is in bytes."""
    accounts = tuple(accounts)
    value = {
        "format_version": FORMAT_VERSION,
        "plan": plan.name,
        "file": plan.document.file,
        "profile": profile.name,
        "steps": table.steps,
        "branches": list(branches_of(table)),
        "attention": attention_json(table),
        "rules": [
            {**asdict(words), "risks": [{"risk": risk, "accepted": accepted} for risk, accepted in words.risks]}
            for words in rules_in_words(plan, table)
        ],
        "sites": [asdict(reason) for reason in reasons(plan, table, profile)],
        "table": table.to_dict(),
        "table_digest": table.digest,
        "dtype": dtype,
        "warnings": [
            {"code": d.code, "message": d.message, "help": d.help, "line": d.span.line if d.span else None}
            for d in warnings
        ],
        "predicted": {
            str(a.shape): {
                **figures(a.prediction),
                **_shares(a),
                **({} if a.best is None else {"best": figures(a.best)}),
            }
            for a in accounts
        },
    }
    return json_text(value)


def attention_json(table: HookTable) -> dict[str, Any]:
    """What computes attention; where it is quantized, how far the source has tested that on models like these."""
    if table.quantized is None:
        return {"dtype": table.attention_dtype}
    _, scope, status = MODELS[-1]
    known = {"text": attention_text(table), "scope": scope, "status": status, "source": SOURCE}
    return {"dtype": table.attention_dtype, **asdict(table.quantized), **known}


def _shares(found: Account) -> dict[str, Any]:
    planned = found.spend.planned
    return {
        "components": {
            c.name: {
                "share_uncached": c.uncached / found.spend.forward,
                "share_planned": c.planned / planned,
                "flops_uncached": c.total,
                "flops_planned": c.planned,
            }
            for c in found.spend.components
        },
        "step_shares": list(found.spend.step_shares()),
        "spared_by_rule": {name: flops / found.spend.total for name, flops in found.spend.spared.items()},
        "ceilings": {c.tier: {"most": c.most, "speedup": c.speedup, "spared": c.spared} for c in found.ceilings},
        "bytes_branch": {branch: p.bytes_peak for branch, p in found.alone.items()},
        "bytes_rule_branch": {branch: dict(p.bytes_rule) for branch, p in found.alone.items()},
    }
