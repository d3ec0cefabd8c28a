"""The rules of the plan language: files and YAML (RKV0xx), schema (RKV1xx), selector syntax (RKV201 to RKV209)."""

from __future__ import annotations

from refkv_policy.plan.catalogue import rule

MAX_BYTES = 1 << 20
MAX_DEPTH = 32
MAX_NODES = 20_000
MAX_DIGITS = 18

ELSEWHERE = {
    **dict.fromkeys(("teacache", "tea_cache", "teacache_thresh", "rel_l1_thresh"), "TeaCache"),
    **dict.fromkeys(("magcache", "mag_cache", "magcache_thresh", "mag_ratios", "retention_ratio"), "MagCache"),
    **dict.fromkeys(("fbcache", "first_block_cache", "residual_diff_threshold"), "FirstBlockCache and cache-dit"),
    **dict.fromkeys(
        ("cache_dit", "cache_config", "dbcache", "dbcache_config", "fn_compute_blocks", "bn_compute_blocks",
         "max_warmup_steps", "max_cached_steps", "max_continuous_cached_steps", "enable_separate_cfg",
         "calibrator_config"), "cache-dit"),
    **dict.fromkeys(("taylorseer", "taylorseer_order", "max_order"), "TaylorSeer"),
}  # fmt: skip
"""Keys of other caching tools, in lower case, and whose they are."""

NOT_A_LIST = {
    "interval": "a rule has one interval: write a rule for each group of sites, such as `hint[2-3]` every 2 steps and "
    "`hint[4-5]` every 4",
}
"""What to write where a list or a mapping stands in the place of one value."""

# Files and YAML ------------------------------------------------------------------------------------------------------

MISSING_FILE = rule(
    "RKV001",
    "missing-file",
    "there is no such file",
    "check the path; shipped plans are listed by `refkv plans`",
    "A plan that cannot be found must not be taken for a plan without rules.",
)
NOT_A_FILE = rule(
    "RKV002",
    "not-a-file",
    "this is a directory, not a plan",
    "name a YAML file in it",
    "One plan is one file.",
)
UNREADABLE_FILE = rule(
    "RKV003",
    "unreadable-file",
    "the file cannot be read: {reason}",
    "check its permissions and its path",
    "Nothing can be said about a file that the system does not hand over.",
)
EMPTY_FILE = rule(
    "RKV004",
    "empty-file",
    "the file holds nothing but {what}",
    "write what it is for; a plan begins with `version: 1` and `kind: plan`",
    "An empty file is a slip: a plan that caches nothing says so, and is warned of, with `caches: []`.",
)
TOO_LARGE = rule(
    "RKV005",
    "too-large",
    f"the file is larger than {MAX_BYTES} bytes",
    "check that it is a plan: a real one has a few thousand bytes",
    "The limit is checked before parsing, so that no input can tie up a review machine.",
)
NOT_UTF8 = rule(
    "RKV006",
    "not-utf8",
    "the file is not UTF-8{guess}: byte 0x{byte:02x} at offset {offset} does not belong there",
    "save the file as UTF-8",
    "Plans are UTF-8 (a byte order mark is tolerated), so that everyone reads the same characters.",
)
FORBIDDEN_CHARACTER = rule(
    "RKV007",
    "forbidden-character",
    "the character {name} is not allowed in a plan",
    "delete it; it is invisible in most editors",
    "Control characters, exotic line breaks and text-direction overrides make a reviewer see another text than the one "
    "that is run.",
)
SYNTAX = rule(
    "RKV010",
    "yaml-syntax",
    "{problem}",
    "{advice}",
    "Where the YAML itself is broken, nothing after that point can be trusted.",
)
TOO_DEEP = rule(
    "RKV011",
    "too-deep",
    f"the nesting is deeper than {MAX_DEPTH} levels",
    "flatten it: a plan needs fewer than ten",
    "A depth limit keeps hostile or garbled input from exhausting the reader.",
)
SEVERAL_DOCUMENTS = rule(
    "RKV012",
    "several-documents",
    "a second YAML document begins here",
    "put each plan in a file of its own and delete the `---`",
    "With two documents in a file it would be unclear which one was reviewed and which one is run.",
)
DUPLICATE_KEY = rule(
    "RKV013",
    "duplicate-key",
    "the key {key} stands here a second time; first on line {line}",
    "keep one of the two",
    "YAML readers silently keep the last one, so the line a reviewer looks at may do nothing.",
)
ALIAS = rule(
    "RKV014",
    "alias",
    "the alias {text} is not part of the plan language",
    "write the value out here",
    "Aliases let a change in one place alter another that no diff shows.",
)
TAG = rule(
    "RKV015",
    "tag",
    "the tag {text} is not part of the plan language",
    "delete the tag; write texts in quotes and numbers without",
    "Tags change the type of a value, and in careless readers run code.",
)
MERGE_KEY = rule(
    "RKV016",
    "merge-key",
    "the merge key `<<` is not part of the plan language",
    "write the merged keys out here",
    "Merge keys left YAML with version 1.2, and hide what a rule says.",
)
KEY_NOT_TEXT = rule(
    "RKV017",
    "key-not-text",
    "a key must be a word, and this one is {given}",
    "{advice}",
    "The plan language has no keys but words; others come from a misplaced colon or bracket.",
)
NOT_FINITE = rule(
    "RKV018",
    "not-finite",
    "{text} is not a finite number",
    "write a finite number; for no limit at all leave the key out",
    "Infinity and not-a-number make every later comparison true or false for the wrong reason.",
)
NUMBER_TOO_LONG = rule(
    "RKV019",
    "number-too-long",
    f"the number {{text}} has more than {MAX_DIGITS} digits",
    "write a smaller number, or put it in quotes if it is a text",
    "No quantity in a plan needs that many digits, and other readers would round it.",
)
DIRECTIVE = rule(
    "RKV020",
    "directive",
    "YAML directives are not part of the plan language",
    "delete the lines that begin with `%`",
    "A directive changes how the rest of the file is read; plans are always YAML 1.2.",
)
NOT_A_MAPPING = rule(
    "RKV021",
    "not-a-mapping",
    "a plan is a mapping of keys to values, and this file is {given}",
    "begin with `version: 1` and `kind: plan`, without a leading dash or indentation",
    "Everything in a plan has a name.",
)
TAB_INDENTATION = rule(
    "RKV022",
    "tab-indentation",
    "a tab stands here where YAML wants spaces",
    "indent with spaces",
    "The width of a tab differs between editors, so YAML forbids it as indentation.",
)
ANCHOR = rule(
    "RKV023",
    "anchor",
    "the anchor {text} is not part of the plan language",
    "delete it, and write the value out wherever it was used",
    "Anchors exist for aliases, and aliases let a change in one place alter another that no diff shows.",
)
TOO_MANY_NODES = rule(
    "RKV024",
    "too-many-values",
    f"the file holds more than {MAX_NODES} values",
    "check that it is a plan: a real one has a few hundred",
    "A limit keeps hostile or garbled input from exhausting the reader.",
)

