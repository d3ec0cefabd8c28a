"""The lock: the compiled plan as text, checked in beside it. Deterministic; only behaviour is in it."""

from __future__ import annotations

import difflib
import itertools
import os
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

from refkv_policy.compiler import compile_all, human_bytes, plan_profiles, predict, rules
from refkv_policy.compiler.picture import actions_text, legend, site_label, sites_text
from refkv_policy.compiler.picture import compact as compact
from refkv_policy.compiler.predict import branches_of
from refkv_policy.compiler.table import BRANCHES, HookTable
from refkv_policy.compiler.walk import Case
from refkv_policy.files import atomic_write, read_bounded
from refkv_policy.plan.diagnostic import Diagnostic, Span
from refkv_policy.plan.model import Plan
from refkv_policy.plan.selectors import site_named
from refkv_policy.profiles import Profile
from refkv_policy.profiles.cost import Workload
from refkv_policy.repository import check_inside

HEAD = "# refkv lock 1. Written by `refkv compile`; review it, do not edit it.\n"
LARGEST = 1 << 26
"""Bytes of a lock that are read: the shipped ones have some ten thousand for each table."""
DTYPE = "bfloat16"
"""The dtype that a lock's bytes are counted in; `run` predicts for its own."""


def lock_path(plan_path: str | os.PathLike[str]) -> Path:
    """`plans/x.lock` of `plans/x.yaml`."""
    return Path(plan_path).with_suffix(".lock")


def lock_text(plan: Plan) -> str:
    """The lock of every model and step count the plan lists, pure ASCII. Raises PlanError when the plan is unsound."""
    tables = compile_all(plan)  # first, since it tells of a profile that is not there
    profiles = {profile.name: profile for profile in plan_profiles(plan)}
    sections = [table_text(plan, table, profiles[name]) for (name, _), table in tables.items()]
    head = f"{HEAD}# {legend(any(table.online for table in tables.values()))}\n"
    return head + "".join("\n" + section for section in sections)


def table_text(plan: Plan, table: HookTable, profile: Profile) -> str:
    """One section: a model at a step count."""
    lines = [f"[{table.profile} steps={table.steps}]", *_facts(table), *_rules(table), *_rows(table)]
    lines += _predictions(plan, table, profile)
    return "\n".join(lines) + "\n"


def _facts(table: HookTable) -> Iterator[str]:
    yield f"table {table.digest}"
    yield f"sampler {table.sampler} flow_shift={table.flow_shift:g}"
    yield "guidance " + " ".join(f"{g:g}" for g in table.guidance)
    yield "evaluated " + compact(table.evaluated)
    if table.quantized is not None:
        yield f"attention {attention_text(table)}"
    yield "sigmas " + " ".join(f"{s:.6f}" for s in table.sigmas)


def attention_text(table: HookTable) -> str:
    """`fp8 on npu, flash_attn (dense); native at steps 0-1 and main[0] vace[0]`, or `native`."""
    found = table.quantized
    if found is None:
        return table.attention_dtype
    native = [f"steps {compact(found.native_steps)}"] if found.native_steps else []
    if found.native_sites:
        native.append(sites_text(map(site_named, found.native_sites)))
    kept = f"; native at {', '.join(native)}" if native else ""
    return f"{table.attention_dtype} on {found.platform}, {found.backend} ({found.path}){kept}"


def _rules(table: HookTable) -> Iterator[str]:
    for index, rule in enumerate(table.rules):
        rows = table.governed(index)
        sites = sites_text(row.at for row in rows).replace(", ", " ")
        params = "".join(f" {k}={v}" for k, v in sorted(rule.params.items()))
        store = f" store={rule.store_dtype}@{rule.store_device}" if any(row.counted for row in rows) else ""
        budget = f" budget={rule.budget}" if rule.budget is not None else ""
        risk = f" risk={'+'.join(rule.risks)}" if rule.risks else ""
        longest = f" longest={rule.longest}" if rule.longest is not None else ""
        yield f"rule {rule.name} {rule.tier} {rule.method} at {sites}{params}{longest}{store}{budget}{risk}"


