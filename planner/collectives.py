"""Collectives: how communication stands in a workload, and how it overlaps with computation.

A collective is a Call in the order in which the host issues it; `WAIT` is the event at which the device needs its
result.
The link runs collectives one after another in that order. Needs no torch.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TypeVar

import numpy as np
import numpy.typing as npt

from planner.call import ITEM_BYTES, Call, TensorSpec
from planner.workload import CALL, Events, Workload

Seconds = npt.NDArray[np.float64]
Roles = npt.NDArray[np.int64]
Number = TypeVar("Number", np.float64, np.int64)

PREFIX = "collective."
KINDS = ("all_reduce", "all_gather", "reduce_scatter", "broadcast", "all_to_all", "send_recv")
# What offload adds: copies between the GPU and its host, and the optimizer's step on the host.
HOST_KINDS = ("host_to_device", "device_to_host", "host_step")
# What runs beside what: the links between GPUs, both directions of the link to the host, and the host itself.
LANES = {"host_to_device": 1, "device_to_host": 2, "host_step": 3}
# The event after which the device uses what a collective brought; its value counts collectives within the segment.
WAIT = 5
# Groups of ranks, by what they share: parameters' shards, replicas of them, one layer, or everything.
GROUPS = ("shard", "replicate", "tensor", "world", "host")
# Where the input comes from: the device computed it just now, it lies ready in memory (a shard of the weights), or the
# collective issued before brings it: computed in one case, stored in the other.
COMPUTED, STORED, REDUCED, BROUGHT = "computed", "stored", "reduced", "brought"
_ROLES = {COMPUTED: 1, STORED: 2, REDUCED: 3, BROUGHT: 4}
_FROM_STORE = (_ROLES[STORED], _ROLES[BROUGHT])
_AFTER_ANOTHER = (_ROLES[REDUCED], _ROLES[BROUGHT])
HOST_LANE = LANES["host_step"]


def collective(kind: str, dtype: str, elements: int, group: str, source: str = COMPUTED) -> Call:
    """A collective over `elements` of the full tensor: what an all-gather gives, what a reduce-scatter takes.

    Raises ValueError for a kind or group that is not in KINDS and GROUPS.
    """
    if kind not in (*KINDS, *HOST_KINDS) or group not in GROUPS:
        raise ValueError(f"no collective {kind} over {group}; kinds are {', '.join(KINDS)}, groups {', '.join(GROUPS)}")
    return Call(PREFIX + kind, (TensorSpec(dtype, (elements,)),), (("group", group), ("input", source)), ())


def is_collective(call: Call) -> bool:
    return call.name.startswith(PREFIX)


def kind_of(call: Call) -> str:
    return call.name.removeprefix(PREFIX)


def group_of(call: Call) -> str:
    return str(dict(call.keywords)["group"])


def size_of(call: Call) -> int:
    """Bytes of the full tensor."""
    spec: TensorSpec = call.arguments[0]
    return spec.elements * ITEM_BYTES[spec.dtype]


def with_input(call: Call, source: str) -> Call:
    """The collective with its input from elsewhere."""
    return replace(call, keywords=tuple((key, source if key == "input" else value) for key, value in call.keywords))


def traffic(workload: Workload, segment: str) -> list[tuple[str, str, int]]:
    """(kind, group, bytes) of a segment's collectives, in the order of issue."""
    calls = (workload.calls[index] for index in workload.calls_in(segment))
    return [(kind_of(call), group_of(call), size_of(call)) for call in calls if is_collective(call)]


@dataclass(frozen=True, slots=True)
class Schedule:
    """A segment on its queues. `finished` is the device's clock after each event; all seconds are absolute clocks
    but for the last three, which are lengths: of all collectives, of the device waiting for them, and of the device's
    work being slowed by collectives that run beside it."""

    finished: Seconds
    device: float
    link: float
    communication_seconds: float
    exposed_seconds: float
    slowed_seconds: float


