"""The analytic part of a price: FLOP, bytes, tiles and waves against a device's ceilings. Vectorised over operators."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from catalog.accelerator import Accelerator
from catalog.ceilings import Ceiling, ceiling
from catalog.profile import Factor, prior_factors
from planner.operators import NARROW_CHANNELS

Numbers = NDArray[np.float64]

PEAK_NAMES = {"f32": "fp32", "f64": "fp32", "tf32": "tf32", "bf16": "bf16", "f16": "fp16", "f8": "fp8", "i8": "int8"}
"""Dtype of an operator to the catalog's name of its rate."""

TILES = ((256, 128, 1.0), (128, 128, 0.94), (128, 64, 0.80), (64, 64, 0.62), (32, 32, 0.30))
"""(rows, columns, share of the ceiling) of the output tiles a library chooses among."""
SPLITS = (1, 2, 4, 8, 16)
"""Ways to split the inner dimension so that few tiles still fill the device."""
ATTENTION_TILE = 128
"""Queries that one block of a fused attention kernel works on."""
SPLIT_PRODUCTS = 3
"""TF32 products that make one in fp32."""
SPLIT_EXTRA = 0.05
"""Adding the parts of a split up costs this share."""
SORTED_ROWS = 3072
"""More rows than this are sorted before they are summed: torch's rule for the gradient of an embedding."""
FEW_CHANNELS = 8
"""Images of fewer channels are padded to as many."""
DEFAULT_SM_COUNT = 108
DEFAULT_L2_BYTES = 40 * 2**20
DEFAULT_CLOCK_HZ = 1.7e9
HOPPER = (9, 0)
OVERLAP = 2.0
"""Limits add up to this power: two that a kernel meets at once cost less than their sum and more than the larger."""


@dataclass(frozen=True, slots=True)
class Rates:
    """What the analytic model needs to know of a device."""

    device: str
    ceiling: Ceiling
    sm_count: int
    l2_bytes: float
    factors: Mapping[str, Factor]
    clock_hz: float = DEFAULT_CLOCK_HZ
    before_hopper: bool = False

    @property
    def cycles_per_s(self) -> float:
        """Of all multiprocessors together: what kernels that wait for instructions, not bytes, go by."""
        return self.sm_count * self.clock_hz

    def flop_per_s(self, dtype: str) -> float:
        return self.ceiling.rate(PEAK_NAMES.get(dtype, "fp32"))

    def factor(self, name: str, default: float = 1.0) -> float:
        found = self.factors.get(name)
        return found.value if found else default


def rates(accelerator: Accelerator, factors: Mapping[str, Factor] | None = None) -> Rates:
    """Ceilings and sizes of a device; factors default to the shipped priors."""
    return Rates(
        accelerator.name,
        ceiling(accelerator),
        accelerator.sm_count or DEFAULT_SM_COUNT,
        float(accelerator.l2_bytes or DEFAULT_L2_BYTES),
        prior_factors() if factors is None else factors,
        accelerator.boost_clock_hz or DEFAULT_CLOCK_HZ,
        (accelerator.compute_capability or HOPPER) < HOPPER,
    )


def base_seconds(
    kind: str, dtype: str, variants: NDArray[np.str_], shape: Numbers, work: Numbers, at: Rates
) -> Numbers:
    """Seconds before any measurement is asked: launch, then the slower of arithmetic and memory.

    `shape` has one row an operator (see SHAPE_FIELDS), `work` its executed FLOP, bytes read and bytes written.
    """
    memory = memory_seconds(work[:, 1] + work[:, 2], at)
    model = COMPUTE.get(kind) or LIMITED.get(kind)
    arithmetic = model(dtype, variants, shape, work, at) if model else np.zeros(len(work))
    share = np.full(len(work), at.factor(f"prior_{kind}")) if kind not in COMPUTE else np.ones(len(work))
    if kind in ("copy", "pointwise"):
        share = np.where(shape[:, 1] > 1, at.factor("prior_strided"), share)
    if kind == "scatter":
        share = np.where(variants == "embedding_dense_backward", 1.0, share)
    if kind == "layer_norm":
        share = np.where(np.char.find(variants, "backward") >= 0, at.factor("prior_layer_norm_backward"), share)
    beside = BESIDE[kind](dtype, variants, shape, work, at) if kind in BESIDE else 0.0
    result: Numbers = at.factor("kernel_launch_s") + np.maximum(arithmetic, memory / share) + beside
    return result


