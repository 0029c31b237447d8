"""Step: how long one optimizer step takes, as three queues: the host issues, the device computes, the link moves.

A kernel starts when the host has issued it and the device has finished the one before. So many small kernels take the
host's time, few large ones the device's, and what lies between comes out right. A step starts on an idle device:
training loops read the loss or the gradient norm back every step (transformers' Trainer does), so the host cannot run
ahead.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from catalog.ceilings import throttling
from planner.collectives import HOST_LANE, is_collective, lanes, per_event, roles, schedule
from planner.cost import Pricing, price, seconds
from planner.host_units import cpp_share, host_units, part_share
from planner.operators import UNKNOWN, Operator, describe
from planner.passes.ddp import LAST
from planner.roofline import PEAK_NAMES
from planner.workload import BY_CPP, BY_PART, BY_PROGRAM, CALL, COMPILED, PHASE, PHASES, Events, Workload, entered

Seconds = npt.NDArray[np.float64]

# The factor that says what the host takes for one unit of a phase's work (see host_work).
HOST_PHASES = {"forward": "host_forward_op_s", "backward": "host_backward_op_s", "optimizer": "host_optimizer_unit_s"}
# The same for a launch by a compiled program, and for entering one: its guards, its inputs and outputs.
HOST_COMPILED = {"launch": "host_compiled_launch_s", "enter": "host_compiled_enter_s"}
# Dense products by dtype, and the factor from a short timing to what holds for seconds: they reach the power limit.
SUSTAINED = {
    "bf16": "sustained_half_ratio",
    "f16": "sustained_half_ratio",
    "f8": "sustained_half_ratio",
    "tf32": "sustained_tf32_ratio",
}
DENSE_KINDS = ("matmul", "grouped_matmul", "attention")
WALKED = 4  # micro-steps worked out one by one; from then on each is like the one before
SKIPPED = ("host", "device", "exposed", "slowed")  # what goes on meanwhile
_Clocks = tuple[dict[str, float], dict[str, float]]  # of the queues, and of the phases


@dataclass(frozen=True, slots=True)
class StepTime:
    """Seconds of one optimizer step and of its parts; FLOP are the model's, without recompute."""

    seconds: float
    forward_seconds: float
    backward_seconds: float
    optimizer_seconds: float
    communication_seconds: float
    exposed_communication_seconds: float
    host_seconds: float
    device_seconds: float
    floor_seconds: float
    flop: float
    executed_flop: float
    words: frozenset[str]
    unmodelled: tuple[str, ...]
    host_step_seconds: float = 0.0  # of the optimizer on the host, where it is offloaded
    slowed_seconds: float = 0.0  # that the device's work takes longer beside collectives

    @property
    def host_bound_share(self) -> float:
        """Share of the step in which the device waits for the host."""
        busy = self.device_seconds + self.slowed_seconds + self.exposed_communication_seconds
        return max(0.0, 1.0 - busy / self.seconds)


@dataclass(frozen=True, slots=True)
class Priced:
    """A workload's calls with their prices; arrays run over `workload.calls`."""

    alone: Seconds
    device: Seconds  # as it holds in a long run
    floor: Seconds
    flop: Seconds
    executed: Seconds
    words: tuple[str, ...]
    operators: tuple[Operator, ...]


