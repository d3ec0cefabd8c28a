"""Texts of the guardrails' diagnostics: RKV601 to RKV609 about the guardrails, RKV611 to RKV629 about a plan under them.

Faults of the guardrails' YAML and schema have the codes of the plan's (RKV0xx and RKV1xx). `{rails}` is the file and line
of the guardrail.
"""

from __future__ import annotations

from refkv_policy.plan.catalogue import rule

# The guardrails themselves -------------------------------------------------------------------------------------------

NOT_GUARDRAILS = rule(
    "RKV601",
    "not-guardrails",
    "the file is not a guardrails document: {problem}",
    "begin it with `version: 1` and `kind: guardrails`",
    "Kind and version are read before anything else: they say by which rules the rest is to be read.",
)
TWO_FILES = rule(
    "RKV602",
    "two-guardrails",
    "there is a second guardrails file in the same folder: {other}",
    "keep one of the two",
    "The nearest guardrails hold for a plan, and of two in one folder neither is nearer.",
)
UNKNOWN_METHOD = rule(
    "RKV603",
    "guardrails-unknown-method",
    "there is no method {method!r}",
    "{guess}the methods are {known}",
    "A mistyped method would forbid the one that was meant.",
)
UNKNOWN_MODEL = rule(
    "RKV604",
    "guardrails-unknown-model",
    "{message}",
    "name a shipped profile (`refkv models`) or a profile file",
    "A guardrail for a model that does not exist would hold for none.",
)
SITES_UNRESOLVED = rule(
    "RKV605",
    "guardrails-sites-unresolved",
    "{message} (model {model})",
    "{help}, or say with `models` where the entry holds",
    "A selector that names nothing on a model would leave unguarded what it was meant to guard.",
)
STEPS_UNRESOLVED = rule(
    "RKV606",
    "guardrails-steps-unresolved",
    "{message} ({steps} steps)",
    "{help}",
    "Steps that a plan's step count does not have cannot be held to be computed.",
)
UNKNOWN_RISK = rule(
    "RKV607",
    "guardrails-unknown-risk",
    "no method here carries the risk {risk!r}",
    "{guess}the risks are {known}",
    "A mistyped risk would be left to whoever likes to acknowledge it.",
    severity="warning",
)
SAYS_NOTHING = rule(
    "RKV608",
    "guardrail-says-nothing",
    "{place} bounds nothing",
    "add {keys}, or delete the entry",
    "An entry that limits nothing looks like a limit.",
)
SHAPE_UNFIT = rule(
    "RKV609",
    "guardrails-shape-unfit",
    "{message} (model {model})",
    "write a shape that the model can make, or say with `models` where the entry holds",
    "Nothing can be predicted at a shape that cannot be made.",
)

# A plan under them ---------------------------------------------------------------------------------------------------

TIER = rule(
    "RKV611",
    "tier-not-allowed",
    "rule {name!r} is of tier {tier}, and {rails} allows {allowed} only",
    "use a method of an allowed tier, or have the guardrails changed",
    "Which tiers may be served is decided once for a repository, not plan by plan.",
)
METHOD = rule(
    "RKV612",
    "method-not-allowed",
    "rule {name!r} uses {method}, and {rails} allows {allowed} only",
    "use an allowed method, or have the guardrails changed",
    "Methods are allowed one by one, as they are understood.",
)
MODEL = rule(
    "RKV613",
    "model-not-allowed",
    "the plan lists {model}, and {rails} allows {allowed} only",
    "take it out of `models`, or have the guardrails changed",
    "A plan for a model outside a repository's care is reviewed by nobody who knows the model.",
)
ANY_MODEL = rule(
    "RKV614",
    "any-model-under-guardrails",
    "the plan is for any model, so {rails} cannot be held against what it compiles to",
    "list the models by name",
    "Sites, refreshes, bytes and evidence can be judged on models that are named.",
)
INTERVAL = rule(
    "RKV615",
    "interval-too-large",
    "rule {name!r} leaves {site} uncomputed at {served} steps in a row, an interval of {interval}; {rails} allows at most "
    "{largest} (model {model}, {steps} steps)",
    "refresh more often, or have the guardrails changed",
    "The error of a cached value grows with its age.",
)
TOO_FEW = rule(
    "RKV616",
    "too-few-refreshes",
    "rule {name!r} computes {site} at {count} steps, and {rails} asks for {smallest} or more (model {model}, {steps} steps)",
    "refresh more often, or have the guardrails changed",
    "Few refreshes let a whole run depend on a few values.",
)
NOT_COMPUTED = rule(
    "RKV617",
    "step-not-computed",
    "rule {name!r} leaves {site} uncomputed at step {step}, and {rails} has `{window}` always computed "
    "(model {model}, {steps} steps)",
    "keep step {step} out of the rule's `window`, or refresh there",
    "The first steps lay out the video and the last ones its detail.",
)
SITE = rule(
    "RKV618",
    "site-never-cached",
    "rule {name!r} has {site} {done} at step {step}, and {rails} never lets {guarded} be cached{reason} "
    "(model {model}, {steps} steps)",
    "leave it out of `at`, for example with `!`, or have the guardrails changed",
    "Some sites cost more quality than they save time, whatever the plan.",
)
PARTY = rule(
    "RKV619",
    "acknowledged-by-another-party",
    "the risk {risk} is acknowledged by {by}, and {rails} asks for {wanted}",
    "{guess}have it acknowledged by {wanted}",
    "A risk is accepted by whoever answers for it.",
)
NO_EXPIRY = rule(
    "RKV620",
    "acknowledgement-without-expiry",
    "the acknowledgement of {risk} does not say when it expires, and {rails} asks for that",
    "add `expires:` with a day{within}",
    "A risk that is accepted forever is never looked at again.",
)
EXPIRY_LATE = rule(
    "RKV621",
    "acknowledgement-for-too-long",
    "the acknowledgement of {risk} holds for {days} days, and {rails} allows {longest} at most",
    "let it expire on {latest} or before",
    "Models, traffic and taste change; a risk is accepted anew from time to time.",
)
BYTES = rule(
    "RKV622",
    "too-many-bytes",
    "the plan is predicted to hold {need} at {shape} in {dtype}, more than the {largest} of {rails} "
    "(model {model}, {steps} steps)",
    "cache fewer sites, store a narrower dtype, or give the rules a `budget`",
    "Memory that a cache takes is taken from the batch.",
)
EVIDENCE = rule(
    "RKV623",
    "evidence-not-good-enough",
    "the evidence is {status} for {scopes}, and {rails} asks for {wanted}",
    "{advice}",
    "A claim of quality is worth what was measured for it.",
)
THRESHOLD = rule(
    "RKV624",
    "threshold-not-kept",
    "the evidence does not keep {item} {sense} {limit:g} for {scopes}, as {rails} asks",
    "measure again with `refkv gate`, which judges by the guardrails, or change the plan",
    "Evidence is judged by the thresholds that hold in the repository, not by those it was written with.",
)
