"""The catalogue: codes by family, texts that are sentences for a person."""

from __future__ import annotations

import re
import string

import pytest

from refkv_policy.plan import RULES, Rule
from refkv_policy.plan import rules as language
from refkv_policy.plan.catalogue import rule

OWN = [value for value in vars(language).values() if isinstance(value, Rule)]


@pytest.mark.parametrize("entry", OWN, ids=lambda entry: entry.code)
def test_texts_are_one_line_sentences(entry: Rule) -> None:
    """A message and a help are one line without a final stop; the reason is whole sentences."""
    assert re.fullmatch(r"RKV(0\d\d|1\d\d|20[1-9])", entry.code)
    assert re.fullmatch(r"[a-z0-9]+(-[a-z0-9]+)*", entry.name)
    for text in (entry.message, entry.help):
        assert "\n" not in text
        assert not text.endswith((".", " "))
    assert entry.why[0].isupper()
    assert entry.why.endswith(".")


@pytest.mark.parametrize("entry", OWN, ids=lambda entry: entry.code)
def test_templates_are_filled_by_name(entry: Rule) -> None:
    """Templates have named fields only, so that a value with braces in it is never a template."""
    for text in (entry.message, entry.help):
        assert all(name is None or name.isidentifier() for _, name, _, _ in string.Formatter().parse(text))


def test_a_code_and_a_name_are_taken_once() -> None:
    """Registering a code or a name a second time is refused."""
    known = next(iter(RULES.values()))
    with pytest.raises(ValueError, match="registered twice"):
        rule(known.code, "new-name", "", "", "")
    with pytest.raises(ValueError, match="registered twice"):
        rule("RKV999", known.name, "", "", "")
    assert "RKV999" not in RULES
