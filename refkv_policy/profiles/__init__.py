"""Profiles: the shipped ones by name, one's own by path, any transformer's by its config."""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache
from pathlib import Path
from typing import Any

from refkv_policy.files import read_bounded
from refkv_policy.plain import from_plain
from refkv_policy.plan.diagnostic import RefkvError
from refkv_policy.plan.document import Document
from refkv_policy.plan.model import Path as KeyPath
from refkv_policy.plan.rules import MAX_BYTES
from refkv_policy.plan.wording import did_you_mean, listed
from refkv_policy.profiles import families
from refkv_policy.profiles.families import ClipError
from refkv_policy.profiles.profile import Profile
from refkv_policy.repository import check_inside
from refkv_policy.resources import resource

__all__ = [
    "ANY",
    "ClipError",
    "Profile",
    "ProfileError",
    "identify",
    "is_path",
    "load_profile",
    "names",
    "names_of",
    "profile_schema",
    "shipped_as",
]

FOLDER = Path(__file__).resolve().parent
ANY = "any"
"""In a plan's `models:`: whatever transformer its selectors resolve on."""


class ProfileError(RefkvError):
    """A profile that does not exist or is not one."""


def names() -> tuple[str, ...]:
    """Names of the shipped profiles, sorted."""
    return tuple(sorted(p.stem for p in FOLDER.glob("*.yaml")))


def shipped_as(profile: Profile) -> Profile | None:
    """The shipped profile of the model that a profile of another name describes; None for any other."""
    if profile.name in names():
        return None
    return next((each for each in map(_shipped, names()) if each.same_model(profile)), None)


def names_of(profile: Profile) -> tuple[str, ...]:
    """The names that a profile's model goes by: its own, and that of the shipped profile of the same model.

    A copy of a profile under another name is no way around what is said of that model.
    """
    same = shipped_as(profile)
    return (profile.name,) if same is None else (profile.name, same.name)


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
        plain = name.rsplit("/", 1)[-1].removesuffix("-diffusers")  # a model hub's owner/Name-diffusers
        guess = did_you_mean(plain, names())
        raise ProfileError(f"there is no profile {name!r}; {guess}shipped are {listed(names())}")
    from refkv_policy.plan.yaml_subset import load_document

    # Not checked against the schema, which a test does: every call of `validate` reads these.
    document, _ = load_document((FOLDER / f"{name}.yaml").read_text("utf-8"), name)
    assert document is not None
    return from_plain(Profile, document.value)


def _read(base: Path, reference: str) -> Profile:
    path = base / reference
    try:
        check_inside(path)
        return _parse(read_bounded(path, MAX_BYTES).decode("utf-8"), str(path))
    except OSError as error:
        raise ProfileError(f"the profile {path} cannot be read: {error.strerror}") from error
    except UnicodeDecodeError as error:
        raise ProfileError(f"the profile {path} is not UTF-8 text") from error


def _parse(text: str, file: str) -> Profile:
    from refkv_policy.plan.schema import check_schema
    from refkv_policy.plan.yaml_subset import load_document

    document, found = load_document(text, file)
    if document is not None and not found:
        _check_head(document)
        found = check_schema(document, profile_schema(), (), "the profile")
    if document is None or found:
        raise ProfileError("; ".join(f"{d} ({d.help})" for d in found))
    profile = from_plain(Profile, document.value)
    _check_facts(document, profile)
    return profile


@cache
def profile_schema() -> Mapping[str, Any]:
    """The published schema of profiles, version 1."""
    import json

    schema: Mapping[str, Any] = json.loads(resource("schemas/profile.v1.schema.json").read_text(encoding="utf-8"))
    return schema


def _check_head(document: Document) -> None:
    """Raises ProfileError for a document of another kind or version."""
    value = document.value
    if not isinstance(value, Mapping) or value.get("kind") != "profile" or value.get("version") != 1:
        raise ProfileError(f"{document.file} is not a profile: it must begin with `version: 1` and `kind: profile`")


def _check_facts(document: Document, profile: Profile) -> None:
    """Raises ProfileError for an unknown family, another family's layer map, or a layer set of layers that do not exist."""
    from refkv_policy.plan.selectors import SelectorError, parse_sites

    def fault(path: KeyPath, message: str) -> ProfileError:
        place = document.span(path if path[0] in document.value else ())
        return ProfileError(f"{document.file}:{place.line}:{place.column}: {message}")

    known = families.names()
    if profile.family not in known:
        guess = did_you_mean(profile.family, known)
        raise fault(
            ("family",), f"no model family `{profile.family}` is known; {guess}the families are {listed(known, 'and')}"
        )
    if (problem := families.family(profile.family).layers_fault(profile.main_blocks, profile.vace_at)) is not None:
        raise fault(("vace_at",), problem)
    for stack, named in profile.sets.items():
        for name in named:
            try:
                parse_sites(f"{stack}[{name}]").resolve(profile.counts, profile.sets)
            except SelectorError as error:
                raise fault(("sets", stack, name), f"{error.message} ({error.help})") from error


def identify(transformer: Any, candidates: tuple[Profile, ...] | None = None) -> Profile | None:
    """The first profile (of the shipped ones, unless given) whose architecture is the transformer's; None if none.

    Raises ValueError when the object is no transformer of a known family.
    """
    mine = Profile.from_transformer(transformer)
    for profile in candidates if candidates is not None else tuple(map(load_profile, names())):
        if mine.same_model(profile):
            return profile
    return None
