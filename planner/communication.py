"""Communication: which GPUs a collective spans, and its seconds over the links between them.

Inside a node the measured curve of its link answers; where there is none, a ring: an all-reduce moves 2(n-1)/n of its
bytes through each GPU's link, gather and scatter (n-1)/n, a message below the half-rate size gets its share of the
saturated rate, each further rank adds a hop. Across nodes the two kinds of links work at once on pieces.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache
from statistics import NormalDist

import numpy as np
import numpy.typing as npt

from catalog.errors import RigplanError
from catalog.link_curve import find, ring_share
from catalog.overheads import overheads
from catalog.store import DATA, load_yaml
from catalog.system import Link, Node
from planner.call import Call
from planner.collectives import LANES, group_of, is_collective, kind_of, size_of
from planner.machine import Machine
from planner.strategy import HardwareChoice, Strategy
from planner.workload import Workload

# NCCL lets the switch add from five GPUs on.
IN_SWITCH_ABOVE = 4
BILLION = 1e9


@dataclass(frozen=True, slots=True)
class Span:
    """A group of GPUs: how many of a node belong to it, and how many nodes it reaches."""

    inside: int
    nodes: int = 1
    ranks: int = 0

    def __post_init__(self) -> None:
        if not self.ranks:
            object.__setattr__(self, "ranks", self.inside * self.nodes)


def spans(strategy: Strategy, hardware: HardwareChoice) -> dict[str, Span]:
    """The groups of a strategy on a machine, by name; the group `shard` is all data-parallel ranks but under hsdp."""
    tensor, count = strategy.tensor_parallel, hardware.count
    inside, nodes = hardware.gpus_in_node, hardware.nodes
    if count % tensor or inside % tensor:
        raise RigplanError(
            f"tensor_parallel {tensor} does not divide {count} GPUs in nodes of {inside}; use a divisor of both"
        )
    rows = Span(inside // tensor, nodes, count // tensor)
    hybrid = strategy.sharding == "hsdp"
    return {
        "world": Span(inside, nodes, count),
        "tensor": Span(tensor),
        "shard": Span(inside // tensor) if hybrid else rows,
        "replicate": Span(1, nodes) if hybrid else rows if strategy.sharding == "none" else Span(1),
    }


def collective_seconds(kind: str, size_bytes: float, span: Span, node: Node, accelerator: str = "") -> float:
    """Seconds of one collective of `size_bytes` (the full tensor). None of it is free, more of it is never faster."""
    if span.ranks <= 1 or size_bytes <= 0:
        return 0.0
    if span.nodes == 1:
        return _on_link(kind, size_bytes, span.ranks, node.link(span.ranks), accelerator)
    if node.inter is None:
        raise RigplanError(
            f"{node.name} has no link between nodes; name a node that has, or at most {node.gpus_per_node} GPUs"
        )
    within, across = node.link(span.inside), node.inter
    latency = _on_link(kind, 0.0, span.inside, within, accelerator)
    network_latency = _on_link(kind, 0.0, span.nodes, across, accelerator)
    steps = (span.ranks - span.nodes) * across.hop_s  # one ring through all of them: every rank is a step
    moving = max(0.0, _on_link(kind, size_bytes, span.inside, within, accelerator) - latency)
    network_moving = max(
        0.0, _on_link(kind, size_bytes / span.inside, span.nodes, across, accelerator) - network_latency
    )
    power = _overlap_power()
    moved: float = (moving**power + network_moving**power) ** (1 / power)
    return latency + network_latency + steps + moved


def call_seconds(workload: Workload, strategy: Strategy, machine: Machine) -> npt.NDArray[np.float64]:
    """The link's seconds of each of the workload's calls; zero for those that are no collectives."""
    groups = spans(strategy, machine.choice)
    return np.array([
        0.0 if not is_collective(call)
        else host_seconds(call, strategy, machine) if kind_of(call) in LANES
        else collective_seconds(
            kind_of(call), size_of(call), groups[group_of(call)], machine.node, machine.accelerator.name
        )
        for call in workload.calls
    ])  # fmt: skip


def sm_share(machine: Machine) -> float:
    """The part of a GPU's work that is lost while NCCL's kernels run beside it."""
    table = overheads()["collective_sm_share"]
    return float(table.get(machine.node.intra.kind, table["default"]))


def waiting_share(machine: Machine) -> float:
    """How much longer than a GPU of the middle the slowest of the machine takes, as a share of its work: the largest of
    as many normal numbers is expected there (Blom 1958)."""
    count = machine.choice.count
    return float(overheads()["gpu_spread"]["value"]) * NormalDist().inv_cdf((count - 0.375) / (count + 0.25))


def host_seconds(call: Call, strategy: Strategy, machine: Machine) -> float:
    """Seconds of a copy over the host's link, or of the optimizer's step on the host, whose cores and memory bandwidth
    the GPUs of a node share."""
    if kind_of(call) != "host_step":
        latency_s = float(overheads()["offload"]["copy_latency_s"]["value"])
        return latency_s + size_of(call) / machine.node.host_bytes_per_s
    elements: int = call.arguments[0].elements * machine.choice.gpus_in_node
    return elements / BILLION * _step_facts(strategy)[1]


def host_step_range(strategy: Strategy) -> tuple[float, float]:
    """The least and the most that the optimizer's step on the host may take, over what it is taken to take."""
    if strategy.offload == "none":
        return 1.0, 1.0
    low, likely, high = _step_facts(strategy)
    return low / likely, high / likely


def _step_facts(strategy: Strategy) -> tuple[float, float, float]:
    """Seconds of an optimizer's step on 1e9 elements: low, likely, high."""
    facts = overheads()["offload"]
    torchs = "torch_fused" if strategy.optimizer_implementation == "fused" else "torch"
    library = facts["host_step"]["deepspeed" if strategy.sharding.startswith("zero") else torchs]["value"]
    clip = facts["host_clip"]["value"] if strategy.max_grad_norm is not None else (0.0, 0.0, 0.0)
    low, likely, high = (float(step) + float(norm) for step, norm in zip(library, clip, strict=True))
    return low, likely, high


def _on_link(kind: str, size_bytes: float, ranks: int, link: Link, accelerator: str) -> float:
    if ranks <= 1:
        return 0.0
    curves = find(link.name, accelerator)
    in_switch = kind == "all_reduce" and link.in_switch_share is not None and ranks > IN_SWITCH_ABOVE
    if curves is not None and not (in_switch and curves.largest(kind) <= IN_SWITCH_ABOVE):
        measured = curves.seconds(kind, size_bytes, ranks, link.bytes_per_s)
        if measured is not None:
            return measured
    rate = link.achieved_bytes_per_s
    if in_switch and link.in_switch_share is not None:
        rate = link.bytes_per_s * link.in_switch_share
    # size / (rate x size / (size + half)): the half-rate size costs as much as so many bytes more
    moved = size_bytes + (link.half_rate_message_bytes or 0) if size_bytes else 0.0
    return link.latency_s + (ranks - 2) * link.hop_s + ring_share(kind, ranks) * moved / rate


@cache
def _overlap_power() -> float:
    return float(load_yaml(DATA / "systems.yaml")["hierarchy"]["power"])