def schedule(
    events: Events,
    compute: Seconds,
    issued: Seconds,
    transfer: Seconds,
    role: Roles,
    *,
    lane: Roles | None = None,
    device: float = 0.0,
    link: float = 0.0,
    sm_share: float = 0.0,
) -> Schedule:
    """Run a segment: max-plus of the host (`issued`, when each event is issued), the device and the link.

    `compute` and `transfer` are each event's seconds on the device and on the link, `role` is as `roles` says. A
    collective starts when it is issued, the link is free, and its input is there: after the device's earlier work, or
    for a stored input once the device has taken over the gather before (one unit ahead, as FSDP2's buffers allow).
    Collectives that nobody waits for keep the link, not the device. `sm_share` is the part of the device that a
    collective's kernels take. Each `lane` (see LANES; the link between GPUs where none is given) is a queue of its own.
    """
    marks = np.flatnonzero((role > 0) | (events.codes == WAIT))
    finished = np.empty(len(events), dtype=np.float64)
    started_at, ends = 0, list[float]()
    taken = device  # when the device took over the last stored input that it waited for
    sources = list[bool]()
    lanes = [link] * (1 + len(LANES))
    which_lane = np.zeros(len(events), dtype=np.int64) if lane is None else lane
    on_host = list[bool]()
    exposed = 0.0
    communication = float(transfer[which_lane != HOST_LANE].sum())
    for mark in (*marks.tolist(), len(events)):
        device = _run(finished, compute, issued, started_at, mark, device)
        started_at = mark
        if mark == len(events):
            break
        now = float(issued[mark])
        if events.codes[mark] == WAIT:
            which = int(events.values[mark])
            if which < len(ends):
                end = ends[which]
                exposed += 0.0 if on_host[which] else max(0.0, end - max(device, now))
                device = max(device, end)
                if sources[which]:
                    taken = device
            finished[mark] = device
        else:
            at, kind = int(which_lane[mark]), int(role[mark])
            there = taken if kind in _FROM_STORE else device
            if kind in _AFTER_ANOTHER and ends:
                there = ends[-1]
            lanes[at] = max(lanes[at], now, there) + float(transfer[mark])
            ends.append(lanes[at])
            sources.append(kind in _FROM_STORE)
            on_host.append(at == HOST_LANE)
            finished[mark] = device
        started_at = mark + 1
    between_gpus = float(transfer[which_lane == 0].sum())  # copies to the host take no kernels
    slowed = sm_share * max(0.0, between_gpus - exposed)
    return Schedule(finished, device + slowed, max(lanes), communication, exposed, slowed)


def _run(finished: Seconds, compute: Seconds, issued: Seconds, first: int, last: int, device: float) -> float:
    """The device's clock over events that neither communicate nor wait."""
    if first == last:
        return device
    length = compute[first:last]
    done = np.cumsum(length)
    ready = np.where(length > 0, issued[first:last], -np.inf)
    clock = done + np.maximum(device, np.maximum.accumulate(ready - (done - length)))
    finished[first:last] = clock
    return float(clock[-1])


def roles(workload: Workload) -> Roles:
    """What each call is to `schedule`: 0 no collective, 1 one of computed input, 2 of stored input."""
    return np.array(
        [_ROLES[dict(call.keywords)["input"]] if is_collective(call) else 0 for call in workload.calls], dtype=np.int64
    )


def lanes(workload: Workload) -> Roles:
    """The queue that each call runs in, if it is a collective."""
    return np.array(
        [LANES.get(kind_of(call), 0) if is_collective(call) else 0 for call in workload.calls], dtype=np.int64
    )


def per_event(events: Events, seconds: npt.NDArray[Number]) -> npt.NDArray[Number]:
    """`seconds` (or roles) of each call, laid out over events; zero where an event is no call."""
    is_call = events.codes == CALL
    found = np.zeros(len(events), dtype=seconds.dtype)
    found[is_call] = seconds[events.values[is_call]]
    return found


class Writer:
    """Writes events after one another; what the passes build their segments with."""

    def __init__(self, calls: tuple[Call, ...]) -> None:
        self._calls = {call: index for index, call in enumerate(calls)}
        self._communicate = {index for index, call in enumerate(calls) if is_collective(call)}
        self._rows: list[tuple[int, int, int]] = []
        self.collectives = 0

    @property
    def calls(self) -> tuple[Call, ...]:
        return tuple(self._calls)

    def event(self, code: int, value: int, views: int = 0) -> None:
        """Copy an event of the workload whose calls this writer was made with."""
        self._rows.append((code, value, views))
        if code == CALL and value in self._communicate:
            self.collectives += 1

    def call(self, call: Call) -> int:
        """Add a call; for a collective, returns the number to wait for."""
        index = self._calls.setdefault(call, len(self._calls))
        self._rows.append((CALL, index, 0))
        if is_collective(call):
            self.collectives += 1
        return self.collectives - 1

    def wait(self, which: int) -> None:
        self._rows.append((WAIT, which, 0))

    def segment(self) -> Events:
        """What was written since the last segment."""
        columns = np.array(self._rows, dtype=np.int64).reshape(-1, 3).T
        self._rows, self.collectives = [], 0
        return Events(*(np.ascontiguousarray(column) for column in columns))


@dataclass(frozen=True, slots=True)
class Mesh:
    """The process groups that a trace runs under: how each parameter is spread. `sharding` is fsdp, fsdp-grad-op, hsdp
    or none."""

    sharding: str
    shard: int = 1
    replicate: int = 1
    tensor: int = 1

    @property
    def ranks(self) -> int:
        return self.shard * self.replicate * self.tensor
