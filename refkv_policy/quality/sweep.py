"""A sweep: what is run of a plan, its variants and its baselines, as tasks. Nothing is run here."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Literal

from refkv_policy.canonical import sha256
from refkv_policy.compiler import HookTable, Prediction, Workload, predict
from refkv_policy.plan import Plan
from refkv_policy.profiles import Profile
from refkv_policy.quality.baselines import MANY, SPACINGS, respaced_table, step_counts
from refkv_policy.quality.tasks import MANY_STEPS, UNCACHED, Conditions, Source, Task, Work
from refkv_policy.quality.tasks_run import Stage
from refkv_policy.quality.variants import Value, Variant

Family = Literal["uncached", "plan", "variant", "fewer_steps", "respaced_steps"]
OTHER_SEED = "other_seed"


@dataclass(frozen=True, slots=True)
class Entry:
    """One way of running the model that a sweep measures. speedup_flops: uncached over its FLOPs. prediction: of a table."""

    name: str
    family: Family
    varied: Mapping[str, Value]
    work: Work
    speedup_flops: float
    prediction: Prediction | None = field(default=None, repr=False)


@dataclass(frozen=True, slots=True)
class Sweep:
    """Everything a sweep runs. The first entry is the uncached run, the second the plan.

    faults: variants that do not compile, and why. repeats: timed pairs of each entry, or of the plan alone.
    """

    plan: Plan
    profile: Profile
    table: HookTable
    guidance: float
    conditions: Conditions
    clips: tuple[Source, ...]
    seeds: tuple[int, ...]
    repeats: int
    entries: tuple[Entry, ...]
    faults: tuple[Variant, ...] = ()
    plan_alone: bool = False

    @property
    def steps(self) -> int:
        """Nominal steps."""
        return self.table.steps

    @property
    def bound(self) -> Mapping[str, str]:
        """What a pack for raters is of: the same again only where raters would see the same."""
        clips = "\n".join(f"{clip.sha256} {clip.prompt}" for clip in self.clips)
        return {
            "table": self.table.digest,
            "weights": self.conditions.weights,
            "conditions": self.conditions.digest,
            "clips": sha256(clips),
            "seeds": " ".join(map(str, self.seeds)),
        }

    @property
    def samples(self) -> tuple[tuple[Source, int], ...]:
        """Every clip with every seed."""
        return tuple((clip, seed) for clip in self.clips for seed in self.seeds)

    def many(self, clip: Source, seed: int) -> Task:
        """The many-step run: the solver floor is measured against it."""
        return self._task("many steps", Work(MANY * self.steps), clip, seed, keep=True)

    def uncached(self, clip: Source, seed: int) -> Task:
        """The uncached run that everything of the same clip and seed is compared with."""
        against = ((MANY_STEPS, self.many(clip, seed).key),) if seed in self.seeds else ()
        return self._task("uncached", Work(self.steps), clip, seed, against=against, keep=True)

    def noise(self, clip: Source, seed: int) -> Task:
        """The uncached run once more: the noise floor."""
        against = ((UNCACHED, self.uncached(clip, seed).key),)
        return self._task("uncached again", Work(self.steps), clip, seed, against=against, repeat=1)

    def other_seed(self, clip: Source, seed: int) -> Task:
        """The uncached run against that of another seed: the other end of the scale."""
        against = ((OTHER_SEED, self.uncached(clip, self._other(seed)).key),)
        task = self._task("another seed", Work(self.steps), clip, seed, against=against)
        return replace(task, kind="compare", of=self.uncached(clip, seed).key)

    def run(self, entry: Entry, clip: Source, seed: int) -> Task:
        """One run of an entry, compared with both references. The uncached entry's is the reference itself."""
        if entry.family == "uncached":
            return self.uncached(clip, seed)
        against = ((UNCACHED, self.uncached(clip, seed).key), (MANY_STEPS, self.many(clip, seed).key))
        return self._task(entry.name, entry.work, clip, seed, against=against, keep=entry.family == "plan")

    def pairs(self, entry: Entry) -> tuple[Task, ...]:
        """The timed pairs of an entry, over the clips in turn."""
        if entry.family == "uncached" or (self.plan_alone and entry.family != "plan"):
            return ()
        return tuple(
            Task("pair", entry.name, entry.work, self.clips[i % len(self.clips)], self.seeds[0], self.conditions.digest,
                 repeat=i, nominal=self.steps)
            for i in range(self.repeats)
        )  # fmt: skip

    def stages(self) -> tuple[Stage, ...]:
        """All of it: references first, then what is compared with them, then what is timed, nothing else running."""
        others = sorted({self._other(seed) for seed in self.seeds} - set(self.seeds))
        references = [self.uncached(clip, seed) for clip in self.clips for seed in (*self.seeds, *others)]
        compared: list[Task] = []
        for clip, seed in self.samples:
            compared += [self.noise(clip, seed), self.other_seed(clip, seed)]
            compared += [self.run(entry, clip, seed) for entry in self.entries if entry.family != "uncached"]
        pairs = [self.pairs(entry) for entry in self.entries]
        interleaved = [each[i] for i in range(self.repeats) for each in pairs if each]
        return (
            Stage("many steps", tuple(self.many(clip, seed) for clip, seed in self.samples)),
            Stage("uncached", tuple(references)),
            Stage("compared", tuple(compared)),
            Stage("timed", tuple(interleaved), alone=True),
        )

    def _other(self, seed: int) -> int:
        """The seed that is another: the next one, or one of its own where there is only one."""
        return self.seeds[(self.seeds.index(seed) + 1) % len(self.seeds)] if len(self.seeds) > 1 else seed + 1

    def _task(
        self,
        label: str,
        work: Work,
        clip: Source,
        seed: int,
        *,
        against: tuple[tuple[str, str], ...] = (),
        repeat: int = 0,
        keep: bool = False,
    ) -> Task:
        return Task("run", label, work, clip, seed, self.conditions.digest, repeat, against, keep=keep)


