"""Half precision as apex O2, Megatron and DeepSpeed's fp16 have it: fp16 weights and gradients, fp32 copies with the
optimizer's states. Traced with bf16 weights, which run the same operators, and relabelled."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from planner.call import Call, TensorSpec
from planner.workload import Workload

TRACED, MEANT = "bf16", "f16"


def as_fp16(workload: Workload) -> Workload:
    """The workload with fp16 in the place of bf16."""
    return replace(
        workload,
        calls=tuple(
            Call(call.name, _fp16(call.arguments), _fp16(call.keywords), _fp16(call.results)) for call in workload.calls
        ),
        parameters=tuple(replace(parameter, dtype=_fp16(parameter.dtype)) for parameter in workload.parameters),
    )


def _fp16(value: Any) -> Any:
    if isinstance(value, TensorSpec):
        return replace(value, dtype=MEANT) if value.dtype == TRACED else value
    if isinstance(value, tuple):
        return tuple(map(_fp16, value))
    return MEANT if value == TRACED else value
