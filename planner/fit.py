"""Fit: whether a step's memory goes into a GPU, and the range that the answer has.

The allocator is replayed without a limit first. Where that would not go in, it is replayed under the limit, for torch
gives its cache back before it gives up. A verdict is firm when it holds with the limit moved by the residual both ways.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import partial
from typing import Literal

from catalog.overheads import overheads
from planner import scratch
from planner.call import ITEM_BYTES
from planner.machine import Machine
from planner.memory import Scratch, Timeline, Workspace, held_at_peak, replay
from planner.strategy import FSDP, Strategy
from planner.workload import Workload

Verdict = Literal["fits", "borderline", "does-not-fit"]
Taken = tuple[tuple[Workspace, ...], tuple[scratch.Groups, ...]]
# Whoever keeps a part of each weight saves a whole model by gathering one weight after another and copying it to the
# host (torch.distributed.checkpoint.state_dict, cpu_offload; DeepSpeed's consolidated 16-bit weights). Elsewhere
# torch.save copies what is there: no memory of the GPU.
GATHERS_TO_SAVE = ("zero3", *FSDP)


@dataclass(frozen=True, slots=True)
class Fit:
    """The memory of one GPU: device bytes are reserved plus context, what nvidia-smi shows."""

    verdict: Verdict
    timeline: Timeline
    device_bytes: int
    low_bytes: int
    high_bytes: int


def fit(workload: Workload, strategy: Strategy, machine: Machine, accumulation: int) -> Fit:
    """The verdict for the workload of one rank on a machine."""
    share = float(overheads()["residual"]["memory"]["value"])
    low_context, context, high_context = machine.context_bytes
    room = machine.usable_bytes - context

    def played(limit: float | None) -> Timeline:
        limit_bytes = None if limit is None else int(limit)
        expandable = strategy.allocator == "expandable"
        gathered = _gathered_bytes(workload, strategy)
        return _replay(workload, _device(strategy, machine), gathered, expandable, accumulation, limit_bytes)

    free = played(None)
    low = low_context + int(free.peak_reserved_bytes * (1 - share))
    high = high_context + int(free.peak_reserved_bytes * (1 + share))
    if high <= machine.usable_bytes:
        return Fit("fits", free, context + free.peak_reserved_bytes, low, high)
    least = low_context + int(free.peak_allocated_bytes * (1 - share))
    if least > machine.usable_bytes:
        return Fit("does-not-fit", free, context + free.peak_reserved_bytes, least, max(high, least))
    if not played(room / (1 + share) - (high_context - context)).out_of_memory:
        kept = int(room / (1 + share))
        return Fit("fits", free, context + kept, least, machine.usable_bytes)
    if played(room * (1 + share) + (context - low_context)).out_of_memory:
        return Fit(
            "does-not-fit",
            free,
            context + free.peak_reserved_bytes,
            machine.usable_bytes + 1,
            max(high, machine.usable_bytes + 1),
        )
    return Fit(
        "borderline", free, context + min(free.peak_reserved_bytes, room), min(least, machine.usable_bytes), high
    )


def at_peak(
    workload: Workload, strategy: Strategy, machine: Machine, accumulation: int, found: Timeline
) -> tuple[dict[int, int], int]:
    """The blocks that make the peak of `found`, how often each, and bytes of workspaces besides."""
    return held_at_peak(
        workload,
        _scratch(_device(strategy, machine), _gathered_bytes(workload, strategy)),
        found.peak_allocated_bytes,
        accumulation=accumulation,
        expandable=strategy.allocator == "expandable",
    )


def _device(strategy: Strategy, machine: Machine) -> scratch.Device:
    return replace(machine.device, tf32=strategy.precision != "fp32")


def _scratch(device: scratch.Device, gathered_bytes: int) -> Scratch:
    return Scratch(scratch.held(device), partial(scratch.during, device=device), gathered_bytes)


def _gathered_bytes(workload: Workload, strategy: Strategy) -> int:
    """The largest weight, where saving puts weights together."""
    if strategy.sharding not in GATHERS_TO_SAVE:
        return 0
    return max((ITEM_BYTES[item.dtype] * item.elements for item in workload.parameters), default=0)


_REPLAYED: dict[tuple[object, ...], tuple[Workload, Timeline]] = {}
_TAKEN: dict[tuple[int, scratch.Device], tuple[Workload, Taken]] = {}


def _replay(
    workload: Workload,
    device: scratch.Device,
    gathered_bytes: int,
    expandable: bool,
    accumulation: int,
    limit: int | None,
) -> Timeline:
    """A replay; devices that take the same scratch share it, for nothing else of a device is in it."""
    taken = _taken(workload, device)
    key = (id(workload), taken, gathered_bytes, expandable, min(accumulation, 2), limit)
    kept = _REPLAYED.get(key)
    if kept is None:
        timeline = replay(
            workload,
            _scratch(device, gathered_bytes),
            accumulation=accumulation,
            expandable=expandable,
            limit_bytes=limit,
        )
        kept = _REPLAYED[key] = (workload, timeline)
    return kept[1]


def _taken(workload: Workload, device: scratch.Device) -> Taken:
    """What the libraries take for this workload: the blocks that are held, and those of every call."""
    key = (id(workload), device)
    kept = _TAKEN.get(key)
    if kept is None:
        names = {call.name for call in workload.calls}
        held = tuple(block for block in scratch.held(device) if block.calls & names)
        during = tuple(scratch.during(call, device) for call in workload.calls)
        kept = _TAKEN[key] = (workload, (held, during))
    return kept[1]
