"""Normalisations, softmax, losses, reductions, scans and sorts: operators that work along rows."""

from __future__ import annotations

import math

from planner.call import Call
from planner.operators.operator import (
    Describer,
    Operator,
    argument,
    by_bytes,
    channels_last,
    each,
    first,
    integers,
    positions,
    size,
    strided,
)


def layer_norm(variant: str, call: Call) -> Operator:
    """Forward (input, normalized_shape, ...) and backward (grad, input, normalized_shape, ...)."""
    source = call.tensors[0]
    sizes = next((integers(value) for value in call.arguments if isinstance(value, tuple) and integers(value)), ())
    length = math.prod(sizes) if sizes else source.shape[-1]
    # A transposed input is copied first.
    layout = strided((*(spec for spec in call.tensors[:2] if spec.elements == source.elements), *call.results[:1]))
    return by_bytes("layer_norm", variant, call, (source.elements // max(length, 1), length, layout))


def group_norm(variant: str, call: Call) -> Operator:
    """(input, weight, bias, N, C, HxW, group, eps) and its backward; a row is one group of one image."""
    source = call.tensors[0]
    counts = [value for value in call.arguments if type(value) is int]
    rows = counts[0] * counts[3] if len(counts) >= 4 else source.shape[0]
    return by_bytes("group_norm", variant, call, (rows, source.elements // max(rows, 1)))


def batch_norm(variant: str, call: Call) -> Operator:
    """torch gives bf16 to its own kernels and other dtypes to cuDNN's, which are twice as fast (Normalization.cpp).

    Without training nothing is reduced: those are kernels of their own.
    """
    if _by_cudnn(call):
        variant = variant.replace("native_", "cudnn_")
    if next((value for value in call.arguments if type(value) is bool), True) is False:
        variant += "_fixed"
    source = call.tensors[0]
    channels = source.shape[1] if len(source.shape) > 1 else source.shape[0]
    shape = (source.shape[0], channels, positions(source), channels_last(source))
    return by_bytes("batch_norm", variant, call, shape)


def _by_cudnn(call: Call) -> bool:
    """Whether cuDNN normalises: neither tensor nor weights in bf16, and no fp16 weights."""
    dtypes = [spec.dtype for spec in call.tensors]
    return "bf16" not in dtypes and not (dtypes[0] == "f16" and "f32" not in dtypes)


def softmax(variant: str, call: Call) -> Operator:
    """(input, dim, ...) and (grad, output, dim, ...); `inner` counts the elements between two of a row."""
    source = call.tensors[0]
    dims = [value for value in call.arguments if type(value) is int]
    dim = dims[0] % max(len(source.shape), 1) if dims else len(source.shape) - 1
    length = source.shape[dim] if source.shape else 1
    inner = math.prod(source.shape[dim + 1 :])
    return by_bytes("softmax", variant, call, (source.elements // max(length, 1), length, inner))


def loss(variant: str, call: Call) -> Operator:
    """Negative log-likelihood: forward picks one score a row; backward writes a full gradient."""
    scores = call.tensors[1 if "backward" in variant else 0]
    classes = scores.shape[1] if len(scores.shape) > 1 else scores.shape[0]
    rows = scores.elements // max(classes, 1)
    picked = rows * (size((scores,)) // max(scores.elements, 1))
    read = picked + sum(spec.touched_bytes for spec in call.tensors if spec.dtype in ("i64", "i32"))
    return by_bytes("loss", variant, call, (rows, classes, channels_last(scores)), read_bytes=read)


def fused_loss(variant: str, call: Call) -> Operator:
    """Reads the logits once for their sum and once for the gradient that it writes in their place."""
    scores = call.tensors[0]
    rows, classes = scores.shape
    read, written = 2 * scores.touched_bytes + size(call.tensors[1:]), scores.touched_bytes + size(call.results)
    return by_bytes("softmax", variant, call, (rows, classes, 1), read, written)


def reduction(variant: str, call: Call) -> Operator:
    """Sums, means, extremes, norms over some or all dimensions."""
    source = first(call)
    rank = max(len(source.shape), 1)
    place = 2 if variant in ("linalg_vector_norm", "norm", "renorm") else 1
    dims = tuple(dim % rank for dim in integers(argument(call, place, "dim"))) if variant != "dist" else ()
    dims = dims or tuple(range(len(source.shape)))
    reduced = math.prod(source.shape[dim] for dim in dims if dim < len(source.shape))
    last = int(rank - 1 in dims)
    return by_bytes("reduction", variant, call, (source.elements // max(reduced, 1), reduced, last))


def scan(variant: str, call: Call) -> Operator:
    source = first(call)
    dim = integers(argument(call, 1, "dim"), (-1,))[0]
    length = source.shape[dim] if source.shape else 1
    inner = math.prod(source.shape[dim % len(source.shape) + 1 :]) if source.shape else 1
    return by_bytes("scan", variant, call, (source.elements // max(length, 1), length, inner))


def sort(variant: str, call: Call) -> Operator:
    source = first(call)
    length = source.shape[-1] if source.shape else 1
    return by_bytes("sort", variant, call, (source.elements // max(length, 1), length))


def fft(variant: str, call: Call) -> Operator:
    """5 n log2 n FLOP a transform. Its length is that of the real side: the complex one keeps half the frequencies."""
    whole = max(call.tensors[:1] + call.results, key=lambda spec: spec.elements)
    rank = len(whole.shape)
    dims = integers(argument(call, 1, "dim"), (-1,)) or (-1,)
    sides = [whole.shape[dim % rank] for dim in dims] if rank else [1]
    length = math.prod(sides)
    rows = whole.elements // max(length, 1)
    flop = 5.0 * rows * length * math.log2(max(length, 2))
    return by_bytes("fft", variant, call, (rows, length, max(map(_largest_prime, sides))), flop=flop)


def _largest_prime(number: int) -> int:
    """The largest prime factor, which says how many passes a fast transform needs."""
    largest, factor = 1, 2
    while factor * factor <= number:
        if number % factor:
            factor += 1
        else:
            largest, number = factor, number // factor
    return max(largest, number)


def ctc(variant: str, call: Call) -> Operator:
    scores = call.tensors[1 if "backward" in variant else 0]
    targets = call.tensors[2 if "backward" in variant else 1]
    steps, batch, classes = scores.shape if len(scores.shape) == 3 else (scores.shape[0], 1, scores.shape[-1])
    longest = targets.shape[-1] if len(targets.shape) == 2 else targets.elements // max(batch, 1)
    return by_bytes("ctc", variant, call, (steps, batch, classes, longest))


OPERATORS: dict[str, Describer] = {
    **each(
        layer_norm,
        """
        native_layer_norm native_layer_norm_backward _fused_rms_norm _fused_rms_norm_backward rms_norm
        layer_norm
        """,
    ),
    "native_group_norm": group_norm, "native_group_norm_backward": group_norm,
    **each(
        batch_norm,
        """
        native_batch_norm native_batch_norm_backward cudnn_batch_norm cudnn_batch_norm_backward
        miopen_batch_norm miopen_batch_norm_backward _native_batch_norm_legit
        _native_batch_norm_legit_functional _native_batch_norm_legit_no_training _batch_norm_with_update
        _batch_norm_with_update_functional batch_norm_backward _batch_norm_no_update batch_norm_stats
        batch_norm_elemt batch_norm_backward_elemt batch_norm_backward_reduce
        batch_norm_gather_stats_with_counts instance_norm
        """,
    ),
    **each(
        softmax,
        """
        _softmax _softmax_backward_data _log_softmax _log_softmax_backward_data _safe_softmax
        _masked_softmax _masked_softmax_backward logsumexp logcumsumexp glu glu_backward
        """,
    ),
    "rigplan.cross_entropy": fused_loss,
    **each(
        loss,
        """
        nll_loss nll_loss_forward nll_loss_backward nll_loss2d_forward nll_loss2d_backward multi_margin_loss
        multi_margin_loss_backward multilabel_margin_loss_forward multilabel_margin_loss_backward
        """,
    ),
    **each(
        reduction,
        """
        sum mean amax amin max min argmax argmin prod any all norm linalg_vector_norm var std var_mean
        std_mean nansum aminmax count_nonzero median mode _local_scalar_dense item equal dist
        _amp_foreach_non_finite_check_and_unscale is_nonzero trace linalg_matrix_norm _weight_norm_interface
        _weight_norm_interface_backward bincount histc kthvalue nanmedian
        """,
    ),
    **each(
        scan,
        """
        cumsum cumprod cummax cummin _cummax_helper _cummin_helper
        """,
    ),
    **each(
        sort,
        """
        sort topk argsort _unique _unique2 unique_dim unique_consecutive multinomial nonzero nonzero_static
        msort searchsorted bucketize isin randperm masked_select
        """,
    ),
    **each(
        fft,
        """
        _fft_r2c _fft_c2r _fft_c2c fft_rfft fft_irfft fft_fft fft_ifft
        """,
    ),
    **each(
        ctc,
        """
        _ctc_loss _ctc_loss_backward _cudnn_ctc_loss ctc_loss
        """,
    ),
}  # fmt: skip
