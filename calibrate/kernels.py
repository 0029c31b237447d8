"""Every kind of operator that planner prices, and the calls of it that a calibration times."""

from __future__ import annotations

from collections.abc import Callable, Iterator

from calibrate import kernels_dense as dense
from calibrate import kernels_memory as memory
from calibrate import kernels_rows as rows
from planner.call import Call

KERNELS: dict[str, Callable[[], Iterator[Call]]] = {
    "matmul": dense.matmul,
    "grouped_matmul": dense.grouped_matmul,
    "convolution": dense.convolution,
    "attention": dense.attention,
    "rnn": dense.rnn,
    "layer_norm": rows.layer_norm,
    "group_norm": rows.group_norm,
    "batch_norm": rows.batch_norm,
    "softmax": rows.softmax,
    "loss": rows.loss,
    "reduction": rows.reduction,
    "scan": rows.scan,
    "sort": rows.sort,
    "fft": rows.fft,
    "ctc": rows.ctc,
    "pool": rows.pool,
    "resample": rows.resample,
    "pointwise": memory.pointwise,
    "copy": memory.copy,
    "fill": memory.fill,
    "random": memory.random,
    "gather": memory.gather,
    "scatter": memory.scatter,
    "optimizer": memory.optimizer,
    "fused": memory.fused,
}
