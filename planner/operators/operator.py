"""What one call asks of a device: its kind, shape, FLOP and bytes. No torch, no time."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from dataclasses import dataclass

from planner.call import ITEM_BYTES, Call, TensorSpec

SHAPE_FIELDS: dict[str, tuple[str, ...]] = {
    "matmul": ("batch", "m", "n", "k", "a_transposed", "b_transposed", "a_align", "b_align", "c_align"),
    "grouped_matmul": ("groups", "m", "n", "k", "ragged_k"),
    "convolution": (
        "images", "channels_in", "channels_out", "in_positions", "out_positions", "kernel_volume", "stride", "groups",
        "dimensions", "transposed", "grad_input", "grad_weight", "channels_last", "bias", "dilation",
    ),
    "attention": ("batch", "heads", "kv_heads", "queries", "keys", "head_dim", "causal", "backward", "mask", "dropout"),
    "rnn": ("batch", "steps", "input", "hidden", "layers", "directions", "gates", "backward"),
    "layer_norm": ("rows", "length", "strided"),
    "group_norm": ("rows", "length"),
    "batch_norm": ("images", "channels", "positions", "channels_last"),
    "softmax": ("rows", "length", "inner"),
    "loss": ("rows", "classes", "channels_last"),
    "pointwise": ("elements", "strided", "broadcast", "mixed"),
    "copy": ("elements", "strided", "run"),
    "fill": ("elements",),
    "random": ("elements",),
    "reduction": ("kept", "reduced", "last_reduced"),
    "scan": ("rows", "length", "inner"),
    "sort": ("rows", "length"),
    "gather": ("rows", "length", "table"),
    "scatter": ("rows", "length", "targets", "summed"),
    "pool": ("elements_in", "elements_out", "kernel_volume", "channels_last"),
    "resample": ("planes", "positions_in", "positions_out", "channels_last"),
    "fft": ("rows", "length", "prime"),
    "ctc": ("steps", "batch", "classes", "target_length"),
    "optimizer": ("tensors", "elements"),
    "fused": ("kept", "reduced", "looped", "scattered", "instructions"),
}  # fmt: skip
"""The priced kinds and what the integers of their shape mean. Alignments are in bytes, 1 to 16."""

KINDS = frozenset(SHAPE_FIELDS)
FREE, UNKNOWN = "view", "unknown"
ALIGNMENT_BYTES = 16
NARROW_CHANNELS = 4
"""Convolutions with fewer channels a group than this leave a tensor core's tile empty."""


@dataclass(frozen=True, slots=True)
class Operator:
    """`variant` is the aten base name without the in-place underscore. `flop` counts 2 per multiply-add as
    torch.utils.flop_counter does; `executed_flop` is what the kernels really do."""

    kind: str
    variant: str
    dtype: str
    shape: tuple[int, ...]
    flop: float
    bytes_read: int
    bytes_written: int

    @property
    def bytes_moved(self) -> int:
        return self.bytes_read + self.bytes_written

    @property
    def causal(self) -> bool:
        return self.kind == "attention" and bool(self.shape[6])

    @property
    def executed_flop(self) -> float:
        """FLOP that kernels really do: half of the square in causal attention, and grouped weight gradients without
        the products between groups."""
        if self.causal:
            return self.flop / 2
        if self.kind == "convolution":
            groups, grad_input, grad_weight = self.shape[7], self.shape[10], self.shape[11]
            return (
                self.flop * (grad_input + grad_weight) / (grad_input + groups * grad_weight)
                if grad_weight
                else self.flop
            )
        return self.flop


Describer = Callable[[str, Call], Operator]


def each(describer: Describer, names: str) -> dict[str, Describer]:
    """One describer for many aten base names, written with spaces between them."""
    return dict.fromkeys(names.split(), describer)


def tensors(value: object) -> tuple[TensorSpec, ...]:
    """The tensors in one argument, which may be a tensor, a tuple of them or None."""
    if isinstance(value, TensorSpec):
        return (value,)
    return tuple(spec for item in value for spec in tensors(item)) if isinstance(value, tuple) else ()


