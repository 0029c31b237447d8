"""The measured part of a price: how far a shape stands from the analytic model, interpolated between samples.

A Gaussian process over the logarithm of seconds / model. It goes through what was measured (up to the noise), is smooth
between, and falls back to the mean of the samples far away, so that an unseen shape cannot go wild.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy.linalg import cho_factor, cho_solve

from catalog.errors import RigplanError
from catalog.profile import Samples
from planner.operators.operator import SHAPE_FIELDS
from planner.roofline import Numbers, Rates, base_seconds, narrow, transferred_seconds

LARGEST_LOG_FACTOR = float(np.log(12.0))
"""What another device's curve says never leaves this range: no shape is more than 12 times off a sound model, but for
kernels that were seen to be on the device at hand (a grouped convolution in 16 bit on an H200: 100 times)."""
DEFAULT_TUNING = {"signal": 0.35, "local": 0.05, "noise": 0.02, "mean": 0.6, "length": 3.0, "variant": 0.4}
RESTS_ON = {"f16": "bf16", "tf32": "bf16", "rnn/tf32": "f32"}
"""Curves that say only how they differ from another dtype's; a kind can have its own rule."""
LOCAL_DOUBLINGS = 3
"""The second component of the process reaches 2 to this power times less far: library heuristics for single shapes."""
RANGE_EXTRA = 0.1
"""How far beyond the range of what was seen an interpolated logarithm may go, as a share of it."""
ITEM_WEIGHT = 2.0
BLOCK_ROWS = 32
SHORT_ROW = 1024
LONGEST_RUN = 14.0
"""Longer runs than 2 to this power of elements are all alike."""
SCAN_THREADS, SCAN_ACROSS = 9, (4, 9)
"""Of a block that scans rows, as powers of 2: threads, and the fewest and most of them that share a row."""
SMALL_BYTES = 2.0**14
"""Streams below this size are all alike: the launch is what they take."""


def features(kind: str, shape: Numbers, work: Numbers) -> Numbers:
    """Coordinates in which near operators behave alike: logarithms of sizes, and flags."""
    maker = FEATURES.get(kind, _rows)
    return maker(shape, work)


@dataclass(slots=True, eq=False)
class Curve:
    """Samples of one kind and dtype, ready to be asked. In double precision: the weights cancel."""

    samples: Samples
    at: Rates
    centre: Numbers
    scales: Numbers
    points: Numbers
    weights: Numbers
    tuning: dict[str, float]
    lowest: float
    largest: float

    def log_factor(self, variants: NDArray[np.str_], shape: Numbers, work: Numbers) -> Numbers:
        """log(seconds / model) of each operator, within the range of what was seen."""
        asked = (coordinates(self.samples, variants, shape, work) - self.centre) / self.scales
        # In blocks that stay in the processor's cache: a quarter of the time.
        blocks = [asked[start : start + BLOCK_ROWS] for start in range(0, len(asked), BLOCK_ROWS)]
        found = np.concatenate([_kernel(block, self.points, self.tuning) @ self.weights for block in blocks or [asked]])
        result: Numbers = np.clip(found, self.lowest, self.largest)
        return result


def below(samples: Samples, curves: Mapping[str, tuple[Samples, ...]]) -> tuple[Samples, ...]:
    """What these samples rest on: of a device that was measured, the dtype of RESTS_ON, which is timed at many more
    shapes or runs through the same kernels."""
    lower = RESTS_ON.get(samples.key, RESTS_ON.get(samples.dtype, ""))
    key = f"{samples.kind}/{lower}"
    return tuple(
        item for item in curves.get(key, ()) if samples.measured and item.measured and item.device == samples.device
    )


def fit(samples: Samples, rates: Rates, below: tuple[Curve, ...] = ()) -> Curve:
    """A curve through samples of one device, on top of what the curves below it already say. RigplanError for samples
    of a profile that describes shapes otherwise."""
    wanted = SHAPE_FIELDS[samples.kind]
    if samples.shape.shape[1] != len(wanted):
        raise RigplanError(
            f"the profile's curve {samples.key} of {samples.device} has {samples.shape.shape[1]} numbers a shape; "
            f"wanted {len(wanted)} ({', '.join(wanted)}): another version of rigplan made it, calibrate again"
        )
    return fit_residual(samples, *residual_of(samples, rates, below), rates)


