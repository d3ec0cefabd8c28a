"""The same forty mistakes through refkv, check-jsonschema with our schema, and cache-dit's own loader.

    python bench/broken_plans.py > docs/broken-plans.md
    python bench/broken_plans.py --cache-dit DIR    # where cache-dit is already, instead of a temporary install

The mistakes are in broken_plans.yaml. A plan is shown to refkv and to check-jsonschema; cache-dit, whose format is
another, is shown the nearest equivalent in that. check-jsonschema comes with `pip install 'refkv-policy[bench]'`; cache-dit
is installed from the package index into a temporary folder, without its dependencies, of which it uses torch and diffusers.
"""

from __future__ import annotations

import argparse
import importlib.metadata
import json
import os
import re
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml
from click.testing import CliRunner

ROOT = Path(__file__).resolve().parents[1]
DATA = Path(__file__).with_suffix(".yaml")
PAGE = ROOT / "docs" / "broken-plans.md"
SCHEMA = ROOT / "schemas" / "plan.v1.schema.json"
CACHE_DIT = "1.5.3"

PLACE = re.compile(r"line (\d+), column (\d+)")
JSON_PATH = re.compile(r"::(\$\S*):")
MEND = re.compile(
    r"\bexpected\b|is not one of|is a required property|is not of type|is less than|is greater than|Choose from|Please set"
)
"""Generously: a peer's message counts as help where it names what would be right, be it only a type or a character."""

TOOLS = ("refkv", "check-jsonschema", "cache-dit")

LOADER = """
import json, sys
from cache_dit import load_configs
told = []
for file in sys.argv[1:]:
    try:
        load_configs(file)
        told.append(None)
    except BaseException as error:
        told.append(f"{type(error).__name__}: {error}")
print("told" + json.dumps(told))
"""


@dataclass(frozen=True, slots=True)
class Case:
    """One mistake. plan, config: the two broken texts; config is None where cache-dit's format has no equivalent.

    code, line, column: what refkv says of it, and where in the plan, or (with `lock`) in the lock. guardrails: empty
    where none are needed. sound: the plan without the mistake, which a lock is written from. why: there is no equivalent.
    """

    mistake: str
    plan: str
    config: str | None
    code: str
    line: int
    column: int
    guardrails: str
    lock: bool
    sound: str
    why: str


@dataclass(frozen=True, slots=True)
class Found:
    """What a tool said. said: the code or the message; empty when it said nothing. None: it has no such thing."""

    said: str
    line: int | None = None
    column: int | None = None
    help: bool = False


def cases() -> list[Case]:
    """All forty, in the page's order."""
    value = yaml.safe_load(DATA.read_text(encoding="utf-8"))
    sound = value["sound"]
    return [_case(entry, sound) for entry in value["cases"]]


def sound_case() -> Case:
    """The two texts without a mistake, which no tool may refuse."""
    sound = yaml.safe_load(DATA.read_text(encoding="utf-8"))["sound"]
    return Case("none", sound["plan"], sound["cache_dit"], "", 0, 0, "", False, sound["plan"], "")


def _case(entry: Mapping[str, Any], sound: Mapping[str, str]) -> Case:
    code, line, column = re.split("[ :]", entry["expect"])
    other = entry["cache_dit"]
    return Case(
        mistake=entry["mistake"],
        plan=_changed(sound["plan"], entry["plan"]),
        config=None if isinstance(other, str) else _changed(sound["cache_dit"], other),
        code=code,
        line=int(line),
        column=int(column),
        guardrails=entry.get("guardrails", ""),
        lock=entry.get("lock", False),
        sound=sound["plan"],
        why=other if isinstance(other, str) else "",
    )


def _changed(text: str, changes: Mapping[str, str]) -> str:
    """The text with each key replaced by its value. Raises ValueError for one that does not stand there exactly once."""
    for old, new in changes.items():
        if text.count(old) != 1:
            raise ValueError(f"{old!r} stands {text.count(old)} times in the sound text")
        text = text.replace(old, new)
    return text


def lay_out(entries: Sequence[Case], folder: Path) -> list[Path]:
    """Each plan in a repository of its own, `folder/NN/plans/plan.yaml`, with what decides about it."""
    files = []
    for number, case in enumerate(entries, 1):
        place = folder / f"{number:02}"
        (place / ".git").mkdir(parents=True)
        plan = place / "plans" / "plan.yaml"
        plan.parent.mkdir()
        if case.guardrails:
            (place / "guardrails.yaml").write_text(case.guardrails, encoding="utf-8")
        if case.lock:
            plan.write_text(case.sound, encoding="utf-8")
            _refkv("compile", str(plan))
        plan.write_text(case.plan, encoding="utf-8")
        files.append(plan)
    return files


