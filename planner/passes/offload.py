"""Offload: optimizer states, and with `all` the weights too, in host memory; the host steps them.

ZeRO-Offload (DeepSpeed, stages 1 to 3) and FSDP2's CPUOffloadPolicy do alike: a gradient leaves for pinned memory as
soon as it is reduced, while backward goes on; the host steps its share; weights come back after the step, or, where
they are kept on the host, before each gather. Copies in both directions and collectives run beside each other.
Source: deepspeed/runtime/zero/{stage_1_and_2,stage3}.py (0.19), torch/distributed/fsdp/_fully_shard (2.13).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from planner.call import ITEM_BYTES, Call
from planner.collectives import (
    BROUGHT,
    COMPUTED,
    REDUCED,
    STORED,
    WAIT,
    Writer,
    collective,
    group_of,
    is_collective,
    kind_of,
    with_input,
)
from planner.passes.partition import share_elements, state_bytes
from planner.passes.zero import BUCKET_ELEMENTS, BUCKETS, complete_at, item_bytes, micro_step, more, rows
from planner.workload import ALLOCATE, CALL, FREE, PHASE, PHASES, Events, Workload

FP32_BYTES = 4


def zero(stage: int) -> Callable[[Workload, int, str], Workload]:
    """Stage 1 or 2: buckets as without offload; what a rank owns of a bucket leaves in fp32 and is not kept."""

    def apply(workload: Workload, ranks: int, _: str) -> Workload:
        item = item_bytes(workload)
        part = share_elements(workload.trainable_count, ranks)
        grown, buffers = more(workload, [BUCKET_ELEMENTS * item] * BUCKETS, "workspace")
        writer = Writer(workload.calls)
        freed = 2 if stage == 2 or ranks == 1 else 1  # stage 1 keeps what other ranks own until the step

        def leave(elements: int) -> int:
            return writer.call(_out(share_elements(elements, ranks)))

        micro = micro_step(workload, writer, buffers, None, freed, leave)
        step = _host_step(workload, writer, part, back=True, gather="world" if ranks > 1 else None)
        segments = {**workload.segments, "micro_step": micro, "optimizer_first": step, "optimizer": step}
        held = part * (2 * FP32_BYTES + item) + _states(workload, ranks)  # weights, gradients, and weights to send
        return replace(grown, calls=writer.calls, segments=segments, host_bytes=held)

    return apply


def partitioned(workload: Workload, ranks: int, what: str) -> Workload:
    """Stage 3: as FSDP, in the low dtype; `all` keeps the low weights on the host too."""
    item = item_bytes(workload)
    grown, (bucket,) = more(workload, [BUCKET_ELEMENTS * item], "workspace")
    moved = _moved(grown, ranks, weights=what == "all", load=[bucket])
    part = sum(-(-parameter.elements // ranks) for parameter in workload.parameters if parameter.trainable)
    writer = Writer(moved.calls)
    step = _host_step(workload, writer, part, back=what == "optimizer", gather=None)
    held = part * (2 * FP32_BYTES + item) + _states(workload, 1)
    held += workload.bytes_of("weights") if what == "all" else 0
    return replace(
        moved,
        calls=writer.calls,
        segments={**moved.segments, "optimizer_first": step, "optimizer": step},
        host_bytes=held,
    )


def fsdp(workload: Workload, ranks: int, _: str) -> Workload:
    """FSDP2 with CPUOffloadPolicy: shards, their gradients and states in host memory, stepped by torch."""
    moved = _moved(workload, ranks, weights=True, load=[], alone_from=COMPUTED)
    writer = Writer(moved.calls)
    part = sum(workload.elements_here(parameter) for parameter in workload.parameters if parameter.trainable)
    step = _host_step(workload, writer, part, back=False, gather=None)
    gradients = sum(
        workload.elements_here(parameter) * ITEM_BYTES[parameter.dtype]
        for parameter in workload.parameters
        if parameter.gradient_block is not None
    )
    return replace(
        moved,
        calls=writer.calls,
        segments={**moved.segments, "optimizer_first": step, "optimizer": step},
        host_bytes=workload.bytes_of("weights") + gradients + state_bytes(workload),
    )


PASSES: dict[str, Callable[[Workload, int, str], Workload]] = {
    "zero1": zero(1),
    "zero2": zero(2),
    "zero3": partitioned,
    "fsdp": fsdp,
    "fsdp-grad-op": fsdp,
    "hsdp": fsdp,
}


def _states(workload: Workload, ranks: int) -> int:
    """Bytes of one rank's fp32 states of an unsharded trace; those of a trace in the low dtype are half as large."""
    return -(-state_bytes(workload) * (FP32_BYTES // item_bytes(workload)) // ranks)


def _out(elements: int) -> Call:
    return collective("device_to_host", "f32", elements, "host", REDUCED)


def _host_step(workload: Workload, writer: Writer, part: int, *, back: bool, gather: str | None) -> Events:
    """The host steps `part` elements; `back`: their weights are then copied to the GPU, in its dtype, and gathered."""
    writer.event(PHASE, PHASES.index("optimizer"))
    which = writer.call(collective("host_step", "f32", part, "host"))
    writer.wait(which)
    dtype = next(parameter.dtype for parameter in workload.parameters if parameter.trainable)
    if back:
        which = writer.call(collective("host_to_device", dtype, part, "host"))
    if gather is not None:
        which = writer.call(collective("all_gather", dtype, workload.trainable_count, gather, REDUCED))
    writer.wait(which)
    return writer.segment()


def _moved(workload: Workload, ranks: int, *, weights: bool, load: list[int], alone_from: str = STORED) -> Workload:
    """A sharded workload whose gradients leave as they are reduced and, with `weights`, whose shards lie on the host
    and come before each gather. `load`: blocks born at loading. Without other ranks nothing is gathered: weights are
    copied one by one, ahead of their use or (`alone_from` COMPUTED) in line with the kernels."""
    item = item_bytes(workload)
    shards = {parameter.block for parameter in workload.parameters} if weights else set[int]()
    brought = _shards_of_gathers(workload, ranks) if weights and ranks > 1 else {}
    alone = _unsharded_alone(workload) if weights and ranks == 1 else {}
    grown, landing = more(workload, [max(brought.values(), default=0) * item] * bool(brought), "casts")
    writer = Writer(workload.calls)
    for code, value, views in rows(workload.segments["load"]):
        if value not in shards or code not in (ALLOCATE, FREE):
            writer.event(code, value, views)
    for block in load:
        writer.event(ALLOCATE, block)
    segments = {**workload.segments, "load": writer.segment()}
    for name in ("micro_step", "evaluation"):
        if name in segments:
            segments[name] = _segment(workload, name, writer, brought, landing, alone, alone_from)
    return replace(grown, calls=writer.calls, segments=segments)


def _shards_of_gathers(workload: Workload, ranks: int) -> dict[Call, int]:
    """Elements of its own that a rank puts into each gather of weights."""
    found = {}
    for call in workload.calls:
        if is_collective(call) and kind_of(call) == "all_gather" and group_of(call) == "shard":
            found[call] = call.arguments[0].elements // ranks
    return found


def _unsharded_alone(workload: Workload) -> dict[Call, int]:
    """The copies by which FSDP2 makes a lone rank's weights whole, and their elements."""
    sizes = {parameter.elements for parameter in workload.parameters}
    found = {}
    for call in workload.calls:
        if call.name == "copy_.default" and len(call.results[0].shape) == 1 and call.results[0].elements in sizes:
            found[call] = call.results[0].elements
    return found


def _segment(
    workload: Workload,
    name: str,
    writer: Writer,
    brought: dict[Call, int],
    landing: list[int],
    alone: dict[Call, int],
    alone_from: str,
) -> Events:
    dtype = next(parameter.dtype for parameter in workload.parameters if parameter.trainable)
    leaving = complete_at(workload, name)
    numbers: list[int] = []  # of the segment's collectives, as they are now
    out = -1
    for at, (code, value, views) in enumerate(rows(workload.segments[name])):
        call = workload.calls[value] if code == CALL else None
        if code == WAIT:
            writer.wait(numbers[value])
        elif call in brought:
            for block in landing:
                writer.event(ALLOCATE, block)
            writer.call(collective("host_to_device", dtype, brought[call], "host", STORED))
            numbers.append(writer.call(with_input(call, BROUGHT)))
            for block in landing:
                writer.event(FREE, block)
        else:
            if call in alone:
                writer.wait(writer.call(collective("host_to_device", dtype, alone[call], "host", alone_from)))
            writer.event(code, value, views)
            if call is not None and is_collective(call):
                numbers.append(writer.collectives - 1)
        if at in leaving:
            block = leaving[at]
            out = writer.call(_out(int(workload.block_bytes[block]) // ITEM_BYTES[dtype]))
            writer.event(FREE, block)
    if out >= 0:
        writer.wait(out)
    return writer.segment()
