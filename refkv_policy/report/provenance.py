"""What a scope's figures are bound to: digests, versions, device, seeds, clips, the command, and the audit logs."""

from __future__ import annotations

import shlex
from collections.abc import Iterator, Mapping

from refkv_policy.evidence import MeasuredScope
from refkv_policy.report.inputs import EvidenceFile
from refkv_policy.report.verdict import Tone
from refkv_policy.report.words import number


def audit_rows(entry: MeasuredScope, heads: Mapping[str, str]) -> Iterator[tuple[str, str, str, Tone]]:
    """(log, head, what of it, tone): whether a recorded log is among those given."""
    for audit in entry.audits:
        if audit.head in heads:
            yield audit.log, audit.head, f"given, and its head is the recorded one ({heads[audit.head]})", "good"
        else:
            yield audit.log, audit.head, "not among the logs given", "open"


def provenance_rows(file: EvidenceFile, entry: MeasuredScope) -> Iterator[tuple[str, str]]:
    """(name, value), in the order in which a reviewer asks."""
    bound, setting = entry.bound, entry.setting
    yield "model", entry.model
    yield "command", shlex.join(entry.command)
    yield "measured", entry.created
    yield "table", bound.table
    yield "weights", bound.weights
    yield "profile", f"{entry.profile} {bound.profile}"
    yield "sampler", f"{bound.sampler}, flow shift {number(bound.flow_shift)}; sigmas {bound.sigmas}"
    yield "steps and guidance", f"{entry.steps} steps, guidance {number(entry.guidance)}"
    yield (
        "shape",
        f"{setting.width}×{setting.height}, {setting.frames} frames at {number(setting.fps)} a second, batch {setting.batch}",
    )
    yield "device", f"{setting.device}, {setting.dtype}; torch.compile: {setting.compile or 'not used'}"
    yield (
        "timing",
        f"{setting.timed_pairs} interleaved pairs after {setting.warm_up} untimed requests; {setting.timing}",
    )
    yield "many-step run", "none" if setting.solver_steps is None else f"{setting.solver_steps} steps"
    yield "seeds", ", ".join(map(str, setting.seeds[:100])) + (" …" if len(setting.seeds) > 100 else "")
    for clip in setting.clips[:100]:
        yield "clip", f"{clip.name} {clip.sha256}"
    for name, found in setting.versions.items():
        yield f"version of {name}" if name != "platform" else "platform", found
    yield "evidence file", f"{file.name} {file.sha256}"
