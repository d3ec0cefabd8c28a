"""S `profilingdit`: blocks found to attend to the background add what each run of them added at the newest refresh. Lossy.

x + r_k(t₁) for each run k of such blocks, r_k its output − its input [ProfilingDiT, arXiv 2504.03140; authors' code, Wan2.1].
Which blocks they are is profiled offline and written in the plan's `at:`. What is done there is `residual_reuse`'s.
"""

from __future__ import annotations

from refkv_policy.methods.method import Lowered, MethodError, Placement
from refkv_policy.methods.residual_reuse import ResidualReuse


class ProfilingDiT(ResidualReuse):
    """`residual_reuse` at chosen runs of blocks, one residual a run."""

    name = "profilingdit"
    title = "reuse each run's residual of the newest refresh"
    by_site = True

    def lower(self, at: Placement) -> Lowered:
        """`C` at refreshes, `R` between them. Raises MethodError for the whole stack, of which no block was chosen."""
        if at.site.index is None:
            raise MethodError(
                "at",
                f"`{at.site}` is every block, and profilingdit reuses those that were profiled",
                "name runs or blocks, such as `main[10..20]`, or take method residual_reuse",
            )
        return super().lower(at)


METHOD = ProfilingDiT()
