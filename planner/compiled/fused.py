"""Fused kernels: what each kernel that Inductor's scheduler makes reads and writes, as a call of ours."""

from __future__ import annotations

import math
from collections import Counter, defaultdict
from typing import Any

import torch
from torch._inductor.codegen.common import REMOVED
from torch._inductor.codegen.simd_kernel_features import DisableReduction, EnableReduction
from torch._inductor.dependencies import MemoryDep
from torch._inductor.scheduler import BaseSchedulerNode
from torch._inductor.virtualized import V
from torch.fx.node import map_arg

from planner.call import Call, TensorSpec
from planner.recorder import DTYPES

FUSED = "rigplan.fused.default"
# What an operation takes of a GPU's lanes, in multiply-adds. From kernels of H200 steps whose arithmetic outlasts
# their memory traffic: GELU and its gradient, rotary embeddings, softmax, dropout. All others are SIMPLE.
INSTRUCTIONS = {
    "erf": 34.0, "exp": 6.0, "tanh": 16.0, "sin": 25.0, "cos": 25.0, "log": 8.0, "sigmoid": 8.0, "sqrt": 5.0,
    "rsqrt": 5.0, "reciprocal": 5.0, "truediv": 5.0, "pow": 16.0, "rand": 110.0, "randn": 140.0,
    "online_softmax_reduce": 30.0, "welford_reduce": 12.0,
}  # fmt: skip
SIMPLE_INSTRUCTION = 0.3
# Accesses of one buffer: from where in it to the number of elements touched there.
Places = dict[Any, int]


def bind(schedule: Any, kernel: Any) -> None:
    """Give a kernel the arguments that writing its source would give it, without writing it.

    A reduction that does not fit on chip goes through its rows in several loops; what one loop has stored the next must
    read again, so that buffer stays.
    """
    with kernel:
        for node in _nodes(schedule):
            node.decide_inplace_update()
        looped = kernel.inside_reduction and not kernel.persistent_reduction
        in_loop: set[str] = set()
        lost: set[str] = set()
        for node in schedule:
            if node in (DisableReduction, EnableReduction):
                if looped:
                    lost |= in_loop
                    in_loop.clear()
                continue
            for dep in node.read_writes.reads:
                if not isinstance(dep, MemoryDep):
                    continue
                if dep.name in lost:
                    kernel.must_keep_buffers.add(dep.name)
                elif dep.name in kernel.store_buffer_names:
                    continue
                kernel.args.input(dep.name)
            for dep in node.read_writes.writes:
                kernel.store_buffer_names.add(dep.name)
                if dep.name not in V.graph.removed_buffers:
                    kernel.args.output(dep.name)
                if not node.is_reduction():
                    in_loop.add(dep.name)


def fused_call(schedule: Any, kernel: Any) -> Call:
    """The call of a kernel: each tensor from outside is read once, each that outlives it written once; what is gathered
    or scattered at an index counts by the element."""
    nodes = _nodes(schedule)
    inside = {name for node in nodes for name in node.get_buffer_names()} - kernel.must_keep_buffers
    arguments = kernel.args
    read: dict[str, Places] = defaultdict(dict)
    written: dict[str, Places] = defaultdict(dict)
    scattered = 0
    for node in nodes:
        for dep in node.read_writes.reads:
            given = _live(arguments.input_buffers, dep.name) or _live(arguments.inplace_buffers, dep.name)
            if isinstance(dep, MemoryDep) and dep.name not in inside and given:
                read[dep.name][_place(dep)] = _elements(dep)
        for dep in node.read_writes.writes:
            kept = _live(arguments.output_buffers, dep.name) or _live(arguments.inplace_buffers, dep.name)
            if isinstance(dep, MemoryDep) and kept:
                written[dep.name][_place(dep)] = _elements(dep)
                scattered += _elements(dep) if dep.mode is not None else 0
    sizes = {prefix: _number(numel) for prefix, numel in kernel.numels.items()}
    reduced = math.prod(size for prefix, size in sizes.items() if prefix.startswith("r"))
    kept_elements = math.prod(size for prefix, size in sizes.items() if not prefix.startswith("r"))
    return Call(
        FUSED,
        (tuple(_spec(name, places) for name, places in sorted(read.items())),),
        (
            ("kept", kept_elements if kernel.inside_reduction else kept_elements * reduced),
            ("reduced", reduced if kernel.inside_reduction else 1),
            ("persistent", bool(kernel.persistent_reduction)),
            ("scattered", scattered),
            ("instructions", _instructions(nodes)),
        ),
        tuple(_spec(name, places) for name, places in sorted(written.items())),
    )


def _live(table: Any, name: str) -> bool:
    """Whether a buffer is among a kernel's arguments; those that turned out to stay inside leave a mark behind."""
    return name in table and table[name] is not REMOVED


def _instructions(nodes: list[Any]) -> int:
    """Instructions of all elements that a kernel goes through (see INSTRUCTIONS). Nodes of one kernel repeat what they
    have in common, and the compiler works that out once: of each operation, the node that has most of it counts."""
    most: dict[str, float] = defaultdict(float)
    for node in nodes:
        elements = math.prod(map(_number, node.group[1]))
        for name, count in _operations(node._body).items():
            most[name] = max(most[name], elements * count * INSTRUCTIONS.get(name, SIMPLE_INSTRUCTION))
    return round(sum(most.values()))


def _operations(body: Any) -> Counter[str]:
    """How often each operation stands in a loop's body; reductions by their type."""
    found: Counter[str] = Counter()
    for block in (body.root_block, *body.subblocks.values()):
        for item in _distinct(block.graph):
            if item.op == "call_method":
                reduces = item.target == "reduction" and len(item.args) > 3
                found[str(item.args[3] if reduces else item.target)] += 1
    return found


def _distinct(graph: torch.fx.Graph) -> list[torch.fx.Node]:
    """The nodes of a graph, those that work out the same from the same once."""
    firsts: dict[str, torch.fx.Node] = {}
    same: dict[torch.fx.Node, torch.fx.Node] = {}
    for node in graph.nodes:
        given = map_arg(node.args, lambda item: same.get(item, item))
        same[node] = firsts.setdefault(f"{node.op} {node.target} {given}", node)
    return list(firsts.values())


def _nodes(schedule: Any) -> list[BaseSchedulerNode]:
    return [node for node in schedule if isinstance(node, BaseSchedulerNode)]


def _spec(name: str, places: Places) -> TensorSpec:
    """Elements of a buffer that are touched; a place that is not known when compiling counts each time."""
    whole = _number(V.graph.get_numel(name))
    direct = sum(count for (place, _), count in places.items() if place is not None)
    indirect = sum(count for (place, _), count in places.items() if place is None)
    return TensorSpec(DTYPES[V.graph.get_dtype(name)], (min(direct, whole) + indirect,))


def _place(dep: MemoryDep) -> tuple[Any, Any]:
    if dep.is_indirect():
        return None, (dep.index, dep.size)
    normal = dep.normalize()
    return normal.index, normal.size


def _elements(dep: MemoryDep) -> int:
    """Elements of one access: a dimension that the place does not depend on is read once."""
    free = dep.index.free_symbols
    return math.prod(
        _number(size) for name, size in zip(dep.var_names, dep.size, strict=True) if name in free or dep.is_indirect()
    )


def _number(size: Any) -> int:
    """A size as a number; of one that was left open when compiling, what it was then."""
    if getattr(size, "is_number", True):
        return int(size)
    sizes: Any = V.graph.sizevars
    return int((sizes.optimization_hint if hasattr(sizes, "optimization_hint") else sizes.size_hint)(size))
