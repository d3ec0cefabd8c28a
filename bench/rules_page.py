"""Prints docs/rules.md from the rule catalogue: `python bench/rules_page.py > docs/rules.md`; `--check` compares instead."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from itertools import groupby
from pathlib import Path

from refkv_policy.cli.catalogue import advice, all_rules, examples, family, summary, wrong_says
from refkv_policy.plan import Rule
from refkv_policy.plan.wording import inert

PAGE = Path(__file__).resolve().parents[1] / "docs" / "rules.md"

HEAD = """\
# Rules

What `refkv` checks, by code. `refkv rule RKV302` (or `refkv rule saves-no-block`) shows the same in a terminal. A code never
changes its meaning. Written by `python bench/rules_page.py`; every example is run by the tests: the wrong one gives the
diagnostic that stands below it and no other, the right one gives none. Most are parts of a plan whose other parts are sound.

An error makes `refkv validate` exit with 1; a warning or a note does not.
"""


def page() -> str:
    """The whole page."""
    rules = list(all_rules().values())
    groups = [(heading, list(group)) for heading, group in groupby(rules, key=lambda r: family(r.code))]
    lines = [HEAD]
    for heading, group in groups:
        lines += [f"## {heading[:1].upper()}{heading[1:]}", "", "| code | name | |", "|---|---|---|"]
        lines += [f"| [{r.code}](#{anchor(r)}) | {r.name} | {cell(summary(r))} |" for r in group]
        lines += ["", *(line for r in group for line in section(r))]
    return "\n".join(lines)


def section(rule: Rule) -> Iterator[str]:
    """One rule: its reason, the wrong example with what is said about it, the right one."""
    yield from (f"### {rule.code} {rule.name}", "", f"{rule.severity.capitalize()}. {rule.why}", "")
    example, says = examples().get(rule.code), wrong_says(rule.code)
    message, help = (says.message, says.help) if says else (summary(rule), advice(rule))
    told = [f"> {rule.severity}: {message}"] + ([">", f"> help: {help}"] if help else [])
    if example is None:
        yield from (*told, "")
    elif example.form == "prose":
        yield from (f"Wrong: {example.wrong}.", "", *told, "", f"Right: {example.right}.", "")
    else:
        if example.guardrails:
            yield from ("Under these guardrails:", "", *fenced(example.guardrails), "")
        yield from ("Wrong:", "", *fenced(example.wrong), "", *told, "", "Right:", "", *fenced(example.right), "")


def fenced(text: str) -> Iterator[str]:
    """A YAML block, with what cannot be seen drawn."""
    yield from ("```yaml", *inert(text).rstrip("\n").split("\n"), "```")


def anchor(rule: Rule) -> str:
    """The anchor that Markdown renderers give a rule's heading."""
    return f"{rule.code.lower()}-{rule.name}"


def cell(text: str) -> str:
    """A text within a table."""
    return text.replace("|", "\\|")


def main() -> int:
    """0, or 1 when the page that is there is not the one to be printed."""
    if "--check" not in sys.argv[1:]:
        sys.stdout.write(page())
        return 0
    if PAGE.is_file() and PAGE.read_text(encoding="utf-8") == page():
        return 0
    print(
        f"{PAGE.name} is not what the catalogue says; run python bench/rules_page.py > docs/rules.md", file=sys.stderr
    )
    return 1


if __name__ == "__main__":
    raise SystemExit(main())