def make_entries(
    plan: Plan,
    profile: Profile,
    table: HookTable,
    variants: Sequence[Variant],
    workload: Workload,
    dtype: str,
    branches: tuple[str, ...],
    *,
    baselines: int = 6,
) -> tuple[Entry, ...]:
    """The uncached run, the plan, its variants and the step-reduction baselines over the latencies they cover.

    A variant that is the plan, or another one, is left out. baselines: step counts to run, about. Those just slower
    and just faster than the plan by FLOPs are among them, so that it is compared at equal latency.
    """

    def of_table(name: str, family: Family, varied: Mapping[str, Value], one: HookTable) -> Entry:
        figures = predict(one, profile, workload, dtype, branches)
        return Entry(name, family, varied, Work(one.steps, one.to_dict(), one.digest), figures.speedup, figures)

    seen = {table.digest}
    own = next((v for v in variants if v.table is not None and v.table.digest == table.digest), None)
    cached = [of_table(f"plan {plan.name}", "plan", own.varied if own else {}, table)]
    for variant in variants:
        if variant.table is not None and variant.table.digest not in seen:
            seen.add(variant.table.digest)
            cached.append(of_table(variant.name, "variant", variant.varied, variant.table))
    fewer: list[Entry] = []
    respaced: list[Entry] = []
    fastest = max(entry.speedup_flops for entry in cached)
    for count in step_counts(table.steps, [cached[0].speedup_flops], fastest, baselines):
        fewer.append(Entry(f"{count} steps", "fewer_steps", {"steps": count}, Work(count), table.steps / count))
        for spacing in SPACINGS:
            one = respaced_table(plan, profile, table.steps, count, spacing)
            varied: dict[str, Value] = {"spacing": spacing, "count": count}
            respaced.append(of_table(f"{count} of {table.steps}, {spacing}", "respaced_steps", varied, one))
    uncached = Entry("uncached", "uncached", {}, Work(table.steps), 1.0)
    return (uncached, *cached, *fewer, *respaced)