# Schema --------------------------------------------------------------------------------------------------------------

NOT_A_PLAN = rule(
    "RKV100",
    "not-a-plan",
    "the file has neither `version` nor `kind`, so it is not a refkv document",
    "if it is a plan, begin it with `version: 1` and `kind: plan`",
    "Version and kind are read before anything else: they say by which rules the rest is to be read.",
)
UNKNOWN_KEY = rule(
    "RKV101",
    "unknown-key",
    "`{key}` is not a key of {place}",
    "{advice}",
    "A mistyped key that was ignored would leave its default silently in force.",
)
MISSING_KEY = rule(
    "RKV102",
    "missing-key",
    "{place} lacks the key `{key}`",
    "add it: {example}",
    "Required keys have no default, because no default would be safe.",
)
WRONG_TYPE = rule(
    "RKV103",
    "wrong-type",
    "{place} must be {wanted}, and is {given}",
    "{advice}",
    "Values are never converted: `4.0` is not an integer, `true` is not a number, `4` is not a text.",
)
NOT_A_CHOICE = rule(
    "RKV104",
    "not-a-choice",
    "{place} cannot be {given}",
    "{suggestion}choose {choices}",
    "A closed list of choices is checked here, so that a mistyped one is not taken for a new one.",
)
WRONG_FORM = rule(
    "RKV105",
    "wrong-form",
    "{given} is not {wanted}",
    "{advice}",
    "Texts with a form (names, sizes, dates, amounts of memory) are checked before anything relies on them.",
)
OUT_OF_RANGE = rule(
    "RKV106",
    "out-of-range",
    "{place} is {given}, and must be {bound}",
    "write a number that is {bound}",
    "Outside this range the value has no meaning, or a meaning that nobody intends.",
)
UNKNOWN_VERSION = rule(
    "RKV107",
    "unknown-version",
    "this refkv reads version {known}, and the file says {given}",
    "{advice}",
    "A changed meaning is a new version; a reader that guessed would run another plan than the one that was written.",
)
UNKNOWN_KIND = rule(
    "RKV108",
    "unknown-kind",
    "`kind` is {given}, and a plan is expected here",
    "{suggestion}a plan says `kind: plan`",
    "Plans, guardrails and profiles are different documents with different rules.",
)
REFRESH_FORM = rule(
    "RKV109",
    "refresh-form",
    "`refresh` {fault}",
    'give exactly one of `interval: 4`, `steps: "0,1,8,15"`, or `spacing: sigma` with `count: 11`',
    "Two ways to say when sites are computed afresh would contradict each other.",
)
LIST_LENGTH = rule(
    "RKV110",
    "list-length",
    "{place} has {given}, and must have {bound}",
    "{advice}",
    "An empty list would make the key mean nothing.",
)
REPEATED_VALUE = rule(
    "RKV111",
    "repeated-value",
    "{value} stands in {place} twice",
    "keep one of the two",
    "A value listed twice is a slip: often one of the two was meant to be another.",
)
REPEATED_NAME = rule(
    "RKV112",
    "repeated-name",
    "another rule is already named `{name}`, on line {line}",
    "give each rule a name of its own",
    "Audit logs, locks and diffs speak of rules by their names.",
)
INVALID_DATE = rule(
    "RKV113",
    "invalid-date",
    "{given} is not a day of the calendar",
    "write year, month and day, such as 2026-11-29",
    "An acknowledgement expires on a day, so the day has to exist.",
)
SHORT_TEXT = rule(
    "RKV116",
    "text-length",
    "{place} is {fault}",
    "{advice}",
    "A text that must be given must say something, and names must fit on a line.",
)
NOT_MATCHING = rule(
    "RKV117",
    "not-matching-schema",
    "{place} does not fit its schema: {reason}",
    "compare it with the schema (`refkv schema`)",
    "A method's own schema may use any keyword of JSON Schema.",
)
ANY_AMONG_OTHERS = rule(
    "RKV118",
    "any-among-others",
    "`any` stands beside other models",
    "list either `any` alone or the models by name",
    "Since `any` takes every model that the selectors resolve on, the other entries would mean nothing.",
)
BUDGET_FRACTION = rule(
    "RKV119",
    "budget-fraction",
    "the budget {given} is not a whole number of bytes, at least one",
    "write a smaller unit, such as 512MiB",
    "Budgets are held to the byte.",
)

