"""Where the executor goes in, and how everything is put back.

Hooks (accelerate's offload, diffusers' registries) wrap a model's forward and keep what they wrapped. The executor takes
the innermost place, the one that holds the class's own forward: hooks removed and installed again around it, as a
pipeline does at the end of every call, carry it along.
"""

from __future__ import annotations

import copyreg
from collections.abc import Callable, Iterator
from types import MethodType
from typing import Any
from weakref import WeakSet

from torch import nn

from refkv_policy.runtime.errors import AttachError

_ABSENT = object()
STAND_INS: WeakSet[Any] = WeakSet()
"""The functions that sessions put in the place of a module's forward."""


class Patches:
    """What is set on instances for the length of a session, each with what was there before.

    A copy, deep or shallow, of such an instance is made of what was there before: plain, and attached to nothing.
    """

    def __init__(self) -> None:
        self._undo: list[tuple[Any, str, Any, Any]] = []
        self._classes: list[tuple[Any, type, type]] = []
        self._copied_plainly: set[int] = set()

    def set(self, owner: Any, name: str, value: Any) -> None:
        """Set an attribute of one instance."""
        self._copy_plainly(owner)
        self._set(owner, name, value)

    def become(self, owner: Any, mine: type) -> None:
        """Give one instance a class of its own, derived from its present one."""
        self._copy_plainly(owner)
        self._classes.append((owner, type(owner), mine))
        owner.__class__ = mine

    def undo(self) -> None:
        """Put back what was there, newest first. What someone set since is theirs and stays."""
        while self._classes:
            owner, cls, mine = self._classes.pop()
            if type(owner) is mine:
                owner.__class__ = cls
        while self._undo:
            owner, name, before, mine = self._undo.pop()
            if vars(owner).get(name) is not mine:
                continue
            if before is _ABSENT:
                delattr(owner, name)
            else:
                setattr(owner, name, before)
        self._copied_plainly.clear()

    def _set(self, owner: Any, name: str, value: Any) -> None:
        self._undo.append((owner, name, vars(owner).get(name, _ABSENT), value))
        setattr(owner, name, value)

    def _copy_plainly(self, owner: Any) -> None:
        if id(owner) in self._copied_plainly:
            return
        self._copied_plainly.add(id(owner))
        cls = type(owner)

        def reduce(protocol: Any) -> tuple[Any, ...]:
            return copyreg.__newobj__, (cls,), self._as_it_was(owner)  # type: ignore[attr-defined]

        # `copy` and `pickle` both ask the instance for it.
        self._set(owner, "__reduce_ex__", reduce)

    def _as_it_was(self, owner: Any) -> dict[str, Any]:
        """The instance's attributes without those that are set here."""
        state = dict(vars(owner))
        for other, name, before, mine in reversed(self._undo):
            if other is owner and state.get(name) is mine:
                state[name] = before
        return {name: value for name, value in state.items() if value is not _ABSENT}


def is_patched(owner: Any) -> bool:
    """Whether a session has set something on an instance."""
    return "__reduce_ex__" in vars(owner)


def place(model: nn.Module, forward: Callable[..., Any]) -> None:
    """Put `forward` in the place of the model's own, below every hook. Raises AttachError as `find_place` does."""
    setattr(*find_place(model), forward)


def find_place(model: nn.Module) -> tuple[Any, str]:
    """The object and attribute that hold the model's own forward, or are to.

    Raises AttachError when there is none: something other than a hook has replaced it.
    """
    for holder, name in _places(model):
        held = getattr(holder, name)
        # A deep copy of an attached model has a stand-in of that session's, which runs the copy's own forward.
        if held == _own(model) or getattr(held, "__func__", None) in STAND_INS:
            return holder, name
    if "forward" not in vars(model):
        return model, "forward"
    raise AttachError(
        f"the forward of this {type(model).__name__} was replaced by something that is no accelerate or diffusers hook; "
        "undo that before attaching"
    )


def displace(model: nn.Module, forward: Callable[..., Any], bare: bool) -> None:
    """Put the model's own forward back wherever `forward` is now. bare: the instance had no `forward` of its own."""
    for holder, name in list(_places(model)):
        if getattr(holder, name) is not forward:
            continue
        if bare and holder is model and name == "forward":
            del model.forward
        else:
            setattr(holder, name, _own(model))


def _own(model: nn.Module) -> MethodType:
    return MethodType(type(model).forward, model)


def _places(model: nn.Module) -> Iterator[tuple[Any, str]]:
    """Every attribute that may hold the model's forward: its own, accelerate's, and those of diffusers' hooks."""
    for name in ("_old_forward", "forward"):
        if name in vars(model):
            yield model, name
    registry = vars(model).get("_diffusers_hook")
    for reference in getattr(registry, "_fn_refs", ()):
        for name in ("original_forward", "forward"):
            if getattr(reference, name) is not None:
                yield reference, name
