"""The slow reference: a table run cell by cell on the modules of a Wan model, without the engine.

Knows what a site is from its name alone, computes blocks part by part, walks the VACE chain anew for every hint, and keeps every
value it ever made. What the executor does with regions, lazy chains, sinks and stores must come to the same.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from refkv_policy import methods
from refkv_policy.compiler import HookTable
from refkv_policy.methods import Now, Observation
from refkv_policy.plan.selectors import Site


@dataclass
class Interpreter:
    """Runs the calls of one request. kept: every value kept so far, newest first. done: sites computed, by name and branch."""

    model: Any
    table: HookTable
    kept: dict[tuple[str, Site], list[Observation]] = field(default_factory=dict)
    done: Counter[tuple[str, str]] = field(default_factory=Counter)
    served: Counter[tuple[str, str]] = field(default_factory=Counter)
    cond: Tensor | None = None

    def call(self, step: int, branch: str, inputs: dict[str, Any]) -> Tensor:
        """One forward of a static table."""
        return _Call(self, step, branch, inputs).run()


class _Call:
    def __init__(self, owner: Interpreter, step: int, branch: str, inputs: dict[str, Any]) -> None:
        self.owner, self.step, self.branch, self.inputs = owner, step, branch, inputs
        self.model, self.table = owner.model, owner.table
        self.states: dict[int, Tensor] = {}

    # Cells ------------------------------------------------------------------------------------------------------------

    def action(self, site: Site) -> str:
        """The table's cell; `.` where there is no row."""
        row = self.table.by_at.get(site)
        return "." if row is None else row.actions(self.branch)[self.step]

    def value(self, site: Site) -> Tensor | None:
        """What a site is served, or None where it is computed."""
        action = self.action(site)
        if action not in "RF":
            self.owner.done[str(site), self.branch] += 1
            return None
        self.owner.served[str(site), self.branch] += 1
        row = self.table.by_at[site]
        rule = self.table.rules[row.rule or 0]
        seen = self.owner.kept.get((self.branch, site), [])
        if action == "R":
            return seen[0].value
        now = Now(self.table.sigmas[self.step], self.step, site, None, self.owner.cond)
        return methods.get(rule.method).predict(seen[: rule.history], now, rule.params)

    def keep(self, site: Site, value: Tensor) -> None:
        """Keep a computed value where the table says so."""
        if self.action(site) == "C":
            seen = Observation(self.table.sigmas[self.step], value, self.step)
            self.owner.kept.setdefault((self.branch, site), []).insert(0, seen)

    # The forward ------------------------------------------------------------------------------------------------------

    def run(self) -> Tensor:
        """The velocity."""
        cfg = Site("cfg")
        difference = self.value(cfg)
        if difference is not None:
            assert self.owner.cond is not None
            return self.owner.cond + difference
        model, latents = self.model, self.inputs["hidden_states"]
        self.rotary = model.rope(latents)
        x = model.patch_embedding(latents).flatten(2).transpose(1, 2).contiguous()
        self.x0 = x
        temb, proj, self.text, _ = model.condition_embedder(
            self.inputs["timestep"], self.inputs["encoder_hidden_states"], None
        )
        self.proj = proj.unflatten(1, (6, -1))
        x = self.region(Site("main"), 0, len(model.blocks) - 1, x)
        shift, scale = (model.scale_shift_table + temb.unsqueeze(1)).chunk(2, dim=1)
        x = model.proj_out((model.norm_out(x.float()) * (1 + scale) + shift).type_as(x))
        b, _, t, h, w = latents.shape
        p_t, p_h, p_w = model.config.patch_size
        x = x.reshape(b, t // p_t, h // p_h, w // p_w, p_t, p_h, p_w, -1).permute(0, 7, 1, 4, 2, 5, 3, 6)
        out = x.flatten(6, 7).flatten(4, 5).flatten(2, 3)
        if self.branch == "cond":
            self.owner.cond = out
        elif self.owner.cond is not None:
            self.keep(cfg, out - self.owner.cond)
        return out

    def spans(self, first: int, last: int, outside: Site) -> dict[int, Site]:
        """By first block, the widest governed span that lies in a run of blocks, other than that run itself."""
        spans = [row.at for row in self.table.rows if row.at.last is not None and row.at != outside]
        inside = [s for s in spans if first <= (s.index or 0) and (s.last or 0) <= last]
        return {s.index or 0: s for s in sorted(inside, key=lambda s: (s.last or 0) - (s.index or 0))}

    def region(self, site: Site, first: int, last: int, x: Tensor) -> Tensor:
        """A run of blocks: served as one, or block by block."""
        residual = self.value(site)
        apart = self.apart(site)
        if residual is not None:
            x = x + residual
            if apart:
                for i in range(first, last + 1):
                    x = x + self.hint_after(i)
            return x
        given, hints = x, torch.zeros_like(x)
        i = first
        while i <= last:
            inner = self.spans(first, last, site).get(i)
            if inner is not None and inner.last is not None:
                x = self.region(inner, i, inner.last, x)
                i = inner.last + 1
                continue
            block = Site("main", i)
            x, hint = self.main_block(block, x)
            hints = hints + hint
            i += 1
        self.keep(site, x - given - (hints if apart else 0))
        return x

    def main_block(self, site: Site, x: Tensor) -> tuple[Tensor, Tensor]:
        """A main block and the hint that is added after it, which a reused block's residual holds unless it is kept apart."""
        residual, apart = self.value(site), self.apart(site)
        if residual is not None:
            return x + residual + (self.hint_after(site.index or 0) if apart else 0), torch.zeros_like(x)
        out = self.block(site, self.model.blocks[site.index], x)
        hint = self.hint_after(site.index or 0)
        self.keep(site, out - x + (0 if apart else hint))
        return out + hint, hint

    def apart(self, site: Site) -> bool:
        """Whether the residual of a site is kept without the hints added inside it."""
        row = self.table.by_at.get(site)
        return row is not None and row.rule is not None and self.table.rules[row.rule].params.get("hints") == "apart"

    def hint_after(self, i: int) -> Tensor:
        """The hint added after main block i; zeros where there is none."""
        at = list(self.model.config.get("vace_layers", ()))
        return self.hint(at.index(i)) if i in at else torch.zeros_like(self.x0)

    def hint(self, j: int) -> Tensor:
        """Hint j, from the table or from the chain walked anew."""
        site = Site("hint", j)
        served = self.value(site)
        if served is not None:
            return served
        state = self.state(j)
        hint = self.model.vace_blocks[j].proj_out(state)
        self.keep(site, hint)
        return hint

    def state(self, j: int) -> Tensor:
        """The control stream c_j."""
        if j in self.states:
            return self.states[j]
        site = Site("vace", j)
        kept = self.value(site)
        if kept is None:
            block = self.model.vace_blocks[j]
            if j == 0:
                control = (
                    self.model.vace_patch_embedding(self.inputs["control_hidden_states"]).flatten(2).transpose(1, 2)
                )
                below = block.proj_in(control) + self.x0
            else:
                below = self.state(j - 1)
            kept = self.block(site, block, below)
            self.keep(site, kept)
        self.states[j] = kept
        return kept

    def block(self, site: Site, block: Any, x: Tensor) -> Tensor:
        """A Wan block, part by part."""
        shift1, scale1, gate1, shift3, scale3, gate3 = (block.scale_shift_table + self.proj.float()).chunk(6, dim=1)
        normed = (block.norm1(x.float()) * (1 + scale1) + shift1).type_as(x)
        x = x + self.part(site, "self", lambda: block.attn1(normed, None, None, self.rotary)) * gate1
        crossed = block.norm2(x.float()).type_as(x)
        x = x + self.part(site, "cross", lambda: self.cross(site, block.attn2, crossed))
        fed = (block.norm3(x.float()) * (1 + scale3) + shift3).type_as(x)
        return x + self.part(site, "ffn", lambda: block.ffn(fed)) * gate3

    def part(self, block: Site, name: str, compute: Any) -> Tensor:
        """An attention's or feed-forward's output."""
        site = Site(block.stack, block.index, name)
        output = self.value(site)
        if output is None:
            output = compute()
            self.keep(site, output)
        return output

    def cross(self, block: Site, attn: Any, x: Tensor) -> Tensor:
        """Cross-attention to the text, its K and V kept as one."""
        site = Site(block.stack, block.index, "text_kv")
        both = self.value(site)
        if both is None:
            both = torch.stack([attn.norm_k(attn.to_k(self.text)), attn.to_v(self.text)])
            self.keep(site, both)
        q, k, v = (t.unflatten(2, (attn.heads, -1)).transpose(1, 2) for t in (attn.norm_q(attn.to_q(x)), *both))
        weights = torch.softmax(q @ k.transpose(-1, -2) / q.shape[-1] ** 0.5, -1)
        return attn.to_out[0]((weights @ v).transpose(1, 2).flatten(2))
