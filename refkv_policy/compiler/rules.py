"""Texts of the compiler's diagnostics.

RKV11x clips · 21x sites, models, steps · 3xx composition and tiers · 4xx quantization · 50x acknowledgements · 7xx lock.
"""

from __future__ import annotations

from refkv_policy.plan.catalogue import rule

# --- 114: what a model makes

FRAMES = rule(
    "RKV114",
    "frames",
    "a clip of {given} frames cannot be made: {model} takes {takes}",
    "{help}",
    "A video VAE keeps the first frame and compresses the others in time; by how much is the model's.",
)
SIZE = rule(
    "RKV115",
    "size",
    "{given} cannot be made: {model} takes {takes}",
    "{help}",
    "The VAE compresses space and a transformer takes patches of it; by how much is the model's.",
)

# --- 210: sites, models, methods

UNRESOLVED = rule(
    "RKV210",
    "selector-unresolved",
    "{message} (model {model})",
    "{help}",
    "A selector that names nothing would be a rule that silently does nothing.",
)
WRONG_SITE = rule(
    "RKV211",
    "site-not-for-method",
    "method {method} cannot stand at {site}{because}",
    "use it at {allowed}",
    "A method changes one kind of value; elsewhere it has no meaning, and what it costs, holds and spares is not known.",
)
SITE_TWICE = rule(
    "RKV212",
    "site-claimed-twice",
    "{site} is already governed by rule {other!r} (model {model})",
    "leave it out of one of the two selectors, for example with `!`",
    "Two rules at one site would leave it to their order what happens.",
)
_SKIPS = "it reuses what the stack adds while little changes, and nearest to it is `teacache`; "
_FIRST = "it reuses what the stack adds while its first blocks change little, and nearest to it is `{}`; "
_FORECASTS = "it forecasts values from earlier ones, and nearest to it is `taylor`; "
_REUSES = (
    "it reuses what blocks gave at an earlier step, and nearest to it is `residual_reuse`, at steps the plan lists; "
)
METHODS_ELSEWHERE = {
    **dict.fromkeys(("easycache", "seacache", "stepcache", "adacache"), _SKIPS),
    **dict.fromkeys(("fbcache", "firstblockcache"), _FIRST.format("firstblock")),
    **dict.fromkeys(("cachedit", "dicache"), _FIRST.format("dbcache")),
    **dict.fromkeys(("taylorseer", "taylorseercache", "hicache", "foca"), _FORECASTS),
    **dict.fromkeys(
        ("bwcache", "blockcache", "deepcache", "fora", "deltadit", "pab", "pyramidattentionbroadcast", "fastercache",
         "toca"), _REUSES),
}  # fmt: skip
"""Methods of other tools, in lower-case letters alone, and what here is nearest to each."""

UNKNOWN_METHOD = rule(
    "RKV213",
    "unknown-method",
    "there is no method {method!r}",
    "{guess}the methods are {known}",
    "A method that does not exist cannot be applied.",
)
UNKNOWN_PROFILE = rule(
    "RKV214",
    "unknown-profile",
    "{message}",
    "name a shipped profile (`refkv models`), a profile file, or `any`",
    "A plan is compiled and locked for each model it names.",
)
RULE_MODEL = rule(
    "RKV216",
    "rule-for-unlisted-model",
    "rule {name!r} is for {model}, which the plan does not list",
    "add it to the plan's `models`, or take it out here",
    "A rule for a model that the plan is not applied to never acts.",
)
STEPS_UNRESOLVED = rule(
    "RKV217",
    "steps-unresolved",
    "{message} ({steps} steps)",
    "{help}",
    "Steps that do not exist at a declared step count cannot be obeyed.",
)
UNKNOWN_SAMPLER = rule(
    "RKV218",
    "unknown-sampler",
    "sampler {name!r} is not supported",
    "{guess}the samplers are {known}",
    "The sampler fixes each step's sigma, which refreshes and forecasts depend on.",
)

