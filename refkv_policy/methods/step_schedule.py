"""S `step_schedule`: run the sampler on a declared subset of the step count's own sigma grid. Nothing is cached.

The honest baseline of every cache: fewer steps, re-spaced. Its `refresh:` names the steps that are run, listed or spaced
in sigma or in its square root (which keeps the tail); the others are left out of the sampler's grid altogether.
"""

from __future__ import annotations

from refkv_policy.methods.method import Lowered, Method, MethodError, Placement


class StepSchedule(Method):
    """Stands at `step`; every other rule is lowered against the steps it leaves."""

    name = "step_schedule"
    title = "run the sampler on these steps of the grid only"
    tier = "S"
    risk = "fewer-steps"
    sites = frozenset({("step", None)})
    refreshes = frozenset({"steps", "spacing"})
    takes_store = False
    schedules = True

    def lower(self, at: Placement) -> Lowered:
        """`.` at the steps that are run, `-` at those left out.

        Raises MethodError when step 0 is left out (the initial noise is drawn for its sigma), or fewer than two remain.
        """
        if 0 not in at.fresh:
            raise MethodError(
                "refresh", "the schedule leaves out step 0, whose sigma the first noise is drawn for", "add step 0"
            )
        if len(at.fresh) < 2:
            raise MethodError("refresh", "the schedule keeps a single step", "keep two or more")
        return Lowered("".join("." if s in at.fresh else "-" for s in range(at.grid.steps)))


METHOD = StepSchedule()
