"""What an operator takes on a device: an exact measurement, else the curve of its kind, never below physics."""

from __future__ import annotations

import itertools
import math
from collections import defaultdict
from collections.abc import Iterable
from dataclasses import dataclass, field, replace
from functools import lru_cache
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from catalog.accelerator import Accelerator
from catalog.profile import Factor, Profile, Samples, curve_dtype
from catalog.store import accelerator as catalog_accelerator
from planner.call import Call
from planner.curve import Curve, below, fit, log_seconds
from planner.operators import FREE, SHAPE_FIELDS, UNKNOWN, Operator, describe
from planner.roofline import PEAK_NAMES, Numbers, Rates, rates

Known = Literal["measured", "transferred", "prior", "ideal"]

DTYPE_STAND_INS: dict[str, tuple[str, ...]] = {
    "f16": ("bf16", "tf32", "f32"),
    "bf16": ("f16", "tf32", "f32"),
    "tf32": ("bf16", "f16", "f32"),
    "f32": ("tf32", "bf16", "f16"),
    "f8": ("bf16", "f16"),
    "f64": ("f32",),
}
"""Whose curve stands in when an operator's own dtype was not timed."""

PRODUCTS = ("matmul", "grouped_matmul")
"""Kinds whose FLOP are done one by one, so that a device's ceiling holds for them; convolutions have Winograd's way."""

Axes = tuple[tuple[str, ...], ...]
GROWING: dict[str, Axes] = {
    "matmul": (("m",),),
    "weight gradient": (("k",),),
    "batched matmul": (("batch",),),
    "grouped_matmul": (("m",),),
    "convolution": (("images",),),
    "attention": (("batch",), ("queries", "keys")),
    "batch_norm": (("images",),),
    **dict.fromkeys(("layer_norm", "group_norm", "softmax", "loss", "gather", "sort", "scan"), (("rows",),)),
    **dict.fromkeys(("pointwise", "copy", "fill", "random"), (("elements",),)),
    "reduction": (("kept",),),
    "fused": (("kept", "instructions"),),
}
"""What grows with the micro-batch and the length, by kind; dimensions in one group grow together.

An operator costs at least what it would with a half, a quarter, ... of each group: time never falls when work grows.
"""

RISING = 1.0 + 1e-5
"""Each doubling makes an operator at least this much dearer, so that rounding cannot turn the order of two prices."""

NEVER_TIMED = ("rigplan.scan_",)
"""Calls of kernels that nobody has timed on any device: the curve that they are read off is of others like them."""

UNKNOWN_KIND = "pointwise"
"""Operators that nothing is known about are priced like streams of their bytes."""


@dataclass(frozen=True, slots=True)
class Cost:
    """Device seconds of one call. `floor_seconds` is the physical bound."""

    seconds: float
    floor_seconds: float
    known: Known


@dataclass(slots=True, eq=False)
class Pricing:
    """A device, its profile and the precision knob. Curves are made ready as they are asked for, prices are kept."""

    accelerator: Accelerator
    profile: Profile
    tf32: bool = False
    _rates: Rates | None = None
    _curves: dict[str, tuple[Curve, ...]] = field(default_factory=dict)
    _costs: dict[Operator, Cost] = field(default_factory=dict)

    def rates(self) -> Rates:
        """The analytic rates of this device."""
        if self._rates is None:
            self._rates = rates(self.accelerator, self.profile.factors)
        return self._rates

    def curves(self, kind: str, dtype: str) -> tuple[Curve, ...]:
        """Layers of curves for a kind, in the dtype or the nearest one that was timed; empty when none was."""
        dtype = curve_dtype(kind, dtype)
        key = f"{kind}/{dtype}"
        if key not in self._curves:
            names = (key, *(f"{kind}/{item}" for item in DTYPE_STAND_INS.get(dtype, ())))
            found = next((self.profile.curves[name] for name in names if name in self.profile.curves), ())
            layers = tuple(item for samples in found for item in (*below(samples, self.profile.curves), samples))
            self._curves[key] = _fitted(layers, frozenset(self.profile.factors.items()))
        return self._curves[key]