NOT_FOR_PROFILE = rule(
    "RKV219",
    "plan-not-for-model",
    "the plan is not for {model}; it lists {listed}",
    "add the model to `models` (and review what the plan compiles to on it), or run another plan",
    "A plan is reviewed for the models it names.",
)
NOT_FOR_STEPS = rule(
    "RKV220",
    "plan-not-for-step-count",
    "the plan is not reviewed for {steps} steps; it lists {listed}",
    "run with one of those, or add {steps} to `run.steps` and review what the plan compiles to",
    "A step count decides which steps are refreshed; others are refused, not rescaled.",
)
NOT_FOR_GUIDANCE = rule(
    "RKV222",
    "plan-not-for-guidance",
    "the plan is not reviewed for guidance {guidance:g}; it lists {listed}",
    "run with one of those, or add {guidance:g} to `run.guidance` and review the plan",
    "Guidance decides whether the unconditional branch runs, and how far its errors are multiplied.",
)

PROFILE_NAME = rule(
    "RKV221",
    "profile-name-taken",
    "the profile {model} calls itself {name}, which is the name of {other}",
    "give the profile file another `name`, or list one of the two",
    "Tables, locks, evidence and guardrails know a model by its profile's name: of two with one name, one would be compiled "
    "and the other believed to be.",
)

# --- 300: composition and tiers

WRONG_TIER = rule(
    "RKV301",
    "wrong-tier",
    "method {method} is tier {actual}, not {stated}",
    "write `tier: {actual}`",
    "The tier is repeated in the plan so that a reviewer sees it; a wrong one would mislead.",
)
SAVES_NOTHING = rule(
    "RKV302",
    "saves-no-block",
    "rule {name!r} reuses {site} but saves no block: {because} (model {model}, {steps} steps)",
    'cache a suffix of the hints (such as "hint[deep]"), or say `params: {{chain: stale}}`',
    "VACE blocks form a chain: hint j needs block j, which needs block j-1's state. Only a suffix of the hints spares its "
    "blocks; reusing others approximates for nothing.",
)
WASTED_REUSE = rule(
    "RKV303",
    "reuse-of-a-computed-block",
    "{site} is reused at step {step}, but its block runs there for {deeper} (model {model}, {steps} steps)",
    "refresh {site} at every step at which a deeper hint is computed: intervals must not decrease down the chain",
    "A hint whose block runs anyway is free to compute; reusing it costs quality and saves nothing.",
)
NEVER_REUSES = rule(
    "RKV304",
    "rule-never-acts",
    "rule {name!r} never {never} (model {model}, {steps} steps)",
    "widen its `window` or its refresh, or remove the rule",
    "A rule that cannot fire is a cache that is believed in and does not exist.",
)
INTERVAL_ONE = rule(
    "RKV305",
    "interval-of-one",
    "rule {name!r} computes every step: an interval of 1 stores and saves nothing",
    "raise the interval, or remove the rule",
    "A rule that saves nothing is a cache that is believed in and does not exist. `refkv sweep` takes an interval of 1 for the "
    "plan without the rule.",
)
REFRESH_FORM = rule(
    "RKV306",
    "refresh-not-for-method",
    "method {method} {problem}",
    "{help}",
    "When a site is computed must be stated where the method needs it, and cannot be where it does not.",
)
REFRESH_UNFIT = rule(
    "RKV307",
    "refresh-does-not-fit",
    "{message} (model {model}, {steps} steps)",
    "{help}",
    "A refresh that the step count cannot honour would be rescaled or ignored.",
)
NO_FORECAST = rule(
    "RKV309",
    "forecast-never-happens",
    "rule {name!r} never forecasts: {because} (model {model}, {steps} steps)",
    "refresh at two steps or more with a step to forecast after them, raise `params: {{cap: …}}`, or use hint_reuse",
    "A forecast needs two fresh values of the hint; without them it is plain reuse under another name.",
)
OVER_BUDGET = rule(
    "RKV310",
    "budget-below-need",
    "rule {name!r} needs {need} at {shape} in bfloat16, more than its budget of {budget} (model {model}, {steps} steps)",
    "raise `store: {{budget: …}}`, cache fewer sites, or store a narrower dtype",
    "Over its budget the store drops hints and computes them: slower than planned.",
    severity="warning",
)
KEY_UNUSED = rule(
    "RKV311",
    "key-not-for-method",
    "method {method} takes no `{key}`",
    "remove it",
    "A key that the method ignores would promise something that does not happen.",
)
SCHEDULE_TWICE = rule(
    "RKV312",
    "two-step-schedules",
    "rule {name!r} is a second step schedule for {model}",
    "keep one",
    "The sampler runs on one grid.",
)
BRANCH_ABSENT = rule(
    "RKV313",
    "branch-never-runs",
    "rule {name!r} acts on the uncond branch, which guidance {guidance} never runs",
    "declare a guidance above 1, or use `branches: together`",
    "Without guidance there is no unconditional call.",
)

