"""`refkv rule`: the rules behind the diagnostics, each with its reason, a wrong and a right example."""

from __future__ import annotations

import textwrap
from collections.abc import Iterable, Iterator
from itertools import groupby
from typing import TYPE_CHECKING, Any

import click

from refkv_policy.cli.group import Failure, did_you_mean, echo, echo_json
from refkv_policy.plan.wording import inert
from refkv_policy.text import columns, fold

if TYPE_CHECKING:
    from refkv_policy.plan.catalogue import Rule

WIDTH = 100


@click.command("rule")
@click.argument("name", required=False, metavar="[CODE|NAME]")
@click.option("--json", "as_json", is_flag=True, help="One JSON object on stdout.")
def rule(name: str | None, as_json: bool) -> None:
    """Explain a rule: what it finds, why, and how a plan breaks and keeps it. Without a CODE or a NAME, list them all."""
    from refkv_policy.cli.catalogue import all_rules

    chosen = [*all_rules().values()] if name is None else [find_rule(name)]
    if as_json:
        entries = [as_mapping(entry, whole=name is not None) for entry in chosen]
        echo_json({"format_version": 1, "rules": entries})
    else:
        echo("\n".join(_list(chosen) if name is None else _explain(chosen[0])), colours=True)


def find_rule(name: str) -> Rule:
    """The rule of a code (`RKV302`, `rkv302`, `302`) or a name. Raises Failure, with the nearest one."""
    from refkv_policy.cli.catalogue import all_rules

    known = all_rules()
    code = name.upper() if name.upper().startswith("RKV") else f"RKV{name}"
    if code in known:
        return known[code]
    for entry in known.values():
        if entry.name == name.lower():
            return entry
    # Names are long: less alike than this, one is a guess at random.
    within = [r.name for r in known.values() if name.lower() in r.name]
    if within:
        raise Failure(f"there is no rule {name}; of that name are {', '.join(within)}")
    guess = did_you_mean(name.lower(), [r.name for r in known.values()], 0.7)
    raise Failure(f"there is no rule {name}{guess} `refkv rule` lists them")


def as_mapping(rule: Rule, whole: bool) -> dict[str, Any]:
    """A rule for machines; `whole` adds its example and what refkv says about the wrong side."""
    from refkv_policy.cli.catalogue import examples, family, wrong_says

    entry: dict[str, Any] = {
        "code": rule.code,
        "name": rule.name,
        "severity": rule.severity,
        "family": family(rule.code),
        "message": rule.message,
        "help": rule.help,
        "why": rule.why,
    }
    if whole:
        example, says = examples().get(rule.code), wrong_says(rule.code)
        entry["example"] = example and {
            "form": example.form,
            "guardrails": example.guardrails or None,
            "wrong": example.wrong,
            "right": example.right,
        }
        entry["wrong_says"] = says and {"message": says.message, "help": says.help}
    return entry


def _list(rules: Iterable[Rule]) -> Iterator[str]:
    from refkv_policy.cli.catalogue import family, summary

    for heading, group in groupby(rules, key=lambda r: family(r.code)):
        yield click.style(heading, bold=True)
        for entry in group:
            mark = "" if entry.severity == "error" else f" ({entry.severity})"
            yield fold(f"  {entry.code} {entry.name}{mark}: {summary(entry)}", columns())


def _explain(rule: Rule) -> Iterator[str]:
    from refkv_policy.cli.catalogue import advice, examples, family, summary, wrong_says

    yield f"{click.style(f'{rule.code} {rule.name}', bold=True)} ({rule.severity}; {family(rule.code)})"
    yield from _wrapped(rule.why, "  ")
    example, says = examples().get(rule.code), wrong_says(rule.code)
    message, help = (says.message, says.help) if says else (summary(rule), advice(rule))
    if example is not None and example.guardrails:
        yield from ("", "under these guardrails", *_side(example.guardrails))
    if example is not None:
        yield ""
        yield click.style("wrong", fg="red", bold=True)
        yield from _side(inert(example.wrong))
    yield from _wrapped(f"says: {message}", "  ", "        ")
    if help:
        yield from _wrapped(f"help: {help}", "  ", "        ")
    if example is not None:
        yield ""
        yield click.style("right", fg="green", bold=True)
        yield from _side(inert(example.right))


def _side(text: str) -> Iterator[str]:
    if "\n" in text:
        yield from textwrap.indent(text.rstrip("\n"), "    ").splitlines()
    else:
        yield from _wrapped(text, "    ")


def _wrapped(text: str, first: str, then: str | None = None) -> list[str]:
    return textwrap.wrap(
        text, min(WIDTH, columns() or WIDTH), initial_indent=first, subsequent_indent=first if then is None else then,
        break_long_words=False, break_on_hyphens=False,
    )  # fmt: skip
