"""Which trace and which pass each sharding wants: one table."""

from __future__ import annotations

from collections.abc import Callable

from planner.collectives import Mesh
from planner.passes import ddp, fp8, half, offload, zero, zero_redundancy
from planner.strategy import FSDP, HardwareChoice, Strategy, by_deepspeed, data_parallel
from planner.workload import Workload

# After the trace: the workload and the number of data-parallel ranks to the workload of one of them.
PASSES: dict[str, Callable[[Workload, int], Workload]] = {
    "none": ddp.apply,
    "zero1": lambda workload, ranks: zero.apply(workload, ranks, 1),
    "zero2": lambda workload, ranks: zero.apply(workload, ranks, 2),
    "zero3": zero.partitioned,
    "fsdp": lambda workload, _: workload,
    "fsdp-grad-op": lambda workload, _: workload,
    "hsdp": lambda workload, _: workload,
}
# Those whose workload is the same on any number of ranks above one: each holds all, and the link's price is apart.
ALIKE_ON_ALL_RANKS = ("none", *FSDP)
# Traced as one rank alone: all that they add, they add after the trace.
TRACED_ALONE = ("none", "zero1", "zero2")
# DeepSpeed computes with weights in the low dtype; its fp32 copies are the pass's.
LOW = {"bf16-mixed": "bf16", "fp16-mixed": "bf16"}
FP16 = ("fp16", "fp16-mixed")
# What is traced for precisions that differ from it in the rate of their products alone, or in a dtype's name.
TRACED_AS = {"fp8-mixed": "bf16-mixed", "tf32": "fp32", "fp16": half.TRACED}


def mesh_of(strategy: Strategy, hardware: HardwareChoice) -> Mesh | None:
    """The process groups to trace under; None where one rank is traced as if it were alone.

    Stage 3 of ZeRO is left as `zero3`: what it keeps gathered depends on the model's size (see zero.sharding_of).
    """
    ranks, tensor = data_parallel(strategy, hardware), strategy.tensor_parallel
    alone = ranks == 1 and strategy.offload == "none"
    if alone or strategy.sharding in TRACED_ALONE:
        return None if tensor == 1 else Mesh("none", tensor=tensor)
    if strategy.sharding == "hsdp":
        return Mesh("hsdp", ranks // hardware.nodes, hardware.nodes, tensor)
    return Mesh(strategy.sharding, ranks, tensor=tensor)


def by_ddp(strategy: Strategy, hardware: HardwareChoice) -> bool:
    """Whether torch's DistributedDataParallel wraps the model."""
    wrapped = strategy.sharding == "none" or (strategy.sharding == "zero1" and not by_deepspeed(strategy))
    return wrapped and data_parallel(strategy, hardware) > 1


def trace_precision(strategy: Strategy, hardware: HardwareChoice) -> str:
    """The precision to trace in: ZeRO's weights lie in the low dtype."""
    sharded = by_deepspeed(strategy) and (data_parallel(strategy, hardware) > 1 or strategy.offload != "none")
    precision = TRACED_AS.get(strategy.precision, strategy.precision)
    return LOW.get(precision, precision) if sharded else precision


def after_trace(workload: Workload, strategy: Strategy, hardware: HardwareChoice) -> Workload:
    """The workload of one rank with what its precision, its sharding and its offload add after the trace."""
    if strategy.precision == "fp8-mixed":
        workload = fp8.apply(workload)
    if strategy.precision in FP16 and trace_precision(strategy, hardware) == half.TRACED:
        workload = half.as_fp16(workload)
    if strategy.offload != "none":
        return offload.PASSES[strategy.sharding](workload, data_parallel(strategy, hardware), strategy.offload)
    if strategy.precision == "fp16" and (strategy.sharding == "none" or data_parallel(strategy, hardware) == 1):
        workload = zero.whole(workload)
    if strategy.sharding == "zero1" and not by_deepspeed(strategy):
        return zero_redundancy.apply(workload, data_parallel(strategy, hardware))
    return PASSES[strategy.sharding](workload, data_parallel(strategy, hardware))