def residual_of(samples: Samples, rates: Rates, below: tuple[Curve, ...] = ()) -> tuple[NDArray[np.str_], Numbers]:
    """(variant names, log of seconds over what the analytic model and the curves below say)."""
    names = np.asarray(samples.variants)[samples.variant]
    model = log_seconds(samples.kind, samples.dtype, names, samples.shape, samples.work, below, rates)
    residual: Numbers = np.log(samples.seconds) - model
    return names, residual


def log_seconds(
    kind: str,
    dtype: str,
    variants: NDArray[np.str_],
    shape: Numbers,
    work: Numbers,
    curves: tuple[Curve, ...],
    at: Rates,
    *,
    largest: bool = False,
) -> Numbers:
    """Logarithm of seconds by the analytic model and the curves on it; the `largest` that the curves allow.

    What a relative's curves say is brought from its rates to the next one's and at last to these.
    """
    given = (dtype, variants, shape, work)
    device = curves[0].at if curves else at
    result: Numbers = np.log(base_seconds(kind, *given, device))
    for curve in curves:
        if curve.at.device != device.device:
            result = np.log(transferred_seconds(np.exp(result), kind, *given, device, curve.at))
            device = curve.at
        factor = curve.largest if largest else curve.log_factor(variants, shape, work)
        if curve.at.device != at.device:
            factor = np.clip(factor, -LARGEST_LOG_FACTOR, LARGEST_LOG_FACTOR)
        result = result + factor
    if device.device != at.device:
        result = np.log(transferred_seconds(np.exp(result), kind, *given, device, at))
    return result


def fit_residual(samples: Samples, names: NDArray[np.str_], residual: Numbers, at: Rates) -> Curve:
    tuning = {**DEFAULT_TUNING, **{key: value for key, value in samples.tuning.items() if key != "lengths"}}
    raw = coordinates(samples, names, samples.shape, samples.work)
    lengths = np.asarray(samples.tuning.get("lengths", ()), dtype=np.float64)
    count = raw.shape[1] - len(samples.variants)
    if len(lengths) != count:
        lengths = np.full(count, tuning["length"])
    scales = np.concatenate([lengths, np.full(len(samples.variants), 1.0 / max(tuning["variant"], 1e-3))])
    centre = raw.mean(axis=0)
    points = (raw - centre) / scales
    matrix = _kernel(points, points, tuning)
    matrix[np.diag_indices_from(matrix)] += tuning["noise"] ** 2
    weights = cho_solve(cho_factor(matrix, lower=True), residual)
    spread = RANGE_EXTRA * float(residual.max() - residual.min()) + RANGE_EXTRA
    lowest, largest = float(residual.min()) - spread, float(residual.max()) + spread
    return Curve(samples, at, centre, scales, points, weights, tuning, lowest, largest)


def coordinates(samples: Samples, variants: NDArray[np.str_], shape: Numbers, work: Numbers) -> Numbers:
    """Features and, for each variant the samples know, a coordinate of its own."""
    chosen = (variants[:, None] == np.asarray(samples.variants)[None, :]).astype(np.float64)
    return np.concatenate([features(samples.kind, shape, work), chosen], axis=1)


def _kernel(one: Any, two: Any, tuning: dict[str, float]) -> Any:
    """Matern 5/2, far-reaching and local, over a constant mean. In place: this is where pricing spends its time."""
    square = one @ two.T
    square *= -2.0
    square += (one**2).sum(axis=1)[:, None]
    square += (two**2).sum(axis=1)
    np.maximum(square, 0.0, out=square)
    square *= 5.0
    distance = np.sqrt(square)
    square *= 1.0 / 3.0
    square += distance
    square += 1.0
    np.negative(distance, out=distance)
    np.exp(distance, out=distance)
    square *= distance
    square *= tuning["signal"] ** 2
    for _ in range(LOCAL_DOUBLINGS):
        distance *= distance
    distance *= tuning["local"] ** 2
    square += distance
    square += tuning["mean"] ** 2
    return square