def step_time(
    workload: Workload,
    pricing: Pricing,
    *,
    accumulation: int = 1,
    transfer: Seconds | None = None,
    sm_share: float = 0.0,
    waiting_share: float = 0.0,
) -> StepTime:
    """One step of `accumulation` micro-steps and an optimizer step; `transfer` is each call's seconds on the link,
    `sm_share` the part of the device that collectives take from the kernels beside them, and `waiting_share` how much
    longer the slowest rank computes, for which the collectives of the others wait."""
    costs = priced(workload, pricing)
    factor = pricing.profile.factor
    host = {name: factor(key) for name, key in (HOST_PHASES | HOST_COMPILED).items()}
    host |= {"cpp": cpp_share(), "part": part_share(workload.compiled_graphs)}
    more = host_units(workload)
    bookkeeping = host["optimizer"] * sum(parameter.gradient_block is not None for parameter in workload.parameters)
    micro, update = workload.segments["micro_step"], workload.segments["optimizer"]
    queues = _Queues(sm_share)
    parts = dict.fromkeys(PHASES, 0.0)
    link = np.zeros(len(workload.calls)) if transfer is None else transfer
    role, lane = roles(workload), lanes(workload)
    final = workload.segments.get(LAST, micro)
    before: _Clocks = (dict.fromkeys(SKIPPED, 0.0), dict(parts))
    walked = min(accumulation, WALKED)
    for turn in range(walked):
        if turn == walked - 1 and accumulation > walked:
            _skip(queues, parts, before, accumulation - walked)
        before = ({name: getattr(queues, name) for name in SKIPPED}, dict(parts))
        queues.run(final if turn == walked - 1 else micro, costs.device, host, parts, link, role, lane, more)
    queues.run(update, costs.device, host, parts, link, role, lane, more, first=bookkeeping)
    counts = _counts(workload, micro) * (accumulation - 1) + _counts(workload, final) + _counts(workload, update)
    floor = float(costs.floor @ counts)
    waiting = waiting_share * float(costs.device @ counts)
    total = max(queues.device, queues.host, queues.link) + waiting + factor("host_synchronize_s")
    sent = np.where(lane == HOST_LANE, 0.0, link)
    return StepTime(
        seconds=max(total, floor),
        forward_seconds=parts["forward"],
        backward_seconds=parts["backward"],
        optimizer_seconds=parts["optimizer"],
        communication_seconds=float(sent @ counts) + waiting,
        exposed_communication_seconds=min(queues.exposed, float(sent @ counts)) + waiting,
        host_seconds=queues.host,
        device_seconds=float(costs.device @ counts),
        floor_seconds=floor,
        flop=float(costs.flop @ counts),
        executed_flop=float(costs.executed @ counts),
        words=frozenset(word for word, count in zip(costs.words, counts, strict=True) if word and count),
        unmodelled=_unmodelled(costs),
        host_step_seconds=float((link - sent) @ counts),
        slowed_seconds=queues.slowed,
    )


def _unmodelled(costs: Priced) -> tuple[str, ...]:
    """Operators of the device that no kind is known for."""
    pairs = zip(costs.operators, costs.words, strict=True)
    return tuple(sorted({operator.variant for operator, word in pairs if word and operator.kind == UNKNOWN}))


def _counts(workload: Workload, events: Events) -> npt.NDArray[np.int64]:
    """How often each call occurs in a segment."""
    return np.bincount(events.values[events.codes == CALL], minlength=len(workload.calls))


def _skip(queues: _Queues, parts: dict[str, float], before: _Clocks, turns: int) -> None:
    """Move on by `turns` micro-steps like the last one, whose start was `before`."""
    clocks, then = before
    for name, start in clocks.items():
        setattr(queues, name, getattr(queues, name) + turns * (getattr(queues, name) - start))
    for phase, start in then.items():
        parts[phase] += turns * (parts[phase] - start)


def host_work(workload: Workload, phase: str) -> int:
    """Units of host work of a phase: one a kernel launch; in the optimizer also one a trained parameter, for the loops
    over parameters that clip, group and clear gradients."""
    if phase == "optimizer":
        trained = sum(parameter.gradient_block is not None for parameter in workload.parameters)
        return len(workload.calls_in("optimizer")) + trained
    events = workload.segments["micro_step"]
    return int(((events.codes == CALL) & (phases(events) == PHASES.index(phase))).sum())


def compiled_work(workload: Workload) -> tuple[int, int]:
    """How often a micro-step enters a compiled program, and what is launched inside: (entries, launches)."""
    events = workload.segments["micro_step"]
    entries = int(entered(events).sum())
    return entries, int(((events.codes == CALL) & _compiled(events)).sum())


def sustained_class(operator: Operator) -> str:
    """The factor that holds for an operator in a long run; empty for what is not a dense product."""
    return SUSTAINED.get(operator.dtype, "") if operator.kind in DENSE_KINDS else ""


def sustained_ratio(operator: Operator, name: str, pricing: Pricing) -> float:
    """How much slower a dense product is in a long run; on a device that was not measured, as its power limit says."""
    if not name:
        return 1.0
    ratio = pricing.profile.factor(name)
    if pricing.profile.known == "measured":
        return ratio
    return 1.0 + (ratio - 1.0) * throttling(pricing.accelerator, PEAK_NAMES[operator.dtype])


def phases(events: Events) -> npt.NDArray[np.int64]:
    """The phase each event is in."""
    phases = np.zeros(len(events), dtype=np.int64)
    marks = np.flatnonzero(events.codes == PHASE)
    phases[marks] = events.values[marks]
    return np.maximum.accumulate(phases)


def _compiled(events: Events) -> npt.NDArray[np.bool_]:
    """Whether each event is a compiled program's."""
    marks = np.where(events.codes == COMPILED, np.where(events.values > 0, 1, -1), 0)
    return (np.cumsum(marks) > 0) & ~_by_cpp(events)


