"""The table as a person reads it: one line a site, one character a step, equal neighbours folded."""

from __future__ import annotations

from collections.abc import Iterable
from itertools import groupby

from refkv_policy.compiler.table import HookTable, Row
from refkv_policy.plan.selectors import Site

LEGEND = "C compute and keep  . compute  R reuse  F forecast  - not reached"
RUN_LENGTH_ABOVE = 100
"""Steps above which a row is written run-length encoded."""


def site_label(row: Row, table: HookTable, width: int = 2) -> str:
    """`hint[08] +main[16]`, `vace[03]`, `main[07].text_kv`, `main[8..29]`, `step`: indexes padded so that lines sort."""
    site, inside = row.at, table.tree[row.at].inside
    if site.index is None or site.last is not None:
        return row.site
    label = f"{site.stack}[{site.index:0{width}d}]"
    if site.part is not None:
        return f"{label}.{site.part}"
    added = table.tree[site].added and inside is not None
    return f"{label} +{inside.stack}[{inside.index:0{width}d}]" if added else label  # type: ignore[union-attr]


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
    """`main[0-29].text_kv, vace[8-14].text_kv`: the sites of each stack and part together; a span for itself."""
    kinds: dict[Site, list[int]] = {}
    for site in sites:
        if site.index is None or site.last is not None:
            kinds[site] = []
        else:
            kinds.setdefault(Site(site.stack, None, site.part), []).append(site.index)
    return ", ".join(_named(kind, indexes) for kind, indexes in kinds.items())


def _named(kind: Site, indexes: list[int]) -> str:
    if not indexes:
        return str(kind)
    name = f"{kind.stack}[{compact(tuple(sorted(indexes)))}]"
    return name if kind.part is None else f"{name}.{kind.part}"


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
    ordered = sorted(table.rows, key=lambda r: r.at.order)
    lines = []
    for (_, cond, uncond, _), rows in groupby(ordered, key=lambda r: (kind_of(r.at), r.cond, r.uncond, r.rule)):
        lines.append((sites_text(row.at for row in rows), cond, uncond))
    return lines


def kind_of(site: Site) -> Site:
    """What neighbours on one line have in common: stack and part; a span, or what is not numbered, is its own."""
    return site if site.index is None or site.last is not None else Site(site.stack, None, site.part)


def legend(online: bool) -> str:
    """What the characters mean. online: whether some cells are decided in the run."""
    return LEGEND.replace("  - ", "  ? decided online  - ") if online else LEGEND


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
    return "\n".join([*text, legend(table.online)])