STALE_UNUSED = rule(
    "RKV314",
    "stale-chain-without-use",
    "rule {name!r} says `chain: stale`, but no computed hint goes on from a kept state (model {model}, {steps} steps)",
    "remove `chain: stale`: the rule's hints are a suffix of the chain",
    "A risk that is stated and not taken misleads whoever acknowledges it.",
)

FEW_STEP_MODEL = rule(
    "RKV315",
    "skipping-on-a-few-step-model",
    "rule {name!r} skips steps, and {model} is a few-step model: sigma falls by up to {drop:.2f} from one of its {steps} steps "
    "to the next",
    "remove the rule, and run the model at a step count of its own choice",
    "A few-step (distilled) model has no step that is like the one before: each does what many steps of another model do.",
)
FEW_STEPS = rule(
    "RKV316",
    "caching-among-few-steps",
    "rule {name!r} {does}, of which a run has only {steps}: sigma falls by up to {drop:.2f} from one to the next (model {model})",
    "remove the rule where the model is a few-step one; a run this short has little left to save",
    "Between the steps of a few-step (distilled) model a value drifts as far as over many steps of another, and only a few "
    "of them can be spared.",
    severity="warning",
)
HIDDEN_RULE = rule(
    "RKV317",
    "rule-hidden-by-outer-reuse",
    "rule {name!r} never acts at {sites}: {because} (model {model}, {steps} steps)",
    "remove the rule, or refresh {outer} at a second step",
    "An outer site that is reused means that its inner ones are not reached: a cache there is believed in and does not exist.",
)
HIDDEN_SITES = rule(
    "RKV318",
    "sites-hidden-by-outer-reuse",
    "rule {name!r} never acts at {sites}: {because} (model {model}, {steps} steps)",
    "take {sites} out of the selector",
    "An outer site that is reused means that its inner ones are not reached: what the selector names there does nothing.",
    severity="warning",
)
SPANS_OVERLAP = rule(
    "RKV320",
    "spans-overlap",
    "{message} (model {model})",
    "let one hold the other, or let them be apart",
    "Blocks that two spans share in part would be reused by one and computed for the other.",
)
HINTS_APART_AROUND = rule(
    "RKV321",
    "hints-apart-around-another-region",
    "rule {name!r} keeps the residual of {site} apart from its hints, and rule {other!r} keeps {inner} inside it "
    "(model {model})",
    "keep the hints with it (`params: {{hints: with}}`), or take {inner} out of the other rule",
    "A hint must be counted once: the residual inside may hold it, and the one around it leaves it out.",
)
INTERVAL_BEYOND = rule(
    "RKV319",
    "interval-beyond-the-run",
    "rule {name!r} has an interval of {interval}, which never ends: nothing that it reuses is older than {oldest} steps "
    "(model {model}, {steps} steps)",
    'shorten the interval, or list the steps, such as `refresh: {{steps: "0"}}`, where one refresh is what is meant',
    "A reviewer reads an interval as a bound on a value's age; here only the end of the run, or of the window, bounds it.",
    severity="warning",
)

NO_RULES = rule(
    "RKV322",
    "plan-without-rules",
    "the plan has no rule: everything is computed",
    'write a rule, such as `- {{name: text, tier: P0, method: text_kv, at: "main[all].text_kv"}}`',
    "A plan that caches nothing is more often unfinished than meant, and whoever runs it believes in a cache.",
    severity="warning",
)

# --- 400: quantization

