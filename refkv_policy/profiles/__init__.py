"""Profiles: the shipped ones by name, one's own by path, any transformer's by its config."""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache
from pathlib import Path
from typing import Any

from refkv_policy.plan.diagnostic import RefkvError
from refkv_policy.plan.wording import did_you_mean, listed
from refkv_policy.profiles.profile import Profile, freeze

__all__ = ["ANY", "Profile", "ProfileError", "identify", "is_path", "load_profile", "names"]

FOLDER = Path(__file__).resolve().parent
ANY = "any"
"""In a plan's `models:`: whatever transformer its selectors resolve on."""

_TUPLES = ("vace_at", "patch", "vae_scale")


class ProfileError(RefkvError):
    """A profile that does not exist or is not one."""


def names() -> tuple[str, ...]:
    """Names of the shipped profiles, sorted."""
    return tuple(sorted(p.stem for p in FOLDER.glob("*.yaml")))


def is_path(reference: str) -> bool:
    """Whether an entry of `models:` is a path of a profile file."""
    return reference.endswith((".yaml", ".yml"))


def load_profile(reference: str, base: Path | None = None) -> Profile:
    """A shipped profile by name, or one's own by a path relative to `base`. Raises ProfileError with a sentence."""
    if is_path(reference):
        return _read(Path(base or "."), reference)
    return _shipped(reference)


@cache
def _shipped(name: str) -> Profile:
    if name not in names():
        guess = did_you_mean(name, names())
        raise ProfileError(f"there is no profile {name!r}; {guess}shipped are {listed(names())}")
    return _parse((FOLDER / f"{name}.yaml").read_text("utf-8"), name)


def _read(base: Path, reference: str) -> Profile:
    path = base / reference
    try:
        return _parse(path.read_text("utf-8"), str(path))
    except OSError as error:
        raise ProfileError(f"the profile {path} cannot be read: {error.strerror}") from error
    except UnicodeDecodeError as error:
        raise ProfileError(f"the profile {path} is not UTF-8 text") from error


def _parse(text: str, file: str) -> Profile:
    from refkv_policy.plan.yaml_subset import load_document

    document, diagnostics = load_document(text, file)
    if document is None:
        raise ProfileError("; ".join(str(d) for d in diagnostics))
    return from_mapping(document.value, file)


def from_mapping(value: Any, file: str) -> Profile:
    """The profile of a parsed document. Raises ProfileError naming the key at fault."""
    if not isinstance(value, Mapping) or value.get("kind") != "profile" or value.get("version") != 1:
        raise ProfileError(f"{file} is not a profile: it must begin with `version: 1` and `kind: profile`")
    fields = {k: v for k, v in value.items() if k not in ("version", "kind")}
    unknown = sorted(set(fields) - set(Profile.__dataclass_fields__))
    if unknown:
        raise ProfileError(f"{file}: unknown key {unknown[0]!r} in the profile")
    for name, entry in fields.items():
        _check_field(file, name, entry)
    fields |= {k: tuple(fields[k]) for k in _TUPLES if k in fields}
    fields["sets"] = freeze(fields.get("sets", {}))
    try:
        profile = Profile(**fields)
    except TypeError as error:
        raise ProfileError(f"{file}: the profile lacks {str(error).rpartition(': ')[2]}") from error
    at = profile.vace_at
    if not at or list(at) != sorted(set(at)) or at[0] != 0 or at[-1] >= profile.main_blocks:
        raise ProfileError(f"{file}: vace_at must ascend from 0 and stay below main_blocks ({profile.main_blocks})")
    return profile


def _check_field(file: str, name: str, entry: Any) -> None:
    """Raises ProfileError when a field has not its type."""

    def positive(item: Any) -> bool:
        return type(item) is int and item > 0

    if name in ("name", "title", "family"):
        fine = isinstance(entry, str) and bool(entry)
    elif name == "few_step":
        fine = isinstance(entry, bool)
    elif name == "sets":
        fine = isinstance(entry, Mapping) and all(
            isinstance(named, Mapping) and all(isinstance(text, str) for text in named.values())
            for named in entry.values()
        )
    elif name in _TUPLES:
        fine = isinstance(entry, list) and all(type(item) is int and item >= 0 for item in entry)
        fine = fine and (
            name == "vace_at" or (all(map(positive, entry)) and len(entry) == (3 if name == "patch" else 2))
        )
    else:
        fine = positive(entry)
    if not fine:
        raise ProfileError(f"{file}: the profile's {name!r} has a value it cannot have: {entry!r}")


def identify(transformer: Any, candidates: tuple[Profile, ...] | None = None) -> Profile | None:
    """The first profile (of the shipped ones, unless given) whose architecture is the transformer's; None if none.

    Raises ValueError when the object is not a Wan VACE transformer.
    """
    mine = Profile.from_transformer(transformer)
    for profile in candidates if candidates is not None else tuple(map(load_profile, names())):
        if mine.same_model(profile):
            return profile
    return None
