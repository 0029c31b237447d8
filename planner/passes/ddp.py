"""DDP: gradients copied into buckets as they become ready, each bucket reduced over all replicas while backward goes
on.

As torch.nn.parallel.DistributedDataParallel with its defaults: buckets are tensors of their own beside the gradients
(gradient_as_bucket_view=False); when the module is wrapped its weights are sent in flat copies of 250 MiB, two at a
time, and there is one bucket; after the first backward the buckets are made anew, in the order in which gradients
arrived; buffers are sent before a forward; micro-steps before the last reduce nothing (`no_sync`).
Source: torch/nn/parallel/distributed.py, torch/csrc/distributed/c10d/{comm,reducer}.cpp.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

from planner.call import ITEM_BYTES, Call, TensorSpec
from planner.collectives import Writer, collective
from planner.workload import (
    ALLOCATE,
    BY_CPP,
    CATEGORIES,
    COMPILED,
    FREE,
    GRADIENT,
    PHASE,
    PHASES,
    Events,
    Parameter,
    Workload,
)

MIB = 1 << 20
# The first bucket is small so that communication starts early.
FIRST_BUCKET_BYTES = 1 * MIB
BUCKET_BYTES = 25 * MIB
# Weights and buffers are sent in flat copies of at least so much, of which so many are under way.
SENT_BYTES, IN_FLIGHT = 250 * MIB, 2
# The segment that replaces micro_step in the last micro-step of an optimizer step.
LAST = "last_micro_step"
# Played once, after the first step.
SETTLE = "settle"


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
        if code == PHASE and PHASES[value] == "forward":
            _send_buffers(workload, writer)
        if code != GRADIENT or complete_at[value] != at:
            continue
        spec = _flat(workload, value)
        writer.event(COMPILED, BY_CPP)
        writer.call(
            Call("mul.out", (spec, TensorSpec("f32", ())), (), (spec,))
        )  # divided by the replicas on the way in
        writer.event(COMPILED, 0)
        bucket = filled_by[value]
        missing[bucket] -= 1
        if not missing[bucket]:
            reductions.append(
                (bucket, writer.call(collective("all_reduce", bucket.dtype, bucket.elements, "replicate")))
            )
    writer.event(COMPILED, BY_CPP)
    for bucket, which in reductions:
        writer.wait(which)
        for index in bucket.parameters:
            spec = _flat(workload, index)
            writer.call(Call("copy_.default", (spec, spec), (), (spec,)))
    writer.event(COMPILED, 0)
    last = writer.segment()
    grown, load, settle = _wrapped(workload, buckets)
    segments = {**workload.segments, "load": load, LAST: last, SETTLE: settle}
    return replace(grown, calls=writer.calls, segments=segments)


def _wrapped(workload: Workload, buckets: tuple[Bucket, ...]) -> tuple[Workload, Events, Events]:
    """The workload with the blocks of wrapping, its load, and how buckets are made anew after the first step."""
    sent = [size for size, members in _sent_together(workload) if members > 1]  # one alone is sent as it lies
    first = {bucket.dtype: 0 for bucket in buckets}
    for bucket in buckets:
        first[bucket.dtype] += bucket.size_bytes
    sizes = [*sent, *first.values(), *(bucket.size_bytes for bucket in buckets)]
    grown, _ = born_at_load(workload, sizes, "workspace")
    numbers = iter(range(len(workload.block_bytes), len(grown.block_bytes)))
    writer = Writer(())
    load = workload.segments["load"]
    for row in zip(load.codes.tolist(), load.values.tolist(), load.views.tolist(), strict=True):
        writer.event(*row)
    flying: list[int] = []
    for _ in sent:
        if len(flying) == IN_FLIGHT:
            writer.event(FREE, flying.pop(0))
        flying.append(next(numbers))
        writer.event(ALLOCATE, flying[-1])
    for block in flying:
        writer.event(FREE, block)
    whole = [next(numbers) for _ in first]
    for block in whole:
        writer.event(ALLOCATE, block)
    loaded = writer.segment()
    for block in whole:
        writer.event(FREE, block)
    for block in numbers:
        writer.event(ALLOCATE, block)
    return grown, loaded, writer.segment()


def _sent_together(workload: Workload) -> list[tuple[int, int]]:
    """Bytes of each flat copy in which weights are sent, and how many it holds."""
    found: list[tuple[int, int]] = []
    held: dict[str, tuple[int, int]] = {}
    for parameter in workload.parameters:
        size, members = held.pop(parameter.dtype, (0, 0))
        size, members = size + gradient_bytes(workload, parameter), members + 1
        if size >= SENT_BYTES:
            found.append((size, members))
        else:
            held[parameter.dtype] = (size, members)
    return [*found, *held.values()]


def _send_buffers(workload: Workload, writer: Writer) -> None:
    """Buffers follow the first rank's before a forward: made flat, sent, and copied back one by one."""
    kind = CATEGORIES.index("buffers")
    sizes = workload.block_bytes[workload.block_categories == kind] // ITEM_BYTES["f32"]
    specs = tuple(TensorSpec("f32", (int(size),)) for size in sizes if size)
    if not specs:
        return
    flat = TensorSpec("f32", (sum(spec.elements for spec in specs),))
    writer.event(COMPILED, BY_CPP)
    writer.call(Call("cat.default", (specs,), (), (flat,)))
    writer.wait(writer.call(collective("broadcast", "f32", flat.elements, "replicate")))
    for spec in specs:
        writer.call(Call("copy_.default", (spec, spec), (), (spec,)))
    writer.event(COMPILED, 0)


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
