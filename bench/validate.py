"""Start-up cost of `refkv validate` beside check-jsonschema, and the cost of a plan in a large batch.

    python bench/validate.py [--rounds 15] [--plans 1000]

Goals: at least 2x less CPU than check-jsonschema on the same files and schema; at most 2.5x the CPU of importing click,
yaml and jsonschema; 1,000 plans in one call at no more than 3 ms each.
"""

from __future__ import annotations

import argparse
import os
import re
import resource
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path

from timing import interleave, interval, ratios, table, verdict

ROOT = Path(__file__).resolve().parents[1]
PLANS = sorted((ROOT / "plans").glob("wan21_*.yaml"))
SCHEMA = ROOT / "schemas" / "plan.v1.schema.json"


def cpu_seconds(command: Sequence[str], bytecode: Path) -> float:
    """User and system time of a process that must succeed. bytecode: where it is kept, as an installed command has it."""
    environment = {k: v for k, v in os.environ.items() if k != "PYTHONDONTWRITEBYTECODE"}
    environment["PYTHONPYCACHEPREFIX"] = str(bytecode)
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    nowhere = subprocess.DEVNULL
    subprocess.run(command, check=True, cwd=ROOT, env=environment, stdout=nowhere, stderr=nowhere)
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    return after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime


def contestants(bytecode: Path) -> dict[str, Callable[[], float]]:
    """What is timed, by name."""
    script = Path(sys.executable).with_name("check-jsonschema")
    files = [str(p) for p in PLANS]
    refkv = [sys.executable, "-m", "refkv_policy.cli", "validate", *files]
    commands = {
        "python -c pass": [sys.executable, "-c", "pass"],
        "import click, yaml, jsonschema": [sys.executable, "-c", "import click, yaml, jsonschema"],
        "refkv validate": refkv,
        "check-jsonschema": [str(script), "--schemafile", str(SCHEMA), *files],
    }
    if not script.exists():
        print("check-jsonschema is not installed: pip install 'refkv-policy[bench]'", file=sys.stderr)
        del commands["check-jsonschema"]
    return {name: partial(cpu_seconds, command, bytecode) for name, command in commands.items()}


def generated(index: int) -> str:
    """A sound plan unlike the others: its name, step counts, interval and party are its own, and its cells mostly."""
    text = PLANS[index % len(PLANS)].read_text(encoding="utf-8")
    text = re.sub(r"(?m)^name: .*", f"name: generated-{index}", text)
    text = re.sub(r"steps: \[30, 50\]", f"steps: [{30 + index % 7}, {50 + index % 11}]", text)
    text = re.sub(r"interval: \d+", f"interval: {2 + index % 5}", text)
    return re.sub(r"by: .*", f"by: team {index % 13}", text)


def batch(count: int, bytecode: Path, rails: bool) -> float:
    """CPU seconds a plan, of `count` generated plans in one call. rails: under the guardrails of the shipped plans."""
    with tempfile.TemporaryDirectory() as folder:
        for index in range(count):
            (Path(folder) / f"plan{index:04}.yaml").write_text(generated(index), encoding="utf-8")
        if rails:
            # without what a generated interval may break, since each process must succeed
            text = (ROOT / "plans" / "guardrails.yaml").read_text(encoding="utf-8")
            (Path(folder) / "guardrails.yaml").write_text(
                text.replace("smallest_count: 8", "smallest_count: 5"), encoding="utf-8"
            )
        return cpu_seconds([sys.executable, "-m", "refkv_policy.cli", "validate", folder], bytecode) / count


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=15)
    parser.add_argument("--plans", type=int, default=1000)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        measure(options, Path(folder))


def measure(options: argparse.Namespace, bytecode: Path) -> None:
    """Everything, with one store of bytecode."""
    runs = contestants(bytecode)
    for run in runs.values():
        run()  # bytecode is written on the first call
    readings = interleave(runs, options.rounds)
    rows = []
    for name, values in readings.items():
        low, high = interval(values)
        rows.append([name, f"{statistics.median(values) * 1e3:.0f}", f"{low * 1e3:.0f} to {high * 1e3:.0f}"])
    print(f"CPU time of one process on {len(PLANS)} plans, {options.rounds} interleaved rounds")
    print(table(["", "median ms", "95 %"], rows))
    ours = readings["refkv validate"]
    imports, *span = ratios(ours, readings["import click, yaml, jsonschema"])
    print(f"\nrefkv validate / imports: {imports:.2f} ({span[0]:.2f} to {span[1]:.2f})")
    print(verdict(imports <= 2.5, "at most 2.5x the imports"))
    if "check-jsonschema" in readings:
        gain, *span = ratios(readings["check-jsonschema"], ours)
        print(f"check-jsonschema / refkv validate: {gain:.2f} ({span[0]:.2f} to {span[1]:.2f})")
        print(verdict(gain >= 2, "at least 2x less CPU"))
    for rails in (False, True):
        each = statistics.median(batch(options.plans, bytecode, rails) for _ in range(3))
        beside = " under guardrails" if rails else ""
        print(f"{options.plans} plans in one call{beside}: {each * 1e3:.2f} ms CPU each (median of 3)")
        print(verdict(each <= 3e-3, "at most 3 ms each"))


if __name__ == "__main__":
    main()
