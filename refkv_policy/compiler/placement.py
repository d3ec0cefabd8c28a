"""A table's rule as its method saw it when it was lowered: for what is asked of the method after the compilation."""

from __future__ import annotations

from refkv_policy.compiler.table import COMPUTED, UNREACHED, HookTable
from refkv_policy.methods.method import Grid, Placement


def placement_of(table: HookTable, rule: int, branch: str) -> Placement:
    """The placement of a rule's first site. Its fresh steps are those that the table computes, whatever the reason."""
    row = table.governed(rule)[0]
    actions = row.actions(branch)
    reached = tuple(step for step in table.evaluated if actions[step] != UNREACHED)
    fresh = frozenset(step for step in reached if actions[step] in COMPUTED)
    return Placement(table.rules[rule].params, row.at, branch, Grid(table.steps, reached, table.sigmas), fresh)
