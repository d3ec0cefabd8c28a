"""A method of another distribution: found by its entry point, and refused where it cannot be one."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from refkv_policy import methods
from refkv_policy.methods import Method
from tests.methods.placements import SITES, place

MODULE = '''
from refkv_policy.methods import Lowered, Method
from refkv_policy.methods.method import reuse_between


class EveryOther(Method):
    """Reuses a run of main blocks at every second step that is reached."""

    name = "every_other"
    title = "reuse the residual at every second step"
    tier = "S"
    risk = "lossy-main-cache"
    sites = frozenset({("main", "span")})
    keeps = "residual"

    def fresh_without_refresh(self, grid):
        return frozenset(grid.evaluated[::2])

    def lower(self, at):
        return Lowered(reuse_between(at))


class BroadcastFeedForward(EveryOther):
    """The same for the output of a feed-forward."""

    name = "broadcast_ffn"
    sites = frozenset({("main", "ffn"), ("vace", "ffn")})
    keeps = "output"


class Impostor(EveryOther):
    """Claims a name that is taken."""

    name = "magcache"


every_other, broadcast_ffn, impostor, no_method = EveryOther(), BroadcastFeedForward(), Impostor(), object()
'''


@pytest.fixture
def install(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[object]:
    """Installs a distribution that offers the named objects of `MODULE`; what was found before it is forgotten."""

    def offer(*names: str) -> None:
        (tmp_path / "their_methods.py").write_text(MODULE, "utf-8")
        folder = tmp_path / "their_methods-1.0.dist-info"
        folder.mkdir()
        (folder / "METADATA").write_text("Metadata-Version: 2.1\nName: their-methods\nVersion: 1.0\n", "utf-8")
        points = "".join(f"{name} = their_methods:{name}\n" for name in names)
        (folder / "entry_points.txt").write_text(f"[{methods.ENTRY_POINTS}]\n{points}", "utf-8")
        monkeypatch.syspath_prepend(str(tmp_path))
        methods._all.cache_clear()

    yield offer
    methods._all.cache_clear()
    sys.modules.pop("their_methods", None)


def test_a_method_of_another_distribution_is_found(install) -> None:
    """At a span and at a part, sites where shipped methods stand too; it lowers, and shipped ones are still there."""
    shipped = methods.names()
    install("every_other", "broadcast_ffn")
    assert set(methods.names()) == {*shipped, "every_other", "broadcast_ffn"}
    for name, kind in (("every_other", ("main", "span")), ("broadcast_ffn", ("vace", "ffn"))):
        method = methods.get(name)
        assert isinstance(method, Method)
        assert SITES[kind].kind in method.sites
        at = place(6, site=SITES[kind], evaluated=[0, 1, 2, 4, 5])
        fresh = method.fresh_without_refresh(at.grid)
        assert method.lower(place(6, fresh, site=at.site, evaluated=at.grid.evaluated)).actions == "CRC-RC"


@pytest.mark.parametrize(("name", "fault"), [("impostor", "taken"), ("no_method", "not a caching method")])
def test_what_cannot_be_a_method_is_refused_by_the_name_of_its_entry_point(install, name: str, fault: str) -> None:
    """A second `magcache`, or an object of another kind, is an error that says where it comes from."""
    install(name)
    with pytest.raises(ValueError, match=fault) as caught:
        methods.names()
    assert f"their_methods:{name}" in str(caught.value)
    assert methods.get("magcache").name == "magcache"