def transferred_seconds(
    seconds: Numbers,
    kind: str,
    dtype: str,
    variants: NDArray[np.str_],
    shape: Numbers,
    work: Numbers,
    theirs: Rates,
    at: Rates,
) -> Numbers:
    """Seconds here of operators that took `seconds` on another device.

    What the model explains goes by the model, what is left over by the multiprocessors' cycles: loads that are waited
    for, exponentials, the ends of tiles. Streams go by their bytes, products by their tiles; a product is no further
    below its ceiling than it was there, and one that was above the model is as far above it here.
    """
    if kind not in COMPUTE:
        return _carried_streams(seconds, work, theirs, at)
    given = (kind, dtype, variants, shape, work)
    there, here = base_seconds(*given, theirs), base_seconds(*given, at)
    beside = np.maximum(seconds - there, 0.0) * theirs.cycles_per_s / at.cycles_per_s
    same_share = here * seconds / there
    result: Numbers = np.where(seconds > there, np.minimum(here + beside, same_share), same_share)
    return result


def _carried_streams(seconds: Numbers, work: Numbers, theirs: Rates, at: Rates) -> Numbers:
    """As much of the time as moving the bytes explains goes by the bandwidths, the rest by the cycles."""
    moved = work[:, 1] + work[:, 2]
    there = np.maximum(memory_seconds(moved, theirs), 1e-12)
    launch = theirs.factor("kernel_launch_s")
    busy = np.maximum(seconds - launch, 0.05 * seconds)
    share = np.minimum(there / busy, 1.0)
    slower = memory_seconds(moved, at) / there
    cycles = theirs.cycles_per_s / at.cycles_per_s
    parts = (share * slower) ** OVERLAP + (1.0 - share**OVERLAP) * cycles**OVERLAP
    result: Numbers = (seconds - busy) + busy * parts ** (1.0 / OVERLAP)
    return result


def indexed_seconds(elements: Numbers, bytes_each: NDArray[np.floating[Any]], at: Rates) -> Numbers:
    """Kernels that work out an index or a conversion for each element run at a rate of elements, not of bytes: as long
    as a stream of so many bytes each."""
    result: Numbers = elements * bytes_each / at.ceiling.memory_bytes_per_s
    return result


def memory_seconds(moved_bytes: Numbers, at: Rates) -> Numbers:
    """Streaming seconds; what fits in half of the L2 moves faster, with a smooth passage between the two."""
    resident = 1.0 / (1.0 + (moved_bytes / (0.5 * at.l2_bytes)) ** 2)
    gain = 1.0 + (at.factor("l2_bandwidth_over_memory") - 1.0) * resident
    result: Numbers = moved_bytes / (at.ceiling.memory_bytes_per_s * gain)
    return result


def tiled_seconds(batch: Numbers, m: Numbers, n: Numbers, k: Numbers, rate: float, at: Rates) -> Numbers:
    """Whole waves of tiles over the multiprocessors, with the tile and the split that finish first."""
    tiles = batch[:, None] * np.ceil(m[:, None] / _DOWN) * np.ceil(n[:, None] / _ACROSS)
    waves = np.ceil(tiles * _SPLIT / at.sm_count)
    inner = np.ceil(k[:, None] / _SPLIT / 32.0) * 32.0
    result: Numbers = (waves * inner * _EFFORT).min(axis=1) * (at.sm_count / rate)
    return result


def _choices() -> Numbers:
    """Every tile, upright and lying, with every split: rows, columns, split, FLOP per inner step at full rate."""
    shapes = {(rows, columns, share) for rows, columns, share in TILES} | {
        (wide, high, share) for high, wide, share in TILES
    }
    table = [
        (rows, columns, split, 2.0 * rows * columns / share * (1.0 + SPLIT_EXTRA * (split > 1)))
        for rows, columns, share in sorted(shapes)
        for split in SPLITS
    ]
    return np.asarray(table).T


_DOWN, _ACROSS, _SPLIT, _EFFORT = _choices()