def _refkv(*arguments: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "refkv_policy.cli", *arguments]
    return subprocess.run(command, capture_output=True, text=True, encoding="utf-8", cwd=ROOT)


def through_refkv(entries: Sequence[Case], files: Sequence[Path]) -> list[tuple[Found, ...]]:
    """Everything that `refkv validate` (of a stale lock: `compile --check`) says, in its own order."""
    done = _refkv("validate", "--format", "json", *map(str, files))
    told: dict[str, list[Found]] = {str(file): [] for file in files}
    for entry in json.loads(done.stdout)["diagnostics"]:
        start = (entry["range"] or {"start": {"line": None, "column": None}})["start"]
        code = entry["code"] + (f" ({entry['severity']})" if entry["severity"] != "error" else "")
        told[entry["file"]].append(Found(code, start["line"], start["column"], bool(entry["help"])))
    locked = [str(file) for case, file in zip(entries, files, strict=True) if case.lock]
    for lines in re.findall(
        r"(?m)^(.+)\.lock:(\d+):(\d+): (RKV\d+) .*\n(  help: .)?", _refkv("compile", "--check", *locked).stderr
    ):
        stem, line, column, code, help = lines
        told[f"{stem}.yaml"].append(Found(code, int(line), int(column), bool(help)))
    return [tuple(found) for found in told.values()]


def chosen(case: Case, found: Sequence[Found]) -> Found:
    """What is shown of all that refkv says: the diagnostic that the mistake is there for, or else the first."""
    wanted = (case.code, case.line, case.column)
    return next((f for f in found if (f.said[:6], f.line, f.column) == wanted), found[0] if found else Found(""))


def through_check_jsonschema(files: Sequence[Path]) -> list[Found]:
    """What check-jsonschema prints by default, with our published schema. Raises ImportError where it is not installed."""
    from check_jsonschema import main  # type: ignore[import-untyped]

    found = []
    for file in files:
        done = CliRunner().invoke(main, ["--schemafile", str(SCHEMA), str(file)])
        found.append(_peer(done.output if done.exit_code else ""))
    return found


def through_cache_dit(entries: Sequence[Case], folder: Path, library: Path) -> list[Found | None]:
    """What `cache_dit.load_configs` raises. library: the folder that holds cache_dit. Raises RuntimeError where it fails."""
    files = []
    for number, case in enumerate(entries, 1):
        if case.config is not None:
            files.append(folder / f"{number:02}.cache_dit.yaml")
            files[-1].write_text(case.config, encoding="utf-8")
    path = os.pathsep.join(filter(None, (str(library), os.environ.get("PYTHONPATH"))))
    environment = {**os.environ, "PYTHONPATH": path, "OMP_NUM_THREADS": "1"}
    command = [sys.executable, "-c", LOADER, *map(str, files)]
    done = subprocess.run(command, capture_output=True, text=True, env=environment)
    printed = [line.removeprefix("told") for line in done.stdout.splitlines() if line.startswith("told[")]
    if done.returncode or not printed:
        raise RuntimeError(f"cache-dit cannot be run here: {done.stderr.strip().splitlines()[-1:]}")
    told = iter(json.loads(printed[-1]))
    return [None if case.config is None else _peer(next(told) or "") for case in entries]


def _peer(text: str) -> Found:
    place = PLACE.search(text)
    line, column = (int(place[1]), int(place[2])) if place else (None, None)
    return Found(" ".join(text.split()), line, column, bool(MEND.search(text)))


def install_cache_dit(folder: Path) -> None:
    """The wheel of the version that the page is of, without dependencies. Raises RuntimeError with pip's last words."""
    command = [sys.executable, "-m", "pip", "install", "--quiet", "--no-deps", "--target", str(folder)]
    done = subprocess.run([*command, f"cache-dit=={CACHE_DIT}"], capture_output=True, text=True)
    if done.returncode:
        raise RuntimeError(f"cache-dit cannot be installed: {done.stderr.strip().splitlines()[-1:]}")


# The page ------------------------------------------------------------------------------------------------------------