def _by_cpp(events: Events) -> npt.NDArray[np.bool_]:
    """Whether torch's own C++ code issues each event."""
    marks = np.flatnonzero(events.codes == COMPILED)
    last = np.searchsorted(marks, np.arange(len(events)), side="right") - 1
    found: npt.NDArray[np.bool_] = (last >= 0) & (events.values[marks[last]] == BY_CPP) if len(marks) else last >= 0
    return found


class _Queues:
    """The clocks of host and device, and the link's."""

    def __init__(self, sm_share: float) -> None:
        self.sm_share = sm_share
        self.host = self.device = self.link = 0.0
        self.exposed = self.slowed = 0.0

    def run(
        self,
        events: Events,
        device: Seconds,
        host: dict[str, float],
        parts: dict[str, float],
        link: Seconds,
        role: npt.NDArray[np.int64],
        lane: npt.NDArray[np.int64],
        host_units: Seconds,
        first: float = 0.0,
    ) -> None:
        """Issue and execute a segment; adds each phase's length to `parts`. The host is busy for `first` before it."""
        is_call = events.codes == CALL
        phase_at = phases(events)
        inside = _compiled(events)
        issue = np.where(inside, host["launch"], np.array([host.get(name, 0.0) for name in PHASES])[phase_at]) * is_call
        issue[_by_cpp(events)] *= host["cpp"]
        issue += per_event(events, host_units) * np.array([host.get(name, 0.0) for name in PHASES])[phase_at]
        issue[(events.codes == COMPILED) & (events.values == BY_PROGRAM)] = host["enter"]
        issue[(events.codes == COMPILED) & (events.values == BY_PART)] = host["enter"] * host["part"]
        issued = self.host + first + np.cumsum(issue)
        there = schedule(
            events,
            per_event(events, device),
            issued,
            per_event(events, link),
            per_event(events, role),
            lane=per_event(events, lane),
            device=self.device,
            link=self.link,
            sm_share=self.sm_share,
        )
        finished = there.finished
        before = max(self.device, self.host)  # where the segment before ended, for either of them
        for index in range(int(phase_at[0]) if len(events) else 0, len(PHASES)):
            at = np.flatnonzero(phase_at == index)
            if len(at) and is_call[at].any():
                end = float(finished[at[-1]])
                parts[PHASES[index]] += max(0.0, end - before)
                before = max(before, end)
        self.host = float(issued[-1])
        self.device, self.link = there.device, there.link
        self.exposed += there.exposed_seconds
        self.slowed += there.slowed_seconds


_KNOWN_OPERATORS: dict[tuple[int, bool], tuple[Workload, tuple[Operator, ...]]] = {}


def _operators(workload: Workload, tf32: bool) -> tuple[Operator, ...]:
    """The operators behind a workload's calls: the same on every device."""
    kept = _KNOWN_OPERATORS.get((id(workload), tf32))
    if kept is None:
        kept = (workload, tuple(describe(call, tf32=tf32) for call in workload.calls))
        _KNOWN_OPERATORS[id(workload), tf32] = kept
    return kept[1]


_KNOWN_WORKLOADS: dict[tuple[int, int], tuple[Workload, Pricing, Priced]] = {}


def priced(workload: Workload, pricing: Pricing) -> Priced:
    key = (id(workload), id(pricing))
    kept = _KNOWN_WORKLOADS.get(key)
    if kept is not None:
        return kept[2]
    operators = _operators(workload, pricing.tf32)
    price(operators, pricing)
    costs = [seconds(operator, call, pricing) for operator, call in zip(operators, workload.calls, strict=True)]
    sent = [is_collective(call) for call in workload.calls]  # the link's work, not the device's
    alone = np.array([0.0 if elsewhere else cost.seconds for cost, elsewhere in zip(costs, sent, strict=True)])
    slower = [sustained_class(operator) for operator in operators]
    found = Priced(
        alone,
        alone * [sustained_ratio(operator, name, pricing) for operator, name in zip(operators, slower, strict=True)],
        np.minimum([cost.floor_seconds for cost in costs], alone),
        np.array([operator.flop for operator in operators]),
        np.array([operator.executed_flop for operator in operators]),
        tuple("" if elsewhere else cost.known for cost, elsewhere in zip(costs, sent, strict=True)),
        operators,
    )
    _KNOWN_WORKLOADS[key] = (workload, pricing, found)
    return found
