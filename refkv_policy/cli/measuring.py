"""What `drift`, `sweep` and `gate` share: the job, the sweep laid out, and the bench that its tasks are performed on."""

from __future__ import annotations

import functools
import sys
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from refkv_policy.cli.group import Failure, say
from refkv_policy.cli.job import Job, prepare
from refkv_policy.cli.model_folder import ModelFolder
from refkv_policy.cli.progress import progress, span
from refkv_policy.cli.sources import LONGEST_PROMPT, read_sources

if TYPE_CHECKING:
    from refkv_policy.quality.metrics import FeatureModel
    from refkv_policy.quality.sweep import Sweep
    from refkv_policy.quality.tasks import Conditions, Source, Store
    from refkv_policy.quality.tasks_bench import Bench
    from refkv_policy.quality.variants import Variant

Check = Callable[[Job, "tuple[Source, ...]"], None]


@dataclass(frozen=True)
class BenchSpec:
    """What a worker needs to open its bench, in this process or another."""

    model: ModelFolder
    dtype: str
    device: str
    offload: bool
    features: str
    threads: int
    conditions: Conditions
    folder: Path
    factor: int


def open_bench(spec: BenchSpec, features: Sequence[FeatureModel] | None = None) -> Bench:
    """Load pipeline and feature models. features: those that are loaded already."""
    from refkv_policy.cli.libraries import choose_device, choose_dtype, load_pipeline
    from refkv_policy.plan import Sampler
    from refkv_policy.quality.tasks import Store
    from refkv_policy.quality.tasks_bench import Bench

    device = choose_device(spec.device)
    if device.type == "cpu":
        import torch

        torch.set_num_threads(spec.threads)
    sampler = Sampler(spec.conditions.sampler, spec.conditions.flow_shift)
    pipe = load_pipeline(spec.model, choose_dtype(spec.dtype, device), device, spec.offload, sampler)
    models = load_features(spec.features, spec.device) if features is None else features
    return Bench(pipe, spec.conditions, models, Store(spec.folder), spec.factor)


def load_features(name: str, device: str) -> tuple[FeatureModel, ...]:
    """The feature models of `--features`: one or none. Raises MeasureError."""
    from refkv_policy.quality.features import feature_model

    return () if name == "none" else (feature_model(None if name == "stand-in" else name, device),)


def prepare_job(options: dict[str, Any], plan: str, out: Path) -> Job:
    """The job of a command's options, its notes told. Raises Failure, PlanError."""
    job, notes = prepare(
        plan=plan,
        model=options["model"],
        steps=options["steps"],
        guidance=options["guidance"],
        size=options["size"],
        frames=options["frames"],
        references=0,
        seed=0,
        prompt=options["prompt"] or "",
        negative_prompt=options["negative_prompt"],
        out=out,
        locked=False,
    )
    for note in notes:
        say(f"note: {note}")
    return job


@dataclass(frozen=True)
class Measuring:
    """A sweep made ready to run."""

    sweep: Sweep
    store: Store
    spec: BenchSpec
    features: tuple[FeatureModel, ...]

    def run(self, options: dict[str, Any], stages: Sequence[Any] | None = None) -> None:
        """Run what has no result yet, with a bar on a terminal. stages: only these."""
        from refkv_policy.quality.tasks_run import missing, run_stages

        wanted = self.sweep.stages() if stages is None else stages
        left = [task for _, tasks in missing(wanted, self.store) for task in tasks]
        total = len({task.key for stage in wanted for task in stage.tasks})
        steps = sum(task.steps for task in left)
        say(f"{len(left)} of {total} runs are to be made, {steps} denoising steps; results in {self.store.folder}")
        if left and (pace := self._pace(wanted)):
            say(f"about {span(pace * steps)} at the pace of the results that are there")
        label = [""]
        remote = options["executor"] == "ray"
        opener = functools.partial(open_bench, self.spec) if remote else lambda: open_bench(self.spec, self.features)
        with ExitStack() as stack:
            step = stack.enter_context(progress("measuring", steps, lambda: label[0]))

            def done(task: Any) -> None:
                label[0] = f"{task.label}, {task.clip.name}, seed {task.seed}"
                step(task.steps)

            run_stages(
                wanted,
                self.store,
                opener,
                executor=options["executor"],
                workers=options["workers"],
                gpus=int(self.spec.device.startswith("cuda")),
                on_done=done,
            )

    def _pace(self, stages: Sequence[Any]) -> float | None:
        """Seconds a denoising step of a whole request took in a run that is there; None where none is."""
        for task in (task for stage in stages for task in stage.tasks if task.kind == "run"):
            told = (self.store.result(task) or {}).get("run")
            if told:
                return float(told["seconds"]["total"]) / task.steps
        return None


