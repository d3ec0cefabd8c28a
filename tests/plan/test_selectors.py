"""Selectors: what they name, by brute force, and where their errors point."""

from __future__ import annotations

import re
from collections.abc import Callable

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from refkv_policy.plan.selectors import PARTS, SelectorError, Site, parse_sites, parse_steps, parse_window

COUNTS = {"main": 30, "vace": 15, "hint": 15}
SETS = {"hint": {"deep": "8-14", "ends": "0-1,13-14", "most": "all,!0"}, "main": {"early": "0-9"}}
Written = tuple[bool, str, int, int]
"""Whether a term excludes, its kind, and its one or two numbers."""
BLANKS = st.sampled_from(["", " ", "  "])


def reading(terms: list[Written], count: int) -> set[int] | None:
    """The numbers that terms name, by asking of each number in turn; None where a term does nothing or goes too far."""
    kept: set[int] = set()
    for position, (exclude, kind, a, b) in enumerate(terms):
        named = {
            n
            for n in range(64)
            if (kind == "all" and n < count)
            or (kind == "one" and n == a)
            or (kind == "range" and a <= n <= b)
            or (kind == "first" and n < a)
            or (kind == "last" and count - a <= n < count)
        }
        if any(n >= count for n in named) or (kind in ("first", "last") and not 0 < a <= count):
            return None
        if exclude and (position == 0 or not named & kept):
            return None
        kept = kept - named if exclude else kept | named
    return kept or None


def written(term: Written, dash: str, blank: str) -> str:
    """A term as text."""
    exclude, kind, a, b = term
    body = {
        "all": "all",
        "one": f"{a}",
        "range": f"{a}{blank}{dash}{blank}{b}",
        "first": f"first {a}",
        "last": f"last {a}",
    }[kind]
    return ("!" + blank if exclude else "") + body


def terms(kinds: list[str], top: int, excluding: bool = True) -> st.SearchStrategy[list[Written]]:
    """Lists of terms, of which a number may be just out of range."""
    numbers = st.tuples(st.integers(0, top), st.integers(0, top)).map(sorted)
    exclude = st.booleans() if excluding else st.just(False)
    one = st.tuples(exclude, st.sampled_from(kinds), numbers).map(lambda t: (t[0], t[1], *t[2]))
    return st.lists(one, min_size=1, max_size=6)


@settings(deadline=None)
@given(terms(["all", "one", "range"], 16), st.sampled_from(["", *PARTS]), BLANKS)
def test_site_selectors_name_what_brute_force_says(found: list[Written], part: str, blank: str) -> None:
    """A selector's sites are those that its terms name one after the other, or it is refused where a term is void."""
    text = f"vace[{(',' + blank).join(written(term, '-', blank) for term in found)}]" + (f".{part}" if part else "")
    expected = reading(found, COUNTS["vace"])
    if expected is None:
        with pytest.raises(SelectorError):
            parse_sites(text).resolve(COUNTS)
    else:
        assert parse_sites(text).resolve(COUNTS) == tuple(Site("vace", n, part or None) for n in sorted(expected))


@settings(deadline=None)
@given(terms(["all", "one", "range", "first", "last"], 31), BLANKS)
def test_windows_name_what_brute_force_says(found: list[Written], blank: str) -> None:
    """A window's steps are those that its terms name one after the other, or it is refused where a term is void."""
    text = (blank + ",").join(written(term, "..", blank) for term in found)
    expected = reading(found, 30)
    if expected is None:
        with pytest.raises(SelectorError):
            parse_window(text).resolve(30)
    else:
        assert parse_window(text).resolve(30) == expected


@settings(deadline=None)
@given(terms(["one", "range"], 31, excluding=False), BLANKS)
def test_step_lists_name_what_brute_force_says(found: list[Written], blank: str) -> None:
    """A list of steps names each of its steps once, ascending, or is refused when one is out of range."""
    text = ("," + blank).join(written(term, "-", blank) for term in found)
    expected = reading(found, 30)
    if expected is None:
        with pytest.raises(SelectorError):
            parse_steps(text).resolve(30)
    else:
        assert parse_steps(text).resolve(30) == tuple(sorted(expected))


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("hint[deep]", range(8, 15)),
        ("hint[ends]", (0, 1, 13, 14)),
        ("hint[most]", range(1, 15)),
        ("hint[deep,!14]", range(8, 14)),
        ("hint[0,deep]", (0, *range(8, 15))),
        ("hint[all,!deep]", range(8)),
        ("hint[all,!deep,9]", (*range(8), 9)),
    ],
)
def test_named_sets_are_the_profiles(text: str, expected: range | tuple[int, ...]) -> None:
    """A name in brackets stands for the profile's set of that stack, in any place of a number."""
    assert parse_sites(text).resolve(COUNTS, SETS) == tuple(Site("hint", n) for n in expected)


