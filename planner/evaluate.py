"""Evaluate: the whole way on one page. One strategy of a spec and one machine in, an Estimate out.

    spec ─► strategy, machine ─► workload (traced or kept) ─► memory ─► verdict
                                        └──────────────────► step time ─► days and cost

Read this first; every line below is a file of that name.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from planner import machine as machines
from planner.answer import Estimate, HardwareUsed, StrategyUsed
from planner.answers import memory_answer, run_answer, step_answer, throughput_answer
from planner.cache import TraceKnobs, Workloads
from planner.call import Call
from planner.communication import call_seconds, host_step_range, sm_share, waiting_share
from planner.fit import fit
from planner.machine import Machine
from planner.passes.table import ALIKE_ON_ALL_RANKS, after_trace
from planner.spec import Spec
from planner.step import StepTime, step_time
from planner.strategy import FSDP, BatchPlan, Strategy, batch_plan, choices, data_parallel, impossible
from planner.workload import Workload

# What an offloaded run is taken to have; the figures are in catalog/data/overheads.yaml.
_HOST = (
    "offload: the host steps the optimizer with all its cores (torchrun gives each process one: set OMP_NUM_THREADS)",
    "offload: host memory is pinned, and its need may be half as much again",
)
OFFLOADED = {"optimizer": _HOST, "all": _HOST}
REDUCED_EACH_TIME = (
    "FSDP reduces gradients in every micro-step, as torch does unless set_requires_gradient_sync says otherwise"
)
FUSED_LOSS = (
    "loss fused-linear: Liger's kernel (liger_kernel), "
    "in evaluations too, as transformers' Trainer has it where no metrics are computed"
)

# Where one compiled graph of a forward ends and the next begins.
MADE_OF = {
    "whole": "as it breaks {breaks} times",
    "buckets": "cut at DDP's buckets (torch's default, optimize_ddp), so that they are reduced while backward goes on",
    "blocks": "of each repeated block and of a loss function; the rest and FSDP's hooks run as they are written",
}

Progress = Callable[[str], None]
# What no answer models yet; listed in every answer that it touches.
UNMODELLED = ("data loading", "evaluation and checkpoint writing")


def evaluate(
    spec: Spec, strategy: Strategy, machine: Machine, batches: BatchPlan, workload: Workload, *, timed: bool = True
) -> Estimate:
    """One combination, its batches settled and its workload at hand."""
    workload = of_rank(workload, strategy, machine)
    found = fit(workload, strategy, machine, batches.accumulation)
    time = None
    start = machine.profile.factor("compile_s") if strategy.compile else 0.0
    if timed:
        time = time_of(workload, strategy, machine, batches, sm_share(machine))
    step = None
    if time is not None:
        step = step_answer(time, machine, host_step_range(strategy), compiled=strategy.compile)
    return Estimate(
        verdict=found.verdict,
        memory=memory_answer(found, workload, machine),
        step=step,
        throughput=None if step is None or time is None else throughput_answer(step, time, batches, workload, machine),
        run=None if step is None else run_answer(spec, step, batches, workload, machine, start),
        strategy=StrategyUsed.of(settled(strategy, batches)),
        hardware=HardwareUsed.of(machine.choice),
        parameters=workload.parameter_count,
        trainable_parameters=workload.trainable_count,
        flop_per_step=0.0 if time is None else time.flop * machine.count,
        assumptions=[
            *workload.assumptions,
            *machine.assumptions,
            *OFFLOADED.get(strategy.offload, ()),
            *((FUSED_LOSS,) if strategy.loss == "fused-linear" else ()),
            *(
                (REDUCED_EACH_TIME,)
                if strategy.sharding in FSDP and batches.accumulation > 1 and machine.count > 1
                else ()
            ),
            *compiling(workload, start, knobs_of(strategy, machine).graphs),
        ],
        unmodelled=[*UNMODELLED, *(f"operator {name}" for name in (time.unmodelled if time else ()))],
    )


def compiling(workload: Workload, seconds: float, made_of: str) -> tuple[str, ...]:
    """What torch.compile makes of the model, and how long that takes before the first step; `made_of` as in
    TraceKnobs.graphs."""
    graphs = workload.compiled_graphs
    if not graphs:
        return ()
    takes = "one graph" if graphs == 1 else f"{graphs} graphs, " + MADE_OF[made_of].format(breaks=graphs - 1)
    return (f"torch.compile takes the forward as {takes}; compiling takes about {seconds:.0f} s before the first step",)


def time_of(workload: Workload, strategy: Strategy, machine: Machine, batches: BatchPlan, sm_share: float) -> StepTime:
    """The step of one rank's workload."""
    pricing = machine.pricing(tf32=strategy.precision == "tf32")
    transfer = call_seconds(workload, strategy, machine)
    return step_time(
        workload,
        pricing,
        accumulation=batches.accumulation,
        transfer=transfer,
        sm_share=sm_share,
        waiting_share=waiting_share(machine),
    )


