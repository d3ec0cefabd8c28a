"""The table as a person reads it: one line a site, one character a step, equal neighbours folded."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import groupby

from refkv_policy.compiler.table import HookTable, Row
from refkv_policy.plan.selectors import Site

LEGEND = "C compute and keep  . compute  R reuse  F forecast  - not reached"
RUN_LENGTH_ABOVE = 100
"""Steps above which a row is written run-length encoded."""


def site_label(row: Row, table: HookTable, width: int = 2) -> str:
    """`hint[08] +main[16]`, `vace[03]`, `main[07].text_kv`, `step`: indexes padded so that lines sort."""
    if row.index is None:
        return row.site
    label = f"{row.stack}[{row.index:0{width}d}]"
    if row.part is not None:
        return f"{label}.{row.part}"
    return f"{label} +main[{table.layout.vace_at[row.index]:0{width}d}]" if row.stack == "hint" else label


def compact(numbers: tuple[int, ...]) -> str:
    """`0-3,8,10-12` of ascending integers; `none` of nothing."""
    runs: list[list[int]] = []
    for number in numbers:
        if runs and number == runs[-1][1] + 1:
            runs[-1][1] = number
        else:
            runs.append([number, number])
    return ",".join(str(a) if a == b else f"{a}-{b}" for a, b in runs) or "none"


def sites_text(sites: Iterable[Site]) -> str:
    """`main[0-29].text_kv, vace[8-14].text_kv`: the sites of each stack and part together."""
    kinds: dict[tuple[str, str | None], list[int]] = {}
    for site in sites:
        kinds.setdefault((site.stack, site.part), []).append(-1 if site.index is None else site.index)
    names = []
    for (stack, part), indexes in kinds.items():
        name = stack if indexes == [-1] else f"{stack}[{compact(tuple(sorted(indexes)))}]"
        names.append(name if part is None else f"{name}.{part}")
    return ", ".join(names)


def actions_text(actions: str) -> str:
    """The actions themselves, or run-length encoded (`C R*3 C R*3`) when there are very many steps."""
    if len(actions) <= RUN_LENGTH_ABOVE:
        return actions
    runs = ((action, len(list(run))) for action, run in groupby(actions))
    return " ".join(action if count == 1 else f"{action}*{count}" for action, count in runs)


def ruler(steps: int) -> str:
    """Step numbers: each multiple of ten above its column, dots between."""
    line = ["."] * steps
    for start in range(0, steps, 10):
        for offset, digit in enumerate(str(start)):
            if start + offset < steps:
                line[start + offset] = digit
    return "".join(line)


def folded(table: HookTable) -> list[tuple[str, str, str]]:
    """(label, cond actions, uncond actions); neighbours of one stack and part with equal actions share a line.

    `text_kv` rows of a stack are folded apart from the blocks that stand between them.
    """
    ordered = sorted(table.rows, key=lambda r: (STACKS.index(r.stack), r.part or "", r.index or 0))
    lines = []
    for (stack, part, cond, uncond, _), rows in groupby(
        ordered, key=lambda r: (r.stack, r.part, r.cond, r.uncond, r.rule)
    ):
        members: Sequence[Row] = list(rows)
        first, last = members[0].index, members[-1].index
        name = stack if first is None else f"{stack}[{first}]" if first == last else f"{stack}[{first}-{last}]"
        lines.append((name if part is None else f"{name}.{part}", cond, uncond))
    return lines


STACKS = ("step", "main", "vace", "hint")


def render_map(table: HookTable, branches: Iterable[str] = ("cond", "uncond")) -> str:
    """The step × site map, ASCII, with a ruler and a legend; branches are shown apart only where they differ."""
    lines = folded(table)
    width = max(len(label) for label, *_ in lines) + 9
    text = [f"{'steps':<{width}}{ruler(table.steps)}"] if table.steps <= RUN_LENGTH_ABOVE else []
    wanted = tuple(branches)
    for label, cond, uncond in lines:
        if cond == uncond or len(wanted) == 1:
            text.append(f"{label:<{width}}{actions_text(cond if 'cond' in wanted else uncond)}")
        else:
            text.append(f"{label + ' cond':<{width}}{actions_text(cond)}")
            text.append(f"{label + ' uncond':<{width}}{actions_text(uncond)}")
    return "\n".join([*text, LEGEND])
