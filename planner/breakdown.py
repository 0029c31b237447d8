"""Breakdown: a step's seconds by operator and module, and a peak's bytes by category and module. They add up."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt

from planner.collectives import is_collective, size_of
from planner.cost import Pricing, physical_seconds, point_key
from planner.explanation import FLOOR, HOST, LINK, ROUNDING, SLOWED, Bound, MemoryRow, TimeRow
from planner.operators import FREE, SHAPE_FIELDS, UNKNOWN, Operator
from planner.passes.ddp import LAST
from planner.step import HOST_PHASES, StepTime, phases, priced
from planner.workload import ALLOCATE, CALL, CATEGORIES, MODULE, PHASES, Events, Workload

NEGLIGIBLE_S = 1e-12  # what is left of a step by rounding
_NUMBER = re.compile(r"(?<=\.)\d+(?=\.|$)|^\d+(?=\.|$)")


def folded(module: str) -> str:
    """A module's name with `*` for the numbers of its layers: ``gpt_neox.layers.*.attention``."""
    return _NUMBER.sub("*", module)


def time_rows(
    workload: Workload, pricing: Pricing, time: StepTime, accumulation: int, slowed_s: float = 0.0
) -> list[TimeRow]:
    """The operators, largest first, and what the device waits for; they sum to the step. `slowed_s`: what collectives
    that run beside them take from the operators."""
    costs = priced(workload, pricing)
    points = pricing.profile.points
    exact = [bool(points) and point_key(call, pricing.tf32) in points for call in workload.calls]
    groups: dict[tuple[str, str, Operator, bool], _Group] = {}
    times = _occurrences(workload, accumulation)
    for (call, module, phase), count in times.items():
        if costs.device[call] > 0:
            place = (PHASES[phase], folded(workload.modules[module]), costs.operators[call], exact[call])
            group = groups.setdefault(place, _Group(costs.words[call]))
            group.count += count
            group.seconds += count * float(costs.device[call])
            group.modules.add(module)
    rows = [_row(pricing, *place, group) for place, group in groups.items()]
    rows.sort(key=lambda row: -row.seconds)
    return [*rows, *_waits(workload, time, times, sum(row.seconds for row in rows), slowed_s)]


@dataclass(slots=True)
class _Group:
    known: str
    count: int = 0
    seconds: float = 0.0
    modules: set[int] = field(default_factory=set)


def _occurrences(workload: Workload, accumulation: int) -> dict[tuple[int, int, int], int]:
    """(call, module, phase) to how often it runs in an optimizer step."""
    segments = workload.segments
    times = [
        (segments["micro_step"], accumulation - 1),
        (segments.get(LAST, segments["micro_step"]), 1),
        (segments["optimizer"], 1),
    ]
    found: dict[tuple[int, int, int], int] = {}
    for events, repeats in times:
        is_call = events.codes == CALL
        if not repeats or not is_call.any():
            continue
        columns = np.stack([events.values[is_call], modules_of(events)[is_call], phases(events)[is_call]], axis=1)
        for key, count in zip(*np.unique(columns, axis=0, return_counts=True), strict=True):
            place = (int(key[0]), int(key[1]), int(key[2]))
            found[place] = found.get(place, 0) + repeats * int(count)
    return found


def modules_of(events: Events) -> npt.NDArray[np.int64]:
    """The module each event is the work of."""
    marks = np.where(events.codes == MODULE, np.arange(len(events)), -1)
    last = np.maximum.accumulate(marks) if len(events) else marks
    found: npt.NDArray[np.int64] = np.where(last >= 0, events.values[last], 0)
    return found


def _row(pricing: Pricing, phase: str, module: str, operator: Operator, exact: bool, group: _Group) -> TimeRow:
    computing, moving = physical_seconds(operator, pricing)
    each = group.seconds / group.count
    issue_s = pricing.profile.factor(HOST_PHASES[phase]) if phase in HOST_PHASES else 0.0
    bound: Bound = "launch" if each < issue_s else "compute" if computing > moving else "memory"
    return TimeRow(
        phase=phase,
        module=module,
        modules=len(group.modules),
        kind=operator.kind,
        operator=operator.variant,
        dtype=operator.dtype,
        shape=_shape(operator),
        count=group.count,
        flop=operator.executed_flop * group.count,
        bytes_moved=operator.bytes_moved * group.count,
        bound=bound,
        efficiency=min(1.0, max(computing, moving) / each),
        seconds=group.seconds,
        known=group.known or None,
        timed_exactly=exact,
    )