def _log(values: Numbers) -> Numbers:
    result: Numbers = np.log2(np.maximum(values, 1.0))
    return result


def _rows(shape: Numbers, work: Numbers) -> Numbers:
    return np.concatenate([_log(shape), _log(work[:, 1:2] + work[:, 2:3])], axis=1)


def _items(columns: tuple[int, ...]) -> Callable[[Numbers, Numbers], Numbers]:
    """Like `_rows`, with the bytes of one written element: atomics and casts depend on the dtype."""

    def coordinates_of(shape: Numbers, work: Numbers) -> Numbers:
        written = np.log2(np.maximum(work[:, 2], 1.0) / np.maximum(shape[:, columns].prod(axis=1), 1.0))
        return np.concatenate([_rows(shape, work), ITEM_WEIGHT * np.clip(written, 0.0, 3.0)[:, None]], axis=1)

    return coordinates_of


def _matmul(shape: Numbers, work: Numbers) -> Numbers:
    batch, m, n, k, flip_a, flip_b, *aligned = shape.T
    return np.stack([_log(batch), _log(m), _log(n), _log(k), flip_a, flip_b, *(np.log2(item) for item in aligned)], 1)


def _moved(shape: Numbers, work: Numbers) -> Numbers:
    """Bytes, written over read, bytes an element."""
    elements = np.maximum(shape[:, 0], 1.0)
    moved = work[:, 1] + work[:, 2]
    balance = work[:, 2] / np.maximum(moved, 1.0)
    return np.stack([_log(np.maximum(moved, SMALL_BYTES)), 2.0 * balance, _log(moved / elements)], 1)


def _pointwise(shape: Numbers, work: Numbers) -> Numbers:
    """Strided, broadcast and converted elements, beside the bytes."""
    return np.concatenate([_moved(shape, work), 2.0 * shape[:, 1:4]], 1)


def _copy(shape: Numbers, work: Numbers) -> Numbers:
    """How strided, and how much lies together, beside the bytes."""
    strided = shape[:, 1]
    run = np.where(strided > 0, np.minimum(_log(shape[:, 2]), LONGEST_RUN), LONGEST_RUN)
    read, written = work[:, 1] / np.maximum(shape[:, 0], 1.0), work[:, 2] / np.maximum(shape[:, 0], 1.0)
    return np.concatenate([_moved(shape, work), np.stack([2.0 * strided, run, _log(read), _log(written)], 1)], 1)


def _reduction(shape: Numbers, work: Numbers) -> Numbers:
    kept, reduced, last = shape.T
    return np.stack([_log(kept), _log(reduced), last, _log(work[:, 1] + work[:, 2])], 1)


def _convolution(shape: Numbers, work: Numbers) -> Numbers:
    images, c_in, c_out, p_in, p_out, volume, stride, groups, dims, transposed, *flags, last, bias, far = shape.T
    few = narrow(shape)
    return np.stack(
        [
            _log(images), np.where(few, 0.0, _log(c_in / groups)), np.where(few, 0.0, _log(c_out / groups)),
            _log(p_out), _log(p_in / np.maximum(p_out, 1)), _log(volume), _log(stride), _log(groups),
            dims, transposed, *flags, last, bias, _log(far), 2.0 * few, 2.0 * (volume == 1),
            np.minimum(c_in % 8, 1), np.minimum(c_out % 8, 1), 1.0 * (p_in % 8 > 0), 1.0 * (few & (last > 0)),
        ],
        1,
    )  # fmt: skip


