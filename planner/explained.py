"""Explain: where the seconds of a step and the bytes of its peak go, for one combination of a spec."""

from __future__ import annotations

from dataclasses import fields

from catalog.errors import RigplanError
from planner import machine as machines
from planner.answer import Estimate, HardwareUsed
from planner.breakdown import memory_rows, time_rows
from planner.cache import Workloads
from planner.communication import sm_share
from planner.evaluate import evaluate, knobs_of, of_rank, time_of
from planner.explanation import Explanation
from planner.fit import at_peak, fit
from planner.outcome import batches_at
from planner.question import Combination, by_model
from planner.search import MOST_TRACED, Progress, Source, estimate, plan
from planner.spec import Spec
from planner.strategy import HardwareChoice, Strategy, choices


def explain(
    source: Source, *, rank: int = 1, profile: str = "", progress: Progress | None = None, advice: bool = True
) -> Explanation:
    """The combination that is `rank`th in the plan of a spec, or the only one; with what would help it most.

    Raises RigplanError where there is no such rank or the combination cannot be answered.
    """
    spec = Spec.load(source)
    found = chosen(spec, rank, profile, progress)
    asked = _with_model(spec, found)
    if progress is not None:
        progress("where the time and the memory go")
    explained = _explained(asked, found, *combination(asked, found, profile), profile, progress)
    return advised(spec, explained, profile=profile, progress=progress) if advice else explained


def advised(spec: Spec, found: Explanation, *, profile: str = "", progress: Progress | None = None) -> Explanation:
    """An explanation of a spec with what would help most."""
    from planner.advice import advise

    spec = _with_model(spec, found.estimate)
    one = combination(spec, found.estimate, profile)
    helping, together = advise(spec, found.estimate, one, found.time, profile=profile, progress=progress)
    return found.model_copy(update={"advice": helping, "together": together})


def _with_model(spec: Spec, found: Estimate) -> Spec:
    """The spec of the one of its models that an estimate is of."""
    return next((one for one in by_model(spec) if one.model.name == found.model), spec)


def chosen(spec: Spec, rank: int, profile: str = "", progress: Progress | None = None) -> Estimate:
    """The estimate that is meant: of the only combination, fitting or not, else of one that the plan has ranked."""
    combinations = list(choices(spec))
    if len(combinations) == 1 and not spec.models:
        if rank != 1:
            raise RigplanError(f"--rank: found {rank}, but the spec leaves one combination")
        return estimate(spec, profile=profile, progress=progress)
    ranked = plan(spec, profile=profile, progress=progress).ranked
    if not ranked:
        raise RigplanError(f"none of the {len(combinations)} combinations works; `rigplan plan` says why")
    if not 1 <= rank <= len(ranked):
        raise RigplanError(f"--rank: found {rank}, wanted 1 to {len(ranked)}, the places in `rigplan plan`")
    return ranked[rank - 1]


def combination(spec: Spec, found: Estimate, profile: str = "") -> Combination:
    """The strategy of an estimate with nothing left open, and the machine as the spec has it."""
    strategy = Strategy(**{field.name: getattr(found.strategy, field.name) for field in fields(Strategy)})
    for _, choice in choices(spec):
        if HardwareUsed.of(machines.resolve(choice, profile).choice) == found.hardware:
            return strategy, choice
    raise RigplanError(f"{found.hardware.count} x {found.hardware.gpu} is no machine of the spec")


def _explained(
    spec: Spec, found: Estimate, strategy: Strategy, choice: HardwareChoice, profile: str, progress: Progress | None
) -> Explanation:
    machine = machines.resolve(choice, profile)
    batches = batches_at(strategy, machine, strategy.micro_batch or 1)
    workloads = Workloads(spec.model, spec.data, progress)
    given = spec.training.micro_batch
    read = workloads.at if None not in given and len(given) <= MOST_TRACED else workloads.searched
    traced = read(knobs_of(strategy, machine), batches.micro_batch)
    worked_out = evaluate(spec, strategy, machine, batches, traced)
    workload = of_rank(traced, strategy, machine)
    time = time_of(workload, strategy, machine, batches, sm_share(machine))
    slowed_s = time.seconds - time_of(workload, strategy, machine, batches, 0.0).seconds
    timeline = fit(workload, strategy, machine, batches.accumulation).timeline
    held, workspace = at_peak(workload, strategy, machine, batches.accumulation, timeline)
    pricing = machine.pricing(tf32=strategy.precision == "tf32")
    return Explanation(
        estimate=found.model_copy(update={"memory": worked_out.memory, "step": worked_out.step}),
        time=time_rows(workload, pricing, time, batches.accumulation, slowed_s),
        memory=memory_rows(workload, held, workspace, timeline.peak_allocated_bytes),
    )


__all__ = ["advised", "chosen", "combination", "explain"]