def settled(strategy: Strategy, batches: BatchPlan) -> Strategy:
    """The strategy with its batches filled in."""
    return replace(
        strategy,
        micro_batch=batches.micro_batch,
        accumulation=batches.accumulation,
        global_batch=batches.global_batch,
    )


_OF_RANK: dict[tuple[int, str, str, str, str, int], tuple[Workload, Workload]] = {}


def of_rank(workload: Workload, strategy: Strategy, machine: Machine) -> Workload:
    """The workload with what is added after the trace; one object for one question, as others remember it."""
    ranks = data_parallel(strategy, machine.choice)
    if strategy.offload == "none" and strategy.sharding in ALIKE_ON_ALL_RANKS:
        ranks = min(ranks, 2)
    key = (id(workload), strategy.precision, strategy.sharding, strategy.zero1, strategy.offload, ranks)
    if key not in _OF_RANK:
        _OF_RANK[key] = (workload, after_trace(workload, strategy, machine.choice))
    return _OF_RANK[key][1]


def knobs_of(strategy: Strategy, machine: Machine) -> TraceKnobs:
    """What of a combination decides its trace."""
    return TraceKnobs.of(strategy, machine.device.capability, machine.choice)


def not_possible(strategy: Strategy, machine: Machine) -> str | None:
    """Why a combination cannot be run, or cannot be answered yet; None when it can."""
    return impossible(strategy, machine.choice, machine.accelerator) or _not_compiled(strategy, machine)


def _not_compiled(strategy: Strategy, machine: Machine) -> str | None:
    if not strategy.compile:
        return None
    if strategy.tensor_parallel > 1:
        return "compile: true is not modelled with layers cut by tensor_parallel yet; use compile: false"
    spread = data_parallel(strategy, machine.choice) > 1 or strategy.offload != "none"
    if strategy.sharding == "zero3" and spread:
        return (
            "compile: true is not modelled with zero3, whose hooks break the graphs at every module; use sharding: "
            "fsdp, whose blocks stay whole, or compile: false"
        )
    return None


def calls_of(
    spec: Spec | Mapping[str, Any] | str | Path, *, progress: Progress | None = None
) -> list[tuple[Call, bool]]:
    """Every kernel call of a spec's combinations, once, with whether TF32 is on: what `calibrate run --for` times."""
    spec = Spec.load(spec)
    workloads = Workloads(spec.model, spec.data, progress)
    found: dict[tuple[Call, bool], None] = {}
    for strategy, choice in choices(spec):
        machine = machines.resolve(choice)
        batches = batch_plan(strategy, machine.choice)
        if isinstance(batches, str) or not_possible(strategy, machine):
            continue
        workload = workloads.at(knobs_of(strategy, machine), batches.micro_batch)
        found |= dict.fromkeys((call, strategy.precision == "tf32") for call in workload.calls)
    return list(found)


__all__ = ["Progress", "calls_of", "evaluate", "knobs_of", "not_possible", "settled", "time_of"]