def _matmul(dtype: str, variants: NDArray[np.str_], shape: Numbers, work: Numbers, at: Rates) -> Numbers:
    seconds = tiled_seconds(shape[:, 0], shape[:, 1], shape[:, 2], shape[:, 3], at.flop_per_s(dtype), at)
    return seconds * _penalty(shape[:, 6:9], dtype, at)


def _penalty(aligned: Numbers, dtype: str, at: Rates) -> Numbers:
    """How much longer a product takes whose rows are not 16-byte aligned: its kernels load few elements at a time, at
    so many FLOP a cycle, which slower tensor cores hardly notice; fp32 kernels load single elements anyway."""
    if dtype == "f32":
        return np.ones(len(aligned))
    worst = aligned.min(axis=1)
    names = ("tf32",) * 3 if dtype == "tf32" else ("8_bytes", "4_bytes", "2_bytes")
    a_cycle = np.select(
        [worst >= 16, worst >= 8, worst >= 4],
        [np.inf, at.factor(f"prior_misaligned_{names[0]}"), at.factor(f"prior_misaligned_{names[1]}")],
        at.factor(f"prior_misaligned_{names[2]}"),
    )
    faster = at.factor("prior_misaligned_before_hopper") if at.before_hopper else 1.0
    result: Numbers = np.maximum(1.0, at.flop_per_s(dtype) / (a_cycle * faster * at.cycles_per_s))
    return result


def _grouped(dtype: str, variants: NDArray[np.str_], shape: Numbers, work: Numbers, at: Rates) -> Numbers:
    groups, m, n, k, ragged_k = shape.T
    rows, inner = np.where(ragged_k > 0, m, m / groups), np.where(ragged_k > 0, k / groups, k)
    return tiled_seconds(groups, rows, n, inner, at.flop_per_s(dtype), at)


def _convolution(dtype: str, variants: NDArray[np.str_], shape: Numbers, work: Numbers, at: Rates) -> Numbers:
    images, c_in, c_out, p_in, p_out, volume, stride, groups, _, transposed, grad_in, grad_w, *_ = shape.T
    rate = at.flop_per_s(dtype)
    spread = images * np.where(transposed > 0, p_in, p_out)
    # The side with more positions meets only every stride-th weight.
    up = volume / np.where(transposed > 0, np.minimum(stride, volume), 1.0)
    down = volume / np.where(transposed > 0, 1.0, np.minimum(stride, volume))
    forward = tiled_seconds(groups, images * p_out, c_out / groups, c_in / groups * up, rate, at)
    data = tiled_seconds(groups, images * p_in, c_in / groups, c_out / groups * down, rate, at)
    weight = tiled_seconds(groups, c_out / groups, c_in / groups * volume, spread, rate, at)
    backward = grad_in + grad_w > 0
    seconds = np.where(backward, grad_in * data + grad_w * weight, forward)
    on_cores = work[:, 0] / (at.flop_per_s("f32") * at.factor("prior_depthwise"))
    result: Numbers = np.where(narrow(shape), on_cores, seconds)
    return result


def narrow(shape: Numbers) -> NDArray[np.bool_]:
    """Convolutions with few channels a group (depthwise ones): kernels without tensor cores."""
    _, c_in, c_out, _, _, _, _, groups, *_ = shape.T
    result: NDArray[np.bool_] = (groups > 1) & (np.maximum(c_in, c_out) / groups < NARROW_CHANNELS)
    return result


def direct(shape: Numbers, dtype: str) -> NDArray[np.bool_]:
    """Convolutions that read the channels-first layout as it is: by 1 with aligned planes, or in plain fp32."""
    _, _, _, p_in, _, volume, stride, *_ = shape.T
    item = 4.0 if dtype in ("f32", "tf32") else 2.0
    aligned = (volume == 1) & (stride == 1) & (p_in * item % 16 == 0)
    result: NDArray[np.bool_] = aligned | (dtype == "f32") | narrow(shape)
    return result