NO_BACKEND = rule(
    "RKV401",
    "attention-dtype-without-backend",
    "no attention backend {where} computes in {dtype}",
    "use `dtype: native`, or say that the plan is served where one does ({served}); quantized attention is refused, never "
    "silently left native",
    "A quantization that does not happen is a measurement of something else.",
)
LOSSLESS_QUANTIZED = rule(
    "RKV402",
    "lossless-under-quantization",
    "rule {name!r} claims P0, which quantized attention breaks",
    "write `lossless: downgrade` and acknowledge {risk}, or use native attention",
    "Bit-exactness is asserted in native precision only.",
)
UNKNOWN_BACKEND = rule(
    "RKV403",
    "unknown-attention-backend",
    "no attention backend {backend!r} is known to compute in a dtype narrower than the model's",
    "{guess}the backends are {known}",
    "A backend that ignored the dtype would run another computation than the one reviewed.",
)
BACKEND_DTYPE = rule(
    "RKV404",
    "backend-without-dtype",
    "the {path} backend {backend} does not compute in {dtype}: it has {has}",
    "choose one of its dtypes, or {others}",
    "An operator is not retried with another precision: the request fails when it is served.",
)
QUANTIZATION_IDLE = rule(
    "RKV405",
    "quantization-key-without-effect",
    "`{key}` has no effect: {because}",
    "remove it, or write what it is meant for",
    "A key that changes nothing is believed in by whoever reads it.",
)
NOT_QUANTIZED_ANYWAY = rule(
    "RKV406",
    "skipped-layer-is-native-anyway",
    "{site} is native anyway: only the self-attention of `main` and `vace` blocks is quantized (model {model})",
    'name blocks, such as "main[0-2]" or "vace[0].self"',
    "Cross-attention keeps its native dtype on every backend, and hints and feed-forwards are not attention; naming them "
    "suggests that the others were quantized.",
)
NEVER_QUANTIZED = rule(
    "RKV407",
    "quantization-never-happens",
    "`{key}` keeps everything native, so nothing is computed in {dtype} (model {model}, {steps} steps)",
    "skip less, or write `dtype: native`",
    "A quantization that cannot happen is believed in and does not exist.",
)

# --- 500: acknowledgements

UNACKNOWLEDGED = rule(
    "RKV501",
    "risk-not-acknowledged",
    "rule {name!r} carries the risk {risk}, which nobody acknowledges",
    "add to `acknowledgements`: `- {{risk: {risk}, by: …, date: …, reason: …}}`",
    "A lossy cache is off unless a named party accepts its risk.",
)
UNKNOWN_RISK = rule(
    "RKV502",
    "acknowledgement-of-nothing",
    "no rule of this plan carries the risk {risk!r}",
    "{guess}remove the acknowledgement, or name a risk that the plan carries ({known})",
    "An acknowledgement that fits nothing hides that the one needed is missing.",
)
ACK_EXPIRED = rule(
    "RKV503",
    "acknowledgement-expired",
    "the acknowledgement of {risk} by {by} expired on {expires}",
    "have it renewed: a new `date` and `expires`",
    "Risks are accepted for a time.",
)
ACK_FUTURE = rule(
    "RKV504",
    "acknowledgement-from-the-future",
    "the acknowledgement of {risk} is dated {date}, after today ({today})",
    "state the day on which it was given",
    "Nothing is acknowledged before it is.",
)
ACK_BACKWARDS = rule(
    "RKV505",
    "acknowledgement-expires-before-its-date",
    "the acknowledgement of {risk} expires on {expires}, before its own date {date}",
    "correct one of the two dates",
    "Such an acknowledgement was never in force.",
)

# --- 700: lock

LOCK_MISSING = rule(
    "RKV701",
    "lock-missing",
    "there is no lock {lock}",
    "run `refkv compile {plan}` and check the lock in",
    "A reviewer reads what a plan compiles to in its lock.",
)
LOCK_STALE = rule(
    "RKV702",
    "lock-stale",
    "the lock {lock} is not what this plan compiles to: {difference}",
    "run `refkv compile {plan}` and review what changed",
    "A stale lock shows a reviewer a behaviour that is not the plan's.",
)
