"""ZeRO as DeepSpeed does it: stages 1 and 2 from an unsharded trace, stage 3 from a trace under FSDP2.

With bf16 or fp16 the model's weights are in that dtype and each rank holds an fp32 copy of its partition with the
optimizer's states (so trace such a run with weights in the computing dtype). Gradients are reduced in buckets; stage 1
keeps all of them, stage 2 its partition only; the weights are gathered after the step. Stage 3 holds weights in
partitions
too, gathers them module by module and lets go of them unless they are used again soon.
Source: deepspeed/runtime/zero/{stage_1_and_2,stage3,partitioned_param_coordinator}.py and its documented defaults.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import numpy as np

from planner.call import ITEM_BYTES, Call, TensorSpec
from planner.collectives import Writer, collective
from planner.passes import ddp
from planner.passes.partition import flat_step, share_elements, state_bytes
from planner.workload import ALLOCATE, FREE, GRADIENT, PHASE, PHASES, Events, Workload

# Elements of one reduction bucket, and how many there are when reducing overlaps backward (Hugging Face's examples).
BUCKET_ELEMENTS, BUCKETS = 200_000_000, 2
# Stage 3 keeps a gathered weight when it is used again within so many elements (stage3_max_reuse_distance) and never
# holds more than so many (stage3_max_live_parameters).
LIVE_ELEMENTS = 1_000_000_000


def apply(workload: Workload, ranks: int, stage: int) -> Workload:
    """Stage 1 or 2 of one of `ranks`; on one rank the workload itself. Raises ValueError for another stage."""
    if stage not in (1, 2):
        raise ValueError(f"stage {stage} is not 1 or 2; stage 3 is partitioned()")
    if ranks == 1:
        return workload
    item = item_bytes(workload)
    part = share_elements(workload.trainable_count, ranks)
    states = -(-state_bytes(workload) * (4 // item) // ranks)
    grown, load = ddp.born_at_load(workload, [part * 4, states], "optimizer")
    grown, buffers = more(grown, [BUCKET_ELEMENTS * item] * BUCKETS, "workspace")
    grown, (partition,) = more(grown, [part * item], "gradients")
    writer = Writer(workload.calls)
    micro = micro_step(workload, writer, buffers, partition, stage)
    grown, step = _step(grown, writer, part, 0 if item == 4 else part * 4, "world")
    parameters = workload.parameters
    if stage == 2:
        parameters = tuple(
            parameter if parameter.gradient_block is None else replace(parameter, gradient_block=partition)
            for parameter in parameters
        )
    segments = {**workload.segments, "load": load, "micro_step": micro, "optimizer_first": step, "optimizer": step}
    return replace(grown, calls=writer.calls, segments=segments, parameters=parameters)


def whole(workload: Workload) -> Workload:
    """One rank that keeps fp32 copies of its low-precision weights with the states, and steps them flat."""
    elements = sum(workload.elements_here(parameter) for parameter in workload.parameters if parameter.trainable)
    grown, load = ddp.born_at_load(
        workload, [elements * 4, state_bytes(workload) * (4 // item_bytes(workload))], "optimizer"
    )
    writer = Writer(workload.calls)
    grown, step = _step(grown, writer, elements, elements * 4, None)
    segments = {**workload.segments, "load": load, "optimizer_first": step, "optimizer": step}
    return replace(grown, calls=writer.calls, segments=segments)


def partitioned(workload: Workload, ranks: int) -> Workload:
    """Stage 3 of a workload that was traced under FSDP2 with weights in the computing dtype (see `sharding_of`)."""
    if ranks == 1:
        return workload
    item = item_bytes(workload)
    part = sum(-(-parameter.elements // ranks) for parameter in workload.parameters if parameter.trainable)
    sizes = ([part * 4] if item < 4 else []) + [state_bytes(workload) * (4 // item)]
    grown, load = ddp.born_at_load(workload, sizes, "optimizer")
    grown, (bucket,) = more(grown, [BUCKET_ELEMENTS * item], "workspace")
    grown, (gradients,) = more(grown, [part * item], "gradients")
    load = _append(_append(load, ALLOCATE, bucket), ALLOCATE, gradients)
    grown, kept = more(
        grown, [_kept_at_the_turn(workload) * item] * (workload.parameter_count > LIVE_ELEMENTS), "casts"
    )
    writer = Writer(workload.calls)
    micro = _gathered_micro_step(workload, writer, kept)
    grown, step = _step(grown, writer, part, 0 if item == 4 else part * 4, None)
    segments = {
        **workload.segments, "load": load, "micro_step": micro, "optimizer_first": step, "optimizer": step,
    }  # fmt: skip
    return replace(grown, calls=writer.calls, segments=segments)


def _kept_at_the_turn(workload: Workload) -> int:
    """Elements that stay gathered from forward to backward: those used again within the reuse distance, there and back
    again."""
    return min(LIVE_ELEMENTS // 2, workload.parameter_count)


def _gathered_micro_step(workload: Workload, writer: Writer, kept: list[int]) -> Events:
    """Each gradient goes into the flat buffer of its partition, which lies there from the start, and dies; `kept` are
    weights that stay gathered until backward has used them."""
    last = complete_at(workload, "micro_step")
    done = 0
    for at, (code, value, views) in enumerate(rows(workload.segments["micro_step"])):
        writer.event(code, value, views)
        if code == PHASE and PHASES[value] == "backward":
            for block in kept:
                writer.event(ALLOCATE, block)
        if code == GRADIENT:
            before, done = done, done + workload.parameters[value].elements
            if before < _kept_at_the_turn(workload) <= done:
                for block in kept:
                    writer.event(FREE, block)
        if at in last:
            block = last[at]
            parameter = workload.parameters[value]
            size = int(workload.block_bytes[block]) // ITEM_BYTES[parameter.dtype]
            spec = TensorSpec(parameter.dtype, (size,))
            writer.call(Call("copy_.default", (spec, spec), (), (spec,)))
            writer.event(FREE, block)
    return writer.segment()


def complete_at(workload: Workload, name: str) -> dict[int, int]:
    """Where in a segment each block of gradients is complete: the event's place to the block."""
    last: dict[int, int] = {}
    events = workload.segments[name]
    for at in np.flatnonzero(events.codes == GRADIENT).tolist():
        block = workload.parameters[int(events.values[at])].gradient_block
        if block is not None:
            last[block] = at
    return {at: block for block, at in last.items()}


