"""A stack of blocks run under a call's plan: regions of it served or run, what they add kept, rules given their look."""

from __future__ import annotations

import functools
import threading
from collections.abc import Callable, Mapping
from types import MethodType
from typing import Any

from torch import Tensor, nn

from refkv_policy.plan.selectors import Site
from refkv_policy.runtime.call import Call
from refkv_policy.runtime.cells import Region
from refkv_policy.runtime.placement import STAND_INS


class Added:
    """The float32 sum of what was added to the stream inside a region: its hints, each times its scale."""

    __slots__ = ("total",)

    def __init__(self) -> None:
        self.total: Tensor | None = None

    def add(self, value: Tensor) -> None:
        """Take note of what was added."""
        self.total = value.float() if self.total is None else self.total + value.float()


RunBlocks = Callable[[tuple[int, ...], Tensor, Added | None], Tensor]
"""Runs blocks on the stream, each with what is added after it, which goes to the sum too where there is one."""

AddAfter = Callable[[int, Tensor], Tensor]
"""The stream with what is added after one block, where that block itself is served."""


def run_region(call: Call, region: Region, stream: Tensor, run: RunBlocks, add_after: AddAfter) -> Tensor:
    """The stream (batch, tokens, width) after a region: served from the cache, or computed block by block."""
    return _run(call, region, stream, run, add_after, None)


def _run(
    call: Call, region: Region, stream: Tensor, run: RunBlocks, add_after: AddAfter, around: Added | None
) -> Tensor:
    cell = region.cell
    if cell is not None:
        served = call.serve_region(cell, stream)
        if served is not None:
            if cell.apart:
                for index in range(region.first, region.last + 1):
                    served = add_after(index, served)
            return served
    # Only a region that is governed or looked at holds on to what it was given.
    given = stream if cell is not None or region.probes else None
    version = None if given is None or given.is_inference() else given._version
    added = Added() if cell is not None and cell.apart else around
    for each in region.within:
        stream = (
            _run(call, each, stream, run, add_after, added) if isinstance(each, Region) else run(each, stream, added)
        )
    if given is None:
        return stream
    if version is not None and given._version != version:
        raise RuntimeError(
            f"main[{region.first}] wrote into the stream that it was given, so that what these blocks add is not known; "
            "run the model without the in-place or fused block, or take the rule out"
        )
    if cell is not None:
        call.keep_region(cell, given, stream, None if added is None else added.total)
    if region.probes:
        call.look(region, given, stream)
    return stream


class Current(threading.local):
    """The call that is running in a thread, for the parts of blocks, which the executor does not call itself."""

    call: Call | None = None


def own_forward(forward: Callable[..., Any], owner: nn.Module) -> Callable[..., Any]:
    """The function for its owner; for a deep copy, which no session is attached to, its class's own forward."""

    @functools.wraps(forward)
    def of(self: nn.Module, *args: Any, **kwargs: Any) -> Any:
        return (forward if self is owner else type(self).forward)(self, *args, **kwargs)

    STAND_INS.add(of)
    return of


def part_forward(module: nn.Module, site: Site, current: Current) -> Callable[..., Any]:
    """A stand-in for the forward of an attention or feed-forward, which serves its output where the running call says so."""
    original = MethodType(type(module).forward, module)

    def forward(self: nn.Module, *args: Any, **kwargs: Any) -> Any:
        """The module's output, kept or served as the attached hook table says."""
        call = current.call
        cell = None if call is None else call.plan.parts.get(site)
        if call is None or cell is None:
            return original(*args, **kwargs)
        served = call.serve(cell)
        if served is not None:
            return served
        output = original(*args, **kwargs)
        call.keep(cell, output)
        return output

    return MethodType(own_forward(forward, module), module)


def part_modules(stacks: Mapping[str, Any], sites: Any) -> dict[Site, nn.Module]:
    """The sub-modules whose outputs are at sites: `attn1`, `attn2` and `ffn` of a Wan block."""
    names = {"self": "attn1", "cross": "attn2", "ffn": "ffn"}
    return {site: getattr(stacks[site.stack][site.index], names[site.part]) for site in sites if site.part in names}