def _around_convolution(dtype: str, variants: NDArray[np.str_], shape: Numbers, work: Numbers, at: Rates) -> Numbers:
    """Kernels around a convolution: images turned to channels-last and back, a bias added or its gradient summed."""
    images, c_in, c_out, p_in, p_out, _, _, groups, _, _, grad_in, grad_w, last, bias, _ = shape.T
    item = 4.0 if dtype in ("f32", "tf32") else 2.0
    backward = grad_in + grad_w > 0
    into, out = images * c_in * p_in, images * c_out * p_out
    turned = 2.0 * item * (out + into * np.where(backward, grad_in + grad_w, 1.0))
    turned = np.where((last > 0) | direct(shape, dtype), 0.0, turned / at.factor("prior_layout_change"))
    few = (groups == 1) & (c_in < FEW_CHANNELS)
    padded = few * into * at.factor("prior_padded_image_bytes")
    biased = bias * out * np.where(backward, item / at.factor("prior_bias_gradient"), at.factor("prior_indexed_bytes"))
    result: Numbers = (turned + padded + biased) / at.ceiling.memory_bytes_per_s
    return result


def _streamed(dtype: str, variants: NDArray[np.str_], shape: Numbers, work: Numbers, at: Rates) -> Numbers:
    """Pointwise kernels and copies: what is strided, broadcast or converted costs by the element."""
    strided = shape[:, 1] > 0
    each = at.factor("prior_indexed_bytes") * (strided | (shape[:, 2] > 0))
    each = each + at.factor("prior_converted_bytes") * (shape[:, 3] > 0)
    return indexed_seconds(shape[:, 0], each, at)


def _copied(dtype: str, variants: NDArray[np.str_], shape: Numbers, work: Numbers, at: Rates) -> Numbers:
    return indexed_seconds(shape[:, 0], at.factor("prior_indexed_bytes") * (shape[:, 1] > 0), at)


def _first_copied(dtype: str, variants: NDArray[np.str_], shape: Numbers, work: Numbers, at: Rates) -> Numbers:
    """A normalisation of transposed rows copies them first, a loss of images its scores with channels last."""
    return indexed_seconds(shape[:, 0] * shape[:, 1], 2.0 * at.factor("prior_indexed_bytes") * (shape[:, 2] > 0), at)


def _resample(dtype: str, variants: NDArray[np.str_], shape: Numbers, work: Numbers, at: Rates) -> Numbers:
    """A thread a position goes through all planes, one tap after the other, unless channels are last or the size stays;
    the gradient of a linear one adds each element to four places, and the more elements a place takes the longer each
    waits."""
    planes, before, after, last = shape.T
    backward = np.char.find(variants, "backward") >= 0
    linear = np.char.find(variants, "linear") >= 0
    alone = (before != after) & (last == 0)
    taps = np.select([np.char.find(variants, "bicubic") >= 0, linear & ~backward & alone], [16.0, 1.0], 0.0)
    half = work[:, 2] < 4.0 * planes * after
    added = np.where(half, at.factor("prior_contended_half_s"), at.factor("prior_contended_s"))
    contended = np.where(linear & backward & alone, 4.0 * planes * before * np.maximum(before / after, 1.0), 0.0)
    result: Numbers = planes * taps * at.factor("prior_tap_s") + contended * added
    return result


def _scan(dtype: str, variants: NDArray[np.str_], shape: Numbers, work: Numbers, at: Rates) -> Numbers:
    """A thread goes along an outer dimension one element after the other; inner rows are blocks' work, tile by tile."""
    rows, length, inner = shape.T
    along = np.where(inner > 1, at.factor("prior_scan_step_s"), at.factor("prior_scan_element_s"))
    result: Numbers = length * along + np.where(inner > 1, 0.0, rows * at.factor("prior_scan_row_s"))
    return np.where((inner == 1) & (rows == 1), 0.0, result)


def _after_scatter(dtype: str, variants: NDArray[np.str_], shape: Numbers, work: Numbers, at: Rates) -> Numbers:
    """The gradient of an embedding goes through few rows one after the other, and sorts many; sums at an index sort
    them too."""
    rows, length, _, summed = shape.T
    many = rows > SORTED_ROWS
    sums = np.where(many, at.factor("prior_sorted_rows_s") + rows * length * at.factor("prior_sorted_element_s"), 0.0)
    sums = np.where(many, sums, rows * at.factor("prior_summed_row_s"))
    indexed = summed * 0.5 * at.factor("prior_sorted_rows_s")
    result: Numbers = np.where(variants == "embedding_dense_backward", sums, indexed)
    return result


