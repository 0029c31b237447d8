"""Kernels of a fused state-space scan (planner.wrappers.scan_kernels): products of chunks, and streams of states."""

from __future__ import annotations

from planner.call import Call
from planner.operators.operator import ALIGNMENT_BYTES, Describer, Operator, size, tensors


def stream(variant: str, call: Call) -> Operator:
    """rigplan.scan_stream(kernel, read, written, flop, instructions): limited by bytes or by instructions, like a
    kernel that a compiler fused."""
    kernel, read, written, flop, instructions = call.arguments
    first = tensors(read)[0]
    shape = (first.elements, 1, 0, 0, instructions)
    return Operator("fused", str(kernel), first.dtype, shape, float(flop), size(tensors(read)), size(tensors(written)))


def product(variant: str, call: Call) -> Operator:
    """rigplan.scan_product(kernel, read, written, batch, m, n, k): as batched products of those sizes."""
    kernel, read, written, batch, m, n, k = call.arguments
    shape = (batch, m, n, k, 0, 0, *(ALIGNMENT_BYTES,) * 3)
    flop = 2.0 * batch * m * n * k
    factor = min((spec for spec in tensors(read) if len(spec.shape) > 3), key=lambda spec: spec.dtype == "f32")
    return Operator("matmul", str(kernel), factor.dtype, shape, flop, size(tensors(read)), size(tensors(written)))


OPERATORS: dict[str, Describer] = {"rigplan.scan_stream": stream, "rigplan.scan_product": product}
