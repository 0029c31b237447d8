"""Random data for replayed calls, carved from a few large random buffers instead of drawn anew for each argument.

Never zeros: kernels run faster on them than on real data. Consecutive arguments come from consecutive places, so that
rotating over a call's sets walks through more memory than the L2 cache holds.
"""

from __future__ import annotations

import functools
import math
from dataclasses import dataclass
from typing import Any, Literal

import torch

from planner.call import TensorSpec

DTYPES: dict[str, torch.dtype] = {
    "f64": torch.float64, "f32": torch.float32, "bf16": torch.bfloat16, "f16": torch.float16, "f8": torch.float8_e4m3fn,
    "i64": torch.int64, "i32": torch.int32, "i16": torch.int16, "i8": torch.int8, "u8": torch.uint8, "b8": torch.bool,
    "c64": torch.complex64,
}  # fmt: skip
DTYPE_NAMES = {dtype: name for name, dtype in DTYPES.items()}

ALIGNMENT_ELEMENTS = 512  # torch's caching allocator starts every tensor at a multiple of 512 bytes
POOL_L2_MULTIPLE = 8  # a pool of several L2 sizes: by the time it comes round again, nothing of it is cached
CPU_POOL_BYTES = 1 << 20
FREE_INTEGERS = 100  # integers that index nothing lie in [0, 100)
MASK_KEPT = 0.9  # of a boolean mask is true, as with dropout of 0.1


@dataclass(frozen=True, slots=True)
class Values:
    """What a tensor may hold. `high` is the bound of "below", the total of "offsets", the value of "constant"."""

    kind: Literal["normal", "positive", "free", "mask", "below", "offsets", "constant"]
    high: int = 0


NORMAL = Values("normal")
POSITIVE = Values("positive")


def spec_of(tensor: torch.Tensor) -> TensorSpec:
    """The TensorSpec of a real, fake or meta tensor."""
    stride = None if tensor.is_contiguous() else tuple(tensor.stride())
    return TensorSpec(DTYPE_NAMES[tensor.dtype], tuple(tensor.shape), stride)


def span_elements(spec: TensorSpec) -> int:
    """Elements between the first and the last of a strided tensor, both counted."""
    if spec.elements == 0:
        return 0
    if spec.stride is None:
        return spec.elements
    return 1 + sum((size - 1) * step for size, step in zip(spec.shape, spec.stride, strict=True))


class RandomPool:
    """Random buffers of one device; `tensor` hands out views of them, or memory of its own where a call writes."""

    def __init__(self, device: torch.device) -> None:
        self.device = device
        self.bytes = CPU_POOL_BYTES
        if device.type == "cuda":
            self.bytes = POOL_L2_MULTIPLE * torch.cuda.get_device_properties(device).L2_cache_size
        self._flat: dict[tuple[str, torch.dtype], torch.Tensor] = {}
        self._next: dict[tuple[str, torch.dtype], int] = {}

    def tensor(self, spec: TensorSpec, values: Values, *, written: bool = False) -> torch.Tensor:
        """A tensor of that shape and layout with such values. One that a call writes to gets memory of its own."""
        span = span_elements(spec)
        flat = self._drawn(spec, span, values) if values.high else self._carved(spec, span, values)
        if written and not values.high:
            flat = flat.clone()
        return flat.as_strided(spec.shape, spec.stride or _contiguous(spec.shape))

    def _carved(self, spec: TensorSpec, span: int, values: Values) -> torch.Tensor:
        dtype = DTYPES[spec.dtype]
        pool_elements = self.bytes // dtype.itemsize
        if span > pool_elements:
            return _fill(torch.empty(span, dtype=dtype, device=self.device), values)
        key = values.kind, dtype
        if key not in self._flat:
            self._flat[key] = _fill(torch.empty(pool_elements, dtype=dtype, device=self.device), values)
        start = self._next.get(key, 0)
        if start + span > pool_elements:
            start = 0
        self._next[key] = start + -(-span // ALIGNMENT_ELEMENTS) * ALIGNMENT_ELEMENTS
        return self._flat[key][start : start + span]

    def _drawn(self, spec: TensorSpec, span: int, values: Values) -> torch.Tensor:
        dtype, device = DTYPES[spec.dtype], self.device
        if values.kind == "below":
            return torch.randint(values.high, (span,), dtype=dtype, device=device)
        if values.kind == "offsets":  # equal groups that end at the total
            return (torch.arange(1, span + 1, device=device) * values.high // span).to(dtype)
        return torch.full((span,), values.high, dtype=dtype, device=device)


@functools.cache
def pool_of(device: torch.device) -> RandomPool:
    """The one pool of a device."""
    return RandomPool(device)


def _contiguous(shape: tuple[int, ...]) -> tuple[int, ...]:
    return tuple(math.prod(shape[place + 1 :]) for place in range(len(shape)))


def _fill(flat: torch.Tensor, values: Values) -> torch.Tensor:
    if flat.dtype == torch.bool:
        return flat.bernoulli_(MASK_KEPT)
    if not (flat.is_floating_point() or flat.is_complex()):
        return flat.random_(0, FREE_INTEGERS)
    drawable: Any = flat if flat.dtype.itemsize > 1 else torch.empty_like(flat, dtype=torch.bfloat16)
    drawn = drawable.uniform_(0.01, 0.99) if values.kind == "positive" else drawable.normal_(0, 0.5)
    return flat if drawn is flat else flat.copy_(drawn)