def argument(call: Call, position: int, name: str = "", default: object = None) -> object:
    """An argument by its place in the schema or by its name."""
    if position < len(call.arguments):
        return call.arguments[position]
    return dict(call.keywords).get(name, default)


def integers(value: object, default: tuple[int, ...] = ()) -> tuple[int, ...]:
    if isinstance(value, int):
        return (int(value),)
    return tuple(int(item) for item in value if isinstance(item, int)) if isinstance(value, tuple) else default


def size(specs: Iterable[TensorSpec]) -> int:
    """Bytes of these tensors, each touched once."""
    return sum(spec.touched_bytes for spec in specs)


def elements(specs: tuple[TensorSpec, ...]) -> int:
    return sum(spec.elements for spec in specs)


def first(call: Call) -> TensorSpec:
    """The tensor that names the call's dtype and shape: its first argument, or its result when it has none."""
    found = call.tensors or call.results
    return found[0] if found else TensorSpec("f32", (0,))


def by_bytes(
    kind: str, variant: str, call: Call, shape: tuple[int, ...], read_bytes: int | None = None,
    written_bytes: int | None = None, flop: float = 0.0,
) -> Operator:  # fmt: skip
    """An operator that reads its tensors and writes its results once, unless told better."""
    read = size(call.tensors) if read_bytes is None else read_bytes
    written = size(call.results) if written_bytes is None else written_bytes
    return Operator(kind, variant, first(call).dtype, shape, flop, read, written)


def strided(specs: tuple[TensorSpec, ...]) -> int:
    """0: all tensors are dense in one order; 1: rows are contiguous; 2: some rows are not (a true transpose)."""
    large = [spec for spec in specs if spec.elements > 1 and len(spec.shape) > 0]
    full = max((spec.elements for spec in large), default=0)
    whole = [spec for spec in large if spec.elements == full]
    if len({_order(spec) for spec in whole}) <= 1 and all(map(_dense, whole)):
        return 0
    return 2 if any(_row_step(spec) not in (0, 1) for spec in whole) else 1


def run(specs: tuple[TensorSpec, ...]) -> int:
    """Elements that follow each other in every one of these tensors: what a copy can move at a time."""
    return min(map(_run, specs), default=1)


def broadcast(specs: tuple[TensorSpec, ...]) -> int:
    """1 when a tensor is read more often than once an element; scalars are not."""
    full = max((spec.elements for spec in specs), default=0)
    return int(any(1 < spec.elements < full for spec in specs))


def mixed(specs: tuple[TensorSpec, ...]) -> int:
    """1 when the elements are of several dtypes: such kernels convert one at a time."""
    return int(len({spec.dtype for spec in specs if spec.elements > 1 and spec.dtype != "b8"}) > 1)


def item_bytes(dtype: str) -> int:
    return ITEM_BYTES.get(dtype, 4)


def channels_last(spec: TensorSpec) -> int:
    """1 when the channel dimension (1) is the contiguous one."""
    return int(spec.stride is not None and len(spec.shape) > 2 and spec.shape[1] > 1 and spec.stride[1] == 1)


def positions(spec: TensorSpec) -> int:
    """Spatial positions of an [images, channels, ...] tensor."""
    return math.prod(spec.shape[2:])


def _order(spec: TensorSpec) -> tuple[int, ...]:
    if spec.stride is None:
        return tuple(index for index, count in enumerate(spec.shape) if count > 1)
    kept = [index for index, count in enumerate(spec.shape) if count > 1]
    return tuple(sorted(kept, key=lambda index: -spec.stride[index] if spec.stride else 0))


def _dense(spec: TensorSpec) -> bool:
    if spec.stride is None:
        return True
    span = sum((count - 1) * step for count, step in zip(spec.shape, spec.stride, strict=True))
    return span + 1 == spec.elements


def _row_step(spec: TensorSpec) -> int:
    if spec.stride is None:
        return 1
    return next((step for count, step in zip(spec.shape[::-1], spec.stride[::-1], strict=True) if count > 1), 1)


def _run(spec: TensorSpec) -> int:
    if spec.stride is None:
        return spec.elements
    found = 1
    for count, step in zip(spec.shape[::-1], spec.stride[::-1], strict=True):
        if count > 1 and step != found:
            break
        found *= count
    return found
