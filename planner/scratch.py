"""Scratch: what CUDA's libraries and kernels allocate besides the tensors of a trace.

Two kinds: workspaces that a library takes once and keeps, and buffers that live inside one call. Both pass through torch's
caching allocator, so they count as allocated memory. Learned from allocator histories of real steps
(`calibrate.history`), and computed here as the kernels compute them.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from planner.call import ITEM_BYTES, Call, TensorSpec

MIB = 1 << 20
# cuBLAS takes a workspace for each thread that multiplies: the caller's and autograd's (aten/cuda/CublasHandlePool.cpp).
CUBLAS_WORKSPACE = {True: 32 * MIB, False: 8 * MIB + 128 * 1024}  # Hopper and later; before
CUBLAS_THREADS = 2


@dataclass(frozen=True, slots=True)
class Device:
    """What of a GPU decides the size of scratch buffers."""

    capability: tuple[int, int]
    sm_count: int
    threads_per_sm: int = 2048


def held(device: Device) -> tuple[int, ...]:
    """Blocks that libraries keep from the first step on, in bytes."""
    workspace = CUBLAS_WORKSPACE[device.capability >= (9, 0)]
    return (workspace,) * CUBLAS_THREADS


def during(call: Call, device: Device) -> tuple[int, ...]:
    """Blocks that a call allocates and gives back, in bytes."""
    rule = RULES.get(call.name)
    return () if rule is None else rule(call, device)


def _attention_backward(call: Call, _: Device) -> tuple[int, ...]:
    """cuDNN and flash sum dQ in fp32 beside a row sum; with grouped heads dK and dV exist once per query head first."""
    grad, q, k, v = call.tensors[:4]
    batch, heads, rows, size = q.shape
    rounded = -(-rows // 128) * 128
    sums = batch * heads * rounded * 4
    queries = batch * heads * rounded * size * 4
    grouped = 0 if k.shape[1] == heads else 2 * batch * heads * k.shape[2] * size * ITEM_BYTES[k.dtype]
    return (queries + sums,) if not grouped else (queries + sums, grouped)


def _column_sum(call: Call, device: Device) -> tuple[int, ...]:
    """Partial sums of a reduction over rows that is spread over thread blocks (aten/native/cuda/Reduce.cuh)."""
    source = call.tensors[0]
    result = call.results[0]
    rows, columns = _rows_columns(source, result)
    if rows <= 1 or columns <= 1:
        return ()
    vector = 4 if columns % 4 == 0 else 2 if columns % 2 == 0 else 1
    threads = 512 // vector
    block_x = min(_power_below(max(1, columns // vector)), 32)
    block_y = min(_power_below(rows), threads // block_x)
    block_x = min(_power_below(max(1, columns // vector)), threads // block_y)
    each = -(-rows // block_y)
    grid = -(-(columns // vector) // block_x)
    target = device.sm_count * (device.threads_per_sm // (block_x * block_y))
    if each < block_y * 16 and each < 256 or grid > target:
        return ()
    blocks = max(min(-(-target // grid), -(-each // 16)), -(-each // 256))
    return () if blocks <= 1 else (4 * columns * blocks * block_x * vector,)


def _rows_columns(source: TensorSpec, result: TensorSpec) -> tuple[int, int]:
    """Rows summed and columns kept, when leading dimensions of a contiguous tensor are reduced; else (0, 0)."""
    columns = result.elements
    if source.stride is not None or columns == 0 or source.elements % columns:
        return 0, 0
    kept = 1
    for size in reversed(source.shape):
        if kept == columns:
            break
        kept *= size
    return (source.elements // columns, columns) if kept == columns else (0, 0)


def _power_below(value: int) -> int:
    return 1 << (max(1, value).bit_length() - 1)


RULES: dict[str, Callable[[Call, Device], tuple[int, ...]]] = {
    "rigplan.attention_backward.default": _attention_backward,
    "sum.dim_IntList": _column_sum,
}