@lru_cache(maxsize=512)
def _fitted(layers: tuple[Samples, ...], factors: frozenset[tuple[str, Factor]]) -> tuple[Curve, ...]:
    """Curves through layers of samples, each on top of those below; kept, as many devices share the lower ones."""
    if not layers:
        return ()
    lower, samples = _fitted(layers[:-1], factors), layers[-1]
    at = rates(catalog_accelerator(samples.device), dict(factors))
    return (*lower, fit(samples, at, lower))


def seconds(operator: Operator, call: Call | None, machine: Pricing) -> Cost:
    """The price of one call: an exact point of the profile first, then the curve of the operator's kind.

    Many calls are priced much faster after `price` has seen their operators.
    """
    if operator.kind == FREE:
        return Cost(0.0, 0.0, machine.profile.known)
    if call is not None and machine.profile.points:
        point = machine.profile.points.get(point_key(call, machine.tf32))
        if point is not None:
            return Cost(point, min(point, floor_seconds(operator, machine)), "measured")
    if operator not in machine._costs:
        price((operator,), machine)
    found = machine._costs[operator]
    return replace(found, known="prior") if call is not None and call.name.startswith(NEVER_TIMED) else found


def price(operators: Iterable[Operator], machine: Pricing) -> None:
    """Price operators together, kind by kind; `seconds` then only looks them up."""
    groups: dict[tuple[str, str], list[Operator]] = defaultdict(list)
    for operator in dict.fromkeys(operators):
        if operator.kind != FREE and operator not in machine._costs:
            groups[operator.kind, operator.dtype].append(operator)
    for (kind, dtype), items in groups.items():
        curves = machine.curves(UNKNOWN_KIND if kind == UNKNOWN else kind, dtype)
        known = _known(curves, machine)
        found = _seconds(kind, dtype, items, machine)
        if dtype == "tf32" and known != "measured":
            # TF32 is leave, not duty: a library keeps the fp32 kernel where that is quicker.
            found = np.minimum(found, _seconds(kind, "f32", items, machine))
        if kind in PRODUCTS and not _own(curves, machine):
            found = np.maximum(found, _ceiling_seconds(items, machine))
        for operator, value in zip(items, found, strict=True):
            floor = floor_seconds(operator, machine)
            machine._costs[operator] = Cost(max(float(value), floor), floor, known)


def point_key(call: Call, tf32: bool) -> str:
    """The text an exact point is kept under; TF32 changes only what fp32 products take."""
    return f"{call} tf32" if tf32 and rounds(call) else str(call)


def rounds(call: Call) -> bool:
    """Whether TF32, where it is allowed, changes what a call runs."""
    return describe(call, tf32=True).dtype == "tf32"


def floor_seconds(operator: Operator, machine: Pricing) -> float:
    """Physics: FLOP over the dense peak, and the bytes that cannot have stayed in the L2 over the bandwidth."""
    computing, moving = physical_seconds(operator, machine)
    in_cache = machine.rates().l2_bytes / machine.accelerator.memory_bytes_per_s
    return max(computing, moving - in_cache)


def physical_seconds(operator: Operator, machine: Pricing) -> tuple[float, float]:
    """(FLOP over the dense peak, bytes over the bandwidth): the larger says what bounds an operator."""
    at = machine.rates()
    name = PEAK_NAMES.get(operator.dtype, "fp32")
    if operator.kind == "attention" and operator.dtype == "f32":
        name = "tf32"
    peak = max(machine.accelerator.peak_flop_per_s.get(name, 0.0), at.ceiling.rate(name))
    return operator.executed_flop / peak, operator.bytes_moved / machine.accelerator.memory_bytes_per_s


