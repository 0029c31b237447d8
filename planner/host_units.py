"""Host units: what sharded modules ask of the host beside the launches of kernels, in launches of the same phase.

FSDP2 runs Python hooks for each unit that it gathers or reduces; an optimizer over DTensors dispatches each of its
kernels over lists tensor by tensor. The figures are in catalog/data/overheads.yaml.
"""

from __future__ import annotations

from functools import cache

import numpy as np
import numpy.typing as npt

from catalog.overheads import overheads
from planner.call import Call, TensorSpec
from planner.workload import Workload

# The kernel that ends a gather, and the one that begins a reduction: one a unit.
GATHERED, REDUCED = "fsdp.split_with_sizes_copy", "fsdp.chunk_cat"
LISTS = ("_foreach_", "_fused_")


def host_units(workload: Workload) -> npt.NDArray[np.float64]:
    """For each of the workload's calls, what the host does beside its launch, in launches."""
    in_parts = any(workload.elements_here(parameter) < parameter.elements for parameter in workload.parameters)
    return np.array([_units(call) if in_parts else 0.0 for call in workload.calls])


def cpp_share() -> float:
    """What a launch by torch's own C++ code takes of one from Python."""
    return _value("cpp_launch")


def part_share(parts: int) -> float:
    """What entering one of so many parts of a compiled model takes of entering the whole: most of it is by weight."""
    return 1 / max(1, parts) + _value("part_entered")


def _units(call: Call) -> float:
    if call.name.startswith(GATHERED):
        return _value("gather")
    if call.name.startswith(REDUCED):
        return _value("reduce")
    if call.name.startswith(LISTS) and not call.name.startswith("_foreach_copy_"):
        return _value("tensor") * max((_tensors(value) for value in call.arguments), default=0)
    return 0.0


def _tensors(value: object) -> int:
    return len(value) if isinstance(value, tuple) and value and isinstance(value[0], TensorSpec) else 0


@cache
def _value(name: str) -> float:
    return float(overheads()["sharded_host"][name]["value"])


__all__ = ["cpp_share", "host_units", "part_share"]