# Selector syntax -----------------------------------------------------------------------------------------------------

SELECTOR_SYNTAX = rule(
    "RKV201",
    "selector-syntax",
    "{problem}",
    "{advice}",
    "Selectors have a small grammar with one parser; what it does not know is never guessed.",
)
UNKNOWN_STACK = rule(
    "RKV202",
    "unknown-stack",
    "`{name}` is not a stack of sites",
    "{suggestion}a selector begins with `main`, `vace`, `hint`, `step` or `cfg`",
    "A selector names its stack, since layer 3 of `vace` and of `main` are different things.",
)
UNKNOWN_PART = rule(
    "RKV203",
    "unknown-part",
    "{problem}",
    "{advice}",
    "Only the blocks of `main` and `vace` have parts: `self`, `cross`, `ffn` and `text_kv`.",
)
SLICE = rule(
    "RKV204",
    "slice",
    "`{text}` is a Python slice, and selectors have none: they leave the last number out, ranges have it in",
    "{advice}",
    "Half of all readers take `0:3` for three layers and the other half for four.",
)
REVERSED_RANGE = rule(
    "RKV205",
    "reversed-range",
    "the range `{text}` runs backwards",
    "write `{swapped}`",
    "A reversed range would match nothing.",
)
NEGATIVE_NUMBER = rule(
    "RKV206",
    "negative-number",
    "`{text}` counts from the end, and selectors do not",
    "{advice}",
    "What a negative number means depends on the model; named sets and `last N` say it in words.",
)
EMPTY_SELECTOR = rule(
    "RKV207",
    "empty-selector",
    "{problem}",
    "{advice}",
    "A selector that selects nothing would make its rule a silent no-op.",
)
BRACKETS = rule(
    "RKV208",
    "brackets",
    "{problem}",
    "{advice}",
    "The sites of `main`, `vace` and `hint` are numbered; `step` and `cfg` are single ones.",
)
NOTHING_TO_EXCLUDE = rule(
    "RKV209",
    "nothing-to-exclude",
    "`{text}` excludes from what precedes it, and nothing does",
    "write `all,{text}`",
    "An exclusion alone selects nothing.",
)
