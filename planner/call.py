"""One call of an operator as the device sees it: name, arguments, results.

A call is what a trace records, what a cost is asked for and what calibration runs again on real hardware,
so its text is the key of a profile's exact points.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from typing import Any

ITEM_BYTES = {
    "f64": 8, "f32": 4, "bf16": 2, "f16": 2, "f8": 1, "i64": 8, "i32": 4, "i16": 2, "i8": 1, "u8": 1, "b8": 1, "c64": 8,
}  # fmt: skip


@dataclass(frozen=True, slots=True)
class TensorSpec:
    """Shape and layout of one tensor. `stride` is None when the tensor is contiguous."""

    dtype: str
    shape: tuple[int, ...]
    stride: tuple[int, ...] | None = None

    @property
    def elements(self) -> int:
        return math.prod(self.shape)

    @property
    def touched_bytes(self) -> int:
        """Bytes a kernel reads or writes once: a broadcast (stride 0) dimension is counted once."""
        if self.stride is None:
            return self.elements * ITEM_BYTES[self.dtype]
        kept = (size for size, step in zip(self.shape, self.stride, strict=True) if step != 0)
        return math.prod(kept) * ITEM_BYTES[self.dtype]

    def __str__(self) -> str:
        layout = "" if self.stride is None else "{" + ",".join(map(str, self.stride)) + "}"
        return f"{self.dtype}[{','.join(map(str, self.shape))}]{layout}"


@dataclass(frozen=True, slots=True)
class Call:
    """`name` is the dispatcher's, without the namespace `aten.` ("addmm.default"), or one of rigplan's own
    ("rigplan.attention", see semantics). Arguments are TensorSpec, int, float, bool, str, None or tuples of those."""

    name: str
    arguments: tuple[Any, ...]
    keywords: tuple[tuple[str, Any], ...]
    results: tuple[TensorSpec, ...]

    @property
    def tensors(self) -> tuple[TensorSpec, ...]:
        """Every tensor among the arguments, in order."""
        return tuple(_tensors((self.arguments, tuple(value for _, value in self.keywords))))

    def __str__(self) -> str:
        given = [_text(value) for value in self.arguments] + [f"{key}={_text(value)}" for key, value in self.keywords]
        return f"{self.name}({', '.join(given)}) -> {', '.join(map(str, self.results))}"

    def map_integers(self, other: Call, combine: Callable[[int, int], int]) -> Call:
        """This call with each integer combined with the one in the same place of `other`.

        Raises ValueError when the two calls differ in anything but integers.
        """
        if self.name != other.name:
            raise ValueError(f"{self.name} against {other.name}")
        return replace(
            self,
            arguments=_merge(self.arguments, other.arguments, combine),
            keywords=_merge(self.keywords, other.keywords, combine),
            results=_merge(self.results, other.results, combine),
        )


def to_json(call: Call) -> list[Any]:
    """The call as JSON lists; `from_json` reads it back."""
    return [call.name, _encode(call.arguments), _encode(call.keywords), _encode(call.results)]


def from_json(data: list[Any]) -> Call:
    name, arguments, keywords, results = data
    return Call(name, _decode(arguments), _decode(keywords), _decode(results))


def _tensors(value: Any) -> Iterator[TensorSpec]:
    if isinstance(value, TensorSpec):
        yield value
    elif isinstance(value, tuple):
        for item in value:
            yield from _tensors(item)


def _text(value: Any) -> str:
    if isinstance(value, tuple):
        return "[" + ", ".join(map(_text, value)) + "]"
    return str(value) if isinstance(value, TensorSpec) else repr(value)


def _merge(one: Any, two: Any, combine: Callable[[int, int], int]) -> Any:
    if isinstance(one, TensorSpec) and isinstance(two, TensorSpec):
        if one.dtype != two.dtype or (one.stride is None) != (two.stride is None):
            raise ValueError(f"{one} against {two}")
        return TensorSpec(one.dtype, _merge(one.shape, two.shape, combine), _merge(one.stride, two.stride, combine))
    if isinstance(one, tuple) and isinstance(two, tuple) and len(one) == len(two):
        return tuple(_merge(first, second, combine) for first, second in zip(one, two, strict=True))
    if type(one) is int and type(two) is int:
        return one if one == two else combine(one, two)
    if type(one) is float and type(two) is float:
        return one  # a mean's 1/n: a value, not a size
    if one != two:
        raise ValueError(f"{one!r} against {two!r}")
    return one


def _encode(value: Any) -> Any:
    if isinstance(value, TensorSpec):
        packed: dict[str, Any] = {"t": value.dtype, "s": value.shape}
        return packed if value.stride is None else packed | {"d": value.stride}
    return [_encode(item) for item in value] if isinstance(value, tuple) else value


def _decode(value: Any) -> Any:
    if isinstance(value, dict):
        stride = value.get("d")
        return TensorSpec(value["t"], tuple(value["s"]), None if stride is None else tuple(stride))
    return tuple(_decode(item) for item in value) if isinstance(value, list) else value