@pytest.mark.parametrize("text", ["step", "cfg", " step "])
def test_single_sites_need_no_model(text: str) -> None:
    """`step` and `cfg` name one site each, whatever the model."""
    assert parse_sites(text).resolve({}) == (Site(text.strip()),)


@pytest.mark.parametrize("text", ["main[7].self", "main[7]", "hint[3]", "step", "cfg", "vace[0].text_kv"])
def test_a_sites_name_is_a_selector_of_it(text: str) -> None:
    """Writing a site and reading it again gives the same site."""
    (site,) = parse_sites(text).resolve(COUNTS)
    assert str(site) == text


@pytest.mark.parametrize(
    ("text", "reason", "at", "says"),
    [
        ("hint[15]", "out-of-range", "15", "0 to 14"),
        ("hint[3,8-15]", "out-of-range", "8-15", "0 to 14"),
        ("hint[deeep]", "unknown-set", "deeep", "did you mean `deep`"),
        ("vace[deep]", "unknown-set", "deep", "no named sets"),
        ("hint[all,!all]", "matches-nothing", "hint[all,!all]", "matches nothing"),
        ("hint[0-3,!7]", "matches-nothing", "!7", "excludes nothing"),
    ],
)
def test_resolution_errors_say_where_and_what_there_is(text: str, reason: str, at: str, says: str) -> None:
    """A selector that fits no site says which of its words is at fault and what the model has."""
    with pytest.raises(SelectorError) as caught:
        parse_sites(text).resolve(COUNTS, SETS)
    error = caught.value
    assert (error.rule, error.reason, text[error.start : error.end]) == (None, reason, at)
    assert says in f"{error.message}; {error.help}"


def test_a_model_without_the_stack_is_refused() -> None:
    """A selector of a stack that the model does not have is an error, not nothing."""
    with pytest.raises(SelectorError, match="no `hint` sites") as caught:
        parse_sites("hint[all]").resolve({"main": 30})
    assert "`main`" in caught.value.help


@pytest.mark.parametrize("text", ["8-20", "deeper", "", "3-1", "all,!all"])
def test_a_faulty_set_is_the_profiles_fault(text: str) -> None:
    """A layer set that cannot be resolved is reported as the profile's, at the name in the plan."""
    with pytest.raises(SelectorError, match="the profile's set `deep`") as caught:
        parse_sites("hint[deep]").resolve(COUNTS, {"hint": {"deep": text}})
    assert (caught.value.reason, caught.value.start, caught.value.end) == ("bad-set", 5, 9)


@settings(deadline=None)
@given(st.text(max_size=40) | st.text(alphabet="mainvcehtsp[]!,.-:0123 all", max_size=30))
def test_any_text_is_read_or_refused_in_place(text: str) -> None:
    """No text gives anything but a selector or an error with a rule, a help and offsets within the text."""
    for parse in (parse_sites, parse_steps, parse_window):
        error = refusal(parse, text)
        if error is not None:
            assert error.rule is not None
            assert re.fullmatch(r"RKV20[1-9]", error.rule.code)
            assert 0 <= error.start <= error.end <= len(text)
            assert error.message
            assert error.help
            assert text == "" or error.start < error.end


def refusal(parse: Callable[[str], object], text: str) -> SelectorError | None:
    """The error that parsing a text gives, if any."""
    try:
        parse(text)
    except SelectorError as error:
        return error
    return None


@pytest.mark.parametrize("text", ["main[0:3]", "main[1,0:3]", "main[:3]", "main[2:]", "main[::2]"])
def test_slices_are_refused_with_both_readings(text: str) -> None:
    """A Python slice is refused; where it has two ends, the help writes both of its readings."""
    with pytest.raises(SelectorError) as caught:
        parse_sites(text)
    assert caught.value.rule is not None
    assert caught.value.rule.code == "RKV204"
    if "0:3" in text:
        assert "`0-2`" in caught.value.help
        assert "`0-3`" in caught.value.help
