"""Matrix products: which dimensions, layouts and alignments a call gives to the library."""

from __future__ import annotations

import math

from planner.call import Call, TensorSpec
from planner.operators.operator import ALIGNMENT_BYTES, Describer, Operator, item_bytes, size, tensors

PLACES: dict[str, tuple[int, int]] = {
    "mm": (0, 1), "bmm": (0, 1), "mv": (0, 1), "dot": (0, 1), "vdot": (0, 1), "linear": (0, 1), "matmul": (0, 1),
    "addmm": (1, 2), "baddbmm": (1, 2), "addbmm": (1, 2), "addmv": (1, 2), "_addmm_activation": (1, 2),
    "rigplan.add_product": (1, 2), "_scaled_mm": (0, 1), "_int_mm": (0, 1), "addr": (1, 2), "ger": (0, 1),
}  # fmt: skip
"""Where the two factors stand among the arguments."""

VECTORS = {"mv": (False, True), "addmv": (False, True), "dot": (True, True), "vdot": (True, True),
           "addr": (True, True), "ger": (True, True)}  # fmt: skip


def matmul(variant: str, call: Call) -> Operator:
    """C[m, n] = A[m, k] B[k, n], `batch` times."""
    at_a, at_b = PLACES[variant]
    a, b = call.arguments[at_a], call.arguments[at_b]
    if variant in ("addr", "ger"):
        batch, m, n, k = 1, a.shape[0], b.shape[0], 1
    elif variant in VECTORS:
        batch, m, n, k = 1, math.prod(a.shape[:-1]), 1, a.shape[-1]
    elif variant == "linear":
        batch, m, n, k = 1, math.prod(a.shape[:-1]), b.shape[0], a.shape[-1]
    elif len(a.shape) > 2 or len(b.shape) > 2:
        batch, m, n, k = math.prod(a.shape[:-2]), a.shape[-2], b.shape[-1], a.shape[-1]
    else:
        batch, m, n, k = 1, a.shape[0], b.shape[-1], a.shape[-1]
    flip_a, row_a = _layout(a)
    flip_b, row_b = _layout(b)
    if variant == "linear":
        flip_b = 1 - flip_b
    out = call.results[0] if call.results else a
    given = [value for name, value in call.keywords if name == "out"]  # is written, not read
    _, row_c = _layout(out)
    aligned = [_alignment(row, spec.dtype) for row, spec in ((row_a, a), (row_b, b), (row_c, out))]
    return Operator(
        "matmul", variant, a.dtype, (batch, m, n, k, flip_a, flip_b, *aligned), 2.0 * batch * m * n * k,
        size(call.tensors) - size(given), size(call.results) or out.touched_bytes,
    )  # fmt: skip


def grouped_matmul(variant: str, call: Call) -> Operator:
    """Rows of A split among groups, each with its own B; or, for weight gradients, the inner dimension split."""
    a, b = tensors(call.arguments[0])[0], tensors(call.arguments[1])[0]
    result = call.results[0]
    ragged_k = int(len(a.shape) == 2 and len(b.shape) == 2)
    if len(a.shape) == 3:
        groups, m, k = a.shape[0], a.shape[0] * a.shape[1], a.shape[2]
        n = b.shape[-1]
    elif ragged_k:
        groups, (m, k), n = result.shape[0], a.shape, b.shape[1]
    else:
        groups, (m, k), n = b.shape[0], a.shape, b.shape[-1]
    return Operator(
        "grouped_matmul", variant, a.dtype, (groups, m, n, k, ragged_k), 2.0 * m * n * k,
        size(call.tensors), size(call.results),
    )  # fmt: skip


def _layout(spec: TensorSpec) -> tuple[int, int]:
    """(1 when the second-last dimension is the contiguous one, elements from one row to the next)."""
    if len(spec.shape) < 2:
        return 0, spec.shape[0] if spec.shape else 1
    if spec.stride is None:
        return 0, spec.shape[-1]
    row, column = spec.stride[-2:]
    if column == 1 or row != 1:
        return 0, row
    return 1, column


def _alignment(row: int, dtype: str) -> int:
    """Bytes that each row starts at a multiple of; a vector has one row."""
    return ALIGNMENT_BYTES if row <= 1 else math.gcd(ALIGNMENT_BYTES, row * item_bytes(dtype))


OPERATORS: dict[str, Describer] = {
    **dict.fromkeys(PLACES, matmul),
    "_grouped_mm": grouped_matmul, "_scaled_grouped_mm": grouped_matmul, "grouped_mm": grouped_matmul,
    "rigplan.grouped_mm": grouped_matmul,
}  # fmt: skip
