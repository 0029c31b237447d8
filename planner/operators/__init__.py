"""Operators: what each call of a trace asks of a device. `describe` is the one way in."""

from __future__ import annotations

from planner.call import Call
from planner.operators import attention, convolution, fused, matmul, movement, normalize, scan
from planner.operators.operator import FREE, KINDS, NARROW_CHANNELS, SHAPE_FIELDS, UNKNOWN, Describer, Operator, first

__all__ = [
    "FREE", "KINDS", "NARROW_CHANNELS", "OPERATORS", "SHAPE_FIELDS", "UNKNOWN", "Describer", "Operator", "base_name",
    "describe",
]  # fmt: skip

OPERATORS: dict[str, Describer] = {
    **movement.OPERATORS,
    **normalize.OPERATORS,
    **convolution.OPERATORS,
    **attention.OPERATORS,
    **matmul.OPERATORS,
    **fused.OPERATORS,
    **scan.OPERATORS,
}
"""aten base name (no overload, no in-place underscore) to the function that describes it."""

TF32_KINDS = ("matmul", "convolution", "grouped_matmul", "rnn")
"""Kinds whose library kernels may round fp32 to TF32. Fused attention keeps its own rule, by kernel."""


def base_name(name: str) -> str:
    """`add_.Tensor` is `add`; `rigplan.attention_forward.default` is `rigplan.attention_forward`."""
    base = name.rpartition(".")[0] if name.count(".") else name
    return base if base.startswith("__") else base.rstrip("_")


def describe(call: Call, *, tf32: bool = False) -> Operator:
    """The operator behind a call. With `tf32`, fp32 products are of dtype "tf32".

    A name that is not in the table, or a form of it that cannot be read, is of kind `unknown`: its bytes are known,
    its time is a guess, and the answer lists it as not modelled.
    """
    variant = base_name(call.name)
    describer = OPERATORS.get(variant)
    if describer is None:
        return _unknown(variant, call)
    try:
        operator = describer(variant, call)
    except (IndexError, TypeError, ValueError, AttributeError, KeyError):
        return _unknown(variant, call)
    if tf32 and operator.dtype == "f32" and operator.kind in TF32_KINDS:
        return Operator(
            operator.kind, operator.variant, "tf32", operator.shape, operator.flop, operator.bytes_read,
            operator.bytes_written,
        )  # fmt: skip
    return operator


def _unknown(variant: str, call: Call) -> Operator:
    read, written = movement.unknown_bytes(call)
    return Operator(UNKNOWN, variant, first(call).dtype, (), 0.0, read, written)