def _attention(dtype: str, variants: NDArray[np.str_], shape: Numbers, work: Numbers, at: Rates) -> Numbers:
    """Few keys leave the start and end of each tile's loop, small heads the exponentials, as the larger part: both take
    cycles, which slow tensor cores hardly notice.

    A block of the forward kernel goes along the keys for a tile of queries, one of the backward kernel along the
    queries for a tile of keys.
    """
    batch, heads, _, queries, keys, head_dim, causal, backward, _, _ = shape.T
    rate = _attention_rate(dtype, at)
    a_cycle = rate / at.cycles_per_s
    share = np.where(backward > 0, at.factor("prior_attention_backward"), at.factor("prior_attention_forward"))
    share = np.where(variants == "efficient", share * at.factor("prior_attention_efficient"), share)
    seen = keys / np.where(causal > 0, 2.0, 1.0)
    share = share * seen / (seen + at.factor("attention_half_keys") * a_cycle)
    share = share * head_dim / (head_dim + at.factor("attention_half_head_dim") * a_cycle)
    tiles = batch * heads * np.ceil(np.where(backward > 0, keys, queries) / ATTENTION_TILE)
    filled = tiles / (np.ceil(tiles / at.sm_count) * at.sm_count)
    result: Numbers = work[:, 0] / (rate * share * filled)
    return result


def _attention_rate(dtype: str, at: Rates) -> float:
    """FLOP/s of a fused kernel at best. One in fp32 makes three TF32 products of each, as CUTLASS's fast fp32 does, of
    parts that it splits off by instructions beside them; before tensor cores had TF32 it multiplies without them."""
    if dtype != "f32":
        return at.flop_per_s(dtype)
    products = SPLIT_PRODUCTS if "tf32" in at.ceiling.flop_per_s else 1
    multiplied = products / at.flop_per_s("tf32")
    split = 1.0 / (at.factor("prior_attention_split") * at.cycles_per_s)
    return float((multiplied**OVERLAP + split**OVERLAP) ** (-1.0 / OVERLAP))


def _rnn(dtype: str, variants: NDArray[np.str_], shape: Numbers, work: Numbers, at: Rates) -> Numbers:
    """A chain of steps: each waits for the last and reads the recurrent weights again."""
    _, steps, _, hidden, layers, directions, gates, backward = shape.T
    item = 4.0 if dtype in ("f32", "tf32") else 2.0
    weights = item * gates * hidden**2 * directions / (at.ceiling.memory_bytes_per_s * at.factor("prior_rnn_weights"))
    chain = steps * layers * (at.factor("prior_rnn_step_s") + weights) * (1 + 0.5 * backward)
    result: Numbers = chain + work[:, 0] / (at.flop_per_s(dtype) * at.factor("prior_rnn"))
    return result


def _ctc(dtype: str, variants: NDArray[np.str_], shape: Numbers, work: Numbers, at: Rates) -> Numbers:
    result: Numbers = shape[:, 0] * at.factor("prior_ctc_step_s")
    return result


def _fused(dtype: str, variants: NDArray[np.str_], shape: Numbers, work: Numbers, at: Rates) -> Numbers:
    """A lane takes an instruction where it could take a multiply-add; what is added at an index goes there and back."""
    scattered, instructions = shape[:, 3], shape[:, 4]
    lanes = instructions / (at.flop_per_s("f32") / 2.0)
    result: Numbers = np.maximum(lanes, indexed_seconds(scattered, np.asarray(at.factor("prior_added_bytes")), at))
    return result


Model = Callable[[str, NDArray[np.str_], Numbers, Numbers, Rates], Numbers]

COMPUTE: dict[str, Model] = {
    "matmul": _matmul,
    "grouped_matmul": _grouped,
    "convolution": _convolution,
    "attention": _attention,
    "rnn": _rnn,
    "ctc": _ctc,
}
"""Kinds whose arithmetic or dependence can outlast their memory traffic, and that reach the memory ceiling else."""

BESIDE: dict[str, Model] = {
    "convolution": _around_convolution,
    "layer_norm": _first_copied,
    "scatter": _after_scatter,
    "loss": _first_copied,
}
"""Kernels that come before or after the main one."""

LIMITED: dict[str, Model] = {
    "pointwise": _streamed,
    "copy": _copied,
    "resample": _resample,
    "scan": _scan,
    "fused": _fused,
}
"""Streams that something else than the memory can limit."""