def _seconds(kind: str, dtype: str, operators: list[Operator], machine: Pricing) -> Numbers:
    """Model times curve for operators of one kind and dtype, each at least what its halves take."""
    asked = UNKNOWN_KIND if kind == UNKNOWN else kind
    shape = np.asarray([item.shape or (item.bytes_moved, 0, 0, 0) for item in operators], dtype=np.float64)
    work = np.asarray(
        [(item.executed_flop, item.bytes_read, item.bytes_written) for item in operators], dtype=np.float64
    )
    names = np.asarray([item.variant for item in operators])
    curves, at = machine.curves(asked, dtype), machine.rates()
    found = np.exp(log_seconds(asked, dtype, names, shape, work, curves, at))
    owner, smaller, less, halvings = _halvings(asked, shape, work)
    if len(owner) == 0:
        return found
    most = log_seconds(asked, dtype, names[owner], smaller, less, curves, at, largest=True)
    kept = np.flatnonzero(np.exp(most) > found[owner])
    owner = owner[kept]
    halves = np.exp(log_seconds(asked, dtype, names[owner], smaller[kept], less[kept], curves, at))
    np.maximum.at(found, owner, halves * RISING ** halvings[kept])
    return found


def _known(curves: tuple[Curve, ...], machine: Pricing) -> Known:
    """`measured` needs samples that calibration took on this very device; `transferred` a relative's of one vendor."""
    if not curves or machine.profile.known == "prior":
        return "prior"
    if _own(curves, machine) and curves[-1].samples.measured:
        return "measured"
    return "transferred" if any(curve.samples.measured for curve in curves) else "prior"


def _own(curves: tuple[Curve, ...], machine: Pricing) -> bool:
    """Whether the last of the curves was timed on this very device."""
    return bool(curves) and curves[-1].samples.device == machine.accelerator.name


def _ceiling_seconds(operators: list[Operator], machine: Pricing) -> Numbers:
    """Products at the device's ceiling. A relative that was above its own, timed before its power limit set in, tells
    nothing of how far another device goes beyond what was published of it."""
    at = machine.rates()
    return np.asarray([item.executed_flop / at.flop_per_s(item.dtype) for item in operators])


def _halvings(kind: str, shape: Numbers, work: Numbers) -> tuple[NDArray[np.int64], Numbers, Numbers, Numbers]:
    """(row of the whole operator, shape, work, halvings) of every combination of halves along the axes that grow."""
    owners, shapes, works, counts = [np.zeros(0, dtype=np.int64)], [shape[:0]], [work[:0]], [np.zeros(0)]
    for rows, axes in _growing(kind, shape):
        groups = [[SHAPE_FIELDS[kind].index(name) for name in names] for names in axes]
        sizes = [shape[rows][:, places].min(axis=1) for places in groups]
        deepest = [int(np.log2(max(float(size.max(initial=1.0)), 1.0))) for size in sizes]
        for powers in itertools.product(*(range(depth + 1) for depth in deepest)):
            if not any(powers):
                continue
            divisors = [2.0**power for power in powers]
            owner = rows[np.all([size >= step for size, step in zip(sizes, divisors, strict=True)], axis=0)]
            part = shape[owner].copy()
            for places, step in zip(groups, divisors, strict=True):
                part[:, places] /= step
            less = work[owner] / math.prod(divisors)
            if kind == "matmul":
                less[:, 1:] = work[owner, 1:] * _matmul_sizes(part) / _matmul_sizes(shape[owner])
            elif kind == "attention":
                less[:, 0] /= divisors[1]
            owners.append(owner)
            shapes.append(part)
            works.append(less)
            counts.append(np.full(len(owner), float(sum(powers))))
    return np.concatenate(owners), np.concatenate(shapes), np.concatenate(works), np.concatenate(counts)


def _growing(kind: str, shape: Numbers) -> list[tuple[NDArray[np.int64], Axes]]:
    """(rows, axes): along which axes the operators of a kind grow. A matmul says by its layout what its tokens are."""
    every = np.arange(len(shape))
    if kind != "matmul":
        return [(every, GROWING[kind])] if kind in GROWING else []
    batched, flipped = shape[:, 0] > 1, shape[:, 4] > 0
    return [
        (every[batched], GROWING["batched matmul"]),
        (every[~batched & flipped], GROWING["weight gradient"]),
        (every[~batched & ~flipped], GROWING["matmul"]),
    ]


def _matmul_sizes(shape: Numbers) -> Numbers:
    """Elements read and written by each product: not all of them shrink with one dimension."""
    batch, m, n, k = shape[:, :4].T
    return np.stack([batch * k * (m + n), batch * m * n], axis=1)
