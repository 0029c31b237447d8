"""Make a Call from an operator's name and arguments; torch's own shape functions say what it returns."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch

from calibrate.pool import DTYPES, spec_of
from planner import fused_ops  # noqa: F401  registers rigplan's own operators
from planner.call import Call, TensorSpec


def tensor(dtype: str, *shape: int) -> TensorSpec:
    """A contiguous tensor."""
    return TensorSpec(dtype, shape)


def transposed(dtype: str, *shape: int) -> TensorSpec:
    """A tensor whose last two dimensions lie in memory the other way round, as weight.t() does."""
    *outer, rows, columns = shape
    steps = [rows * columns]
    for size in reversed(outer[1:]):
        steps.insert(0, steps[0] * size)
    stride = (*steps[: len(outer)], 1, rows)
    return TensorSpec(dtype, shape, stride)


def heads_inside(dtype: str, batch: int, heads: int, rows: int, size: int) -> TensorSpec:
    """[batch, heads, rows, size] as a view of [batch, rows, heads * size]: how attention gets its inputs."""
    return TensorSpec(dtype, (batch, heads, rows, size), (rows * heads * size, size, heads * size, 1))


def make(name: str, *arguments: Any, **keywords: Any) -> Call:
    """The Call of operator `name` ("mm.default") on these arguments, with the results torch would give."""
    operator = _operator(name)
    given = operator(*map(_on_meta, arguments), **{key: _on_meta(value, key) for key, value in keywords.items()})
    results = tuple(spec_of(item) for item in _flat(given) if isinstance(item, torch.Tensor))
    return Call(name, arguments, tuple(keywords.items()), results)


def _operator(name: str) -> Any:
    *namespace, base, overload = name.split(".")
    return getattr(getattr(getattr(torch.ops, namespace[0] if namespace else "aten"), base), overload)


def _on_meta(value: Any, key: str = "") -> Any:
    if isinstance(value, TensorSpec):
        if value.stride is None:
            return torch.empty(value.shape, dtype=DTYPES[value.dtype], device="meta")
        return torch.empty_strided(value.shape, value.stride, dtype=DTYPES[value.dtype], device="meta")
    if isinstance(value, tuple):
        return [_on_meta(item) for item in value]
    return DTYPES[value] if isinstance(value, str) and value in DTYPES else value


def _flat(value: Any) -> Iterator[Any]:
    if isinstance(value, list | tuple):
        for item in value:
            yield from _flat(item)
    else:
        yield value
