"""DDP: gradients copied into buckets as they become ready, each bucket reduced over all replicas while backward goes
on.

As torch.nn.parallel.DistributedDataParallel with its defaults: buckets are tensors of their own beside the gradients
(gradient_as_bucket_view=False), made when the module is wrapped and made anew, in the order in which gradients arrive,
after the first backward; micro-steps before the last reduce nothing (`no_sync`).
Source: torch/csrc/distributed/c10d/reducer.cpp.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

from planner.call import ITEM_BYTES, Call, TensorSpec
from planner.collectives import Writer, collective
from planner.workload import ALLOCATE, CATEGORIES, GRADIENT, Events, Parameter, Workload

MIB = 1 << 20
# The first bucket is small so that communication starts early.
FIRST_BUCKET_BYTES = 1 * MIB
BUCKET_BYTES = 25 * MIB
# The segment that replaces micro_step in the last micro-step of an optimizer step.
LAST = "last_micro_step"


@dataclass(frozen=True, slots=True)
class Bucket:
    """Gradients reduced together, of one dtype, in the order in which they become ready."""

    dtype: str
    parameters: tuple[int, ...]
    size_bytes: int

    @property
    def elements(self) -> int:
        return self.size_bytes // ITEM_BYTES[self.dtype]


def gradient_buckets(workload: Workload) -> tuple[Bucket, ...]:
    """The buckets in the order in which they fill: one row a dtype, closed when a limit is reached."""
    open_ones: dict[str, tuple[list[int], int]] = {}
    closed: list[Bucket] = []
    limits: dict[str, int] = {}
    for index in ready_order(workload):
        parameter = workload.parameters[index]
        members, held = open_ones.get(parameter.dtype, ([], 0))
        members, held = [*members, index], held + gradient_bytes(workload, parameter)
        if held >= limits.get(parameter.dtype, FIRST_BUCKET_BYTES):
            closed.append(Bucket(parameter.dtype, tuple(members), held))
            limits[parameter.dtype] = BUCKET_BYTES
            open_ones.pop(parameter.dtype, None)
        else:
            open_ones[parameter.dtype] = (members, held)
    return (*closed, *(Bucket(dtype, tuple(members), held) for dtype, (members, held) in open_ones.items()))


def ready_order(workload: Workload) -> tuple[int, ...]:
    """Parameters in the order in which their gradients are complete; a tied one counts at its last part."""
    events = workload.segments["micro_step"]
    arrived = events.values[events.codes == GRADIENT].tolist()
    return tuple(reversed(dict.fromkeys(reversed(arrived))))


def gradient_bytes(workload: Workload, parameter: Parameter) -> int:
    return workload.elements_here(parameter) * ITEM_BYTES[parameter.dtype]


def apply(workload: Workload, ranks: int) -> Workload:
    """The workload as one of `ranks` replicas: buckets in memory, and a `last_micro_step` that reduces them.

    On one rank it is the workload itself.
    """
    buckets = gradient_buckets(workload)
    if ranks == 1 or not buckets:
        return workload
    writer = Writer(workload.calls)
    filled_by = {index: bucket for bucket in buckets for index in bucket.parameters}
    missing = {bucket: len(bucket.parameters) for bucket in buckets}
    complete_at = last_arrivals(workload)
    reductions: list[tuple[Bucket, int]] = []
    events = workload.segments["micro_step"]
    for at, (code, value, views) in enumerate(
        zip(events.codes.tolist(), events.values.tolist(), events.views.tolist(), strict=True)
    ):
        writer.event(code, value, views)
        if code != GRADIENT or complete_at[value] != at:
            continue
        spec = _flat(workload, value)
        writer.call(
            Call("mul.out", (spec, TensorSpec("f32", ())), (), (spec,))
        )  # divided by the replicas on the way in
        bucket = filled_by[value]
        missing[bucket] -= 1
        if not missing[bucket]:
            reductions.append(
                (bucket, writer.call(collective("all_reduce", bucket.dtype, bucket.elements, "replicate")))
            )
    for bucket, which in reductions:
        writer.wait(which)
        for index in bucket.parameters:
            spec = _flat(workload, index)
            writer.call(Call("copy_.default", (spec, spec), (), (spec,)))
    last = writer.segment()
    grown, load = born_at_load(workload, [bucket.size_bytes for bucket in buckets], "workspace")
    return replace(grown, calls=writer.calls, segments={**workload.segments, "load": load, LAST: last})


def born_at_load(workload: Workload, sizes: list[int], category: str) -> tuple[Workload, Events]:
    """The workload with further blocks of these bytes, and its load segment at whose end they are born."""
    first = len(workload.block_bytes)
    kinds = np.full(len(sizes), CATEGORIES.index(category), dtype=np.int64)
    load = workload.segments["load"]
    numbers = np.arange(first, first + len(sizes), dtype=np.int64)
    segment = Events(
        np.concatenate([load.codes, np.full(len(sizes), ALLOCATE, dtype=np.int64)]),
        np.concatenate([load.values, numbers]),
        np.concatenate([load.views, np.zeros(len(sizes), dtype=np.int64)]),
    )
    grown = replace(
        workload,
        block_bytes=np.concatenate([workload.block_bytes, np.array(sizes, dtype=np.int64)]),
        block_categories=np.concatenate([workload.block_categories, kinds]),
    )
    return grown, segment


def last_arrivals(workload: Workload) -> dict[int, int]:
    """Where in the micro-step each parameter's gradient is complete."""
    events = workload.segments["micro_step"]
    at = np.flatnonzero(events.codes == GRADIENT)
    return dict(zip(events.values[at].tolist(), at.tolist(), strict=True))


def _flat(workload: Workload, index: int) -> TensorSpec:
    parameter = workload.parameters[index]
    return TensorSpec(parameter.dtype, (workload.elements_here(parameter),))
