"""Texts of the evidence diagnostics: RKV510 to RKV520. Faults of the schema have the codes of the plan's (RKV1xx)."""

from __future__ import annotations

from refkv_policy.plan.catalogue import rule

MAX_BYTES = 1 << 22
MAX_VALUES = 100_000
MAX_DEPTH = 32
MAX_DIGITS = 30
TOO_LARGE = f"it is larger than {MAX_BYTES} bytes or {MAX_VALUES} values"

# The file ------------------------------------------------------------------------------------------------------------

UNREADABLE = rule(
    "RKV510",
    "evidence-unreadable",
    "the evidence cannot be read: {reason}",
    "check the path and its permissions, or write the evidence anew with `refkv gate`",
    "What cannot be read proves nothing.",
)
NOT_JSON = rule(
    "RKV511",
    "evidence-not-json",
    "{problem}",
    "{advice}",
    "Evidence is strict JSON: every reader must find the same figures in it.",
)
NOT_EVIDENCE = rule(
    "RKV512",
    "not-evidence",
    "the file is not an evidence document: {problem}",
    "name a file that `refkv gate` wrote",
    "Kind and version are read before anything else: they say by which rules the rest is to be read.",
)
EDITED = rule(
    "RKV513",
    "evidence-edited",
    "the evidence was changed after it was written: its digest does not fit what it holds",
    "restore the file as `refkv gate` wrote it, or measure anew",
    "Evidence that can be edited by hand is an opinion.",
)
CONTRADICTION = rule(
    "RKV514",
    "evidence-contradicts-itself",
    "{problem}",
    "measure anew with `refkv gate`",
    "Verdicts are worked out from the figures when they are read; a document that says otherwise is not to be trusted.",
)

# The plan that names it ----------------------------------------------------------------------------------------------

WRONG_PATH = rule(
    "RKV515",
    "evidence-path",
    "the evidence {path} {problem}",
    "write a path relative to the repository, such as evidence/{name}.json",
    "Evidence is reviewed with the plan, so it lies in the same repository.",
)
MISSING = rule(
    "RKV516",
    "evidence-missing",
    "the evidence {path} {problem}",
    "measure it: `refkv gate {plan} --out {path}`",
    "An acknowledgement that names evidence is weaker than it looks while the evidence is not there.",
    severity="note",
)
STALE = rule(
    "RKV517",
    "evidence-stale",
    "the evidence {path} is stale for {scopes}: {difference}",
    "measure anew: `refkv gate {plan} --out {path}`",
    "A claim of quality holds for what was measured and for nothing else.",
)
RED = rule(
    "RKV518",
    "evidence-red",
    "the evidence {path} is red for {scopes}: {items}",
    "{advice}",
    "A plan whose own measurement fails its gate may be shown for comparison, not recommended.",
)
RED_RECOMMENDED = "do not recommend the plan: write `purpose: reference`, or change it and measure anew"
RED_REFERENCE = (
    "nothing need be done while the plan says `purpose: reference`; "
    "before it is recommended, change it and measure anew"
)
INCOMPLETE = rule(
    "RKV519",
    "evidence-incomplete",
    "the evidence {path} is incomplete for {scopes}: not measured are {items}",
    "measure what is missing: `refkv gate {plan} --out {path}`",
    "What was not measured is neither good nor bad.",
    severity="note",
)
UNBACKED = rule(
    "RKV520",
    "recommended-without-evidence",
    "the plan is recommended, and no acknowledgement names evidence of what it costs",
    "measure it: `refkv gate {plan} --out {path}`, and write `evidence: {path}` here; or write `purpose: reference`",
    "A recommendation is a claim of quality, and such a claim is bound to what was measured.",
    severity="warning",
)
