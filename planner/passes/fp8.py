"""fp8 products, as torch's float8 linear layers train: weights, states and activations stay as they are.

Each operand of a product is scaled by its largest value and cast just before it (dynamic scaling by tensor): a search
for that value and a cast for either operand, and then a product at the rate of fp8. Products whose sizes are no
multiples of 16, batched ones and attention stay in the lower precision of autocast.
Source: torch/ao's float8 training, and torch._scaled_mm's conditions.
"""

from __future__ import annotations

from dataclasses import replace

from planner.call import Call, TensorSpec
from planner.collectives import Writer
from planner.workload import CALL, Events, Workload

MULTIPLE = 16  # elements that each size of an fp8 product is a multiple of
PRODUCTS = {"mm.default": 0, "addmm.default": 1}  # where the first factor stands
HALF = ("bf16", "f16")
CAST_INSTRUCTIONS = 14  # of an element that is scaled, clamped and cast


def apply(workload: Workload) -> Workload:
    """The workload with its products in fp8, where torch's kernels take them."""
    compiled = workload.compiled_graphs > 0
    writer = Writer(workload.calls)
    segments = {**workload.segments, "micro_step": _in_fp8(workload, writer, compiled)}
    return replace(workload, calls=writer.calls, segments=segments)


def _in_fp8(workload: Workload, writer: Writer, compiled: bool) -> Events:
    events = workload.segments["micro_step"]
    for code, value, views in zip(events.codes.tolist(), events.values.tolist(), events.views.tolist(), strict=True):
        call = workload.calls[value] if code == CALL else None
        factors = None if call is None else factors_of(call)
        if call is None or factors is None:
            writer.event(code, value, views)
            continue
        for factor in factors:
            for step in _cast_compiled(factor) if compiled else _cast(factor):
                writer.call(step)
        low = tuple(replace(factor, dtype="f8") for factor in factors)
        writer.call(Call("_scaled_mm.default", low, (), call.results))
    return writer.segment()


def factors_of(call: Call) -> tuple[TensorSpec, TensorSpec] | None:
    """The two matrices of a product that fp8 kernels take; None for any other call."""
    if call.name not in PRODUCTS:
        return None
    first = PRODUCTS[call.name]
    one, two = call.arguments[first : first + 2]
    sizes = (*one.shape, *two.shape)
    fits = one.dtype in HALF and two.dtype in HALF and not any(size % MULTIPLE for size in sizes)
    return (one, two) if fits else None


def _cast(factor: TensorSpec) -> tuple[Call, ...]:
    """Kernel by kernel, as eager code does it."""
    scalar = TensorSpec(factor.dtype, ())
    return (
        Call("abs.default", (factor,), (), (factor,)),
        Call("max.default", (factor,), (), (scalar,)),
        Call("mul.Tensor", (factor, scalar), (), (factor,)),
        Call("clamp.default", (factor, -448.0, 448.0), (), (factor,)),
        Call("_to_copy.default", (factor,), (("dtype", "f8"),), (replace(factor, dtype="f8"),)),
    )


def _cast_compiled(factor: TensorSpec) -> tuple[Call, ...]:
    """One kernel that searches and one that scales and casts."""
    count = factor.elements

    def fused(reads: tuple[TensorSpec, ...], kept: int, reduced: int, writes: TensorSpec) -> Call:
        facts = (("kept", kept), ("reduced", reduced), ("persistent", False), ("scattered", 0),
                 ("instructions", CAST_INSTRUCTIONS * count))  # fmt: skip
        return Call("rigplan.fused.default", (reads,), facts, (writes,))

    flat, scale = TensorSpec(factor.dtype, (count,)), TensorSpec("f32", (1,))
    return (
        fused((flat,), 1, count, scale),
        fused((flat, scale), count, 1, TensorSpec("f8", (count,))),
    )
