"""What a plan has to beat without a cache: fewer steps at the same shift, and re-spaced on the plan's own sigma grid."""

from __future__ import annotations

import datetime
import math
from collections.abc import Iterable
from typing import Any

from refkv_policy.compiler import HookTable, compile_plan
from refkv_policy.plan import Plan
from refkv_policy.profiles import Profile
from refkv_policy.quality.variants import edited

SPACINGS = ("sigma", "sqrt_sigma")
MANY = 3
"""The many-step run has so many times the steps."""
MARGIN = 1.1
"""Step counts reach this far beyond the fastest table, since a measured speed-up scatters about the predicted one."""
FEWEST = 2


def step_counts(steps: int, speedups: Iterable[float], fastest: float, most: int = 6) -> tuple[int, ...]:
    """Step counts to run, descending, so that speed-ups from 1 to `fastest` lie between two of them.

    speedups: those to be compared closely (the plan's): of each, the counts just slower and just faster are among them,
    whatever `most` says. The others are spread evenly over the range. A run of n steps is steps / n times as fast.
    """
    fewest = max(FEWEST, min(steps - 1, math.floor(steps / (fastest * MARGIN))))
    near: set[int] = set()
    for speedup in speedups:
        around = (math.floor(steps / speedup), math.ceil(steps / speedup))
        near |= {min(max(n, FEWEST), steps - 1) for n in around}
    others = range(fewest, steps)
    wanted = max(2, most - len(near))
    spread = {others[round(i * (len(others) - 1) / (wanted - 1))] for i in range(wanted)} if others else set()
    return tuple(sorted((near | spread) - {steps}, reverse=True))


def respaced_table(plan: Plan, profile: Profile, steps: int, count: int, spacing: str) -> HookTable:
    """The table of a `step_schedule` alone: `count` of the plan's own sigmas. Raises PlanError, ValueError."""

    def change(value: Any) -> None:
        schedule = {
            "tier": "S",
            "method": "step_schedule",
            "at": "step",
            "refresh": {"spacing": spacing, "count": count},
        }
        value["caches"] = [{"name": "fewer-steps", **schedule}]
        today = datetime.date.today().isoformat()
        reason = "The baseline that the plan is compared with."
        value["acknowledgements"] = [{"risk": "fewer-steps", "by": "refkv sweep", "date": today, "reason": reason}]

    return compile_plan(edited(plan, change), profile, steps)