def ready(
    options: dict[str, Any], plan: str, default_varies: bool = False, check: Check = lambda *_: None
) -> Measuring:
    """Check every option, compile every variant, read clips and digests, and lay out the sweep; no pipeline is loaded yet.

    default_varies: vary what the plan has to vary where no --vary is given. check: what else to look at before torch is
    imported, which takes seconds. Raises Failure, PlanError, RefkvError.
    """
    from refkv_policy.cli.libraries import choose_device, choose_dtype, needs_run_extra

    _check_texts(*sys.argv, options["prompt"] or "", options["negative_prompt"])
    job = prepare_job(options, plan, options["results"])
    variants = _variants(options, job, default_varies)
    with needs_run_extra():
        clips = read_sources(options, job)
    check(job, clips)
    device = choose_device(options["device"])
    dtype = str(choose_dtype(options["dtype"], device)).removeprefix("torch.")
    with needs_run_extra():
        import torch

        from refkv_policy.quality.sweep import Sweep, make_entries
        from refkv_policy.quality.tasks import Store
    features = load_features(options["features"], str(device))
    _check_metric(options["metric"], features)
    conditions = make_conditions(options, job, dtype, device, tuple(model.digest for model in features))
    entries = make_entries(
        job.plan, job.profile, job.table, variants, job.workload, dtype, job.branches, baselines=options["baselines"]
    )
    sweep = Sweep(
        plan=job.plan,
        profile=job.profile,
        table=job.table,
        guidance=job.guidance,
        conditions=conditions,
        clips=clips,
        seeds=tuple(range(options["seeds"])),
        repeats=options["repeats"],
        entries=entries,
        faults=tuple(v for v in variants if v.table is None),
        plan_alone=options["timed"] == "plan",
    )
    store = Store(options["results"]).open()
    spec = BenchSpec(
        model=job.model,
        dtype=dtype,
        device=str(device),
        offload=options["offload"],
        features=options["features"],
        threads=torch.get_num_threads(),
        conditions=conditions,
        folder=store.folder.resolve(),
        factor=job.profile.vae_scale[0],
    )
    return Measuring(sweep, store, spec, features)


def _check_metric(name: str | None, features: Sequence[FeatureModel]) -> None:
    """Raises CollectError for a metric that errors cannot be of."""
    from refkv_policy.quality.sweep_collect import error_metric
    from refkv_policy.quality.sweep_metrics import measures

    about = [{"model": m.name, "stand_in": m.stand_in, "provenance": m.provenance} for m in features]
    error_metric(measures(about), name)


def _check_texts(*arguments: str) -> None:
    """Raises Failure for what evidence, which holds the command line, could not hold."""
    for argument in arguments:
        if len(argument) > LONGEST_PROMPT or not _is_text(argument):
            raise Failure(f"an argument is longer than {LONGEST_PROMPT} characters, or no text: {ascii(argument)[:60]}")


def _is_text(argument: str) -> bool:
    """Whether no byte of it is none of a character's, as the system hands such bytes over."""
    try:
        argument.encode("utf-8")
    except UnicodeEncodeError:
        return False
    return True


def make_conditions(
    options: dict[str, Any], job: Job, dtype: str, device: Any, features: tuple[str, ...]
) -> Conditions:
    """What all runs share, with the digest of the transformer's stored weights."""
    import torch

    from refkv_policy.evidence.write import versions
    from refkv_policy.quality.tasks import Conditions
    from refkv_policy.runtime.weights import stored_digest

    threads = torch.get_num_threads()
    named = f"{threads} thread{'s' * (threads > 1)}" if device.type == "cpu" else torch.cuda.get_device_name(device)
    return Conditions(
        profile=job.profile.name,
        weights=stored_digest(job.model.path / "transformer"),
        width=job.shape.width,
        height=job.shape.height,
        frames=job.shape.frames,
        guidance=job.guidance,
        control=options["control"],
        negative_prompt=options["negative_prompt"],
        text_tokens=job.text_tokens,
        sampler=job.table.sampler,
        flow_shift=job.table.flow_shift,
        dtype=dtype,
        device=f"{device.type}, {named}" + (", offloaded" if options["offload"] else ""),
        features=features,
        versions=dict(versions()),
    )


def _variants(options: dict[str, Any], job: Job, default_varies: bool) -> tuple[Variant, ...]:
    from refkv_policy.quality.variants import VaryError, choose_rule, lossy_rules, make_variants, parse_vary
    from refkv_policy.quality.variants import default_varies as usual

    varies = [parse_vary(text) for text in options["varies"]]
    if not varies and not (default_varies and lossy_rules(job.plan)):
        return ()
    try:
        rule = choose_rule(job.plan, options["rule"])
    except VaryError as error:
        if varies or options["rule"] is not None:
            raise
        say(f"note: nothing is varied, since the plan has several rules: {error}")
        return ()
    variants = make_variants(job.plan, job.profile, job.table.steps, rule, varies or usual(job.plan, rule))
    _tell_variants(variants, job, asked=bool(varies))
    return variants


def _tell_variants(variants: Sequence[Variant], job: Job, *, asked: bool) -> None:
    """Say, before anything runs, which variants are not run and why. Raises Failure where that leaves none that was asked for."""
    faults: dict[str, list[str]] = {}
    for variant in variants:
        if variant.table is None:
            faults.setdefault(str(variant.fault), []).append(variant.name)
    told = [f"{'; '.join(names)}: {fault}" for fault, names in faults.items()]
    if asked and variants and all(variant.table is None for variant in variants):
        raise Failure("no variant compiles, so nothing was run", more=[f"  {line}" for line in told])
    for line in told:
        say(f"note: does not compile and is left out: {line}")
    by_table: dict[str, list[str]] = {}
    for variant in variants:
        if variant.table is not None:
            by_table.setdefault(variant.table.digest, []).append(variant.name)
    for names in by_table.values() if asked else ():
        if len(names) > 1:
            say(f"note: these compile to one table, which is run once: {'; '.join(names)}")


def fewer(measuring: Measuring, **changes: Any) -> Measuring:
    """The same with parts of its sweep replaced."""
    return replace(measuring, sweep=replace(measuring.sweep, **changes))
