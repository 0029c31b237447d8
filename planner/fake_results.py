"""Fake results: what an operator returns for fake tensors, remembered by the shapes that it was given.

torch's own cache of fake tensors asks more of its key than a trace of static shapes needs; this one makes a trace
about twice as fast, as layers repeat each other.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch._subclasses.fake_tensor import FakeTensor, in_kernel_invocation_manager

_CPU = torch.device("cpu")
_NAMESPACES = {"aten", "rigplan"}
# What is so tagged changes a tensor's own shape, or has a result that the shapes do not decide.
_TAGS = {torch.Tag.inplace_view, torch.Tag.dynamic_output_shape, torch.Tag.data_dependent_output}


@dataclass(frozen=True, slots=True)
class _Result:
    """One tensor of a result. `source`: the argument that it is (`itself`) or shares its storage with; -1: neither."""

    source: int
    itself: bool
    shape: tuple[int, ...]
    stride: tuple[int, ...]
    offset: int
    dtype: torch.dtype

    def made(self, tensors: Sequence[FakeTensor]) -> FakeTensor:
        if self.itself:
            return tensors[self.source]
        mode = tensors[0].fake_mode
        with in_kernel_invocation_manager(mode):
            if self.source < 0:
                meta = torch.empty_strided(self.shape, self.stride, dtype=self.dtype, device="meta")
            else:
                meta = torch.empty((0,), dtype=self.dtype, device="meta")
                meta.set_(tensors[self.source].untyped_storage(), self.offset, self.shape, self.stride)
        return FakeTensor(mode, meta, _CPU)


class FakeResults:
    """The results of one trace. Everything that it is not sure of is run again by torch."""

    def __init__(self) -> None:
        self._known: dict[Any, tuple[type | None, tuple[_Result | None, ...]]] = {}

    def run(self, func: Any, run: Any, args: Any, kwargs: Any, tensors: Sequence[Any]) -> Any:
        """`run(*args, **kwargs)`, which stands for the operator `func`; `tensors` are those among its arguments."""
        key = self._key(func, args, kwargs, tensors)
        if key is None:
            return run(*args, **kwargs)
        known = self._known.get(key)
        if known is None:
            result = run(*args, **kwargs)
            learnt = _learnt(result, tensors)
            if learnt is not None:
                self._known[key] = learnt
            return result
        kind, parts = known
        made = [None if part is None else part.made(tensors) for part in parts]
        return made[0] if kind is None else kind(made)

    @staticmethod
    def _key(func: Any, args: Any, kwargs: Any, tensors: Sequence[Any]) -> Any:
        if func.namespace not in _NAMESPACES or not tensors or not _TAGS.isdisjoint(func.tags):
            return None
        if not all(isinstance(item, FakeTensor) and _plain(item) for item in tensors):
            return None
        try:
            key = (func, _part(args), tuple((name, _part(value)) for name, value in kwargs.items()))
            hash(key)
        except TypeError:
            return None
        return key


def _plain(item: FakeTensor) -> bool:
    """Without a value that torch remembers; complex tensors may be lazily conjugated, which no shape tells."""
    return item.constant is None and not item.dtype.is_complex


def _part(value: Any) -> Any:
    """An argument as part of a key. 1, 1.0 and True are equal, so that a number needs its type."""
    if isinstance(value, torch.Tensor):
        return value.dtype, value.shape, value.stride(), value.storage_offset()
    if isinstance(value, list | tuple):
        return tuple(_part(item) for item in value)
    return type(value), value


def _learnt(result: Any, tensors: Sequence[FakeTensor]) -> tuple[type | None, tuple[_Result | None, ...]] | None:
    """How to make the result again; None where it is no plain tensor, or tensors, on the device."""
    several = type(result) in (list, tuple)
    parts: list[_Result | None] = []
    seen: set[int] = set()
    for item in result if several else (result,):
        if item is None:
            parts.append(None)
            continue
        part = _described(item, tensors)
        if part is None or (part.source < 0 and item.untyped_storage()._cdata in seen):
            return None
        seen.add(item.untyped_storage()._cdata)
        parts.append(part)
    return (type(result) if several else None), tuple(parts)


def _described(item: Any, tensors: Sequence[FakeTensor]) -> _Result | None:
    if type(item) is not FakeTensor or not _plain(item) or item.device != _CPU:
        return None
    storage = item.untyped_storage()
    source = next((at for at, tensor in enumerate(tensors) if tensor.untyped_storage()._cdata == storage._cdata), -1)
    same = next((at for at, tensor in enumerate(tensors) if tensor is item), -1)
    if source < 0 and (item.storage_offset() or storage.nbytes() != extent_bytes(item)):
        return None
    return _Result(
        same if same >= 0 else source,
        same >= 0,
        tuple(item.shape),
        tuple(item.stride()),
        int(item.storage_offset()),
        item.dtype,
    )


def extent_bytes(item: torch.Tensor) -> int:
    """Bytes of a storage that holds exactly this tensor."""
    if item.numel() == 0:
        return 0
    reach = sum((size - 1) * stride for size, stride in zip(item.shape, item.stride(), strict=True))
    return (reach + 1) * item.element_size()
