"""What a report is made of: evidence, audit logs, drift figures and run folders, told apart by what they hold."""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from refkv_policy.audit import Log, Verification, read_log, verify
from refkv_policy.evidence import Evidence, read_evidence
from refkv_policy.files import open_regular, read_bounded
from refkv_policy.plan.diagnostic import PlanError
from refkv_policy.report.drift import Drift, drift_of
from refkv_policy.report.errors import ReportError

LOG, OUTPUT, COMPARE = "audit.jsonl", "output.mp4", "compare.mp4"
"""What `refkv run` leaves in its folder."""
LARGEST = 64 << 20
"""Bytes of the largest JSON file that is looked into."""


@dataclass(frozen=True, slots=True)
class EvidenceFile:
    """An evidence document and where it was read."""

    name: str
    sha256: str
    evidence: Evidence


@dataclass(frozen=True, slots=True)
class LogFile:
    """An audit log, read and verified."""

    name: str
    sha256: str
    log: Log
    found: Verification


@dataclass(frozen=True, slots=True)
class DriftFile:
    """Drift figures and where they were read."""

    name: str
    sha256: str
    drift: Drift


@dataclass(slots=True)
class Inputs:
    """Everything that was given, in order. folders: run folders, for their videos."""

    evidence: list[EvidenceFile] = field(default_factory=list)
    logs: list[LogFile] = field(default_factory=list)
    drifts: list[DriftFile] = field(default_factory=list)
    folders: list[Path] = field(default_factory=list)


def read_inputs(paths: Iterable[str | os.PathLike[str]]) -> Inputs:
    """Read files and run folders. Raises ReportError; PlanError for evidence that contradicts itself or its schema."""
    given = Inputs()
    for path in map(Path, paths):
        if path.is_dir():
            _take_folder(given, path)
        else:
            _take_file(given, path)
    return given


def _take_folder(given: Inputs, folder: Path) -> None:
    if not any((folder / name).is_file() for name in (LOG, OUTPUT, COMPARE)):
        raise ReportError(
            f"{folder} is no folder of a run: it holds no {LOG}, {OUTPUT} or {COMPARE}; name a file in it"
        )
    given.folders.append(folder)
    if (folder / LOG).is_file():
        _take_file(given, folder / LOG)


def _take_file(given: Inputs, path: Path) -> None:
    name = _name(path)
    sha256 = _digest(path)
    if path.suffix == ".jsonl":
        given.logs.append(_log(path, name, sha256))
        return
    kind, value = _kind(path)
    if kind == "evidence":
        evidence, diagnostics = read_evidence(path)
        if evidence is None:
            raise PlanError(diagnostics)
        given.evidence.append(EvidenceFile(name, sha256, evidence))
    elif kind == "drift":
        given.drifts.append(DriftFile(name, sha256, drift_of(value, name)))
    elif kind == "audit":
        given.logs.append(_log(path, name, sha256))
    else:
        raise ReportError(
            f"{name} is neither evidence, an audit log nor drift figures; name what `refkv gate`, `run` or `drift` wrote"
        )


def _log(path: Path, name: str, sha256: str) -> LogFile:
    found = verify(path)
    if not found.lines and path.stat().st_size:  # an empty one was opened and never written to
        raise ReportError(f"{name} holds no whole line of an audit log; name one that `refkv run` wrote")
    return LogFile(name, sha256, read_log(path), found)


def _kind(path: Path) -> tuple[str | None, Any]:
    """`evidence`, `drift` or `audit`, and the document of one that is whole JSON; None for anything else."""
    try:
        if path.stat().st_size > LARGEST:
            return None, None
        text = read_bounded(path, LARGEST).decode("utf-8-sig")
    except (OSError, UnicodeDecodeError) as error:
        reason = getattr(error, "strerror", None) or "it is not UTF-8 text"
        raise ReportError(f"{_name(path)} cannot be read: {reason}; name a file of refkv's") from error
    value = _json(text)
    if isinstance(value, dict) and isinstance(value.get("kind"), str):
        return value["kind"], value
    first = _json(text.partition("\n")[0])
    return ("audit", None) if isinstance(first, dict) and "hash" in first and "prev" in first else (None, None)


def _json(text: str) -> Any:
    try:
        return json.loads(text)
    except (ValueError, RecursionError):
        return None


def _digest(path: Path) -> str:
    try:
        digest = hashlib.sha256()
        with open_regular(path) as stream:
            while block := stream.read(1 << 20):
                digest.update(block)
        return f"sha256:{digest.hexdigest()}"
    except (OSError, ValueError) as error:
        reason = getattr(error, "strerror", None) or str(error)
        raise ReportError(f"{_name(path)} cannot be read: {reason}; check the path and its permissions") from error


def _name(path: Path) -> str:
    return os.fsdecode(path).encode("utf-8", "backslashreplace").decode()
