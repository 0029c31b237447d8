"""Kernels that a compiler made of many operators: pointwise chains and reductions, described by what they move."""

from __future__ import annotations

from planner.call import Call
from planner.operators.operator import Describer, Operator, size


def fused(variant: str, call: Call) -> Operator:
    """rigplan.fused(what it reads ...) -> what it writes; the keywords say how it goes through it (see
    planner.compiled.fused). Elements added to at an index are read before they are written."""
    facts = dict(call.keywords)
    looped = int(facts["reduced"] > 1 and not facts["persistent"])
    shape = (facts["kept"], facts["reduced"], looped, facts["scattered"], facts["instructions"])
    specs = call.results or call.tensors
    widest = max(specs, key=lambda spec: spec.elements).dtype if specs else "f32"
    return Operator("fused", _variant(facts), widest, shape, 0.0, size(call.tensors), size(call.results))


def _variant(facts: dict[str, object]) -> str:
    if facts["scattered"]:
        return "scatter"
    if facts["reduced"] == 1:
        return "pointwise"
    return "persistent" if facts["persistent"] else "looped"


OPERATORS: dict[str, Describer] = {"rigplan.fused": fused}