def sharding_of(parameter_count: int) -> str:
    """The FSDP2 sharding to trace for stage 3: a model within the live limit keeps what it has gathered."""
    return "fsdp-grad-op" if parameter_count <= LIVE_ELEMENTS else "fsdp"


def micro_step(
    workload: Workload,
    writer: Writer,
    buffers: list[int],
    partition: int | None,
    stage: int,
    after: Callable[[int], int] | None = None,
) -> Events:
    """Gradients go into buckets; a full one is reduced to the ranks that own its parts, into their `partition`.

    `after` writes what follows a reduction of so many elements, and returns what to wait for at the end.
    """
    held, pending = 0, list[int]()
    left = len(ddp.ready_order(workload))
    events = workload.segments["micro_step"]
    last = ddp.last_arrivals(workload)
    freed: set[int] = set()
    for at, (code, value, views) in enumerate(rows(events)):
        if not (code == FREE and value in freed):
            writer.event(code, value, views)
        if code == PHASE and PHASES[value] == "backward":
            for buffer in buffers:
                writer.event(ALLOCATE, buffer)
            if partition is not None and stage == 2:
                writer.event(ALLOCATE, partition)
        if code != GRADIENT or at != last[value]:
            continue
        parameter = workload.parameters[value]
        spec = TensorSpec(parameter.dtype, (parameter.elements,))
        writer.call(Call("copy_.default", (spec, spec), (), (spec,)))
        if stage == 2 and parameter.gradient_block is not None and parameter.gradient_block not in freed:
            freed.add(parameter.gradient_block)
            writer.event(FREE, parameter.gradient_block)
        held, left = held + parameter.elements, left - 1
        if held >= BUCKET_ELEMENTS or not left:
            pending.append(writer.call(collective("reduce_scatter", parameter.dtype, held, "world")))
            if after is not None:
                pending.append(after(held))
            held = 0
    if pending:
        writer.wait(pending[-1])
        for buffer in buffers:
            writer.event(FREE, buffer)
    return writer.segment()


def _step(
    workload: Workload, writer: Writer, part: int, gradient_bytes: int, gather: str | None
) -> tuple[Workload, Events]:
    """The step on one rank's partition, its gradient brought to fp32 for as long as it lasts, and the gather after
    it."""
    blocks: list[int] = []
    writer.event(PHASE, PHASES.index("optimizer"))
    dtype = next(parameter.dtype for parameter in workload.parameters if parameter.trainable)
    low, high = TensorSpec(dtype, (part,)), TensorSpec("f32", (part,))
    if gradient_bytes:
        workload, blocks = more(workload, [gradient_bytes], "temporary")
        writer.event(ALLOCATE, blocks[0])
        writer.call(Call("_to_copy.default", (low,), (("dtype", "f32"),), (high,)))
    for call in flat_step(workload, part):
        writer.call(call)
    if gradient_bytes:
        writer.event(FREE, blocks[0])
        writer.call(Call("copy_.default", (low, high), (), (low,)))
    if gather is not None:
        writer.wait(writer.call(collective("all_gather", dtype, workload.trainable_count, gather)))
    return workload, writer.segment()


def more(workload: Workload, sizes: list[int], category: str) -> tuple[Workload, list[int]]:
    first = len(workload.block_bytes)
    grown, _ = ddp.born_at_load(workload, sizes, category)
    return grown, list(range(first, first + len(sizes)))


def item_bytes(workload: Workload) -> int:
    return ITEM_BYTES[next(parameter.dtype for parameter in workload.parameters if parameter.trainable)]


def rows(events: Events) -> list[tuple[int, int, int]]:
    return list(zip(events.codes.tolist(), events.values.tolist(), events.views.tolist(), strict=True))


def _append(events: Events, code: int, value: int) -> Events:
    writer = Writer(())
    for row in rows(events):
        writer.event(*row)
    writer.event(code, value)
    return writer.segment()