HEAD = """\
# Forty broken plans

The same mistakes through three tools: `refkv validate` (for the last one `refkv compile --check`), check-jsonschema
{check_jsonschema} with `schemas/plan.v1.schema.json`, and `load_configs` of cache-dit {cache_dit}, the loader of its YAML format.
Printed by `python bench/broken_plans.py`, which runs all three; the plans are in
[bench/broken_plans.yaml](../bench/broken_plans.yaml), and a test holds refkv to every code, line and column below.

refkv and check-jsonschema read the same plan. cache-dit is shown the nearest equivalent mistake in a configuration of its
own; where its format has nothing that could be mistaken so, there is *no equivalent*. `6:9` is the line and column that a tool
points to, `$.caches[0]` the JSON path that it names in their stead, *help* that it says what to do: of the two peers, wherever a
message names what would be right, be it only a type or a bracket. Only loading was looked at: what cache-dit refuses later,
with a model at hand, is not counted; and what a schema cannot know is no fault of check-jsonschema's, nor of the schema.
"""


def page(entries: Sequence[Case], results: Sequence[Sequence[Found | None]], versions: Mapping[str, str]) -> str:
    """The whole page. results: by tool, in the order of TOOLS, one a case."""
    lines = [HEAD.format(**versions), f"| | {' | '.join(TOOLS)} |", "|---|---|---|---|"]
    asked = [[found for found in column if found is not None] for column in results]
    counts: dict[str, list[int]] = {
        "mistakes shown to it": [len(column) for column in asked],
        "caught": [sum(bool(f.said) for f in column) for column in asked],
        "with line and column": [sum(bool(f.said) and f.line is not None for f in column) for column in asked],
        "with a help": [sum(bool(f.said) and f.help for f in column) for column in asked],
    }
    lines += [f"| {title} | {' | '.join(map(str, numbers))} |" for title, numbers in counts.items()]
    lines += ["", f"| | mistake | {' | '.join(TOOLS)} |", "|---|---|---|---|---|"]
    lines += table_rows(entries, results)
    return "\n".join(lines) + "\n"


def table_rows(entries: Sequence[Case], results: Sequence[Sequence[Found | None]]) -> Iterator[str]:
    """A line for each mistake."""
    for number, (case, *found) in enumerate(zip(entries, *results, strict=True), 1):
        cells = [str(number), case.mistake, cell(found[0], named=True), *(cell(f, named=False) for f in found[1:])]
        if case.why:
            cells[-1] = "no equivalent" + case.why.removeprefix("none")
        yield "| " + " | ".join(text.replace("|", "\\|") for text in cells) + " |"


def cell(found: Found | None, *, named: bool) -> str:
    """What a tool said, in a few words. named: by its own code."""
    if found is None:
        return "no equivalent"
    if not found.said:
        return "nothing said"
    path = JSON_PATH.search(found.said)
    place = f" at `{path[1]}`" if path else "" if found.line is None else f" at {found.line}:{found.column}"
    return f"{found.said if named else 'caught'}{place}{', help' if found.help else ''}"


def main() -> None:
    """Run all three and print the page."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--cache-dit", type=Path, metavar="DIR", help="a folder that holds the package cache_dit")
    parser.add_argument("--verbose", action="store_true", help="print what the peers said to the standard error")
    options = parser.parse_args()
    entries = cases()
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        library = options.cache_dit or folder / "library"
        if options.cache_dit is None:
            install_cache_dit(library)
        files = lay_out(entries, folder)
        ours = [chosen(case, found) for case, found in zip(entries, through_refkv(entries, files), strict=True)]
        results: list[list[Found | None]] = [
            [*ours],
            [*through_check_jsonschema(files)],
            through_cache_dit(entries, folder, library),
        ]
    if options.verbose:
        for case, *said in zip(entries, *results, strict=True):
            print(f"{case.mistake}\n  " + "\n  ".join(f.said if f else "-" for f in said[1:]), file=sys.stderr)
    versions = {"check_jsonschema": importlib.metadata.version("check-jsonschema"), "cache_dit": version_in(library)}
    sys.stdout.write(page(entries, results, versions))


def version_in(library: Path) -> str:
    """The version of the cache_dit in a folder."""
    found = list(importlib.metadata.distributions(name="cache-dit", path=[str(library)]))
    return found[0].version if found else CACHE_DIT


if __name__ == "__main__":
    main()
