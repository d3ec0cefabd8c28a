"""The text of a first plan, drawn from what the method and the models declare."""

from __future__ import annotations

import datetime
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from refkv_policy.methods import Method
from refkv_policy.plan import Shape
from refkv_policy.plan.schema import flow
from refkv_policy.profiles import Profile

TIERS = {
    "P0": "lossless: the same pixels, bit for bit",
    "P1": "lossy: VACE hints are reused or forecast",
    "P2": "decoupled reference K and V",
    "S": "lossy: steps or stacks are skipped",
}
SPACED = 0.37
"""The part of the steps at which a spaced scaffold refreshes: 11 of 30."""


@dataclass(frozen=True, slots=True)
class Scaffold:
    """What a first plan says. schema: its path from the plan's folder, for the editors' modeline. budget: of the store."""

    name: str
    models: tuple[str, ...]
    profiles: tuple[Profile, ...]
    method: Method
    steps: tuple[int, ...]
    shape: Shape
    party: str | None
    date: datetime.date
    expires: datetime.date
    schema: str
    budget: str | None = None

    def variants(self) -> Iterator[str]:
        """The plan with each refresh and each choice of sites that the method declares, the likeliest first."""
        for refresh in self._refreshes():
            for sites in self._sites():
                yield self._text(sites, refresh)

    def _sites(self) -> Iterator[tuple[str, ...]]:
        kinds = sorted(self.method.sites, key=lambda s: (s[1] != "span", s[0], s[1] or ""))
        each = tuple(self._site(*kind) for kind in kinds)
        # Kinds of one part lie beside each other; of others one may lie inside another, where it would never act.
        if len({part for _, part in kinds}) == 1:
            yield each
        if len(each) > 1:
            yield from ((site,) for site in each)

    def _site(self, stack: str, part: str | None) -> str:
        if stack in ("step", "cfg") or part == "span":
            return stack
        deep = stack == "hint" and self.profiles and all("deep" in p.sets.get("hint", {}) for p in self.profiles)
        return f"{stack}[{'deep' if deep else 'all'}]" + (f".{part}" if part else "")

    def _refreshes(self) -> Iterator[str]:
        """Each line of `refresh:`, with its reason; the empty text for a method that takes none."""
        method, fewest = self.method, min(self.steps)
        half = max(2, fewest // 2 if method.schedules else round(SPACED * fewest))
        what = "run" if method.schedules else "computed afresh"
        forms = {
            "interval": ("{interval: 4}", "computed afresh at every fourth step, and at the first"),
            "spacing": (f"{{spacing: sigma, count: {half}}}", f"{half} steps are {what}, equally spaced in sigma"),
            "steps": (f'{{steps: "0-{half - 1}"}}', f"these steps are {what}"),
        }
        order = ("spacing", "interval", "steps") if method.forecasts else ("interval", "spacing", "steps")
        for form in order:
            if form in method.refreshes:
                text, why = forms[form]
                yield _commented(f"    refresh: {text}", why)
        if not method.refreshes:
            yield ""

    def _text(self, sites: tuple[str, ...], refresh: str) -> str:
        at = flow(sites if len(sites) > 1 else sites[0])
        steps = ", ".join(map(str, self.steps))
        size = f"{self.shape.width}x{self.shape.height}"
        body = (
            f"# yaml-language-server: $schema={self.schema}\n"
            "# Written by `refkv init`. `refkv rule CODE` explains whatever `refkv validate` finds.\n"
            "version: 1\n"
            "kind: plan\n"
            f"name: {flow(self.name)}\n"
            + _commented("purpose: reference", "`recommended` once its evidence is green")
            + f"description: {flow(self._description(sites))}\n"
            + _commented(f"models: {flow(list(self.models))}", "compiled, locked and reviewed for each")
            + _commented("run:", "the operating points it is reviewed for; others are refused, not rescaled")
            + f"  steps: [{steps}]\n"
            + _commented(
                "  sampler: {name: unipc, flow_shift: 3.0}", "fixes each step's sigma; 3 is usual at 480p, 5 at 720p"
            )
            + _commented("  guidance: 5.0", "above 1 there are two branches, cond and uncond")
            + _commented(f"  shapes: [{{size: {size}, frames: {self.shape.frames}}}]", "for predicted bytes and cost")
            + "caches:\n"
            f"  - name: {flow(self.method.name.replace('_', '-'))}\n"
            + _commented(f"    tier: {self.method.tier}", TIERS.get(self.method.tier, ""))
            + _commented(f"    method: {self.method.name}", self.method.title)
            + _commented(f"    at: {at}", "`refkv models` lists each model's named sets")
            + refresh
        )
        if self.method.takes_window:
            body += _commented(
                "    # window: all,!first 2,!last 2", "steps where reuse is allowed; the others are computed"
            )
        if self.budget is not None:
            body += _commented(
                f"    store: {{budget: {self.budget}}}", "what the rule may keep: room for float32 at this size"
            )
        return body + self._acknowledgements()

    def _description(self, sites: Sequence[str]) -> str:
        title = self.method.title
        where = "" if sites == ("step",) else f", at {' and '.join(sites)}"
        return f"{title[:1].upper()}{title[1:]}{where}."

    def _acknowledgements(self) -> str:
        risks = self.method.risks({})
        if not risks:
            return ""
        lines = [_commented("acknowledgements:", "a lossy cache is off unless a named party accepts its risk")]
        for risk in risks:
            lines += [
                f"  - risk: {risk}\n",
                f"    by: {flow(self.party)}\n",
                f"    date: {self.date}\n",
                f"    expires: {self.expires}\n",
                "    reason: Scaffolded and not yet measured; say here why the loss is acceptable, and where.\n",
                "    # evidence: evidence/NAME.json   # what `refkv gate` measured\n",
            ]
        return "".join(lines)


def _commented(line: str, comment: str) -> str:
    return f"{line:<42} # {comment}\n" if comment else f"{line}\n"