def _shape(operator: Operator) -> dict[str, int]:
    names = SHAPE_FIELDS.get(operator.kind, ())
    return dict(zip(names, map(int, operator.shape), strict=False)) if operator.kind not in (FREE, UNKNOWN) else {}


def _waits(
    workload: Workload, time: StepTime, times: dict[tuple[int, int, int], int], working_s: float, slowed_s: float
) -> list[TimeRow]:
    """What is left of the step: collectives that nothing hides, the host, and a floor where one was reached."""
    exposed = time.exposed_communication_seconds
    left = time.seconds - working_s - exposed - slowed_s
    sent = [
        (size_of(workload.calls[call]), count)
        for (call, _, _), count in times.items()
        if is_collective(workload.calls[call])
    ]
    rows = []
    if exposed > 0:
        moved = sum(size * count for size, count in sent)
        rows.append(_wait(LINK, exposed, sum(count for _, count in sent), moved))
    if slowed_s > NEGLIGIBLE_S:
        rows.append(_wait(SLOWED, slowed_s, 0, 0))
    if abs(left) > NEGLIGIBLE_S:
        at_floor = time.seconds == time.floor_seconds
        rows.append(_wait(FLOOR if at_floor else HOST, left, 0, 0))
    return rows


def _wait(kind: str, seconds: float, count: int, moved: int) -> TimeRow:
    return TimeRow(
        phase="", module="", modules=0, kind=kind, operator="", count=count, bytes_moved=moved, seconds=seconds
    )


def memory_rows(workload: Workload, held: dict[int, int], workspace_bytes: int, peak_bytes: int) -> list[MemoryRow]:
    """What is held at the peak (see memory.held_at_peak), largest first; it sums to the allocated peak."""
    owner = _owners(workload)
    sizes: dict[tuple[str, str], int] = {}
    members: dict[tuple[str, str], set[int]] = {}
    for block, times in held.items():
        module = owner.get(block, 0)
        key = (CATEGORIES[int(workload.block_categories[block])], folded(workload.modules[module]))
        sizes[key] = sizes.get(key, 0) + times * int(workload.block_bytes[block])
        members.setdefault(key, set()).add(module)
    if workspace_bytes:
        sizes["workspace", ""] = sizes.get(("workspace", ""), 0) + workspace_bytes
    rows = [
        MemoryRow(
            category=category, module=module, modules=len(members.get((category, module), ())) or 1, size_bytes=size
        )
        for (category, module), size in sizes.items()
        if size
    ]
    rows.sort(key=lambda row: -row.size_bytes)
    left = peak_bytes - sum(row.size_bytes for row in rows)
    return [*rows, MemoryRow(category=ROUNDING, module="", modules=1, size_bytes=left)] if left else rows


def _owners(workload: Workload) -> dict[int, int]:
    """Block to module: of the parameter that it is or is the gradient of, else of the work in which it was born."""
    numbers = {name: number for number, name in enumerate(workload.modules)}
    owner: dict[int, int] = {}
    for parameter in workload.parameters:
        module = numbers.get(parameter.name.rpartition(".")[0], 0)
        for block in (parameter.block, parameter.gradient_block):
            if block is not None:
                owner.setdefault(block, module)
    for events in workload.segments.values():
        born = events.codes == ALLOCATE
        for block, module in zip(events.values[born].tolist(), modules_of(events)[born].tolist(), strict=True):
            owner.setdefault(block, module)
    return owner


def total_seconds(rows: Sequence[TimeRow]) -> float:
    return sum(row.seconds for row in rows)


__all__ = ["folded", "memory_rows", "modules_of", "time_rows", "total_seconds"]
