"""Partitions: an optimizer step on one rank's share of all parameters, laid out flat."""

from __future__ import annotations

from typing import Any

import numpy as np

from planner.call import Call, TensorSpec
from planner.workload import ALLOCATE, FREE, Workload

# Optimizers that DeepSpeed steps in one fused kernel.
FUSED = ("_foreach_lerp_", "_fused_adam")


def share_elements(elements: int, ranks: int) -> int:
    """Elements of one rank's part of a flat buffer, padded to equal parts."""
    return -(-elements // ranks)


def state_bytes(workload: Workload) -> int:
    """Bytes of the optimizer's states: what its first step leaves behind."""
    events = workload.segments["optimizer_first"]
    born = set(events.values[events.codes == ALLOCATE].tolist())
    dead = set(events.values[events.codes == FREE].tolist())
    return int(workload.block_bytes[np.array(sorted(born - dead), dtype=np.int64)].sum()) if born - dead else 0


def flat_step(workload: Workload, elements: int) -> list[Call]:
    """The calls of a step on `elements` fp32 numbers: one fused kernel for Adam, else the traced ones made flat.

    Clipping, which the trace has first, is kept as a norm and a scaling of the flat gradient.
    """
    flat = TensorSpec("f32", (elements,))
    calls = [workload.calls[index] for index in workload.calls_in("optimizer")]
    if any(call.name.startswith(FUSED) for call in calls):
        step = Call("_fused_adamw_.default", ((flat,),) * 4, (), ())
        clipped = any(call.name.startswith("_foreach_norm") for call in calls)
        norm = [Call("_foreach_norm.Scalar", ((flat,), 2.0), (), (TensorSpec("f32", ()),))] if clipped else []
        scale = [Call("_foreach_mul_.Tensor", ((flat,), TensorSpec("f32", ())), (), ())] if clipped else []
        return [*norm, *scale, step]
    return [_flattened(call, flat) for call in calls]


def _flattened(call: Call, flat: TensorSpec) -> Call:
    def one(value: Any) -> Any:
        if isinstance(value, tuple) and value and all(isinstance(item, TensorSpec) for item in value):
            return (flat,) if any(item.shape for item in value) else value[:1]
        if isinstance(value, TensorSpec) and value.shape:
            return flat
        return value

    return Call(call.name, tuple(one(value) for value in call.arguments), call.keywords, tuple(map(one, call.results)))