def _rows(table: HookTable) -> Iterator[str]:
    labels = {row.site: site_label(row, table) for row in table.rows}
    width = max(map(len, labels.values())) + 1
    for row in table.rows:
        for branch in BRANCHES if row.cond != row.uncond else ("both",):
            mark = "" if branch == "both" else f"{branch} "
            yield f"{labels[row.site]:<{width}}{mark}{actions_text(row.cond if branch != 'uncond' else row.uncond)}"


def _predictions(plan: Plan, table: HookTable, profile: Profile) -> Iterator[str]:
    running = branches_of(table)
    for shape in plan.run.shapes:
        work = Workload(profile.tokens(shape.width, shape.height, shape.frames), profile.text_tokens)
        # Cells that are decided in the run make the figures bounds: what is certain, and what is possible.
        cases: tuple[Case, ...] = ("worst", "best") if table.online else ("worst",)
        for case in cases:
            whole = predict(table, profile, work, DTYPE, running, case)
            one = predict(table, profile, work, DTYPE, BRANCHES[:1], case)
            yield (
                f"predicted {f'{case} ' if table.online else ''}{shape} hits={whole.tally.hits} misses={whole.tally.misses} "
                f"bytes={whole.bytes_peak} ({human_bytes(whole.bytes_peak)} {DTYPE}, one branch {human_bytes(one.bytes_peak)}) "
                f"flops={whole.flops_planned:.6e} of {whole.flops_uncached:.6e} saved={whole.saved:.2%} "
                f"speedup={whole.speedup:.3f}"
            )


def check_lock(plan: Plan, path: Path) -> Diagnostic | None:
    """The fault of a lock file that is missing or not what the plan compiles to. Raises PlanError as `lock_text` does."""
    fields = {"lock": path.name, "plan": plan.document.file}
    expected = lock_text(plan)
    try:
        check_inside(path)
        found = read_bounded(path, LARGEST).decode("ascii")
    except FileNotFoundError:
        return rules.LOCK_MISSING.at(plan.document.file, None, **fields)
    except (OSError, UnicodeDecodeError) as error:
        reason = getattr(error, "strerror", None) or "it is not ASCII text"
        return rules.LOCK_STALE.at(str(path), None, difference=f"it cannot be read: {reason.lower()}", **fields)
    if found == expected:
        return None
    changes = [
        line
        for line in difflib.unified_diff(found.splitlines(), expected.splitlines(), lineterm="", n=0)
        if line[:1] in "+-" and line[:3] not in ("+++", "---")
    ]
    # Any change of behaviour changes the digest, which tells a reader nothing.
    first = next((line for line in changes if line[1:7] != "table "), changes[0] if changes else "line endings differ")
    span = _first_difference(found.splitlines(), expected.splitlines())
    return rules.LOCK_STALE.at(str(path), span, difference=f"first difference: {first[:120]}", **fields)


def _first_difference(found: list[str], expected: list[str]) -> Span | None:
    """The first line of a lock that is not what it should be; the end of one that is too short; None where none is."""
    pairs = enumerate(itertools.zip_longest(found, expected), 1)
    number = next((number for number, (a, b) in pairs if a != b), None)
    if number is None:
        return None
    length = len(found[number - 1]) if number <= len(found) else 0
    return Span(number, 1, number, max(length, 1) + 1)


def write_lock(plan: Plan, path: Path) -> bool:
    """Write the lock beside its place and rename it there; False when it was already so. Raises PlanError, OSError."""
    data = lock_text(plan).encode("ascii")
    check_inside(path)
    with suppress(FileNotFoundError):
        if read_bounded(path, max(LARGEST, len(data))) == data:
            return False
    with atomic_write(path) as stream:
        stream.write(data)
    return True
