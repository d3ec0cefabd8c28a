"""`refkv explain` for people: coloured on a terminal, plain where it is piped."""

from __future__ import annotations

import os
import sys
import textwrap
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path

from rich.console import Console
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from refkv_policy.cli.account import Account, attention_json
from refkv_policy.cli.group import echo
from refkv_policy.compiler import HookTable, branches_of, human_bytes
from refkv_policy.compiler.lock import attention_text
from refkv_policy.compiler.picture import compact, render_map
from refkv_policy.compiler.reasons import reasons
from refkv_policy.compiler.table import ACTIONS
from refkv_policy.compiler.words import RuleWords, rules_in_words
from refkv_policy.plan import Diagnostic, Plan
from refkv_policy.plan.wording import visible
from refkv_policy.profiles import Profile

PIPED_WIDTH = 100
"""Columns where there is no terminal to ask."""

COLOURS = {"C": "bold green", "R": "yellow", "F": "cyan", "-": "bright_black"}
PARTS = {
    "main": "main blocks",
    "hints": "VACE chain (hints)",
    "text_kv": "text K/V",
    "embeddings_and_head": "embeddings and head",
}
TIERS = {"P0": "text K/V for nothing", "P1": "hints for nothing", "S": "steps left out"}


def explain_text(
    plan: Plan,
    table: HookTable,
    profile: Profile,
    accounts: Iterable[Account],
    dtype: str,
    warnings: Iterable[Diagnostic] = (),
) -> None:
    """Print everything that `explain` tells to the standard output."""
    accounts = tuple(accounts)
    console = _console()
    with console.capture() as printed:
        _print(console, plan, table, profile, accounts, dtype)
        _warnings(console, warnings)
    text = printed.get()
    # Cells are padded to their column; on a terminal that is invisible, elsewhere it is left out.
    terminal = console.is_terminal
    echo(text if terminal else "\n".join(map(str.rstrip, text.split("\n"))), nl=False, colours=terminal)


def _print(
    console: Console, plan: Plan, table: HookTable, profile: Profile, accounts: Sequence[Account], dtype: str
) -> None:
    description = visible(" ".join(plan.description.split()))
    told = _wrapped(console, f"{plan.name}: {description}" if description else plan.name)
    console.print(Text(plan.name, "bold") + Text(told.removeprefix(plan.name)))
    console.print(Text("\n".join(_wrapped(console, line) for line in _setting(table, profile).split("\n"))))
    _rules(console, plan, table, accounts)
    _map(console, table)
    _why(console, plan, table, profile)
    for found in accounts:
        _heading(
            console,
            f"predicted at {found.shape}, {dtype}, {' and '.join(found.spend.branches)}; FLOPs stand in for time",
        )
        _time(console, found)
        _memory(console, table, found)


def _wrapped(console: Console, line: str) -> str:
    """A line that may hold a foreign text, wrapped behind spaces: what stands at a margin is refkv's own."""
    return textwrap.fill(line, console.width, subsequent_indent="  ", break_on_hyphens=False)


def _warnings(console: Console, found: Iterable[Diagnostic]) -> None:
    for number, warning in enumerate(found):
        if not number:
            _heading(console, "what `refkv validate` warns of")
        place = f"line {warning.span.line}: " if warning.span else ""
        told = Text(f"{place}{warning.code} {visible(warning.message)}\nhelp: {visible(warning.help)}", "yellow")
        console.print(Padding(told, (0, 0, 0, 2)))


def _console() -> Console:
    terminal = sys.stdout.isatty()
    width = None if terminal or "COLUMNS" in os.environ else PIPED_WIDTH
    return Console(file=sys.stdout, width=width, highlight=False, soft_wrap=False, no_color=not terminal or None)


def _heading(console: Console, text: str) -> None:
    console.print()
    console.print(Text(text, "bold underline" if console.is_terminal else ""))


def _setting(table: HookTable, profile: Profile) -> str:
    guidance = ", ".join(f"{g:g}" for g in table.guidance)
    text = f"on {visible(profile.title)} at {table.steps} steps, {table.sampler}, shift {table.flow_shift:g}, guidance {guidance}"
    if table.quantized is not None:
        told = attention_json(table)
        text += f"\nself-attention {attention_text(table)}\n  {told['scope']}: {told['status']} [{told['source']}]"
    return text


def _rules(console: Console, plan: Plan, table: HookTable, accounts: Sequence[Account]) -> None:
    _heading(console, "rules")
    words = rules_in_words(plan, table)
    if not words:
        console.print("  no rules: everything is computed")
    for rule in words:
        place = f"{visible(Path(plan.document.file).name)}:{rule.line}"
        console.print(Text(f"  {rule.name}", "bold") + Text(f"  {rule.tier} {rule.method}, {place}"))
        grid = Table.grid(padding=(0, 2))
        grid.add_column(no_wrap=True)
        grid.add_column()
        for label, text in _told(rule, accounts):
            grid.add_row(Text(label, "bright_black"), Text(visible(text)))
        console.print(Padding(grid, (0, 0, 0, 4)))


def _told(rule: RuleWords, accounts: Sequence[Account]) -> Iterator[tuple[str, str]]:
    written = ", ".join(rule.written)
    yield "at", rule.sites if written == rule.sites else f"{rule.sites}, written {written}"
    if rule.computed is not None:
        yield "computed", rule.computed
    yield ("between" if rule.computed is not None else "does"), rule.between
    shares = ", ".join(f"{_between(a, rule.name)} at {a.shape}" for a in accounts)
    yield "spares", f"{rule.spares}: of all FLOPs {shares}" if rule.spares else "nothing"
    for risk, accepted in rule.risks:
        yield "risk", f"{risk}, {accepted}"