def _batch_norm(shape: Numbers, work: Numbers) -> Numbers:
    images, channels, positions, last = shape.T
    item = np.log2(np.maximum(work[:, 2] / np.maximum(images * channels * positions, 1.0), 1.0))
    return np.stack([_log(images), _log(channels), _log(positions), 2.0 * last, 2.0 * item], 1)


def _softmax(shape: Numbers, work: Numbers) -> Numbers:
    """Rows of up to 1,024 stay in registers; conversions show in the bytes read and written an element."""
    rows, length, inner = shape.T
    read, written = (work[:, column] / np.maximum(rows * length, 1.0) for column in (1, 2))
    short = 2.0 * ((length <= SHORT_ROW) & (inner == 1))
    return np.stack(
        [_log(rows), _log(length), _log(inner), 2.0 * _log(read), 2.0 * _log(written), short, _log(work[:, 2])], 1
    )


def _layer_norm(shape: Numbers, work: Numbers) -> Numbers:
    items = _items((0, 1))(shape[:, :2], work)
    return np.concatenate([items, 1.0 * (shape[:, 2:] > 1)], 1)


def _pool(shape: Numbers, work: Numbers) -> Numbers:
    return np.concatenate([_items((1,))(shape[:, :3], work), 2.0 * shape[:, 3:]], 1)


def _scan(shape: Numbers, work: Numbers) -> Numbers:
    """Another dtype is converted first, and a single row has a kernel of its own. Where what is scanned lies together,
    a block's threads are split between rows and columns, which sets how many blocks there are and how often each goes
    on (aten/native/cuda/ScanUtils.cuh)."""
    rows, length, inner = shape.T
    read, written = (work[:, column] / np.maximum(rows * length, 1.0) for column in (1, 2))
    together = inner == 1
    balanced = (SCAN_THREADS + np.ceil(_log(length)) - np.ceil(_log(rows))) // 2
    across = np.where(together, np.clip(balanced, *SCAN_ACROSS), SCAN_THREADS)
    turns = np.where(together, np.maximum(_log(length) - across - 1, 0.0), 0.0)
    blocks = np.maximum(_log(rows) - (SCAN_THREADS - across), 0.0)
    return np.stack(
        [
            _log(rows), _log(length), _log(inner), 2.0 * _log(read), 2.0 * _log(written), 2.0 * (rows == 1),
            turns, blocks, 2.0 * (inner > 1),
        ],
        1,
    )  # fmt: skip


def _resample(shape: Numbers, work: Numbers) -> Numbers:
    """Without a change of size it is a copy."""
    planes, before, after, last = shape.T
    item = np.log2(np.maximum(work[:, 2] / np.maximum(planes * after, 1.0), 1.0))
    return np.stack([_log(planes), _log(before), _log(after), 2.0 * item, 2.0 * last, 2.0 * (before == after)], 1)


def _scatter(shape: Numbers, work: Numbers) -> Numbers:
    return np.concatenate([_items((2,))(shape[:, :3], work), 2.0 * shape[:, 3:]], 1)


def _attention(shape: Numbers, work: Numbers) -> Numbers:
    batch, heads, kv_heads, queries, keys, head_dim, causal, backward, mask, dropout = shape.T
    return np.stack(
        [
            _log(batch * heads), _log(heads / np.maximum(kv_heads, 1)), _log(queries), _log(keys), _log(head_dim),
            causal, backward, mask, dropout,
        ],
        1,
    )  # fmt: skip


FEATURES: dict[str, Callable[[Numbers, Numbers], Numbers]] = {
    "matmul": _matmul,
    "convolution": _convolution,
    "attention": _attention,
    "pointwise": _pointwise,
    "copy": _copy,
    "fill": _moved,
    "random": _moved,
    "reduction": _reduction,
    "scatter": _scatter,
    "pool": _pool,
    "resample": _resample,
    "scan": _scan,
    "batch_norm": _batch_norm,
    "softmax": _softmax,
    "layer_norm": _layer_norm,
    **dict.fromkeys(("gather", "group_norm", "sort"), _items((0, 1))),
}
"""Kinds with coordinates of their own; the others use the logarithms of their shape and bytes."""