def _between(found: Account, rule: str) -> str:
    """The share of the FLOPs that a rule spares; at least and at most, where that is decided in the run."""
    least = found.spend.spared[rule] / found.spend.total
    most = least if found.best_spend is None else found.best_spend.spared[rule] / found.best_spend.total
    least, most = min(least, most), max(least, most)  # what is not reached in the best case is not this rule's to spare
    return f"{least:.2%}" if most == least else f"{least:.2%} to {most:.2%}"


def _map(console: Console, table: HookTable) -> None:
    _heading(console, "table")
    for line in render_map(table, branches_of(table)).splitlines():
        text = Text("  " + line)
        label, _, actions = line.partition("  ")
        if set(actions.strip()) <= set(ACTIONS):
            for index in range(len(label) + 2, len(text)):
                text.stylize(COLOURS.get(text.plain[index], ""), index, index + 1)
        console.print(text, soft_wrap=True)


def _why(console: Console, plan: Plan, table: HookTable, profile: Profile) -> None:
    _heading(console, "why each site is what it is")
    file = visible(Path(plan.document.file).name)
    grid = _grid("sites", "because")
    for reason in reasons(plan, table, profile):
        because = list(reason.because)
        if reason.rule is not None:
            because.insert(0, f"rule {reason.rule} names it at {file}:{reason.line}:{reason.column}")
        told: Table | Text = Text(because[0])
        if len(because) > 1:
            told = Table.grid()
            for phrase in because:
                told.add_row("- ", Text(phrase))
        grid.add_row(Text(reason.sites.replace(", ", "\n")), told)
    console.print(Padding(grid, (0, 0, 0, 2)))


def _time(console: Console, found: Account) -> None:
    spent = found.spend
    grid = _grid("share of the FLOPs", ">of an uncached step", ">of the planned run", ">computed")
    for part in spent.components:
        shares = (part.uncached / spent.forward, part.planned / spent.planned, part.planned / part.total)
        grid.add_row(PARTS[part.name], *(f"{share:.2%}" for share in shares))
    console.print(Padding(grid, (0, 0, 0, 2)))
    console.print(Padding(Text("\n".join(_of_steps(spent.step_shares()))), (1, 0, 0, 2)))
    console.print()
    grid = _grid("tier", "ceiling", ">saves at most", ">speedup", ">this plan", ">of the ceiling")
    for bound in found.ceilings:
        most = ("unbounded", "") if bound.most is None else (f"{bound.most:.2%}", f"{bound.speedup:.2f}x")
        of_it = f"{bound.spared / bound.most:.0%}" if bound.most else ""
        grid.add_row(bound.tier, TIERS[bound.tier], *most, f"{bound.spared:.2%}", of_it)
    console.print(Padding(grid, (0, 0, 0, 2)))
    whole = found.prediction
    least, fastest = f"{whole.saved:.2%}", f"{(found.best or whole).speedup:.2f}x at most"
    saved = least if found.best is None else f"{least} to {found.best.saved:.2%}, as the run decides,"
    console.print(Text(f"  all rules together save {saved} of the FLOPs: {fastest}", "bold"))


def _of_steps(shares: Sequence[float]) -> Iterator[str]:
    """Each distinct cost of a step, dearest first, with the steps that have it."""
    by_share: dict[str, list[int]] = {}
    for step, of_one in enumerate(shares):
        by_share.setdefault(f"{of_one:.2%}", []).append(step)
    for share, steps in sorted(by_share.items(), key=lambda e: -float(e[0][:-1])):
        many = f"{len(steps)} steps" if len(steps) > 1 else "1 step"
        if not shares[steps[0]]:
            yield f"{many} left out: {compact(tuple(steps))}"
        else:
            costs = "each cost" if len(steps) > 1 else "costs"
            yield f"{many} {costs} {share} of an uncached step: {compact(tuple(steps))}"


def _memory(console: Console, table: HookTable, found: Account) -> None:
    whole = found.prediction
    tally = whole.tally
    console.print()
    holders = {row.rule for row in table.rows if row.counted}
    if not holders:
        console.print("  nothing is kept: no memory is held")
        return
    grid = _grid("peak memory of", *(f">{branch}" for branch in found.alone), ">all branches", ">budget")
    for rule in (rule for index, rule in enumerate(table.rules) if index in holders):
        alone = [human_bytes(p.bytes_rule[rule.name]) for p in found.alone.values()]
        budget = "none" if rule.budget is None else human_bytes(rule.budget)
        over = " (exceeded: it drops and computes)" if rule.name in whole.over_budget else ""
        grid.add_row(rule.name, *alone, human_bytes(whole.bytes_rule[rule.name]), budget + over)
    total = [human_bytes(p.bytes_peak) for p in found.alone.values()]
    grid.add_row("the plan", *total, human_bytes(whole.bytes_peak), "", style="bold")
    console.print(Padding(grid, (0, 0, 0, 2)))
    best = "" if found.best is None else f" to {found.best.tally.misses}, as the run decides"
    console.print(
        f"  hits {tally.hits}, misses {tally.misses}{best} ({tally.rate:.1%} hits); "
        f"peak cache {human_bytes(whole.bytes_peak)}"
    )


def _grid(*columns: str) -> Table:
    """A table without lines; a heading that begins with `>` is of a column of numbers."""
    grid = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0), header_style="bright_black", show_edge=False)
    for column in columns:
        number = column.startswith(">")
        grid.add_column(column.removeprefix(">"), justify="right" if number else "left", no_wrap=number)
    return grid
